"""Reads data files as examples: each row is kept, or dropped with a counted reason, or an error with its line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from maskloom.errors import ConfigError, DataError
from maskloom.system.foreign_files import is_utf8
from maskloom.tasks import tables
from maskloom.tasks.catalog import CatalogRow, Kind, catalog_row
from maskloom.tasks.examples import NO_GOLD_LABEL, Example, ReadingReport, TitledExample, kept_examples
from maskloom.tasks.tables import BadRowError, Columns, ReadingOptions, Row, UsualNames, row_text

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
"""A number in plain digits; float() also accepts "1_000", "infinity" and the digits of other scripts."""

# Keeps squared errors and their sum over a batch within fp32 (at most 3.4e38).
_LARGEST_TARGET = 1e16


class Form(NamedTuple):
    """How the rows of a kind of task are read: as which `example`, and with which parsers of the label and the text.

    A second text is required if `takes_pair`, optional if that is None. The parsers raise BadRowError, with the rule,
    for a wrong value.
    """

    label: Callable[[Any], Any]
    takes_pair: bool | None = None
    example: type[Example] = Example
    usual: UsualNames = UsualNames()
    text: Callable[[Any, str], str] = row_text


def iterate_examples(
    path: str | Path, kind: Kind | Form, options: ReadingOptions, *, needs_label: bool, report: ReadingReport
) -> Iterator[Example]:
    """Yield the examples of a data file for a kind of task in FORMS or in a form, in file order and constant memory.

    Raises DataError, with file and line, for a row that breaks a rule (unless `options.on_bad_rows` is "skip", which
    counts it) and for missing columns.
    """
    path, form = Path(path), kind if isinstance(kind, Form) else FORMS[kind]
    row = None if options.format is None else catalog_row(options.format, kinds=FORMS)
    if form.takes_pair is False and options.pair_column is not None:
        raise ConfigError(f"pair column {options.pair_column!r:.80}: the task takes one text; pairs need the task pair")
    layout = tables.layout_of(path)
    if row and layout == "text":
        layout = "tsv"
    if layout == "text":
        if needs_label:
            raise DataError(f"{path}: a .txt file holds one text per line and no labels; use .csv, .tsv or .jsonl")
        if options.text_column is not None:
            raise ConfigError(f"text column {options.text_column!r:.80}: {path} has one text per line and no columns")
        rows, make = tables.read_rows(path, layout), partial(_plain_text, bool(form.takes_pair), report)
    else:
        columns, rows = _find_columns(path, layout, form, options, row, needs_label=needs_label)
        make = partial(_example, columns if needs_label else columns._replace(label=None), form, row)
    if layout == "tsv" and row is None:
        rows = tables.noting_quotes(rows, report.notes)
    skips = options.on_bad_rows == "skip" or bool(row and row.drops_bad_rows)
    yield from kept_examples(rows, make, report, skips=skips)


def _plain_text(takes_pair: bool, report: ReadingReport, record: Row) -> Example:
    """Convert a line of a .txt file to an example; a tab separates a pair, and a blank line is an empty text."""
    line = str(next(iter(record.fields)))
    is_blank = not line.strip()
    parts = ([line, ""] if is_blank else line.split("\t")) if takes_pair else [line]
    if takes_pair and len(parts) != 2:
        raise BadRowError("a pair is two texts with one tab between them")
    if is_blank:
        report.blank(record.line)
    elif not all(part.strip() for part in parts):
        raise BadRowError("empty text")
    return Example(text=parts[0], pair=parts[1] if len(parts) == 2 else None, label=None, line=record.line)


def _find_columns(
    path: Path, layout: str, form: Form, options: ReadingOptions, row: CatalogRow | None, *, needs_label: bool
) -> tuple[Columns, Iterator[Row]]:
    """Find the columns from the first rows; return them with the data rows, keyed by column name."""
    rows = tables.read_rows(path, layout)
    seen = tables.up_to_first(rows) if layout == "jsonl" else [next(rows)]
    names, line = [name.strip() for name in seen[-1].fields], seen[-1].line
    usual = (row.text, row.pair, row.label) if row else (None, None, None)
    if layout == "jsonl":
        if seen[-1].problem:
            return Columns("text", None, None), iter(seen)
        names, rows = list(seen[-1].fields), chain(seen, rows)
    else:
        headerless = row.headerless if row and tuple(names[:2]) != row.header_marks else None
        if headerless or any(column and tables.is_column_number(column) for column in options.columns):
            *usual, num_fields = headerless or (*usual, len(names))
            names, rows = [str(number) for number in range(1, num_fields + 1)], chain(seen, rows)
        rows = tables.by_name(rows, names)
    if row is not None:  # test files have no label column
        text, pair, label = usual
        options = replace(
            options,
            text_column=options.text_column or text,
            pair_column=options.pair_column or pair,
            label_column=options.label_column or (label if label in names else None),
        )
    how = {"place": f"{path}: line {line}", "takes_pair": form.takes_pair, "needs_label": needs_label}
    return tables.choose_names(names, options, form.usual, **how), rows


def _example(columns: Columns, form: Form, row: CatalogRow | None, record: Row) -> Example:
    text = form.text(record.value(columns.text), f"{columns.text!r:.80}")
    pair = None if columns.pair is None else row_text(record.value(columns.pair), f"{columns.pair!r:.80}")
    label = None
    if columns.label is not None:
        value = record.value(columns.label)
        if row is not None and row.no_label is not None and value == row.no_label:
            raise BadRowError(NO_GOLD_LABEL)
        label = form.label(value)
        limits = row and row.label_range
        if limits and isinstance(label, float) and not limits[0] <= label <= limits[1]:
            raise BadRowError("label out of range", f"{label}, expected {limits[0]} to {limits[1]}")
    return form.example(text=text, pair=pair, label=label, line=record.line)


def label_name(value: Any, what: str = "label", noun: str = "name") -> str:
    """Return a field as a name without surrounding white space; raises BadRowError, naming `what`, for any other."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or value == "":
        raise BadRowError(f"missing {what}")
    if not isinstance(value, (str, int, float)):
        raise BadRowError(f"{what} is not a {noun}", repr(value))
    name = str(value).strip()
    if not name:
        raise BadRowError(f"missing {what}")
    if not is_utf8(name):
        raise BadRowError(f"{what} contains an unpaired surrogate", f"{name!r} is not valid Unicode")
    return name


