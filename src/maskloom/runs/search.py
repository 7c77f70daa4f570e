"""A search over recipes (BERT paper, A.3): trials from a grid, or proposed by optuna from earlier ones."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from maskloom.config import FinetuneRecipe
from maskloom.errors import ConfigError, DataError, UsageError, amount
from maskloom.recipe_files import overrides_of
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.finetune import LabelledFiles, finetune, source_of
from maskloom.runs.first_look import with_task
from maskloom.runs.run_folder import RECIPE, RESULTS, described, input_sums, prepare_run_folder, undo_run
from maskloom.runs.search_space import Space, grid_settings, recipe_with, settings_text
from maskloom.runs.task_summaries import markdown_of, ranked, search_rows
from maskloom.system.files import copy_files, replacing_folder, write_json, write_text
from maskloom.system.folder_lock import FolderLostError, alone_in_folder
from maskloom.system.foreign_files import read_json_object
from maskloom.training.checkpointing.checkpoints import drop_old_checkpoints
from maskloom.training.events import check_log_targets
from maskloom.training.faults.interruption import RAISED, Interrupted

PLAN = "search.json"
Method = Literal["grid", "optuna"]


class AllTrialsFailedError(ConfigError):
    """No trial of a search reached a score, or its first one was refused; the message gives the first few reasons."""


@dataclass(frozen=True)
class _Search:
    """What all trials of a search share."""

    recipe: FinetuneRecipe
    model: Path
    data: LabelledFiles
    out: Path
    progress: Progress


@dataclass(frozen=True)
class Trials:
    """Which settings a search tries, and how many optuna proposes; when resuming, None means as before.

    A new search without a `space` tries only the recipe; one without a `method` tries every combination.
    """

    space: Space | None = None
    method: Method | None = None
    number: int | None = None


@alone_in_folder()
def search(
    recipe: FinetuneRecipe,
    *,
    model: Path,
    data: LabelledFiles,
    out: Path,
    trials: Trials = Trials(),
    resume: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Fine-tune once for each combination of settings, and return all trials ranked by their best dev score.

    A recipe with [model] trains new models on the vocabulary in the folder `model`. `out/search.json` lists the trials,
    `out/results.json` and `results.md` hold their outcomes, and `out/model` is that of the best trial, the only model
    that is kept, except for those that `keep_restarts` keeps. A trial that fails is reported and does not affect the
    others. With `resume` a search continues, even in the middle of a trial. Raises ConfigError for wrong settings,
    another search in the folder and a finished one without its model, AllTrialsFailedError if every trial fails or the
    first one's settings do not suit model or data, DataError for wrong data, before or during the first trial.
    """
    check_log_targets(recipe.training.log_to)
    stored = read_json_object(out / PLAN) if resume and (out / PLAN).exists() else {}
    space = stored.get("space") if trials.space is None else trials.space
    method, num_trials = trials.method or stored.get("method"), trials.number or stored.get("num_trials")
    if stored:
        data = data.as_told(stored, described(out)["paths"])
    if space is None and method in (None, "grid"):
        progress.say(
            "no --grid: one trial with the recipe's settings; --grid training.learning_rate=2e-5,5e-5 tries several"
        )
    space, method = {} if space is None else space, method or "grid"
    recipe = with_task(recipe, data.reading)
    listed = _listed_settings(recipe, space, method, num_trials)
    setup = _Search(recipe, model, data, out, progress)
    told = {
        "method": method,
        "num_trials": num_trials,
        "space": space,
        "reading": data.reading_told(stored),
        "metric": data.metric,
    }
    paths = {"model": setup.model, **data.paths}
    inputs = {**input_sums({**paths, "model": source_of(recipe, setup.model)}), **told}
    continues = prepare_run_folder(out, recipe, inputs=inputs, paths=paths, resume=resume)
    plan = stored or {"format_version": 1, **told, "trials": []}
    if not plan["trials"]:
        plan["trials"] = [_trial(setup, number, settings) for number, settings in enumerate(listed, start=1)]
    write_json(out / PLAN, plan)
    try:
        records = _run_trials(setup, plan, space)
    except (DataError, ConfigError):
        if not continues and not list(out.glob("trials/*")):
            undo_run(out, PLAN)  # data, settings or metric were wrong; with correct ones it is another search
            if (out / "trials").exists():  # the failed trial created it and removed its own files
                (out / "trials").rmdir()
        raise
    return _finish(setup, plan, records)


