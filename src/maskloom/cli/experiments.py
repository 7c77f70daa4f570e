"""Commands that plan pre-training and reproduce experiments from papers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maskloom.cli.options import AsJson, Device, Out, Overrides, Recipe, epochs_of, show, trains
from maskloom.errors import UsageError
from maskloom.runs.display import terminal_progress
from maskloom.system.resources import usable_cores

ExperimentName = Literal[
    "table5",
    "table6",
    "table7",
    "table8",
    "figure1",
    "figure4",
    "transformer-table1",
    "transformer-table3",
    "budget",
    "rnn-gradients",
    "rnn-attention",
]

MADE_AT_ONCE = ("figure1", "transformer-table1", "rnn-gradients", "rnn-attention")
"""Experiments that write nothing before their final page."""
_SEEDS, _MINUTES = 3, 60.0
_training_option: Any = partial(
    typer.Option, rich_help_panel="Not for figure1, transformer-table1, rnn-gradients and rnn-attention"
)
_budget_option: Any = partial(typer.Option, rich_help_panel="For budget")


def reproduce(
    experiment: Annotated[ExperimentName, typer.Argument(help="A table or figure of a paper, or another experiment.")],
    out: Out,
    *,
    scale: Annotated[
        Literal["tiny", "one-gpu", "paper"],
        _training_option(help="tiny: minutes on two cores; one-gpu: for one GPU; paper: as published."),
    ] = "tiny",
    seeds: Annotated[
        int, _training_option(min=1, max=100, help="Repetitions of every run, each with its own seed.")
    ] = _SEEDS,
    corpus: Annotated[
        Path | None, _training_option(help="A corpus folder; by default, built from the documentation on this machine.")
    ] = None,
    tasks: Annotated[
        Path | None, _training_option(help="Labelled data: GLUE's folders, squad/, mr/, conll2003/, multi30k/.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        _training_option("--set", help="Override a recipe key: pretrain.training.steps=100, finetune.KEY=VALUE."),
    ] = None,
    minutes: Annotated[
        float | None, _budget_option(min=0.01, help="Minutes of pre-training per recipe; 60 by default.")
    ] = None,
    beside: Annotated[
        list[str] | None, _budget_option(help="NAME=FOLDER: compare this model, with the same vocabulary. Repeatable.")
    ] = None,
    jobs: Annotated[
        int | None,
        _training_option(min=1, max=256, help="Parallel runs of one thread; default: one per core at tiny, else one."),
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce an experiment from the BERT or Transformer paper at a given scale and report which trends hold.

    `budget` compares recipes after equal training time: ours, the paper's at size mini, and other programs'.
    `rnn-gradients` and `rnn-attention` show what recurrent networks forget.
    """
    if experiment != "budget" and (minutes is not None or beside):
        raise UsageError(f"{experiment}: --minutes and --beside are for budget")
    if experiment == "budget" and scale != "tiny":
        raise UsageError("budget: --minutes sets its scale; leave out --scale")
    if experiment in MADE_AT_ONCE:
        is_told = bool(corpus or tasks or overrides or jobs or scale != "tiny" or seeds != _SEEDS)
        show(_made_at_once(experiment, out, device, is_told), as_json, lines=lambda result: result["lines"])
        return
    from maskloom.reproduce import running
    from maskloom.reproduce.experiments import Budget
    from maskloom.reproduce.results import summary_lines
    from maskloom.system.devices import chosen_device

    chosen = Budget(minutes or _MINUTES, _beside(beside or [])) if experiment == "budget" else scale
    on_cpu = chosen_device().type == "cpu"  # a missing device is an error now, not after building the corpus
    jobs = jobs or (usable_cores() if scale == "tiny" and on_cpu else 1)
    where = {"corpus": corpus, "tasks": tasks, "overrides": _by_recipe(overrides or [])}
    result = running.reproduce(
        experiment, out=out, scale=chosen, repeats=running.Repeats(seeds, jobs), **where, progress=terminal_progress()
    )
    show(result, as_json, lines=summary_lines)


