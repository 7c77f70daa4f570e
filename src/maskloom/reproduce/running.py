"""Running an experiment: pre-train every model and fine-tune every arm with each seed, keeping finished stages."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from math import inf, prod
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from maskloom.checkpoints.tensor_files import open_weights
from maskloom.config import FinetuneRecipe
from maskloom.data.corpus.manifest import read_manifest
from maskloom.errors import ConfigError, amount
from maskloom.inference.model_folder import resolve_model_folder
from maskloom.metrics.answers import is_percent
from maskloom.quickstart.journey import Stages, resumed
from maskloom.reproduce.experiments import BUDGET_TASKS, EXPERIMENTS, LOSS, Arm, Budget, Experiment, what_it_buys
from maskloom.reproduce.judging import check_comparable, linear_score, masked_losses, training_record
from maskloom.reproduce.planning import Plan, expected, num_steps, pretraining_stage, scoring_stage, slug
from maskloom.reproduce.probes import (
    FILES,
    Probe,
    documentation_probes,
    make_joint_vocabulary,
    own_probes,
    write_documentation,
)
from maskloom.reproduce.results import machine_of_runs, write_results
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.export import export
from maskloom.runs.finetune import finetune
from maskloom.runs.pretrain import pretrain
from maskloom.system.folder_lock import alone_in_folder
from maskloom.system.worker_processes import Patience, results_of_processes

_MOST_FILES_NAMED = 3
# Candidate tasks by role; the first available one is used. Above tiny, so are the other tasks of the paper's table.
_ROLES = {
    "sentence": ("sentence", "sst-2", "cola"),
    "pair": ("pair", "mnli", "qnli", "rte", "mrpc"),
    "span": ("span", "squad"),
}


@dataclass(frozen=True)
class Repeats:
    """How many seeds to run, and how many runs to execute in parallel, with one thread each if more than one.

    Recipes with a budget of minutes are always pre-trained one at a time.
    """

    num_seeds: int = 3
    num_jobs: int = 1


@alone_in_folder()
def reproduce(
    name: str,
    *,
    out: Path,
    scale: str | Budget = "tiny",
    repeats: Repeats = Repeats(),
    corpus: Path | None = None,
    tasks: Path | None = None,
    overrides: Mapping[str, Sequence[str]] = {},
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Run an experiment of the paper, or compare recipes within a budget; return the scores and a verdict per trend.

    `scale` is a `Budget` for the experiment "budget", otherwise tiny, one-gpu or paper. Without a `corpus` folder the
    corpus is the documentation on this machine, and tasks are drawn from documents left out of it; `tasks` is a folder
    of labelled files, as `own_probes` expects them. `out` receives results.json, table.md and report.html in addition
    to all runs. An interrupted experiment resumes where it stopped. Raises ConfigError if tasks are missing or none
    would be used.
    """
    if corpus is not None and tasks is None:
        raise ConfigError("a corpus of your own needs tasks: --tasks FOLDER with GLUE's files, squad/ or conll2003/")
    if corpus is not None:
        read_manifest(corpus)
    own = {} if tasks is None else own_probes(tasks)
    known = own if corpus is not None else {**documentation_probes(out), **own}
    if isinstance(scale, Budget):
        experiment, recipes = what_it_buys(scale, [task for task in BUDGET_TASKS if task in known]), "budget"
    else:
        experiment, recipes = EXPERIMENTS[name](scale), scale
    probes = _probes_of(experiment, known, with_all=scale != "tiny")
    _check_tasks(name, experiment, probes, tasks, own if corpus is None else {})
    if not experiment.models and (corpus is not None or "pretrain" in overrides):
        raise ConfigError(f"{name}: nothing is pre-trained; leave out --corpus and --set pretrain.KEY=VALUE")
    settings: dict[str, Any] = {"experiment": name, "scale": str(scale)}
    settings |= {"corpus": corpus and str(corpus), "tasks": tasks and str(tasks), "overrides": overrides}
    if experiment.given:
        settings["beside"] = {other: str(folder) for other, folder in experiment.given.items()}
    where = out / "corpus" if corpus is None else corpus
    plan = Plan(experiment, recipes, range(repeats.num_seeds), out, where, probes, overrides)
    plan.check()
    settings["recipes"] = plan.digest()
    given = [resolve_model_folder(folder) for folder in experiment.given.values()]
    stages = Stages(out / "stages.json", settings)
    text = {} if corpus is None else _text_of(corpus)
    if not experiment.models:
        text = stages.run("vocabulary", lambda: make_joint_vocabulary(probes[experiment.probes[0]], out))
    elif corpus is None:
        progress.say("gathering the documentation on this machine")
        text = stages.run("text", lambda: write_documentation(out, seed=0, progress=progress))
    for folder in given:
        check_comparable(folder, plan.corpus)
    progress.say(expected(plan, stages, repeats.num_jobs))
    found = _run(plan, stages, repeats.num_jobs, progress)
    columns = {role: probe.name for role, probe in probes.items()}
    results = {**settings, **asdict(repeats), "text": text, "machine": machine_of_runs(repeats.num_jobs), **found}
    return write_results({**results, "columns": columns}, out)