def _listed_settings(
    recipe: FinetuneRecipe, space: Space, method: Method, num_trials: int | None
) -> list[dict[str, Any]]:
    """Return all settings of a grid, each validated; none for optuna, which proposes them one at a time."""
    if method == "grid":
        if num_trials is not None:
            raise ConfigError(f"num_trials {num_trials}: a grid tries every combination; --trials is for optuna")
        settings = grid_settings(space)
        for number, values in enumerate(settings, start=1):
            recipe_with(recipe, values, source=f"--grid, trial {number}")
        return settings
    if num_trials is None or num_trials < 1:
        raise ConfigError("optuna needs the number of trials (--trials)")
    if not space:
        raise ConfigError("optuna needs something to search: --grid training.learning_rate=1e-5..1e-4")
    values_of = {key: [one["low"], one["high"]] if isinstance(one, dict) else one for key, one in space.items()}
    first, last = ({key: values[place] for key, values in values_of.items()} for place in (0, -1))
    for key, value in ((key, value) for key, values in values_of.items() for value in values):
        try:
            recipe_with(recipe, {**first, key: value}, source="a trial")
        except ConfigError:  # the value may fit others of the other keys, such as a larger batch
            recipe_with(recipe, {**last, key: value}, source="a trial")
    return []


def _run_trials(setup: _Search, plan: dict[str, Any], space: Space) -> list[dict[str, Any]]:
    """Run the trials that have no outcome, recording each optuna proposal before it runs; return all outcomes."""
    total = plan["num_trials"] or len(plan["trials"])
    records: list[dict[str, Any]] = []
    for number in range(1, total + 1):
        if plan["method"] == "optuna" and len(plan["trials"]) < number:
            tried = [(record["settings"], record["score"]) for record in records]
            first = plan["trials"][-1]["proposal"] + 1 if tried else 0
            asked = next_proposal(space, setup.recipe.seed, tried, first)
            if asked is None:
                setup.progress.say(
                    f"every combination has been tried; the search ends with {amount(number - 1, 'trial')}"
                )
                break
            plan["trials"].append({**_trial(setup, number, asked[0]), "proposal": asked[1]})
            write_json(setup.out / PLAN, plan)
        records.append(_outcome_of(setup, plan["trials"][number - 1], total))
        for worse in ranked(records)[1:]:
            shutil.rmtree(setup.out / "trials" / worse["name"] / "model", ignore_errors=True)
    return records


