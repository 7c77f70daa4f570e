"""Commands that plan pre-training and reproduce experiments from papers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maskloom.cli.options import Device, Out, Overrides, Recipe, epochs_of, refuse, show, trains
from maskloom.errors import UsageError
from maskloom.rows import later
from maskloom.runs.display import terminal_progress
from maskloom.system.resources import usable_cores

_AT_ONCE: dict[str, Callable[..., dict[str, Any]]] = {
    "figure1": later("maskloom.reproduce.who_sees_whom", "figure_1"),
    "transformer-table1": later("maskloom.reproduce.layer_costs", "transformer_table_1"),
    "rnn-gradients": later("maskloom.reproduce.recurrent", "rnn_gradients"),
    "rnn-attention": later("maskloom.reproduce.recurrent", "rnn_attention"),
}
MADE_AT_ONCE = tuple(_AT_ONCE)
"""Experiments that need neither text nor tasks, and write nothing before their final page."""
_Trained = Literal["table5", "table6", "table7", "table8", "figure4", "transformer-table3", "budget"]
ExperimentName = Literal[_Trained, "figure1", "transformer-table1", "rnn-gradients", "rnn-attention"]

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
        _training_option(help="tiny: 40 minutes to 2 hours on two cores; one-gpu: for one GPU; paper: as published."),
    ] = "tiny",
    seeds: Annotated[
        int, _training_option(min=1, max=100, help="Repetitions of every run, each with its own seed.")
    ] = 3,
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
    minutes: Annotated[float, _budget_option(min=0.01, help="Minutes of pre-training per recipe.")] = 60.0,
    beside: Annotated[
        list[str] | None, _budget_option(help="NAME=FOLDER: compare this model, with the same vocabulary. Repeatable.")
    ] = None,
    jobs: Annotated[
        int | None,
        _training_option(min=1, max=256, help="Parallel runs of one thread; default: one per core at tiny, else one."),
    ] = None,
    device: Device = None,
) -> None:
    """Reproduce an experiment from the BERT or Transformer paper at a given scale and report which trends hold.

    `budget` compares recipes after equal training time: ours, the paper's at size mini, and other programs'.
    `rnn-gradients` and `rnn-attention` show what recurrent networks forget.
    """
    if experiment == "budget":
        refuse("for budget, --minutes sets the scale; leave it out", "scale")
    else:
        refuse(f"it is for budget, not for {experiment}", "minutes", "beside")
    if experiment in _AT_ONCE:
        why = f"{experiment} makes its own inputs, at one scale; leave it out"
        refuse(why, "scale", "seeds", "corpus", "tasks", "overrides", "jobs")
        if device not in (None, "auto", "cpu"):
            raise UsageError(f"--device {device}: {experiment} is measured on the CPU")
        out.mkdir(parents=True, exist_ok=True)
        show(_AT_ONCE[experiment](out, terminal_progress()), lines=lambda result: result["lines"])
        return
    from maskloom.reproduce import running
    from maskloom.reproduce.experiments import Budget
    from maskloom.reproduce.results import summary_lines
    from maskloom.system.devices import chosen_device

    chosen = Budget(minutes, _beside(beside or [])) if experiment == "budget" else scale
    on_cpu = chosen_device().type == "cpu"  # a missing device is an error now, not after building the corpus
    repeats = running.Repeats(seeds, jobs or (usable_cores() if scale == "tiny" and on_cpu else 1))
    how = {"repeats": repeats, "overrides": _by_recipe(overrides or []), "progress": terminal_progress()}
    result = running.reproduce(experiment, out=out, scale=chosen, corpus=corpus, tasks=tasks, **how)
    show(result, lines=summary_lines)


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
    show(result, lines=partial(plan_lines, command=" ".join(["maskloom pretrain", *words])))
