"""Commands that use a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from maskloom.cli.options import (
    AsJson,
    Averaged,
    BadRows,
    Device,
    EnsembleOf,
    Format,
    LabelColumn,
    MaxLength,
    Model,
    Models,
    PairColumn,
    TextColumn,
    chosen_models,
    print_json,
    progress_display,
    reading_options,
    say,
    show,
)

Input = Annotated[Path, typer.Option("--input", help="Texts: .csv, .tsv, .jsonl, or .txt with one per line.")]


def evaluate(
    data: Annotated[
        Path, typer.Option("--data", help="Labelled examples: .csv, .tsv, .jsonl; CoNLL columns; SQuAD .json.")
    ],
    model: Models = None,
    ensemble: EnsembleOf = None,
    average: Averaged = "probabilities",
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    format_name: Format = None,
    on_bad_rows: BadRows = "error",
    max_length: MaxLength = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Score a model, or an ensemble, on labelled examples."""
    from maskloom.runs.first_look import look_at_input

    reading = reading_options(text_column, pair_column, label_column, format_name, None, on_bad_rows)
    models = chosen_models(model, ensemble)
    look_at_input(models, data, reading, needs_label=True)
    from maskloom.runs.evaluate import evaluate as run  # heavy: wrong data is refused before it
    from maskloom.runs.task_summaries import evaluation_lines

    result = run(models, data, reading=reading, max_length=max_length, average=average, progress=progress_display())
    show(result, as_json, lines=evaluation_lines)


def predict(
    input_file: Input,
    output: Annotated[Path, typer.Option("--output", help="File to write: .jsonl, .csv; .conll for tags.")],
    model: Models = None,
    ensemble: EnsembleOf = None,
    average: Averaged = "probabilities",
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    format_name: Format = None,
    on_bad_rows: BadRows = "error",
    max_length: MaxLength = None,
    device: Device = None,
    csv_safe: Annotated[
        bool, typer.Option("--csv-safe", help="Put ' before cells of a .csv that a spreadsheet would run as a formula.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict every row, in order, with probabilities."""
    from maskloom.runs.first_look import check_place, look_at_input

    reading = reading_options(text_column, pair_column, None, format_name, None, on_bad_rows)
    models = chosen_models(model, ensemble)
    check_place(input_file, output)
    look_at_input(models, input_file, reading, needs_label=False)
    from maskloom.runs.predict import predict as run  # heavy: wrong data is refused before it
    from maskloom.runs.task_summaries import written_lines

    result = run(
        models,
        input_file,
        output,
        reading=reading,
        max_length=max_length,
        average=average,
        csv_safe=csv_safe,
        progress=progress_display(),
    )
    show(result, as_json, lines=written_lines, beside=output)


def fill_mask(
    model: Model,
    text: Annotated[str, typer.Argument(help="Text with one or more [MASK].")],
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="Number of candidates per [MASK].")] = 5,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Predict the words for [MASK]."""
    from maskloom.foreign_files import check_model_name

    check_model_name(model)
    from maskloom.inference import Predictor  # heavy: an absent model is refused before it

    masks = Predictor.load(model).fill_mask(text, top_k=top_k)
    if as_json:
        print_json({"text": text, "masks": masks})
        return
    for mask in masks:
        shown = "  ".join(f"{candidate['token']} {candidate['probability']:.3f}" for candidate in mask)
        say(shown)


def embed(
    model: Model,
    input_file: Input,
    output: Annotated[Path, typer.Option("--output", help="File to write: .npy or .jsonl.")],
    pooling: Annotated[
        Literal["mean", "cls", "max", "mean_sqrt_len", "weightedmean"] | None,
        typer.Option(
            "--pooling",
            help="How token vectors become one: their mean, the first one (cls) and so on. Without it as a "
            "sentence-transformers folder says, else the mean.",
        ),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Scale every vector to length 1. Without it as a sentence-transformers folder says, else not.",
        ),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Compute in 8-bit integers: faster, with vectors close to fp32.")
    ] = False,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    on_bad_rows: BadRows = "error",
    max_length: MaxLength = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Write one vector per text."""
    from maskloom.runs.first_look import check_place, look_at_texts

    reading = reading_options(text_column, pair_column, None, None, None, on_bad_rows)
    check_place(input_file, output)
    look_at_texts(model, input_file, reading)
    from maskloom.runs.embed import embed as run  # heavy: wrong data is refused before it
    from maskloom.runs.task_summaries import written_lines

    result = run(
        model,
        input_file,
        output,
        pooling=pooling,
        normalize=normalize,
        reading=reading,
        max_length=max_length,
        int8=int8,
        progress=progress_display(),
    )
    show(result, as_json, lines=written_lines, beside=output)


def doctor(
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for all speed checks together.")] = 10.0,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Show versions, devices, threads, memory and disk, check each device, and say what would be used."""
    from maskloom.runs.doctor import doctor as run
    from maskloom.runs.doctor import doctor_lines

    result = run(seconds=seconds, progress=progress_display())
    show(result, as_json, lines=doctor_lines)
    if not result["is_sound"]:
        raise typer.Exit(1)


def info(
    folder: Annotated[Path, typer.Argument(help="A model, run, corpus or vocabulary folder.")],
    as_json: AsJson = False,
) -> None:
    """Show what a folder holds."""
    from maskloom.runs.display import screen_of
    from maskloom.runs.info import describe_folder

    show(describe_folder(folder), as_json, lines=screen_of)
