"""Which column of a table holds the text, the second text and the label."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from maskloom.config import ConfigError, DataError

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


@dataclass(frozen=True)
class Columns:
    """Keys of one file: names for JSONL, indices from 0 otherwise; `num_fields` is the width of every row."""

    text: str | int
    pair: str | int | None
    label: str | int | None
    num_fields: int | None
    has_header: bool
    names: dict[str, str]


def is_column_number(column: str) -> bool:
    """Tell whether a column is given by number: up to six digits."""
    return column.isdecimal() and len(column) <= 6


def wants_numbers(options: ReadingOptions) -> bool:
    """Tell whether the columns are given by number; raises ConfigError when numbers and names are mixed."""
    given = [column for column in (options.text_column, options.pair_column, options.label_column) if column]
    numbers = [column for column in given if is_column_number(column)]
    if numbers and len(numbers) != len(given):
        raise ConfigError(f"columns {given}: give all of them by name or all by number")
    if any(int(number) == 0 for number in numbers):
        raise ConfigError("columns are counted from 1; there is no column 0")
    return bool(numbers)


def columns_of_header(
    path: Path, line: int, header: list[str], options: ReadingOptions, *, takes_pair: bool | None, needs_label: bool
) -> Columns:
    """Find the columns in a header line; raises DataError that names what is missing and what there is."""
    names = [name.strip() for name in header]
    text, pair, label = choose_names(
        names, options, place=f"{path}: line {line}", takes_pair=takes_pair, needs_label=needs_label
    )
    chosen = {"text": text, "pair": pair, "label": label}
    for name in chosen.values():
        if name is not None and names.count(name) > 1:
            raise DataError(f"{path}: line {line}: the header has {names.count(name)} columns named {name!r:.80}")
    return Columns(
        text=names.index(text),
        pair=None if pair is None else names.index(pair),
        label=None if label is None else names.index(label),
        num_fields=len(names),
        has_header=True,
        names={key: name for key, name in chosen.items() if name is not None},
    )


def columns_by_number(path: Path, first: list[str], options: ReadingOptions) -> Columns:
    """Take columns given by number, counted from 1; raises DataError when the first row is too short."""
    given = {"text": options.text_column, "pair": options.pair_column, "label": options.label_column}
    names = {key: value for key, value in given.items() if value}
    if "text" not in names:
        raise ConfigError("columns by number: the text column must be given")
    if max(map(int, names.values())) > len(first):
        widest = max(map(int, names.values()))
        raise DataError(f"{path}: line 1: column {widest} was asked for, the row has {len(first)}")
    indices = {key: int(value) - 1 for key, value in names.items()}
    return Columns(
        text=indices["text"],
        pair=indices.get("pair"),
        label=indices.get("label"),
        num_fields=len(first),
        has_header=bool(options.header),
        names=names,
    )


def choose_names(
    names: list[str], options: ReadingOptions, *, place: str, takes_pair: bool | None, needs_label: bool
) -> tuple[str, str | None, str | None]:
    """Return the names of text, second text and label among `names`.

    `takes_pair` None means a second text is used where one is found. Raises DataError for what is not there.
    """
    lower = {name.lower(): name for name in reversed(names)}
    given_label = options.label_column if needs_label or options.label_column in names else None
    for wanted in (options.text_column, options.pair_column, given_label):
        if wanted is not None and wanted not in names:
            raise DataError(f"{place}: there is no column {wanted!r:.80}; the columns are {_listed(names)}")
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
            f"{_listed(names)}; name the column of labels with --label-column, or the text with --text-column"
        )
    if text is None:
        raise DataError(
            f"{place}: no column of text ({', '.join(_TEXTS)}) among {_listed(names)}; name it with "
            "--text-column, by number (from 1) if the file has no header"
        )
    if takes_pair and pair is None:
        raise DataError(
            f"{place}: no second text (such as sentence2, text_b, hypothesis) among {_listed(names)}; "
            "name it with --pair-column"
        )
    if needs_label and label is None:
        raise DataError(
            f"{place}: no column of labels ({', '.join(_LABELS)}) among {_listed(names)}; name it with --label-column"
        )
    if len({text, pair, label} - {None}) != len([name for name in (text, pair, label) if name is not None]):
        raise ConfigError(f"{place}: one column is used twice: text {text!r}, pair {pair!r}, label {label!r}")
    return text, pair, label


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    hint = (
        " (one column: is the separator a semicolon or a tab?)"
        if len(names) == 1 and (";" in names[0] or "\t" in names[0])
        else ""
    )
    return shown + more + hint
