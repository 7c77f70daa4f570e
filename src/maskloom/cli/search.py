"""The command that searches for settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maskloom.cli.options import (
    AsJson,
    BadRows,
    Device,
    Format,
    LabelColumn,
    Model,
    Out,
    PairColumn,
    Recipe,
    Resume,
    TextColumn,
    chosen_recipe,
    continues,
    look_first,
    print_json,
    progress_display,
    reading_options,
    say,
)
from maskloom.cli.training_options import BatchSize, Epochs, LearningRate, Overrides, Seed, SequenceLength, space_beside

Grid = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        help="A recipe key with its values, such as training.batch_size=16,32 (repeatable), or a published grid: "
        "paper (18 trials), small (the paper's for GLUE, 4), minis (20), none.",
    ),
]
Restarts = Annotated[int | None, typer.Option("--restarts", min=1, help="Runs with different seeds per trial.")]
KeepModels = Annotated[Literal["best", "all"], typer.Option("--keep-models", help="Trials whose models are kept.")]


def search(
    model: Model,
    train: Annotated[Path, typer.Option("--train", help="Labelled examples.")],
    dev: Annotated[Path, typer.Option("--dev", help="Labelled examples to compare trials by.")],
    out: Out,
    grid: Grid = None,
    task: Annotated[str | None, typer.Option("--task", help="Kind of task, as in `maskloom finetune`.")] = None,
    format_name: Format = None,
    recipe: Recipe = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    max_length: SequenceLength = None,
    seed: Seed = None,
    device: Device = None,
    restarts: Restarts = None,
    method: Annotated[
        Literal["grid", "optuna"] | None,
        typer.Option("--method", help="Try every combination (default), or let optuna propose settings."),
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Number of trials, for optuna.")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="The dev score that selects the best weights.")] = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    labels: Annotated[Path | None, typer.Option("--labels", help="A file with one label name per line.")] = None,
    on_bad_rows: BadRows = "error",
    keep_models: KeepModels = "best",
    resume: Resume = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune with many settings and rank them by their best dev score."""
    from maskloom.config import FinetuneRecipe

    flags = {"task": task, "epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    flags |= {"max_length": max_length, "seed": seed, "device": device, "restarts": restarts}
    chosen = chosen_recipe(FinetuneRecipe, recipe, overrides or [], out, resume, flags=flags)
    reading = reading_options(text_column, pair_column, label_column, format_name, labels, on_bad_rows)
    look_first(model, [] if continues(out, resume) else [train, dev], chosen.task, reading)
    from maskloom.runs.search import search as run  # heavy: a wrong recipe is refused before it

    result = run(
        chosen,
        model=model,
        train=train,
        dev=dev,
        out=out,
        space=space_beside(grid, flags),
        method=method,
        num_trials=trials,
        reading=reading,
        metric=metric,
        keep_models=keep_models,
        resume=resume,
        progress=progress_display(),
    )
    if as_json:
        print_json(result)
    else:
        _show(result, out)


def _show(result: dict[str, Any], out: Path) -> None:
    from maskloom.runs.search_table import print_table, search_rows

    print_table(*search_rows(result), title=f"{result['num_trials']} trials, by {result['metric']} on dev")
    say("", f"best again:  {result['trials'][0]['command']}", f"model:       {result['model']}")
    say(f"written to {out} (search.json lists all commands; results.md, results.json)")