def _trial(setup: _Search, number: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Return a trial of a plan, with the shell-quoted command that repeats its fine-tuning in a folder of its own."""
    name, out = f"trial-{number:03d}", setup.out.resolve()
    words = ["maskloom", "finetune", "--recipe", out / RECIPE]
    start = "vocab" if setup.recipe.model else "model"
    for option, path in {start: setup.model, **setup.data.paths}.items():
        words += [f"--{option.replace('_', '-')}", path.resolve()]
    words += ["--out", out / "reruns" / name]
    for key, value in setup.data.reading.as_dict().items():
        if key != "labels":  # one of the paths
            words += [f"--{key.replace('_', '-')}", value]
    words += ["--metric", setup.data.metric] if setup.data.metric else []
    for override in overrides_of(settings):
        words += ["--set", override]
    return {"number": number, "name": name, "settings": settings, "command": shlex.join(map(str, words))}


def _outcome_of(setup: _Search, trial: dict[str, Any], total: int) -> dict[str, Any]:
    """Return the record of a trial, running it unless it is done or has failed numerically."""
    path = setup.out / "trials" / f"{trial['name']}.json"
    record = read_json_object(path) if path.exists() else {"status": "open", "error": ""}
    if record["status"] != "done" and not record["error"].startswith("NumericalError"):
        setup.progress.say(f"trial {trial['number']} of {total}: {settings_text(trial['settings'])}")
        record = _run_trial(setup, trial)
        write_json(path, record)
    return record


def _run_trial(setup: _Search, trial: dict[str, Any]) -> dict[str, Any]:
    folder = setup.out / "trials" / trial["name"]
    if not (folder / RECIPE).exists():
        shutil.rmtree(folder, ignore_errors=True)  # killed before it began
    started, was_begun, num_stops = time.perf_counter(), folder.exists(), len(RAISED)
    record = {"number": trial["number"], "name": trial["name"], "settings": trial["settings"]}
    try:
        result = finetune(
            recipe_with(setup.recipe, trial["settings"], source=f"trial {trial['number']}"),
            model=setup.model,
            data=setup.data,
            out=folder,
            resume=was_begun,
            progress=setup.progress,
        )
        for checkpoints in folder.glob("restarts/*/checkpoints"):  # trials are not extended
            drop_old_checkpoints(checkpoints, sys.maxsize, 0, ())  # each as a whole, whenever the search is stopped
            shutil.rmtree(checkpoints, ignore_errors=True)
    except (Interrupted, DataError, UsageError, OSError, FolderLostError):
        raise  # data, metric, disk and folder are the same for every trial
    except Exception as error:
        if len(RAISED) > num_stops:  # the error of a library in place of Interrupted
            raise
        if isinstance(error, ConfigError) and trial["number"] == 1:
            raise AllTrialsFailedError(str(error)) from error  # most likely, it is the same for every trial
        setup.progress.end()
        setup.progress.say(f"trial {trial['number']} failed: {error}")
        shutil.rmtree(folder, ignore_errors=True)
        write_text(folder.with_suffix(".failure.txt"), traceback.format_exc())
        return {**record, "status": "failed", "score": None, "error": f"{type(error).__name__}: {error}"}
    return {
        **record,
        "status": "done",
        "metric": result["metric"],
        "score": result["best"]["scores"][result["metric"]],
        "best": result["best"],
        "best_seed": result["best_seed"],
        "restarts": result["restarts"],
        # Only the last part of an interrupted trial was timed.
        "seconds": None if was_begun else time.perf_counter() - started,
    }


def _finish(setup: _Search, plan: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """Write results.json, results.md and the best model, and return the results."""
    order = ranked(records)
    failed = [record for record in records if record["status"] == "failed"]
    if not order:
        reasons = "; ".join(f"{record['name']}: {record['error']}" for record in failed[:3])
        raise AllTrialsFailedError(f"{setup.out}: all {len(failed)} trials failed: {reasons}")
    best = order[0]
    _place_model(setup, best["name"])
    commands = {trial["name"]: trial["command"] for trial in plan["trials"]}
    if not (setup.out / "model").exists():  # removed since the search ended
        command = commands[best["name"]]
        raise ConfigError(
            f"{setup.out} is complete, but {setup.out / 'model'} no longer exists; train it again with: {command}"
        )
    trials = [{**record, "command": commands[record["name"]]} for record in [*order, *failed]]
    result = {
        "method": plan["method"],
        "metric": best["metric"],
        "num_trials": len(records),
        "num_failed": len(failed),
        "best": trials[0],
        "model": str(setup.out / "model"),
        "trials": trials,
    }
    write_json(setup.out / RESULTS["search"], result)
    write_text(setup.out / "results.md", _report(result))
    return result


def _place_model(setup: _Search, name: str) -> None:
    """Move the best trial's model to `out/model`; a trial without a model has already given it."""
    source = setup.out / "trials" / name / "model"
    given = source.with_name(".model.tmp-old")
    shutil.rmtree(given, ignore_errors=True)
    if source.exists():
        with replacing_folder(setup.out / "model") as folder:
            copy_files(source, folder)
        source.rename(given)  # else a kill could leave half a model for the next start to copy
        shutil.rmtree(given, ignore_errors=True)


def _report(result: dict[str, Any]) -> str:
    headers, rows = search_rows(result)
    commands = "\n".join(f"{trial['command']}  # {trial['name']}" for trial in result["trials"])
    return (
        f"# Search: {amount(result['num_trials'], 'trial')}, {result['metric']} on dev\n\n"
        f"{markdown_of(headers, rows)}\n\n"
        f"Chosen by the best dev score, so the winner's score is optimistic; the mean is over all seeds of a trial.\n\n"
        f"## Commands that repeat each trial\n\n```sh\n{commands}\n```\n"
    )


_ATTEMPTS = 50


def next_proposal(
    space: Space, seed: int, tried: Sequence[tuple[Mapping[str, Any], float | None]], first: int = 0
) -> tuple[dict[str, Any], int] | None:
    """Return optuna's settings after trials with dev scores, and the proposal's number; None if it finds no new ones.

    A proposal depends only on the trials, the seed and its number, which counts from `first`, past earlier proposals,
    so an interrupted search continues as it would have. A failed trial has no score. Raises ConfigError if optuna is
    not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError("optuna is not installed: pip install maskloom[search]") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    choices = optuna.distributions
    distributions: dict[str, Any] = {}
    for key, values in space.items():
        if not isinstance(values, dict):
            distributions[key] = choices.CategoricalDistribution(list(values))
        elif all(isinstance(end, int) for end in values.values()):
            distributions[key] = choices.IntDistribution(int(values["low"]), int(values["high"]))
        else:
            distributions[key] = choices.FloatDistribution(**values, log=True)
    study = optuna.create_study(direction="maximize")
    for settings, score in tried:
        if score is not None:
            study.add_trial(optuna.trial.create_trial(params=dict(settings), distributions=distributions, value=score))
    for number in range(first, first + _ATTEMPTS):
        study.sampler = optuna.samplers.TPESampler(seed=seed + number)
        proposed = study.ask(distributions).params
        if all(proposed != settings for settings, _ in tried):
            return proposed, number
    return None
