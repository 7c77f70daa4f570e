"""The command that fits a model's temperature and thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskloom.cli.options import (
    AsJson,
    BadRows,
    Device,
    Format,
    LabelColumn,
    MaxLength,
    Model,
    PairColumn,
    TextColumn,
    progress_display,
    reading_options,
    show,
)


def tune(
    model: Model,
    dev: Annotated[Path, typer.Option("--dev", help="Labelled examples that the model was not trained on.")],
    temperature: Annotated[
        bool, typer.Option("--temperature/--no-temperature", help="Fit the temperature of probabilities.")
    ] = True,
    thresholds: Annotated[
        bool, typer.Option("--thresholds/--no-thresholds", help="Fit thresholds: of labels, or of no answer.")
    ] = True,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    format_name: Format = None,
    on_bad_rows: BadRows = "error",
    max_length: MaxLength = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Fit temperature and thresholds on labelled examples, and store them with the model."""
    from maskloom.runs.first_look import look_at_input

    reading = reading_options(text_column, pair_column, label_column, format_name, None, on_bad_rows)
    look_at_input([model], dev, reading, needs_label=True)
    from maskloom.runs.task_summaries import tuning_lines
    from maskloom.runs.tune import tune as run  # heavy: wrong data is refused before it

    result = run(
        model,
        dev,
        fits_temperature=temperature,
        fits_thresholds=thresholds,
        reading=reading,
        max_length=max_length,
        progress=progress_display(),
    )
    show(result, as_json, lines=tuning_lines)
