"""Where GLUE's files are, what a submission consists of, and a check that the GLUE server will accept it."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.tables import read_rows

_MATCHED = frozenset({"fiction", "government", "slate", "telephone", "travel"})
_MISMATCHED = frozenset({"facetoface", "letters", "nineeleven", "oup", "verbatim"})
_MNLI_ENDS = {"MNLI-m": "_matched", "MNLI-mm": "_mismatched"}
_DIAGNOSTIC_FOLDERS = ("MNLI", "AX", "diagnostic", ".")
_SCORE = re.compile(r"[0-4](\.\d+)?|5(\.0+)?")


@dataclass(frozen=True)
class GlueTask:
    """A GLUE task: its catalog row and its folder."""

    name: str
    folder: str

    @property
    def column(self) -> str:
        """The column of the score that selects models."""
        return "MNLI-m" if self.name == "mnli" else self.folder

    def file(self, data: Path, part: str, column: str) -> Path:
        """Return the path of the dev or test file of a column; MNLI has two columns, all others have one."""
        return data / self.folder / f"{part}{_MNLI_ENDS.get(column, '')}.tsv"

    def training_files(self, data: Path) -> tuple[Path, Path]:
        """Return the paths of the train file and of the dev file that selects models."""
        return data / self.folder / "train.tsv", self.file(data, "dev", self.column)


@dataclass(frozen=True)
class SubmissionFile:
    """A file of a submission, the task that answers it, and its number of rows."""

    column: str
    task: str
    num_rows: int

    @property
    def name(self) -> str:
        """The name of the file within the zip."""
        return f"{self.column}.tsv"

    @property
    def labels(self) -> tuple[str, ...]:
        """The possible predictions; () for a score from 0 to 5."""
        return catalog_row(self.task).labels


_FOLDERS = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")
TASKS: tuple[GlueTask, ...] = tuple(GlueTask(folder.lower(), folder) for folder in _FOLDERS)
SUBMISSION: tuple[SubmissionFile, ...] = (
    SubmissionFile("AX", "mnli", 1_104),
    SubmissionFile("CoLA", "cola", 1_063),
    SubmissionFile("MNLI-m", "mnli", 9_796),
    SubmissionFile("MNLI-mm", "mnli", 9_847),
    SubmissionFile("MRPC", "mrpc", 1_725),
    SubmissionFile("QNLI", "qnli", 5_463),
    SubmissionFile("QQP", "qqp", 390_965),
    SubmissionFile("RTE", "rte", 3_000),
    SubmissionFile("SST-2", "sst-2", 1_821),
    SubmissionFile("STS-B", "sts-b", 1_379),
    SubmissionFile("WNLI", "wnli", 146),
)


def glue_task(name: str) -> GlueTask:
    """Return the task with that name, ignoring case; raises ConfigError that lists the known names."""
    for task in TASKS:
        if name.strip().lower() in (task.name, f"glue:{task.name}"):
            return task
    raise ConfigError(f"{name!r:.80} is not a task of GLUE; known: {', '.join(task.name for task in TASKS)}")


def chosen_tasks(data: Path, names: Sequence[str] | None) -> tuple[list[GlueTask], dict[str, str]]:
    """Return the tasks whose training files exist, and for each other task the files that are missing.

    Raises DataError that lists the missing files if a task in `names` lacks some or no task is found, and DataError for
    a folder that does not exist.
    """
    check_data(data)
    found, absent = [], {}
    for task in TASKS if names is None else dict.fromkeys(map(glue_task, names)):
        missing = [path for path in task.training_files(data) if not path.is_file()]
        if missing:
            absent[task.name] = ", ".join(map(str, missing))
        else:
            found.append(task)
    if absent and names is not None:
        listed = "; ".join(f"{name}: {paths}" for name, paths in absent.items())
        raise DataError(f"{data}: files of the requested tasks are missing: {listed}")
    if not found:
        raise DataError(f"{data}: no GLUE task found; looked for {'; '.join(absent.values())}")
    return found, absent


def check_data(data: Path) -> None:
    """Raise DataError for a path of GLUE's files that is not a folder."""
    if not data.is_dir():
        problem = "is a file" if data.exists() else "there is no such folder"
        raise DataError(f"{data}: {problem}; --data is a folder with GLUE's files as CoLA/train.tsv, RTE/dev.tsv ...")


