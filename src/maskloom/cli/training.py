"""Commands that train models, plan pre-training and reproduce experiments from papers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maskloom.cli.options import (
    Commands,
    Device,
    Grid,
    Metric,
    Model,
    Out,
    Overrides,
    Recipe,
    Resume,
    Verify,
    below_no_file,
    chosen_recipe,
    continued,
    epochs_of,
    optional,
    reads,
    refuse,
    show,
    space_beside,
    trains,
    with_options,
)
from maskloom.errors import UsageError, amount
from maskloom.rows import later
from maskloom.runs.display import aligned, terminal_progress
from maskloom.system.foreign_files import check_model_name
from maskloom.system.resources import usable_cores


@trains("size", "epochs", "steps", "minutes", "batch_size", "learning_rate", "max_length", "seed", "device")
def pretrain(
    *,
    corpus: Annotated[Path | None, typer.Option(help="A corpus folder (for a new run).")] = None,
    out: Out,
    flags: Any,
    recipe: Recipe = None,
    init: Annotated[Path | None, typer.Option(help="Start from the weights of a model folder.")] = None,
    resume: Resume = False,
    verify: Verify = False,
    overrides: Overrides = None,
) -> None:
    """Pre-train a model on a corpus: by default a BERT, with masked LM and next-sentence prediction."""
    from maskloom.config import PretrainRecipe
    from maskloom.runs.pretraining_plan import check_model
    from maskloom.runs.recipes import with_epochs

    epochs, known = epochs_of(flags, overrides), continued(out, resume, "pretrain") or {}
    corpus, init = corpus or known.get("corpus"), init or known.get("init")
    if corpus is None:
        raise UsageError(_to_begin("missing --corpus, a corpus folder", out, resume))
    check = None if init else check_model
    chosen = chosen_recipe(PretrainRecipe, recipe, overrides or [], out, resume, flags=flags, check=check)
    from maskloom.data.corpus.manifest import read_manifest

    read_manifest(corpus)
    chosen = with_epochs(chosen, epochs, flags["steps"], corpus)
    if init is not None:
        check_model_name(init)
    from maskloom.runs.pretrain import pretrain as run  # heavy, so a wrong recipe or path is rejected first
    from maskloom.runs.task_summaries import pretraining_lines

    shown = terminal_progress()
    result = run(chosen, corpus=corpus, out=out, resume=resume, init=init, verify=verify, progress=shown)
    last = f"written to {out}; next: {shlex.join(['maskloom', 'report', str(out)])}"
    show(result, lines=lambda result: [*pretraining_lines(result), last])


def _to_begin(missing: str, out: Path, resume: bool) -> str:
    """Return what is missing to begin a run; if one was to be resumed, first that there is none."""
    there = f"--resume: there is no run in {out}; " if resume else ""
    return f"{there}{missing}, to begin a run in {out}"


def _begin(
    kind: Literal["finetune", "search"],
    start: dict[str, Path | None],
    recipe: Path | None,
    changes: list[str] | None,
    out: Path,
    resume: bool,
    flags: dict[str, Any],
    reading: Any,
) -> tuple[Any, dict[str, Path]]:
    """Return the recipe, with [model] if and only if a new model is trained (of default size), and the inputs.

    A resumed run supplies inputs missing from `start`. Raises UsageError if an input is still missing, if both a model
    and a vocabulary are given, or if [model] and --vocab do not go together.
    """
    from maskloom.config import FinetuneRecipe
    from maskloom.models.model_config import ModelSection
    from maskloom.recipe_files import by_key
    from maskloom.runs.first_look import look_at_training_data

    model, vocab, known = start["model"], start["vocab"], continued(out, resume, kind)
    given = {name: path for name, path in {**start, "model": model or vocab}.items() if path is not None}
    inputs = {**(known or {}), **given}
    if "model" not in inputs or (model and vocab):
        told = "pass either --model, a folder to start from, or --vocab, for a new model"
        raise UsageError(_to_begin(told, out, resume and known is None))
    for name in ("train", "dev"):
        if name not in inputs:
            raise UsageError(f"missing --{name}, a file of labelled examples")
    is_told = recipe is not None or any(key.partition(".")[0] == "model" for key in by_key(changes))
    if vocab and flags["size"] is None and not is_told and known is None:
        flags["size"] = ModelSection().size
    chosen = chosen_recipe(FinetuneRecipe, recipe, changes or [], out, resume, flags=flags)
    if "model" in given and (chosen.model is not None) != (vocab is not None):
        raise UsageError("[model] and --vocab go together: a new model of those sizes is trained on that vocabulary")
    files = [] if known is not None else [inputs["train"], inputs["dev"]]
    look_at_training_data(inputs["model"], files, reading, chosen)
    return chosen, inputs


SourceVocab = Annotated[
    Path | None, typer.Option(help="Folder with a separate vocabulary for seq2seq sources, with new embeddings.")
]
_STARTS: dict[str, Any] = {
    "model": optional(Path, "A model or run folder in Hugging Face layout to start from."),
    "vocab": optional(Path, "Folder with a vocabulary, to train a new model as described by \\[model]."),
    "train": optional(Path, "Labelled examples: .csv, .tsv, .jsonl; CoNLL columns; SQuAD .json (for a new run)."),
    "dev": optional(Path, "Labelled examples for choosing the best weights or trial (for a new run)."),
}
starts = with_options("start", _STARTS)
"""Adds the options for starting points and data to a command, which receives them by name in `start`."""


@trains(
    *("task", "size", "epochs", "steps", "minutes", "batch_size", "learning_rate", "max_length", "seed", "device"),
    *("restarts", "keep_restarts"),
)
@reads("text_column", "pair_column", "label_column", "format", "labels", "on_bad_rows")
@starts
def finetune(
    *,
    start: Any,
    out: Out,
    source_vocab: SourceVocab = None,
    flags: Any,
    recipe: Recipe = None,
    metric: Metric = None,
    reading: Any,
    resume: Resume = False,
    verify: Verify = False,
    overrides: Overrides = None,
) -> None:
    """Fine-tune a model on labelled text and keep the weights with the best dev score."""
    chosen, paths = _begin("finetune", start, recipe, overrides, out, resume, flags, reading)
    from maskloom.runs.finetune import LabelledFiles  # heavy, so a wrong recipe or file is rejected first
    from maskloom.runs.finetune import finetune as run
    from maskloom.runs.task_summaries import finetuning_lines

    data = LabelledFiles(paths["train"], paths["dev"], reading, metric, source_vocab)
    how = {"out": out, "resume": resume, "verify": verify, "progress": terminal_progress()}
    result = run(chosen, model=paths["model"], data=data, **how)
    show(result, lines=finetuning_lines)


@trains("task", "size", "epochs", "steps", "batch_size", "learning_rate", "max_length", "seed", "device", "restarts")
@reads("text_column", "pair_column", "label_column", "format", "labels", "on_bad_rows")
@starts
def search(
    *,
    start: Any,
    out: Out,
    source_vocab: SourceVocab = None,
    flags: Any,
    recipe: Recipe = None,
    grid: Grid = None,
    method: Annotated[
        Literal["grid", "optuna"] | None,
        typer.Option(help="Try every combination (default), or let optuna propose settings."),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Number of trials for optuna.")] = None,
    metric: Metric = None,
    reading: Any,
    resume: Resume = False,
    overrides: Overrides = None,
) -> None:
    """Fine-tune with many settings and rank them by their best dev score."""
    space = space_beside(grid, flags, overrides)
    chosen, paths = _begin("search", start, recipe, overrides, out, resume, flags, reading)
    from maskloom.runs.finetune import LabelledFiles  # heavy, so a wrong recipe is rejected first
    from maskloom.runs.search import Trials
    from maskloom.runs.search import search as run
    from maskloom.runs.task_summaries import search_rows

    data = LabelledFiles(paths["train"], paths["dev"], reading, metric, source_vocab)
    tried = {"out": out, "trials": Trials(space, method, trials), "resume": resume}
    result = run(chosen, model=paths["model"], data=data, **tried, progress=terminal_progress())
    headers, rows = search_rows(result)
    lines = [f"{amount(result['num_trials'], 'trial')}, by {result['metric']} on dev", "", *aligned([headers, *rows])]
    lines += ["", f"rerun best:  {result['trials'][0]['command']}", f"model:       {result['model']}"]
    lines.append(f"written to {out} (search.json lists all commands; results.md, results.json)")
    show(result, lines=lambda _: lines)


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder to write; run again to continue.", callback=below_no_file)] = Path(
        "quickstart"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    device: Device = None,
) -> None:
    """Train a BERT and two classifiers on the documentation in your Python installation, in about 15 minutes."""
    from maskloom.quickstart.journey import quickstart as run
    from maskloom.quickstart.journey import summary_lines

    show(run(out=out, seed=seed, progress=terminal_progress()), lines=summary_lines)


glue_app = Commands(help="The nine tasks of GLUE: train, score, submit.", no_args_is_help=True)

Data = Annotated[Path, typer.Option(help="Folder with CoLA/, SST-2/, MRPC/ ... as distributed by GLUE.")]


@glue_app.command("run")
@trains("epochs", "steps", "batch_size", "learning_rate", "max_length", "seed", "device", "restarts")
def run_glue(
    model: Model,
    data: Data,
    out: Out,
    *,
    tasks: Annotated[
        str | None, typer.Option(help="Comma-separated tasks, such as cola,mrpc; by default, all tasks in --data.")
    ] = None,
    flags: Any,
    recipe: Recipe = None,
    grid: Grid = None,
    resume: Resume = False,
    overrides: Overrides = None,
) -> None:
    """Search settings for each task (by default the paper's grid) and show the official dev scores."""
    from maskloom.config import FinetuneRecipe

    if continued(out, resume, "glue") is None and grid is None:
        grid = ["paper"]
    space = space_beside(grid, flags, overrides)
    chosen = chosen_recipe(FinetuneRecipe, recipe, overrides or [], out, resume, flags=flags)
    from maskloom.runs.glue.files import chosen_tasks

    check_model_name(model)
    names = None if tasks is None else tasks.split(",")
    chosen_tasks(data, names)
    from maskloom.runs.glue.run import glue_run  # heavy, so wrong paths are rejected first
    from maskloom.runs.task_summaries import glue_rows, notes_of

    how = {"tasks": names, "space": space, "resume": resume, "progress": terminal_progress()}
    result = glue_run(chosen, data=data, model=model, out=out, **how)
    headers, rows = glue_rows(result)
    following = shlex.join(["maskloom", "glue", "submit", "--run", str(out), "--data", str(data)])
    lines = ["GLUE, dev", "", *aligned([headers, *rows]), "", *notes_of(result)]
    lines.append(f"written to {out} (glue.md, glue.json); next: {following}")
    show(result, lines=lambda _: lines)
    if result["failed"]:
        raise typer.Exit(1)


@glue_app.command("submit")
def submit_to_glue(
    run_folder: Annotated[Path, typer.Option("--run", help="The folder of a GLUE run.")],
    data: Data,
    out: Annotated[Path, typer.Option(help="The zip to write.")] = Path("submission.zip"),
) -> None:
    """Predict on the test files and write a validated zip for the leaderboard."""
    from maskloom.runs.glue.run import submit_glue

    show(submit_glue(run_folder, data=data, out=out, progress=terminal_progress()), beside=out)


AT_ONCE: dict[str, Callable[..., dict[str, Any]]] = {
    "figure1": later("maskloom.reproduce.who_sees_whom", "figure_1"),
    "transformer-table1": later("maskloom.reproduce.layer_costs", "transformer_table_1"),
    "rnn-gradients": later("maskloom.reproduce.recurrent", "rnn_gradients"),
    "rnn-attention": later("maskloom.reproduce.recurrent", "rnn_attention"),
}
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
    if experiment in AT_ONCE:
        why = f"{experiment} makes its own inputs, at one scale; leave it out"
        refuse(why, "scale", "seeds", "corpus", "tasks", "overrides", "jobs")
        if device not in (None, "auto", "cpu"):
            raise UsageError(f"--device {device}: {experiment} is measured on the CPU")
        out.mkdir(parents=True, exist_ok=True)
        show(AT_ONCE[experiment](out, terminal_progress()), lines=lambda result: result["lines"])
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
