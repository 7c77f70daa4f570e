"""Examples of a task, checks of those given in Python, and reports on the rows that readers kept and dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from maskloom.errors import DataError
from maskloom.system.foreign_files import is_utf8
from maskloom.tasks.tables import BLANK, BadRowError

ExampleT = TypeVar("ExampleT")
NO_GOLD_LABEL = "no gold label"

# Enough to keep 4,096 short texts together; tokenising a megabyte of text takes some hundred megabytes of memory.
CHARACTERS_AT_ONCE = 4 << 20


@dataclass(frozen=True)
class Example:
    """One record of a data file: a text, an optional second text, and the label as written in the file.

    `label` is None if the file has none, a number for regression, and a tuple for several labels or targets.
    """

    text: str
    pair: str | None
    label: str | float | tuple[str, ...] | None
    line: int

    def inputs(self) -> tuple[str, str | None]:
        """Return the model's input; examples with equal inputs differ only in their labels."""
        return self.text, self.pair

    def as_row(self) -> dict[str, str]:
        """Return the texts as shown in a row of predictions."""
        return {"text": self.text} if self.pair is None else {"text": self.text, "pair": self.pair}


class TitledExample(Example):
    """An example whose first text is the title of the second one."""

    def as_row(self) -> dict[str, str]:
        """Return the texts as shown in a row of predictions."""
        return {"text": self.text} if self.pair is None else {"title": self.text, "text": self.pair}


@dataclass
class ReadingReport:
    """Counts of one file: `num_rows` is always `num_kept` examples, plus `num_joined`, plus the counts in `dropped`.

    `num_joined` rows are further references of the example before them. `notes` tell the user how the file was read;
    `labels_are_ids` is None until labels have been encoded.
    """

    path: Path
    num_rows: int = 0
    num_kept: int = 0
    num_joined: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    first_dropped_lines: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    num_blank: int = 0
    first_blank_line: int = 0
    labels_are_ids: bool | None = None

    def blank(self, line: int) -> None:
        """Count a blank line of raw text, which is kept as an empty text."""
        self.num_blank += 1
        self.first_blank_line = self.first_blank_line or line

    def check_any(self) -> None:
        """Raise DataError if there were rows and none was kept."""
        if self.num_rows and not self.num_kept:
            raise DataError(f"{self.path}: no usable rows: {self.num_rows} read, dropped: {self.dropped}")

    def drop(self, reason: str, line: int) -> None:
        """Count one dropped row."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.first_dropped_lines.setdefault(reason, line)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "path": str(self.path),
            "num_rows": self.num_rows,
            "num_kept": self.num_kept,
            **({"num_joined": self.num_joined} if self.num_joined else {}),
            "dropped": dict(self.dropped),
            "first_dropped_lines": dict(self.first_dropped_lines),
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"num_blank": self.num_blank, "first_blank_line": self.first_blank_line} if self.num_blank else {}),
        }


@dataclass(frozen=True)
class ReadExamples:
    """The examples of one file in file order, with the report on reading them.

    Each kind of task has its own frozen dataclass of examples, with `line`, `inputs()` and `as_row()` as in `Example`.
    """

    examples: list[Any]
    report: ReadingReport


def kept_examples(
    records: Iterable[Any], make: Callable[[Any], ExampleT], report: ReadingReport, *, skips: bool
) -> Iterator[ExampleT]:
    """Yield the example that `make` creates from each record; `report` counts the records kept and dropped.

    A record that breaks a rule (BadRowError) is dropped if it is blank, has no gold label, or `skips` is true;
    otherwise DataError is raised with file, line and rule. Records must be rows, unless all errors of `make` carry
    their line.
    """
    for record in records:
        report.num_rows += 1
        try:
            example = make(record)
        except BadRowError as problem:
            line = record.line if problem.line is None else problem.line
            if not skips and problem.reason not in (BLANK, NO_GOLD_LABEL):
                where = record.where if problem.line is None else f"line {line}"
                raise DataError(f"{report.path}: {where}: {problem}") from None
            report.drop(problem.reason, line)
            continue
        report.num_kept += 1
        yield example


def pieces_of(examples: Iterable[Any], size: int, *, keeps_documents: bool = False) -> Iterator[list[Any]]:
    """Yield examples in lists of at most `size` and a few megabytes of text, but of at least one example.

    With `keeps_documents`, a list may be four times as large to avoid splitting a document.
    """
    piece: list[Any] = []
    num_characters = 0
    for example in examples:
        goes_on = keeps_documents and bool(piece) and example.document == piece[-1].document
        more, times = _num_characters(example.inputs()), 4 if goes_on else 1
        if piece and (len(piece) >= times * size or num_characters + more > times * CHARACTERS_AT_ONCE):
            yield piece
            piece, num_characters = [], 0
        piece.append(example)
        num_characters += more
    if piece:
        yield piece


def _num_characters(inputs: Any) -> int:
    """Return the number of characters in a model input: a text, or nested tuples of texts."""
    if isinstance(inputs, tuple):
        return sum(map(_num_characters, inputs))
    return len(inputs) if isinstance(inputs, str) else 0


def checked_inputs(inputs: Any) -> list[Any]:
    """Return any iterable of inputs as a list; raises DataError for a string, a mapping or a non-iterable."""
    if isinstance(inputs, str | bytes):
        raise DataError("expected a list of texts, got one string; put it in a list")
    if isinstance(inputs, Mapping) or not isinstance(inputs, Iterable):
        raise DataError(f"expected a list of texts, got {type(inputs).__name__}")
    return list(inputs)


def checked_text(text: Any, number: int, *, may_be_blank: bool = True) -> str:
    """Return `text` unchanged; raises DataError, with the input's number, if it is not a valid text."""
    if not isinstance(text, str):
        raise DataError(f"input {number}: expected a string, got {type(text).__name__}")
    if not is_utf8(text):
        raise DataError(f"input {number}: contains an unpaired surrogate, which is not valid Unicode")
    if not (may_be_blank or text.strip()):
        raise DataError(f"input {number}: the text is empty")
    return text


def checked_parts(item: Any, number: int, what: str) -> tuple[Any, Any]:
    """Return the two parts of an input; raises DataError, saying that `what` is expected, for anything else."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        got = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
        raise DataError(f"input {number}: expected {what}, got {got}")
    return item[0], item[1]


def text_example(item: Any, number: int) -> Example:
    """Return the example for a text or a tuple of two texts. Raises DataError for anything else."""
    parts = tuple(item) if isinstance(item, tuple | list) else (item,)
    if len(parts) not in (1, 2):
        raise DataError(f"input {number}: expected a text or a pair of texts, got {len(parts)} parts")
    for part in parts:
        checked_text(part, number)
    return Example(text=parts[0], pair=parts[1] if len(parts) == 2 else None, label=None, line=number + 1)