def diagnostic_file(data: Path, *, labelled: bool = False) -> Path | None:
    """Return the path of the diagnostic set AX, unlabelled or `labelled`, or None; its place varies by distribution."""
    name = "diagnostic-full.tsv" if labelled else "diagnostic.tsv"
    paths = [data / folder / name for folder in _DIAGNOSTIC_FOLDERS] + ([] if labelled else [data / "AX" / "AX.tsv"])
    return next((path for path in paths if path.is_file()), None)


def check_genres(path: Path, *, matched: bool) -> None:
    """Raise DataError if an MNLI file contains a genre of the other set; files without known genres pass."""
    rows = read_rows(path, "tsv")
    names = [str(name) for name in next(rows).fields]
    if "genre" not in names:
        return
    column, others = names.index("genre"), _MISMATCHED if matched else _MATCHED
    for row in rows:
        genre = list(row.fields)[column] if len(row.fields) > column else ""
        if genre in others:
            this, other = ("matched", "mismatched") if matched else ("mismatched", "matched")
            raise DataError(
                f"{path}: line {row.line}: the genre {genre!r:.80} belongs to the {other} set, "
                f"this file to the {this} one; were the two files mixed up?"
            )


def count_test_rows(path: Path) -> int:
    """Return the number of rows of a test file, whose first column, `index` or `id`, must number them from 0.

    Raises DataError, with the line, for another header, a row out of order or a blank one, and for a file without rows.
    """
    rows = read_rows(path, "tsv")
    header = next(rows)
    first = str(next(iter(header.fields))).strip().lower()
    if first not in ("index", "id"):
        raise DataError(f"{path}: line 1: the first column is {first!r:.60}; a GLUE test file has index or id there")
    num_rows, blank = 0, None
    for row in rows:
        if list(row.fields) == [""]:
            blank = blank or row.line
            continue
        if blank is not None:
            raise DataError(f"{path}: line {blank}: a blank line within the file")
        index = next(iter(row.fields))
        if index != str(num_rows):
            raise DataError(
                f"{path}: line {row.line}: index {index!r:.80}, expected {num_rows}; rows must stay in order"
            )
        num_rows += 1
    if not num_rows:
        raise DataError(f"{path}: no rows")
    return num_rows


HEADER = "index\tprediction"


def problems_of(archive: zipfile.ZipFile) -> list[str]:
    """Return the problems of a submission, an open zip, at most one per file; [] means that it is sound."""
    names, known = archive.namelist(), {file.name: file for file in SUBMISSION}
    problems = [f"{name}: not a submission file" for name in names if name not in known]
    problems += [f"{name}: occurs {names.count(name)} times in the zip" for name in known if names.count(name) > 1]
    if absent := sorted(known.keys() - set(names)):
        problems.append(f"missing: {', '.join(absent)}")
    for name, file in known.items():
        if name in names and (problem := _problem_of(archive.read(name).decode(), file)):
            problems.append(f"{name}: {problem}")
    return problems


def _problem_of(text: str, file: SubmissionFile) -> str | None:
    """Return the first problem of one file, or None."""
    (header, *lines), labels = text.removesuffix("\n").split("\n"), file.labels
    if header != HEADER:
        return f"line 1: the header is {header!r:.80}, expected {HEADER!r}"
    for number, line in enumerate(lines):
        index, _, answer = line.partition("\t")
        is_known = answer in labels if labels else _SCORE.fullmatch(answer)
        if index != str(number) or not is_known:
            answers = ", ".join(labels) or "a score from 0 to 5"
            return f"line {number + 2}: {line!r:.80}, expected index {number} and a prediction: {answers}"
    if len(lines) != file.num_rows:
        return f"has {len(lines) + 1:,} lines including its header, expected {file.num_rows + 1:,}"
    return None
