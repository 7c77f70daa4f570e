"""Commands that train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from maskloom.cli.options import (
    AsJson,
    BadRows,
    Format,
    LabelColumn,
    Model,
    Out,
    Overrides,
    PairColumn,
    Recipe,
    Resume,
    TextColumn,
    Verify,
    chosen_recipe,
    progress_display,
    reading_options,
    show,
    verification,
)


def pretrain(
    corpus: Annotated[Path, typer.Option("--corpus", help="A corpus folder.")],
    out: Out,
    size: Annotated[str | None, typer.Option("--size", help="tiny, mini, small, medium, base or large.")] = None,
    recipe: Recipe = None,
    init: Annotated[Path | None, typer.Option("--init", help="Start from the weights of a model folder.")] = None,
    resume: Resume = False,
    verify: Verify = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Pre-train a BERT with masked LM and next-sentence prediction."""
    from maskloom.config import PretrainRecipe

    changes = [*(overrides or []), *([f'model.size="{size}"'] if size else [])]
    from maskloom.runs.pretraining_plan import check_model

    chosen = chosen_recipe(PretrainRecipe, recipe, changes, out, resume, check=None if init else check_model)
    from maskloom.runs.pretrain import pretrain as run  # heavy: a wrong recipe is refused before it

    with verification(verify, resume):
        result = run(
            chosen, corpus=corpus, out=out, resume=resume, init=init, verify=verify, progress=progress_display()
        )
    show(result, as_json, out)


def finetune(
    model: Model,
    train: Annotated[
        Path, typer.Option("--train", help="Labelled examples: .csv, .tsv, .jsonl; CoNLL columns; SQuAD .json.")
    ],
    dev: Annotated[Path, typer.Option("--dev", help="Labelled examples that decide which weights are kept.")],
    out: Out,
    task: Annotated[
        Literal["single", "pair", "regression", "multilabel", "span", "tagging", "choice"] | None,
        typer.Option("--task", help="Kind of the task."),
    ] = None,
    format_name: Format = None,
    recipe: Recipe = None,
    restarts: Annotated[int | None, typer.Option("--restarts", min=1, help="Runs from different seeds.")] = None,
    keep_restarts: Annotated[
        bool, typer.Option("--keep-restarts", help="Keep the best model of every seed, for an ensemble.")
    ] = False,
    metric: Annotated[str | None, typer.Option("--metric", help="The dev score that decides.")] = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    labels: Annotated[Path | None, typer.Option("--labels", help="A file with one label name a line.")] = None,
    on_bad_rows: BadRows = "error",
    resume: Resume = False,
    verify: Verify = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on labelled text; the weights that score best on dev are kept."""
    from maskloom.config import FinetuneRecipe

    changes = [*(overrides or [])]
    changes += [f'task="{task}"'] if task else []
    changes += [f"restarts={restarts}"] if restarts else []
    changes += ["keep_restarts=true"] if keep_restarts else []
    chosen = chosen_recipe(FinetuneRecipe, recipe, changes, out, resume)
    from maskloom.runs.finetune import finetune as run  # heavy: a wrong recipe is refused before it
    from maskloom.runs.task_summaries import finetuning_lines

    reading = reading_options(text_column, pair_column, label_column, format_name, labels, on_bad_rows)
    with verification(verify, resume):
        result = run(
            chosen,
            model=model,
            train=train,
            dev=dev,
            out=out,
            resume=resume,
            reading=reading,
            metric=metric,
            verify=verify,
            progress=progress_display(),
        )
    show(result, as_json, lines=finetuning_lines)


def quickstart(
    out: Annotated[Path, typer.Option("--out", help="Folder to write; rerun to continue.")] = Path("quickstart"),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Go the whole way on the documentation that every Python installation holds, in about seven minutes."""
    from maskloom.runs.quickstart import quickstart as run
    from maskloom.runs.quickstart import summary_lines

    result = run(out=out, seed=seed, progress=progress_display())
    if as_json:
        show(result, True)
    else:
        typer.echo("\n".join(summary_lines(result)))
