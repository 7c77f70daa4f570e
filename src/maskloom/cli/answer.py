"""The command that answers questions on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskloom.cli.options import (
    AsJson,
    Averaged,
    EnsembleOf,
    MaxLength,
    Models,
    chosen_models,
    progress_display,
    show,
)


def answer(
    context: Annotated[Path, typer.Option("--context", help="A text file of any length; - for standard input.")],
    question: Annotated[list[str], typer.Option("--question", help="A question; may be given several times.")],
    model: Models = None,
    ensemble: EnsembleOf = None,
    average: Averaged = "probabilities",
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="Candidates for each question.")] = 1,
    null_threshold: Annotated[
        float | None,
        typer.Option("--null-threshold", help="Say that there is no answer when its score is that far above the best."),
    ] = None,
    max_length: MaxLength = None,
    as_json: AsJson = False,
) -> None:
    """Find the answers to questions in a text."""
    from maskloom.runs.answer import answer as run
    from maskloom.runs.answer import answer_lines

    result = run(
        chosen_models(model, ensemble),
        context,
        question,
        top_k=top_k,
        max_length=max_length,
        null_threshold=null_threshold,
        average=average,
        progress=progress_display(),
    )
    show(result, as_json, lines=answer_lines)
