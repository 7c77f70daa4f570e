"""The command that makes a page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskloom.cli.options import AsJson, progress_display, show


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders: pre-training, fine-tuning, search or GLUE.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page to write; report.html by default.")] = None,
    examples: Annotated[
        int,
        typer.Option(
            "--examples", min=0, help="Dev examples to predict for the lists of right and wrong ones; 0: none."
        ),
    ] = 500,
    as_json: AsJson = False,
) -> None:
    """Write an HTML page about one or more runs: curves, scores, differences, data, examples."""
    from maskloom.runs.report import report as run

    result = run(runs, out, num_examples=examples, progress=progress_display())
    show(result, as_json, lines=lambda result: [f"written to {result['page']}"])
