"""Answers to GLUE's unlabelled files, as the zip that its leaderboard takes."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from maskloom.errors import ConfigError, DataError
from maskloom.files import is_stream, output_file
from maskloom.inference import Prediction, Predictor
from maskloom.runs.first_look import check_place
from maskloom.runs.glue.files import (
    HEADER,
    SUBMISSION,
    SubmissionFile,
    check_genres,
    count_test_rows,
    diagnostic_file,
    glue_task,
    problems_of,
)
from maskloom.runs.glue.run import MAJORITY, majority_label
from maskloom.runs.progress import Progress
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.reading import iterate_examples
from maskloom.tasks.tables import ReadingOptions

_WINDOW = 4096
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same answers give the same bytes


def submit_glue(
    run: str | Path,
    *,
    data: str | Path,
    out: str | Path,
    allow_partial: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Answer the test files with the models of a GLUE run and write the zip; return what was answered.

    A row that cannot be read (QQP's short rows, an empty text) gets the commonest answer of its file and is counted.
    Files that are absent, or whose task has no model, are an error before anything is predicted, unless
    `allow_partial`: then they are left out and named. The zip takes its name only after its check; a pipe is written
    into. Raises DataError with all the problems that the check finds, ConfigError for another suffix and a folder.
    """
    run, data, out, progress = Path(run), Path(data), Path(out), progress or Progress()
    if out.suffix.lower() != ".zip" and not is_stream(out):
        raise ConfigError(f"{out}: a submission is a .zip file")
    check_place(data, out)
    sources, absent = _sources(run, data)
    if absent and not allow_partial:
        listed = "; ".join(f"{name}: {reason}" for name, reason in absent.items())
        raise DataError(f"a submission has {len(SUBMISSION)} files; {listed} (--allow-partial leaves them out)")
    if not sources:
        raise DataError(f"{data}: there is nothing to answer: {'; '.join(absent.values())}")
    num_rows = {name: _checked_rows(name, path) for name, path in sources.items()}
    account: dict[str, Any] = {}
    held = io.BytesIO()  # a few megabytes, checked before anything is written
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in SUBMISSION:
            if file.column in sources:
                rows = num_rows[file.column]
                answers, account[file.name] = _answers(file, sources[file.column], rows, run, progress)
                _put(archive, file.name, answers)
    with zipfile.ZipFile(held) as archive:
        problems = problems_of(archive, allow_partial=allow_partial)
    if problems:
        raise DataError(f"{out} is not written; the check found:\n" + "\n".join(problems))
    with output_file(out) as written:
        written.write(held.getvalue())
    return {"output": str(out), "files": account, "absent": absent, "is_complete": not absent}


def _put(archive: zipfile.ZipFile, name: str, answers: list[str]) -> None:
    lines = [HEADER, *(f"{index}\t{answer}" for index, answer in enumerate(answers))]
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    archive.writestr(entry, "\n".join(lines) + "\n")


def _sources(run: Path, data: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the unlabelled file of each column that can be answered, and why others cannot be."""
    if not run.is_dir():
        raise DataError(f"{run}: there is no such folder; a run of `maskloom glue run` is expected")
    if not data.is_dir():
        raise DataError(f"{data}: there is no such folder; GLUE's files lie in it as CoLA/test.tsv, RTE/test.tsv ...")
    sources, absent = {}, {}
    for file in SUBMISSION:
        task = glue_task(file.task)
        if file.column == "AX":
            path, looked_for = diagnostic_file(data), str(data / "MNLI" / "diagnostic.tsv")
        else:
            path = data / task.folder / task.test[file.column]
            path, looked_for = (path if path.is_file() else None), str(path)
        folder = run / task.folder
        answers = folder / (MAJORITY if task.name == "wnli" else "model")
        if path is None:
            absent[file.column] = f"{looked_for} is not there"
        elif not answers.exists():
            absent[file.column] = f"{answers} is not there; run the task {task.name} first"
        else:
            sources[file.column] = path
    return sources, absent


def _checked_rows(column: str, path: Path) -> int:
    if column.startswith("MNLI"):
        check_genres(path, matched=column == "MNLI-m")
    return count_test_rows(path)


def _answers(
    file: SubmissionFile, path: Path, num_rows: int, run: Path, progress: Progress
) -> tuple[list[str], dict[str, Any]]:
    """Return one answer a row, in order, with the number of rows and of those that could not be read."""
    folder = run / glue_task(file.task).folder
    if file.task == "wnli":
        return [majority_label(folder)] * num_rows, {"num_rows": num_rows, "num_unreadable": 0, "path": str(path)}
    predictor = Predictor.load(folder)
    _check_labels(file, predictor, folder)
    report = ReadingReport(path)
    answers: list[str | None] = [None] * num_rows
    progress.begin(f"answering {file.name}", num_rows)
    for line, answer in _predictions(file, path, predictor, report):
        answers[line - 2] = answer  # the header is line 1
        if line % 512 == 0:
            progress.advance(line - 1)
    progress.advance(num_rows)
    progress.end()
    given = Counter(answer for answer in answers if answer is not None)
    if not given:
        raise DataError(f"{path}: no row can be read: {report.dropped}")
    commonest = given.most_common(1)[0][0]
    num_unreadable = answers.count(None)
    if num_unreadable:
        lines = ", ".join(f"{reason} (first at line {line})" for reason, line in report.first_dropped_lines.items())
        progress.say(f"{path}: {num_unreadable} rows cannot be read and get {commonest}: {lines}")
    filled = [commonest if answer is None else answer for answer in answers]
    return filled, {"num_rows": num_rows, "num_unreadable": num_unreadable, "path": str(path)}


def _predictions(
    file: SubmissionFile, path: Path, predictor: Predictor, report: ReadingReport
) -> Iterator[tuple[int, str]]:
    name = "ax" if file.column == "AX" else file.task
    options = ReadingOptions(format=name, on_bad_rows="skip")
    examples = iterate_examples(path, catalog_row(name).kind, options, needs_label=False, report=report)
    while window := list(islice(examples, _WINDOW)):
        texts = [example.text if example.pair is None else (example.text, example.pair) for example in window]
        for example, prediction in zip(window, predictor.predict(texts), strict=True):
            yield example.line, _answer(file, prediction)


def _answer(file: SubmissionFile, prediction: Prediction) -> str:
    """Return a label as the leaderboard spells it, or a score within 0 to 5."""
    if file.labels:
        return str(prediction["label"])
    return f"{min(max(float(prediction['score']), 0.0), 5.0):.4f}"


def _check_labels(file: SubmissionFile, predictor: Predictor, folder: Path) -> None:
    """Raise DataError for a model that answers another task: its labels would be taken for this one's."""
    names = () if predictor.task is None else predictor.task.labels
    if predictor.task is None or set(names) != set(file.labels):
        labels = ", ".join(file.labels) or "none (a score)"
        raise DataError(f"{folder}: its labels are {', '.join(names) or 'none'}; {file.name} takes {labels}")


def submission_lines(result: dict[str, Any]) -> list[str]:
    """Return for a person what was answered, what is left out, and whether the zip is whole."""
    lines = []
    for name, file in result["files"].items():
        unreadable = f", {file['num_unreadable']:,} of them could not be read" if file["num_unreadable"] else ""
        lines.append(f"{name:<12}  {file['num_rows']:>7,} answers{unreadable}")
    lines += [f"{name + '.tsv':<12}  left out: {reason}" for name, reason in result["absent"].items()]
    state = "complete" if result["is_complete"] else "PARTIAL: the leaderboard does not accept it"
    return [*lines, f"{result['output']}: checked, {state}"]