def _names(value: Any) -> tuple[str, ...]:
    items = value
    if isinstance(value, str):
        try:
            items = json.loads(value) if re.fullmatch(r"\s*\[.*\]\s*", value, re.DOTALL) else value.split(",")
        except (ValueError, RecursionError):
            items = None
    if not isinstance(items, list):
        raise BadRowError("labels are not a list", f"{value!r:.80}; expected comma-separated names or a JSON list")
    names = [label_name(item) for item in items] if items != [""] else []
    if len(set(names)) != len(names):
        raise BadRowError("a label appears twice", repr(value))
    return tuple(names)


def _number(value: Any) -> float:
    if value is None or value == "":
        raise BadRowError("missing label")
    number = float(value) if isinstance(value, str) and NUMBER.fullmatch(value.strip()) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or number in (math.inf, -math.inf):
        raise BadRowError("label is not a finite number", f"{value!r:.80}; expected a number such as -3, 2.5 or 1e-3")
    if abs(number) > _LARGEST_TARGET:
        raise BadRowError("label is too large for fp32", f"{value!r:.80}, expected at most {_LARGEST_TARGET:g}")
    return float(number)


_TITLED = (("title", "text"), ("title", "body"), ("headline", "text"), ("headline", "body"))
FORMS: dict[Kind, Form] = {
    "single": Form(label_name, takes_pair=False),
    "pair": Form(label_name, takes_pair=True),
    "regression": Form(_number),
    "multilabel": Form(_names),
    "document": Form(_names, example=TitledExample, usual=UsualNames(pairs=_TITLED)),
}
"""How the kinds with one vector per text or pair read their rows."""
