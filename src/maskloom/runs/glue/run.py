"""Fine-tuning on the GLUE tasks with a search for each, its scores, and a submission (BERT paper, 4.1)."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maskloom.config import FinetuneRecipe
from maskloom.errors import ConfigError, DataError, amount
from maskloom.inference import Prediction, Predictor
from maskloom.inference.model_folder import resolve_model_folder
from maskloom.metrics.glue_score import OFFICIAL_METRICS, leaderboard_score, paper_average
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.evaluate import evaluate
from maskloom.runs.finetune import LabelledFiles
from maskloom.runs.first_look import check_place
from maskloom.runs.glue.files import (
    HEADER,
    SUBMISSION,
    GlueTask,
    SubmissionFile,
    check_data,
    check_genres,
    chosen_tasks,
    count_test_rows,
    diagnostic_file,
    glue_task,
    problems_of,
)
from maskloom.runs.reading_defaults import FileReading
from maskloom.runs.run_folder import RECIPE, RESULTS, described, kind_of_run, prepare_run_folder
from maskloom.runs.search import AllTrialsFailedError, Trials, search
from maskloom.runs.search_space import Space, grid_settings, recipe_with
from maskloom.runs.task_summaries import glue_report
from maskloom.system.devices import chosen_device, half_type
from maskloom.system.files import is_stream, output_file, write_json, write_text
from maskloom.system.folder_lock import alone_in_folder
from maskloom.system.foreign_files import read_json_object
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.labels import encode_labels
from maskloom.tasks.tables import ReadingOptions
from maskloom.training.events import check_log_targets

MAJORITY = "majority.json"


@alone_in_folder()
def glue_run(
    recipe: FinetuneRecipe,
    *,
    data: Path,
    model: Path,
    out: Path,
    tasks: Sequence[str] | None = None,
    space: Space | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Search settings for every GLUE task whose files are in `data`, and return all scores on dev.

    `out/<TASK>` holds each task's search, with the best model in `out/<TASK>/model`; `out/glue.json` and `glue.md` hold
    the table. Without a `space` there is one trial, the recipe. WNLI is not trained: its most common training label is
    the answer, as in the paper. A task whose search fails is reported and does not affect the others. Raises DataError
    if tasks named in `tasks` have no files, or no task has any; ConfigError for a missing device and for settings that
    do not fit every task.
    """
    check_log_targets(recipe.training.log_to)
    half_type(recipe.training.precision, chosen_device(recipe.training.device))  # a device is missing for every task
    if resume and (out / RECIPE).exists():
        description = described(out)
        if kind_of_run(description) != "glue":
            raise ConfigError(f"{out}: this is not the folder of a GLUE run")
        stored = description["inputs"]
        tasks = stored["tasks"] if tasks is None else tasks
        space = stored["space"] if space is None else space
    found, absent = chosen_tasks(data, tasks)
    resolve_model_folder(model)
    for task in (task for task in found if task.name == "mnli"):
        for column in ("MNLI-m", "MNLI-mm"):
            if (path := task.file(data, "dev", column)).is_file():
                check_genres(path, matched=column == "MNLI-m")
    for task in (task for task in found if task.name != "wnli"):
        for number, settings in enumerate(grid_settings(space or {}), start=1):
            recipe_with(_recipe_of(task, recipe), settings, source=f"{task.folder}, trial {number}")
    named = None if tasks is None else [task.name for task in found]
    inputs = {"data": str(data.resolve()), "tasks": named, "space": space or {}}
    prepare_run_folder(out, recipe, inputs=inputs, resume=resume)
    for name, paths in absent.items():
        progress.say(f"{name} is skipped because its files are missing: {paths}")
    outcomes = {}
    for task in found:
        progress.say(f"{task.folder}: task {found.index(task) + 1} of {len(found)}")
        outcomes[task.name] = _outcome(task, data, model, out / task.folder, recipe, space or {}, progress)
    scores = {column: dict(values) for outcome in outcomes.values() for column, values in outcome["columns"].items()}
    result = {
        "tasks": outcomes,
        "absent": absent,
        "failed": [name for name, outcome in outcomes.items() if outcome["status"] == "failed"],
        "scores": scores,
        "paper_average": paper_average(scores),
        "leaderboard_score": leaderboard_score(scores),
    }
    write_json(out / RESULTS["glue"], result)
    write_text(out / "glue.md", glue_report(result))
    return result


