"""Which column of a table holds the text, the second text and the label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from maskloom.errors import ConfigError, DataError

# Tried in this order; a first text is only taken together with the second text of the same row.
_PAIRS = (
    ("sentence1", "sentence2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "answer"),
    ("text", "pair"),
)
_TEXTS = ("text", "sentence", "sentence1", "text_a", "review", "question")
_LABELS = ("label", "labels", "score", "gold_label", "is_duplicate", "class")


@dataclass(frozen=True)
class ReadingOptions:
    """How a person says where things stand in a file; what is None is found by the usual names.

    A column is a name of the header or a number counted from 1; a number says that the file has no header unless
    `header` is True. `format` is a row of the catalog such as `cola` or `glue:rte`. `labels` is a file with one label
    name a line. `on_bad_rows="skip"` drops rows that break a rule, and counts them, instead of stopping.
    """

    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
    format: str | None = None
    header: bool | None = None
    labels: str | None = None
    on_bad_rows: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        """Raise ConfigError for a value of another type, and for another word about bad rows."""
        for name in ("text_column", "pair_column", "label_column", "format", "labels"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ConfigError(f"{name} = {value!r:.80}: a str or None is expected; this is {type(value).__name__}")
        if self.on_bad_rows not in ("error", "skip"):
            raise ConfigError(f"on_bad_rows = {self.on_bad_rows!r:.80}: either 'error' or 'skip'")

    def as_dict(self) -> dict[str, Any]:
        """Return the options that were given."""
        return {key: value for key, value in asdict(self).items() if value is not None}


class Columns(NamedTuple):
    """Names of the columns of a text, of a second text and of the label; numbers from 1 where a file has no header."""

    text: str
    pair: str | None
    label: str | None


def is_column_number(column: str) -> bool:
    """Tell whether a column is given by number: up to six digits."""
    return column.isdecimal() and len(column) <= 6


def numbered(num_columns: int) -> list[str]:
    """Return the names of the columns of a file without a header: their numbers from 1."""
    return [str(number) for number in range(1, num_columns + 1)]


def wants_numbers(options: ReadingOptions) -> bool:
    """Tell whether the columns are given by number; raises ConfigError when numbers and names are mixed."""
    given = [column for column in (options.text_column, options.pair_column, options.label_column) if column]
    numbers = [column for column in given if is_column_number(column)]
    if numbers and len(numbers) != len(given):
        raise ConfigError(f"columns {given}: give all of them by name or all by number")
    if any(int(number) == 0 for number in numbers):
        raise ConfigError("columns are counted from 1; there is no column 0")
    return bool(numbers)


def columns_by_number(path: Path, first: list[str], options: ReadingOptions) -> Columns:
    """Take columns given by number, counted from 1; raises DataError when the first row is too short."""
    given = (options.text_column, options.pair_column, options.label_column)
    text, pair, label = (column and str(int(column)) for column in given)
    if not text:
        raise ConfigError("columns by number: the text column must be given")
    widest = max(int(column) for column in (text, pair, label) if column)
    if widest > len(first):
        raise DataError(f"{path}: line 1: column {widest} was asked for, the row has {len(first)}")
    return Columns(text, pair, label)


def choose_names(
    names: list[str], options: ReadingOptions, *, place: str, takes_pair: bool | None, needs_label: bool
) -> Columns:
    """Find text, second text and label among `names`, those of a header or the keys of an object.

    `takes_pair` None means a second text is used where one is found. Raises DataError for what is not there.
    """
    lower = {name.lower(): name for name in reversed(names)}
    given_label = options.label_column if needs_label or options.label_column in names else None
    check_given((options.text_column, options.pair_column, given_label), names, place)
    label = given_label or next((lower[name] for name in _LABELS if name in lower), None)
    if not needs_label and label in (options.text_column, options.pair_column):
        label = None
    text, pair = options.text_column, options.pair_column
    if text is None and pair is None and takes_pair is not False:
        found = next((row for row in _PAIRS if row[0] in lower and row[1] in lower), None)
        text, pair = (lower[found[0]], lower[found[1]]) if found else (None, None)
    if text is None:
        text = next((lower[name] for name in _TEXTS if name in lower and lower[name] not in (pair, label)), None)
    if text is None and label is not None and label.lower() in _TEXTS:
        raise DataError(
            f"{place}: {label!r:.80} was given as the label column, and no column of text is left among "
            f"{listed(names)}; name the column of labels with --label-column, or the text with --text-column"
        )
    if text is None:
        raise DataError(
            f"{place}: no column of text ({', '.join(_TEXTS)}) among {listed(names)}; name it with "
            "--text-column, by number (from 1) if the file has no header"
        )
    if takes_pair and pair is None:
        raise DataError(
            f"{place}: no second text (such as sentence2, text_b, hypothesis) among {listed(names)}; "
            "name it with --pair-column"
        )
    if needs_label and label is None:
        raise no_labels(place, _LABELS, names)
    if len({text, pair, label} - {None}) != len([name for name in (text, pair, label) if name is not None]):
        raise ConfigError(f"{place}: one column is used twice: text {text!r}, pair {pair!r}, label {label!r}")
    check_single((text, pair, label), names, place)
    return Columns(text, pair, label)


def check_given(given: Iterable[str | None], names: Sequence[str], place: str) -> None:
    """Raise DataError when a column that was named does not exist."""
    for wanted in given:
        if wanted is not None and wanted not in names:
            raise DataError(f"{place}: there is no column {wanted!r:.80}; the columns are {listed(names)}")


def check_single(chosen: Iterable[str | None], names: Sequence[str], place: str) -> None:
    """Raise DataError when the header has the name of a chosen column more than once."""
    for name in chosen:
        if name is not None and names.count(name) > 1:
            raise DataError(f"{place}: the header has {names.count(name)} columns named {name!r:.80}")


def no_labels(place: str, known: Sequence[str], names: Sequence[str], what: str = "labels") -> DataError:
    """Return the error for a table without a column of labels of one of the known names."""
    return DataError(
        f"{place}: no column of {what} ({', '.join(known)}) among {listed(names)}; name it with --label-column"
    )


def listed(names: Sequence[str]) -> str:
    """Return the names of columns as a message shows them."""
    shown = ", ".join(repr(name[:40]) for name in names[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    hint = (
        " (one column: is the separator a semicolon or a tab?)"
        if len(names) == 1 and (";" in names[0] or "\t" in names[0])
        else ""
    )
    return shown + more + hint
