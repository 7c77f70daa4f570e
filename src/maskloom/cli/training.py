"""Commands that train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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
    Verify,
    chosen_recipe,
    continues,
    look_first,
    progress_display,
    reading_options,
    say,
    show,
    verification,
)
from maskloom.cli.training_options import (
    BatchSize,
    Epochs,
    LearningRate,
    Minutes,
    Overrides,
    Seed,
    SequenceLength,
    Size,
    Steps,
)


def pretrain(
    corpus: Annotated[Path, typer.Option("--corpus", help="A corpus folder.")],
    out: Out,
    size: Size = None,
    epochs: Epochs = None,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    max_length: SequenceLength = None,
    seed: Seed = None,
    device: Device = None,
    recipe: Recipe = None,
    init: Annotated[Path | None, typer.Option("--init", help="Start from the weights of a model folder.")] = None,
    resume: Resume = False,
    verify: Verify = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Pre-train a BERT with masked LM and next-sentence prediction."""
    from maskloom.config import PretrainRecipe
    from maskloom.runs.pretraining_plan import check_model
    from maskloom.runs.training_flags import with_epochs

    flags = {"size": size, "steps": steps, "batch_size": batch_size, "learning_rate": learning_rate}
    flags |= {"max_length": max_length, "seed": seed, "minutes": minutes, "device": device}
    check = None if init else check_model
    chosen = chosen_recipe(PretrainRecipe, recipe, overrides or [], out, resume, flags=flags, check=check)
    from maskloom.data.corpus_manifest import read_manifest
    from maskloom.foreign_files import check_model_name

    read_manifest(corpus)
    chosen = with_epochs(chosen, epochs, steps, corpus)
    if init is not None:
        check_model_name(init)
    from maskloom.runs.adaptation import pretraining_lines
    from maskloom.runs.pretrain import pretrain as run  # heavy: a wrong recipe or path is refused before it

    with verification(verify, resume):
        result = run(
            chosen, corpus=corpus, out=out, resume=resume, init=init, verify=verify, progress=progress_display()
        )
    show(result, as_json, out, lines=pretraining_lines)


def finetune(
    model: Model,
    train: Annotated[
        Path, typer.Option("--train", help="Labelled examples: .csv, .tsv, .jsonl; CoNLL columns; SQuAD .json.")
    ],
    dev: Annotated[Path, typer.Option("--dev", help="Labelled examples to choose the best weights by.")],
    out: Out,
    task: Annotated[
        Literal["single", "pair", "regression", "multilabel", "span", "tagging", "choice"] | None,
        typer.Option("--task", help="Kind of task; single by default, or as in the recipe or --format."),
    ] = None,
    format_name: Format = None,
    epochs: Epochs = None,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    max_length: SequenceLength = None,
    seed: Seed = None,
    device: Device = None,
    recipe: Recipe = None,
    restarts: Annotated[int | None, typer.Option("--restarts", min=1, help="Runs with different seeds.")] = None,
    keep_restarts: Annotated[
        bool, typer.Option("--keep-restarts", help="Keep the best model of every seed, for an ensemble.")
    ] = False,
    metric: Annotated[str | None, typer.Option("--metric", help="The dev score that selects the best weights.")] = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    labels: Annotated[Path | None, typer.Option("--labels", help="A file with one label name per line.")] = None,
    on_bad_rows: BadRows = "error",
    resume: Resume = False,
    verify: Verify = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on labelled text and keep the weights that score best on dev."""
    from maskloom.config import FinetuneRecipe

    flags = {"task": task, "epochs": epochs, "steps": steps, "batch_size": batch_size, "learning_rate": learning_rate}
    flags |= {"max_length": max_length, "seed": seed, "minutes": minutes, "device": device}
    flags |= {"restarts": restarts, "keep_restarts": keep_restarts or None}
    chosen = chosen_recipe(FinetuneRecipe, recipe, overrides or [], out, resume, flags=flags)
    reading = reading_options(text_column, pair_column, label_column, format_name, labels, on_bad_rows)
    look_first(model, [] if continues(out, resume) else [train, dev], chosen.task, reading)
    from maskloom.runs.finetune import finetune as run  # heavy: a wrong recipe or file is refused before it
    from maskloom.runs.task_summaries import finetuning_lines

    with verification(verify, resume):
        files = {"model": model, "train": train, "dev": dev, "out": out}
        how = {"resume": resume, "reading": reading, "metric": metric, "verify": verify}
        result = run(chosen, **files, **how, progress=progress_display())
    show(result, as_json, lines=finetuning_lines)


def quickstart(
    out: Annotated[Path, typer.Option("--out", help="Folder to write; rerun to continue.")] = Path("quickstart"),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed.")] = 0,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Train a BERT and two classifiers on the documentation inside your Python installation, in about 15 minutes."""
    from maskloom.runs.quickstart import quickstart as run
    from maskloom.runs.quickstart import summary_lines

    result = run(out=out, seed=seed, progress=progress_display())
    if as_json:
        show(result, True)
    else:
        say(*summary_lines(result))
