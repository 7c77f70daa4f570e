"""The command that writes activations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from maskloom.cli.options import (
    AsJson,
    BadRows,
    Device,
    Format,
    MaxLength,
    Model,
    Out,
    TextColumn,
    progress_display,
    reading_options,
    show,
)


def features(
    model: Model,
    input_file: Annotated[
        Path, typer.Option("--input", help="Words in columns (CoNLL) or .jsonl, or a .txt file with one text per line.")
    ],
    out: Out,
    layers: Annotated[
        str,
        typer.Option(
            "--layers",
            help="embeddings, last, second_to_last, sum_last_four, concat_last_four, sum_all, all, or numbers of "
            "layers joined by commas: -1 is the last, 0 the embeddings.",
        ),
    ] = "-1,-2,-3,-4",
    units: Annotated[
        Literal["words", "tokens"] | None,
        typer.Option("--units", help="One vector per word (its first piece), or per token of a line."),
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Also write features.jsonl, as the published extract_features does.")
    ] = False,
    precision: Annotated[Literal["float32", "float16"], typer.Option("--precision", help="Number format on disk.")] = (
        "float32"
    ),
    text_column: TextColumn = None,
    format_name: Format = None,
    on_bad_rows: BadRows = "error",
    max_length: MaxLength = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Write a model's activations, of any layer, for every word or token of a file."""
    from maskloom.foreign_files import check_model_name, check_regular

    check_model_name(model)
    check_regular(input_file)
    from maskloom.runs.features import features as run  # heavy: wrong paths are refused before it

    result = run(
        model,
        input_file,
        out,
        layers=layers,
        units=units,
        reading=reading_options(text_column, None, None, format_name, None, on_bad_rows),
        max_length=max_length,
        precision=precision,
        jsonl=jsonl,
        progress=progress_display(),
    )
    vectors = {} if as_json else {"vectors": f"{len(result['vectors'])} a row: {', '.join(result['vectors'])}"}
    show({**result, **vectors}, as_json)