def _recipe_of(task: GlueTask, recipe: FinetuneRecipe) -> FinetuneRecipe:
    return recipe.model_copy(update={"task": catalog_row(task.name).kind})


def _outcome(
    task: GlueTask, data: Path, model: Path, out: Path, recipe: FinetuneRecipe, space: Space, progress: Progress
) -> dict[str, Any]:
    """Return the outcome of a task: its official scores by column, or why there are none."""
    train, dev = task.training_files(data)
    try:
        if task.name == "wnli":
            return answer_by_majority(train, dev, out)
        found = search(
            _recipe_of(task, recipe),
            model=model,
            data=LabelledFiles(train, dev, ReadingOptions(format=task.name)),
            out=out,
            trials=Trials(space),
            resume=(out / RECIPE).exists(),
            progress=progress,
        )
        columns = {task.column: found["best"]["best"]["scores"]}
        if task.name == "mnli":
            columns |= _further_columns(task, data, out, progress)
    except (AllTrialsFailedError, DataError) as error:  # wrong settings are wrong for every task
        progress.end()
        progress.say(f"{task.folder} failed: {error}")
        return {"status": "failed", "error": str(error), "columns": {}}
    best, seconds = found["best"], [trial["seconds"] for trial in found["trials"] if trial["status"] == "done"]
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
        "seconds": None if None in seconds else sum(seconds),  # an interrupted trial has no total time
        "model": str(out / "model"),
    }


def _further_columns(task: GlueTask, data: Path, out: Path, progress: Progress) -> dict[str, dict[str, Any]]:
    """Return the best MNLI model's scores on the mismatched set, and on AX if its labels are available."""
    columns = {}
    mismatched = task.file(data, "dev", "MNLI-mm")
    if mismatched.is_file():
        progress.say(f"{mismatched}: scored by the model that did best on the matched set")
        columns["MNLI-mm"] = evaluate(out, mismatched, reading=ReadingOptions(format="mnli"), progress=progress)
    else:
        progress.say(f"{mismatched} does not exist: no score for MNLI-mm")
    diagnostic = diagnostic_file(data, labelled=True)
    if diagnostic is not None:
        columns["AX"] = evaluate(out, diagnostic, reading=ReadingOptions(format="ax-full"), progress=progress)
    return columns


def answer_by_majority(train: Path, dev: Path, out: Path) -> dict[str, Any]:
    """Write the most common label of WNLI's training data to `out`, and return its accuracy on dev, as the paper does.

    WNLI's dev set repeats sentences of train with opposite answers, so a trained model scores below chance. On a tie,
    the first label wins.
    """
    row = catalog_row("wnli")
    options = ReadingOptions(format="wnli")
    counts = []
    for path in (train, dev):
        ids = encode_labels(KINDS[row.kind].read(path, options), row.kind, row.labels)
        assert ids is not None
        counts.append(Counter(row.labels[number] for number in ids))
    of_train, of_dev = counts
    label = max(row.labels, key=lambda name: of_train[name])
    accuracy = of_dev[label] / of_dev.total()
    write_json(out / MAJORITY, {"label": label, "train_counts": dict(sorted(of_train.items()))})
    columns = {"WNLI": {"accuracy": accuracy}}
    return {"status": "majority", "metric": "accuracy", "columns": columns, "label": label, "seconds": 0.0}


_WINDOW = 4096


def submit_glue(run: Path, *, data: Path, out: Path, progress: Progress = SILENT) -> dict[str, Any]:
    """Answer the test files with the models of a GLUE run and write the zip; return what was answered.

    A row that cannot be read (QQP's short rows, an empty text) gets the most common answer of its file and is counted.
    Raises DataError for missing files and files whose task has no model, and with all problems that the check finds in
    the zip; ConfigError for another suffix or a folder.
    """
    if out.suffix.lower() != ".zip" and not is_stream(out):
        raise ConfigError(f"{out}: a submission must be a .zip file")
    check_place(data, out)
    sources, num_rows = _sources(run, data), {}
    for name, path in sources.items():
        if name.startswith("MNLI"):
            check_genres(path, matched=name == "MNLI-m")
        num_rows[name] = count_test_rows(path)
    unreadable: dict[str, int] = {}
    held = io.BytesIO()  # a few megabytes, checked before anything is written
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in SUBMISSION:
            where = sources[file.column], num_rows[file.column]
            answers, unreadable[file.column] = _answers(file, *where, run, progress)
            lines = [HEADER, *(f"{index}\t{answer}" for index, answer in enumerate(answers))]
            entry = zipfile.ZipInfo(file.name)  # without the time, so that the same answers give the same bytes
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(held) as archive:
        problems = problems_of(archive)
    if problems:
        raise DataError(f"{out} was not written; the check found:\n" + "\n".join(problems))
    with output_file(out) as written:
        written.write(held.getvalue())
    return {"output": str(out), "num_answers": num_rows, "num_unreadable": unreadable}


