"""Examples of a task, checked where handed over in Python, and the account of what a reader kept and dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from maskloom.errors import DataError
from maskloom.system.foreign_files import is_utf8
from maskloom.tasks.tables import BLANK, BadRowError

ExampleT = TypeVar("ExampleT")
NO_GOLD_LABEL = "no gold label"

# Rows of 4,096 short texts stay whole; a megabyte of text takes some hundred megabytes while it is cut into tokens.
CHARACTERS_AT_ONCE = 4 << 20


@dataclass(frozen=True)
class Example:
    """One record of a data file: text, an optional second text, and the label as it stands in the file.

    `label` is None where the file has none; a number for regression; a tuple for several labels or targets.
    """

    text: str
    pair: str | None
    label: str | float | tuple[str, ...] | None
    line: int

    def inputs(self) -> tuple[str, str | None]:
        """Return what a model sees of the example: two examples with equal inputs are the same but for the label."""
        return self.text, self.pair

    def as_row(self) -> dict[str, str]:
        """Return the texts as a row of predictions shows them."""
        return {"text": self.text} if self.pair is None else {"text": self.text, "pair": self.pair}


@dataclass
class ReadingReport:
    """What became of the rows of one file: `num_rows` is always `num_kept` plus all that `dropped` counts.

    `notes` say what a person should know of how the file was read; `labels_are_ids` is None until labels were encoded.
    """

    path: Path
    num_rows: int = 0
    num_kept: int = 0
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
        """Raise DataError where there were rows and none of them was kept."""
        if self.num_rows and not self.num_kept:
            raise DataError(f"{self.path}: no usable rows: {self.num_rows} read, dropped: {self.dropped}")

    def drop(self, reason: str, line: int) -> None:
        """Count one row that is left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.first_dropped_lines.setdefault(reason, line)

    def as_dict(self) -> dict[str, Any]:
        """Return the account as plain values."""
        return {
            "path": str(self.path),
            "num_rows": self.num_rows,
            "num_kept": self.num_kept,
            "dropped": dict(self.dropped),
            "first_dropped_lines": dict(self.first_dropped_lines),
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"num_blank": self.num_blank, "first_blank_line": self.first_blank_line} if self.num_blank else {}),
        }


@dataclass(frozen=True)
class ReadExamples:
    """The examples of one file in its order, with the account of the reading.

    An example is a frozen dataclass of its kind of task with `line`, `inputs()` and `as_row()`, as `Example` has them.
    """

    examples: list[Any]
    report: ReadingReport

    @classmethod
    def of(cls, path: str | Path, iterate: Callable[[ReadingReport], Iterable[Any]]) -> ReadExamples:
        """Read a whole file by what `iterate` yields; raises DataError where no row is usable."""
        report = ReadingReport(Path(path))
        examples = list(iterate(report))
        if not examples:
            raise DataError(f"{path}: no usable rows: {report.num_rows} read, dropped: {report.dropped or 'none'}")
        return cls(examples, report)


def kept_examples(
    records: Iterable[Any], make: Callable[[Any], ExampleT], report: ReadingReport, *, skips: bool
) -> Iterator[ExampleT]:
    """Yield what `make` makes of each record; `report` counts what is kept and what is dropped.

    Where a record breaks a rule (BadRowError), it is dropped if it is blank or has no gold label or `skips` is true;
    otherwise DataError names file, line and rule. Records are rows, unless all errors of `make` have the line.
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


def are_labelled(examples: Sequence[Any], path: str | Path) -> bool:
    """Tell whether examples have labels; raises DataError, with the line, where only some have."""
    without = [example.line for example in examples if example.label is None]
    if 0 < len(without) < len(examples):
        raise DataError(f"{path}: line {without[0]}: missing label (other rows have one)")
    return len(without) < len(examples)


def pieces_of(examples: Iterable[Any], size: int, *, keeps_documents: bool = False) -> Iterator[list[Any]]:
    """Yield examples in lists of at most `size` and of a few megabytes of text, at least one.

    With `keeps_documents` a list takes four times as much to hold a document together.
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
    """Return the number of characters of what a model sees of an example: a text, or tuples of texts."""
    if isinstance(inputs, str):
        return len(inputs)
    if not isinstance(inputs, tuple):
        return 0
    try:
        return len("".join(inputs))
    except TypeError:
        return sum(map(_num_characters, inputs))


def checked_inputs(inputs: Any) -> list[Any]:
    """Return the inputs of any iterable as a list; raises DataError for a string, a mapping and what is no iterable."""
    if isinstance(inputs, str | bytes):
        raise DataError("a list of texts is expected, this is one string; put it in a list")
    if isinstance(inputs, Mapping) or not isinstance(inputs, Iterable):
        raise DataError(f"a list of texts is expected, this is {type(inputs).__name__}")
    return list(inputs)


def checked_text(text: Any, number: int, *, may_be_blank: bool = True) -> str:
    """Return a text as it is; raises DataError, with the place of the input, for what is no text."""
    if not isinstance(text, str):
        raise DataError(f"input {number}: a string is expected, this is {type(text).__name__}")
    if not is_utf8(text):
        raise DataError(f"input {number}: holds half of a surrogate pair, which is not valid Unicode")
    if not (may_be_blank or text.strip()):
        raise DataError(f"input {number}: an empty text where one with words is expected")
    return text


def checked_parts(item: Any, number: int, what: str) -> tuple[Any, Any]:
    """Return the two parts of an input; raises DataError that says `what` is expected."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        got = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
        raise DataError(f"input {number}: {what} is expected, this is {got}")
    return item[0], item[1]


def text_example(item: Any, number: int) -> Example:
    """Return the example of a text or of a tuple of two. Raises DataError for anything else."""
    parts = tuple(item) if isinstance(item, tuple | list) else (item,)
    if len(parts) not in (1, 2):
        raise DataError(f"input {number}: a text or a pair of texts is expected, this has {len(parts)} parts")
    for part in parts:
        checked_text(part, number)
    return Example(text=parts[0], pair=parts[1] if len(parts) == 2 else None, label=None, line=number + 1)