def _made_at_once(experiment: str, out: Path, device: str | None, is_told: bool) -> dict[str, Any]:
    """Measure and write the page of an experiment without a corpus; raises UsageError for an option it does not take.

    `is_told` says whether an option for training was given.
    """
    if is_told:
        what = "draws its own texts" if experiment.startswith("rnn-") else "measures random weights"
        raise UsageError(f"{experiment} {what}: leave out --corpus, --tasks, --set, --jobs, --scale and --seeds")
    if device not in (None, "auto", "cpu"):
        raise UsageError(f"--device {device}: {experiment} is measured on the CPU")
    from maskloom.reproduce.layer_costs import transformer_table_1
    from maskloom.reproduce.recurrent import rnn_attention, rnn_gradients
    from maskloom.reproduce.who_sees_whom import figure_1

    pages: dict[str, Callable[[Path], dict[str, Any]]] = {
        "figure1": figure_1,
        "transformer-table1": transformer_table_1,
        "rnn-gradients": partial(rnn_gradients, progress=terminal_progress()),
        "rnn-attention": partial(rnn_attention, progress=terminal_progress()),
    }
    return pages[experiment](out)


def _by_recipe(overrides: list[str]) -> dict[str, list[str]]:
    """Group settings by the recipe named before their first dot."""
    settings: dict[str, list[str]] = {}
    for given in overrides:
        name, _, setting = given.partition(".")
        if name not in ("pretrain", "finetune") or not setting:
            raise UsageError(f"--set {given}: write pretrain.KEY=VALUE or finetune.KEY=VALUE")
        settings.setdefault(name, []).append(setting)
    return settings


def _beside(given: list[str]) -> dict[str, Path]:
    """Parse NAME=FOLDER entries into folders by name."""
    found: dict[str, Path] = {}
    for entry in given:
        name, _, folder = entry.partition("=")
        if not name.strip() or not folder or name in found:
            raise UsageError(f"--beside {entry}: write NAME=FOLDER, each name once")
        found[name] = Path(folder)
    return found


@trains("size", "epochs", "steps", "minutes", "batch_size", "max_length")
def plan(
    corpus: Annotated[Path, typer.Option(help="A corpus folder.")],
    flags: Any,
    device: Device = None,
    recipe: Recipe = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to spend on measuring each size.")] = 4.0,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the cost of pre-training on this machine and the best model size for a time budget.

    Unless a size is given, tiny, mini, small, medium and base are compared.
    """
    from maskloom.config import PretrainRecipe
    from maskloom.data.corpus.manifest import read_manifest
    from maskloom.models.architectures import ARCHITECTURES
    from maskloom.runs.recipes import recipe_of_run, shown_flag, with_epochs

    epochs, changes = epochs_of(flags, overrides), overrides or []
    chosen = recipe_of_run(PretrainRecipe, recipe, changes=changes, flags=flags)
    read_manifest(corpus)
    chosen = with_epochs(chosen, epochs, flags["steps"], corpus)
    from maskloom.runs.plan import plan_lines, plan_pretraining

    known = ARCHITECTURES[chosen.model.architecture].sizes
    sizes = [size for size in ("tiny", "mini", "small", "medium", "base") if size in known]
    if "size" not in chosen.model.model_fields_set:
        each = (recipe_of_run(PretrainRecipe, recipe, changes=changes, flags={**flags, "size": size}) for size in sizes)
        plans = [with_epochs(one, epochs, flags["steps"], corpus) for one in each]
    else:
        plans = [chosen]
    result = plan_pretraining(*plans, corpus=corpus, seconds=seconds, progress=terminal_progress())
    given = {"corpus": corpus, "recipe": recipe, **flags, "device": device}
    words = [
        shown_flag(name, f"{value:g}" if isinstance(value, float) else shlex.quote(str(value)))
        for name, value in given.items()
        if value is not None
    ]
    words += [f"--set {shlex.quote(setting)}" for setting in overrides or []]
    show(result, as_json, lines=partial(plan_lines, command=" ".join(["maskloom pretrain", *words])))
