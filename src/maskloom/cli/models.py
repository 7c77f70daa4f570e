"""Commands that make model folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskloom.cli.options import AsJson, Out, show


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder with Google's BERT (bert_config.json, vocab.txt, bert_model.ckpt.*), pytorch_model.bin or "
            "safetensors; or one checkpoint in it, such as uncased/bert_model.ckpt."
        ),
    ],
    out: Out,
    uncased: Annotated[
        bool | None,
        typer.Option("--uncased/--cased", help="Whether text is lower-cased; by default what the files say."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn published weights into a model folder, and say what was mapped, dropped and made up."""
    from maskloom.runs.convert import conversion_lines
    from maskloom.runs.convert import convert as run

    show(run(source, out, lowercase=uncased), as_json, lines=conversion_lines)