def _sources(run: Path, data: Path) -> dict[str, Path]:
    """Return the unlabelled file of each column; raises DataError with all that cannot be answered."""
    if not run.is_dir():
        raise DataError(f"{run}: there is no such folder; expected the --out of a `maskloom glue run`")
    check_data(data)
    sources, absent = {}, []
    for file in SUBMISSION:
        task = glue_task(file.task)
        if file.column == "AX":
            path, looked_for = diagnostic_file(data), str(data / "MNLI" / "diagnostic.tsv")
        else:
            path = task.file(data, "test", file.column)
            path, looked_for = (path if path.is_file() else None), str(path)
        answers = run / task.folder / (MAJORITY if task.name == "wnli" else "model")
        if path is None:
            absent.append(f"{file.column}: {looked_for} does not exist")
        elif not answers.exists():
            absent.append(f"{file.column}: {answers} does not exist; run the task {task.name} first")
        else:
            sources[file.column] = path
    if absent:
        raise DataError(f"a submission has {len(SUBMISSION)} files; {'; '.join(absent)}")
    return sources


def _answers(file: SubmissionFile, path: Path, num_rows: int, run: Path, progress: Progress) -> tuple[list[str], int]:
    """Return one answer per row, in order, and the number of unreadable rows."""
    folder = run / glue_task(file.task).folder
    if file.task == "wnli":
        label = str(read_json_object(folder / MAJORITY)["label"])
        return [label] * num_rows, 0
    predictor = Predictor.load(folder)
    _check_labels(file, predictor, folder)
    row, report = catalog_row("ax" if file.column == "AX" else file.task), ReadingReport(path)
    kind, options = KINDS[row.kind], ReadingOptions(format=row.name, on_bad_rows="skip")
    answers: list[str | None] = [None] * num_rows
    progress.begin(f"answering {file.name}", num_rows)
    for window in FileReading(path, kind, options, kind.settings(), report, False).shown_pieces(_WINDOW, progress):
        texts = [example.text if example.pair is None else (example.text, example.pair) for example in window]
        for example, prediction in zip(window, predictor.predict(texts), strict=True):
            answers[example.line - 2] = _answer(file, prediction)  # the header is line 1
    given = Counter(answer for answer in answers if answer is not None)
    if not given:
        raise DataError(f"{path}: no row can be read: {report.dropped}")
    commonest = given.most_common(1)[0][0]
    num_unreadable = answers.count(None)
    if num_unreadable:
        lines = ", ".join(f"{reason} (first at line {line})" for reason, line in report.first_dropped_lines.items())
        progress.say(f"{path}: {amount(num_unreadable, 'unreadable row')} answered with {commonest}: {lines}")
    return [commonest if answer is None else answer for answer in answers], num_unreadable


def _answer(file: SubmissionFile, prediction: Prediction) -> str:
    """Return a label as the leaderboard spells it, or a score clipped to the range 0 to 5."""
    return str(prediction["label"]) if file.labels else f"{min(max(float(prediction['score']), 0.0), 5.0):.4f}"


def _check_labels(file: SubmissionFile, predictor: Predictor, folder: Path) -> None:
    """Raise DataError for a model of another task, whose labels would be mistaken for this task's."""
    names = () if predictor.task is None else predictor.task.labels
    if predictor.task is None or set(names) != set(file.labels):
        labels = ", ".join(file.labels) or "none (a score)"
        raise DataError(f"{folder}: its labels are {', '.join(names) or 'none'}; {file.name} takes {labels}")