def _text_of(corpus: Path) -> dict[str, Any]:
    """Return the name of a corpus with its source files, and its number of tokens."""
    manifest = read_manifest(corpus)
    names = [Path(source["name"]).name for source in manifest["sources"]]
    named, more = ", ".join(names[:_MOST_FILES_NAMED]), len(names) - _MOST_FILES_NAMED
    files = named + (f" and {amount(more, 'other file')}" if more > 0 else "")
    return {"text": f"{corpus.resolve().name} ({files})", "num_tokens": manifest["num_tokens"]}


def _check_tasks(
    name: str, experiment: Experiment, probes: Mapping[str, Probe], tasks: Path | None, own: Mapping[str, Probe]
) -> None:
    """Raise ConfigError if an experiment uses none of the tasks given without a corpus, `own`, or no task at all."""
    if own and not own.keys() & {probe.name for probe in probes.values()}:
        raise ConfigError(
            f"--tasks {tasks}: without --corpus, {name} uses tasks from the documentation on this machine, "
            "not those in that folder; leave out --tasks, or give --corpus too"
        )
    if not probes and not experiment.measures:
        wanted = [task for role in experiment.probes for task in _ROLES.get(role, (role,)) if task not in _ROLES]
        files = " or ".join(FILES.get(task) or task for task in wanted)
        raise ConfigError(f"{name} needs {files}; pass --tasks FOLDER that has it")


def _probes_of(experiment: Experiment, known: Mapping[str, Probe], *, with_all: bool) -> dict[str, Probe]:
    """Return the known tasks by role, and `with_all` the others of the paper's table by their own names."""
    candidates = {role: _ROLES.get(role, (role,)) for role in experiment.probes}
    named = {role: next((known[task] for task in tasks if task in known), None) for role, tasks in candidates.items()}
    found = {role: probe for role, probe in named.items() if probe is not None}
    taken = {probe.name for probe in found.values()}
    others = (task for task in experiment.tasks if with_all and task in known and task not in taken)
    return {**found, **{task: known[task] for task in others}}


def _run(plan: Plan, stages: Stages, num_jobs: int, progress: Progress) -> dict[str, Any]:
    """Pre-train, fine-tune and return the metrics of models and the scores of arms, each as a list over seeds."""
    jobs, pretrainings, compared = plan.jobs(), plan.pretrainings(), bool(plan.experiment.recipes)
    works = {pretraining_stage(*run): partial(_pretraining_work, plan, *run) for run in pretrainings}
    scorings = {scoring_stage(*job): partial(_scoring_work, plan, *job) for job in jobs}
    names = [*works, *scorings]
    told = {name: f"{number}/{len(names)}  {name}" for number, name in enumerate(names, start=1)}
    # recipes with a budget of minutes each get all cores
    found = _results(works, told, stages, 1 if compared else num_jobs, progress)
    models = {run: found[pretraining_stage(*run)] for run in pretrainings}
    found = _results(scorings, told, stages, num_jobs, progress)
    cpu_seconds = sum(result["cpu_seconds"] for result in (*models.values(), *found.values()))
    scored = [(arm.name, role, found[scoring_stage(arm, role, seed)]) for arm, role, seed in jobs]
    scores: dict[str, dict[str, list[float]]] = {}
    for name, role, result in scored:
        scores.setdefault(name, {}).setdefault(role, []).append(result["score"])
    arms = [arm for arm in plan.experiment.arms if arm.linear is None]
    for arm, measure in product(arms, plan.experiment.measures):
        is_common = measure == LOSS
        values = _losses(plan, arm, stages) if is_common else [models[arm.model, seed][measure] for seed in plan.seeds]
        scores.setdefault(arm.name, {})[measure] = values
    return {
        **_trained(plan, stages),
        "cpu_seconds": cpu_seconds,
        "models": {model: [models[run] for run in pretrainings if run[0] == model] for model in plan.experiment.models},
        "scores": scores,
        "references": {role: one["reference"] for _, role, one in scored if one["reference"] is not None},
        "metrics": {role: one["metric"] for _, role, one in scored},
        "parameters": {name: one.get("parameters") for name, _, one in scored},
    }


