"""Fine-tuning on the tasks of GLUE, a search for each, and the table of official scores (BERT paper, 4.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maskloom.config import FinetuneRecipe
from maskloom.errors import ConfigError, DataError
from maskloom.files import write_json, write_text
from maskloom.folder_lock import alone_in_folder
from maskloom.foreign_files import read_json_object
from maskloom.inference.model_folder import resolve_model_folder
from maskloom.metrics.glue_score import OFFICIAL_METRICS, GlueScore, leaderboard_score, paper_average
from maskloom.runs.evaluate import evaluate
from maskloom.runs.glue.files import GlueTask, check_genres, chosen_tasks, diagnostic_file
from maskloom.runs.glue.table import glue_report
from maskloom.runs.progress import Progress
from maskloom.runs.run_folder import DESCRIPTION, RECIPE, RESULTS, described, kind_of_run, prepare_run_folder
from maskloom.runs.search import AllTrialsFailedError, search
from maskloom.runs.search_space import Space, grid_settings, recipe_with, space_as_data, space_of_data
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.tables import ReadingOptions
from maskloom.training.events import check_log_targets

MAJORITY = "majority.json"


@alone_in_folder()
def glue_run(
    recipe: FinetuneRecipe,
    *,
    data: str | Path,
    model: str | Path,
    out: str | Path,
    tasks: Sequence[str] | None = None,
    space: Space | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Search settings for every task of GLUE whose files are in `data`, and return all scores on dev.

    `out/<TASK>` is each task's search, with the best model in `out/<TASK>/model`; `out/glue.json` and `glue.md` hold
    the table. `space` is the grid (by default none: the recipe alone). WNLI is not learned: its commonest training
    label is the answer, as in the paper. A task whose search fails is named and leaves the others alone. With
    `resume` a run goes on where it stopped. Raises DataError when tasks named in `tasks` have no files, and when no
    task has any.
    """
    check_log_targets(recipe.training.log_to)
    data, out, progress = Path(data), Path(out), progress or Progress()
    stored = _stored_inputs(out) if resume else None
    if stored is not None:
        tasks = stored["tasks"] if tasks is None else tasks
        space = space_of_data(stored["space"]) if space is None else space
    found, absent = chosen_tasks(data, tasks)
    resolve_model_folder(model)
    _check_mnli(data, found)
    for number, settings in enumerate(grid_settings(space or {}), start=1):
        recipe_with(recipe, settings, source=f"trial {number}")
    inputs = {
        "data": str(data.resolve()),
        "tasks": None if tasks is None else [task.name for task in found],
        "space": space_as_data(space or {}),
    }
    prepare_run_folder(out, recipe, inputs=inputs, resume=resume)
    for name, paths in absent.items():
        progress.say(f"{name} is skipped, its files are missing: {paths}")
    outcomes = {}
    for task in found:
        progress.say(f"{task.folder}: {found.index(task) + 1} of {len(found)} tasks")
        outcomes[task.name] = _outcome(task, data, Path(model), out / task.folder, recipe, space or {}, progress)
    result = _result(outcomes, absent)
    write_json(out / RESULTS["glue"], result)
    write_text(out / "glue.md", glue_report(result))
    return result


def _outcome(
    task: GlueTask, data: Path, model: Path, out: Path, recipe: FinetuneRecipe, space: Space, progress: Progress
) -> dict[str, Any]:
    """Return how a task went: its official scores by column, or why there are none."""
    train, dev = task.training_files(data)
    try:
        if task.name == "wnli":
            return answer_by_majority(train, dev, out)
        row = catalog_row(task.name)
        found = search(
            recipe.model_copy(update={"task": row.kind}),
            model=model,
            train=train,
            dev=dev,
            out=out,
            space=space,
            reading=ReadingOptions(format=task.name),
            resume=(out / RECIPE).exists(),
            progress=progress,
        )
        columns = {next(iter(task.dev)): found["best"]["best"]["scores"]}
        if task.name == "mnli":
            columns |= _further_columns(task, data, out, progress)
    except (AllTrialsFailedError, DataError) as error:  # wrong settings are wrong for every task
        progress.end()
        progress.say(f"{task.folder} failed: {error}")
        return {"status": "failed", "error": str(error), "columns": {}}
    best = found["best"]
    return {
        "status": "done",
        "metric": found["metric"],
        "columns": {
            column: {name: scores[name] for name in OFFICIAL_METRICS[column]} for column, scores in columns.items()
        },
        "settings": best["settings"],
        "command": best["command"],
        "restarts": best["restarts"],
        "reference": best["best"]["reference"],
        "num_trials": found["num_trials"],
        "num_failed": found["num_failed"],
        "seconds": _sum_of_seconds(found["trials"]),
        "model": str(out / "model"),
    }