def _trained(plan: Plan, stages: Stages) -> dict[str, Any]:
    """Return the seconds of each stage and, for recipes with a budget, what is recorded of each model's training.

    The record also counts the time before a resume, which a stage does not.
    """
    if not plan.experiment.recipes:
        return {"seconds": stages.seconds}
    arms = [arm for arm in plan.experiment.arms if arm.linear is None]
    trained = {arm.name: training_record(plan.model_folder(arm, 0)) for arm in arms}
    clocks = {pretraining_stage(*run): trained[run[0]]["minutes"] for run in plan.pretrainings()}
    recorded = {stage: 60.0 * minutes for stage, minutes in clocks.items() if minutes is not None}
    return {"seconds": {**stages.seconds, **recorded}, "trained": trained}


Work = Callable[..., dict[str, Any]]
"""The work of a stage, called with `progress`; it can be pickled for a worker process."""


def _results(
    works: Mapping[str, Callable[[], Work]], told: Mapping[str, str], stages: Stages, num_jobs: int, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Do unfinished work one by one, or in parallel in single-threaded processes; return the result of each stage.

    `works` has functions that create the work of a stage when its turn comes, `told` what is said then.
    """

    def left() -> Iterator[tuple[str, Work]]:
        for name, make in works.items():
            if not stages.has(name):
                progress.say(told[name])
                yield name, make()

    if num_jobs == 1:
        for name, work in left():
            stages.run(name, partial(_with_cpu_seconds, partial(work, progress=progress)))
    else:
        since, patience = time.perf_counter(), Patience(named_after=inf, limit=inf)  # runs may be long
        for name, result in results_of_processes(_worker, (), left(), num_jobs, name=itemgetter(0), patience=patience):
            stages.keep(name, result, since=since)
            since = time.perf_counter()
            progress.say(f"done: {name}")
    return {name: stages.run(name, dict) for name in works}


def _worker() -> Callable[[tuple[str, Work]], tuple[str, dict[str, Any]]]:
    torch.set_num_threads(1)
    return lambda task: (task[0], _with_cpu_seconds(partial(task[1], progress=SILENT)))


def _with_cpu_seconds(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a stage and, as `cpu_seconds`, this process's time on all cores, since it was resumed."""
    started = time.process_time()
    return {**work(), "cpu_seconds": time.process_time() - started}


def _pretraining_work(plan: Plan, model: str, seed: int) -> Work:
    folder = plan.out / "pretrained" / slug(model, seed)
    return partial(resumed, pretrain, plan.pretraining(model, seed), folder, corpus=plan.corpus)


def _losses(plan: Plan, arm: Arm, stages: Stages) -> list[float]:
    model = plan.model_folder(arm, 0)
    found = stages.run(
        f"losses of {arm.name}", lambda: {"losses": masked_losses(resolve_model_folder(model), plan.corpus)}
    )
    return found["losses"]


def _scoring_work(plan: Plan, arm: Arm, role: str, seed: int) -> Work:
    """Return the work that scores an arm on a task: its dev score in percent, and that of a constant answer.

    An arm of an intermediate checkpoint has it exported first.
    """
    probe = plan.probes[role]
    model, recipe = plan.model_folder(arm, seed), plan.finetuning(arm, probe, seed)
    if arm.at < 1.0:
        whole, run = plan.pretraining(arm.model, seed), model
        step = round(num_steps(whole) * arm.at)
        model = run / "exported" / f"step-{step}"
        if not (model / "config.json").exists():
            export(run, model, step=step, stage="phase-1" if whole.phases else None)
    if arm.linear and probe.kind != "tagging":
        return partial(_linear, probe, model, arm.linear, recipe.data.max_length)
    return partial(_finetuned, recipe, plan.out / "finetuned" / slug(arm.name, seed, probe.name), model, probe)


def _linear(probe: Probe, model: Path, kind: Any, max_length: int, *, progress: Progress) -> dict[str, Any]:
    best = linear_score(probe, resolve_model_folder(model), kind, max_length=max_length)
    return _in_percent(best, best["metric"])


def _finetuned(
    recipe: FinetuneRecipe, folder: Path, model: Path, probe: Probe, *, progress: Progress
) -> dict[str, Any]:
    result = resumed(finetune, recipe, folder, model=model, data=probe.files, progress=progress)
    for bulky in ("restarts", "features"):
        shutil.rmtree(folder / bulky, ignore_errors=True)
    weights = open_weights(folder / "model").values()
    return {**_in_percent(result["best"], result["metric"]), "parameters": sum(prod(one.shape) for one in weights)}


def _in_percent(best: Mapping[str, Any], metric: str) -> dict[str, Any]:
    factor = 1.0 if is_percent(metric, best["scores"]) else 100.0
    reference = best["reference"]
    return {
        "score": factor * best["scores"][metric],
        "reference": None if reference is None else factor * reference,
        "metric": metric,
    }