def _further_columns(task: GlueTask, data: Path, out: Path, progress: Progress) -> dict[str, dict[str, Any]]:
    """Return the scores of the best MNLI model on the mismatched set, and on AX where its labels are at hand."""
    columns = {}
    mismatched = data / task.folder / task.dev["MNLI-mm"]
    if mismatched.is_file():
        progress.say(f"{mismatched}: scored by the model that did best on the matched set")
        columns["MNLI-mm"] = evaluate(out, mismatched, reading=ReadingOptions(format="mnli"), progress=progress)
    else:
        progress.say(f"{mismatched} is not there: no score for MNLI-mm")
    diagnostic = diagnostic_file(data, labelled=True)
    if diagnostic is not None:
        columns["AX"] = evaluate(out, diagnostic, reading=ReadingOptions(format="ax-full"), progress=progress)
    return columns


def _check_mnli(data: Path, tasks: list[GlueTask]) -> None:
    for task in tasks:
        if task.name != "mnli":
            continue
        for column, name in task.dev.items():
            if (data / task.folder / name).is_file():
                check_genres(data / task.folder / name, matched=column == "MNLI-m")


def _result(outcomes: dict[str, dict[str, Any]], absent: dict[str, str]) -> dict[str, Any]:
    scores = {column: dict(values) for outcome in outcomes.values() for column, values in outcome["columns"].items()}
    return {
        "tasks": outcomes,
        "absent": absent,
        "failed": [name for name, outcome in outcomes.items() if outcome["status"] == "failed"],
        "scores": scores,
        "paper_average": _as_data(paper_average(scores)),
        "leaderboard_score": _as_data(leaderboard_score(scores)),
    }


def _as_data(score: GlueScore) -> dict[str, Any]:
    return {"value": score.value, "missing": list(score.missing)}


def _sum_of_seconds(trials: list[dict[str, Any]]) -> float | None:
    """Return the time of all trials, or None when one of them was interrupted and so not timed as a whole."""
    seconds = [trial["seconds"] for trial in trials if trial["status"] == "done"]
    return None if None in seconds else sum(seconds)


def _stored_inputs(out: Path) -> dict[str, Any] | None:
    if not all((out / name).exists() for name in (RECIPE, DESCRIPTION)):
        return None
    description = described(out)
    if kind_of_run(description) != "glue":
        raise ConfigError(f"{out}: this is not the folder of a GLUE run")
    return description["inputs"]


def answer_by_majority(train: Path, dev: Path, out: Path) -> dict[str, Any]:
    """Write the commonest label of WNLI's training data to `out`, and return its accuracy on dev, as the paper does.

    WNLI's dev set repeats sentences of train with opposite answers, so that learning it scores below chance. Of labels
    that are equally common the first one counts.
    """
    row = catalog_row("wnli")
    options = ReadingOptions(format="wnli")
    counts = {}
    for name, path in (("train", train), ("dev", dev)):
        labels = [str(example.label) for example in KINDS[row.kind].read(path, options).examples]
        unknown = next((label for label in labels if label not in row.labels), None)
        if unknown is not None:
            raise DataError(f"{path}: the label {unknown!r:.80} is not one of {', '.join(row.labels)}")
        counts[name] = Counter(labels)
    label = max(row.labels, key=lambda name: counts["train"][name])
    accuracy = counts["dev"][label] / counts["dev"].total()
    write_json(out / MAJORITY, {"label": label, "train_counts": dict(sorted(counts["train"].items()))})
    return {
        "status": "majority",
        "metric": "accuracy",
        "columns": {"WNLI": {"accuracy": accuracy}},
        "label": label,
        "seconds": 0.0,
    }


def majority_label(folder: Path) -> str:
    """Return the label that `answer_by_majority` wrote; raises DataError when there is none."""
    path = folder / MAJORITY
    if not path.is_file():
        raise DataError(f"{path}: not there; run the task wnli first (maskloom glue run)")
    return str(read_json_object(path)["label"])
