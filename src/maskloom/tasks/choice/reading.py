"""Files of multiple choice: SWAG's CSV, HellaSwag's JSONL, CODAH's TSV, and any CSV or JSONL with choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from maskloom.errors import DataError
from maskloom.foreign_files import is_utf8
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.choice.published import (
    PLAIN_COLUMNS,
    ChoiceColumns,
    choose_columns,
    is_race_folder,
    plain_rows,
    published_form,
    race_files,
    race_rows,
)
from maskloom.tasks.columns import ReadingOptions, numbered
from maskloom.tasks.examples import ReadingReport, kept_examples
from maskloom.tasks.tables import BLANK, BadRowError, Row, by_name, layout_of, read_rows, row_text, up_to_first


@dataclass(frozen=True)
class ChoiceExample:
    """One record: the first text, what the second text begins with, the choices that end it, and the right one.

    `stem` is empty where choices stand by themselves; `label` counts choices from 0 and is None where the file has
    none. `identifier` is the record's own name, if it has one.
    """

    context: str
    stem: str
    choices: tuple[str, ...]
    label: int | None
    line: int
    identifier: str | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """Return the two texts of each choice, as a model reads them."""
        return [(self.context, f"{self.stem} {choice}" if self.stem else choice) for choice in self.choices]

    def inputs(self) -> tuple[str, str, tuple[str, ...]]:
        """Return what a model sees of the example."""
        return self.context, self.stem, self.choices

    def as_row(self) -> dict[str, str]:
        """Return the texts as a row of predictions shows them."""
        row = {"context": self.context} | ({"stem": self.stem} if self.stem else {})
        if self.identifier is not None:
            row = {"id": self.identifier} | row
        return row | {f"choice{number}": choice for number, choice in enumerate(self.choices)}


_MOST_LETTERS = 26
_MOST_DIGITS = 9
_PLACEHOLDERS = ("-1", "?")


def iterate_choices(
    path: str | Path,
    options: ReadingOptions | None = None,
    *,
    needs_label: bool = True,
    report: ReadingReport | None = None,
) -> Iterator[ChoiceExample]:
    """Yield examples one by one in the file's order.

    A table has a header whose names say what stands where (SWAG: `sent1` is the context, `sent2` the stem, `ending0`
    to `ending3` the choices), or is CODAH's: no header, category, prompt, choices, label. JSONL has the same names as
    keys, or one key that holds a list of choices, of which rows may have different numbers; or it is that of ARC,
    CommonsenseQA, COPA or RACE as these are distributed. RACE may also be its folder of articles; the `line` of an
    example is then the number of its file. A label is a number from 0 or a letter from A. Raises DataError, with file
    and line, for columns that are not there and for a row that breaks a rule: a label outside the choices, an empty
    text, an id that appears twice; with `options.on_bad_rows` "skip" such rows are dropped and counted. Raises
    ConfigError for a format of another kind of task.
    """
    path, options = Path(path), options or ReadingOptions()
    report = report or ReadingReport(path)
    articles = _articles(path, options)
    if articles is not None:
        columns, rows = PLAIN_COLUMNS, race_rows(path, articles, needs_label=needs_label)
    else:
        layout = layout_of(path)
        if layout == "text":
            raise DataError(f"{path}: a .txt file has no columns; multiple choice is read from .csv, .tsv or .jsonl")
        columns, rows = _find_columns(path, read_rows(path, layout), layout, options, needs_label=needs_label)
    make = _Parser(columns, needs_label=needs_label).example
    yield from kept_examples(rows, make, report, skips=options.on_bad_rows == "skip")


def _articles(path: Path, options: ReadingOptions) -> list[Path] | None:
    """Return the files of a folder that is read as RACE, because its levels show it or a person says so, else None."""
    row = None if options.format is None else catalog_row(options.format, kinds=("choice",))
    is_race = is_race_folder(path) if row is None else row.name == "race"
    return race_files(path) if is_race and path.is_dir() and options.text_column is None else None


def _find_columns(
    path: Path, rows: Iterator[Row], layout: str, options: ReadingOptions, *, needs_label: bool
) -> tuple[ChoiceColumns, Iterator[Row]]:
    """Look at the first rows to find the columns, and give back the rows that hold data, by names of columns."""
    seen = up_to_first(rows)
    first = seen[-1]
    if first.problem:
        problem = next((row.problem for row in seen if row.problem != BLANK), "all lines are blank")
        raise DataError(f"{path}: no row can be read: {problem}")
    place = f"{path}: line {first.line}"
    if isinstance(first.fields, dict):
        rows = chain(seen, rows)
        if options.text_column is None and (form := published_form(first.fields)) is not None:
            return PLAIN_COLUMNS, (plain for row in rows for plain in plain_rows(row, form, needs_label=needs_label))
        keys = list(first.fields)
        lists = [key for key in keys if isinstance(first.fields[key], list)]
        return choose_columns(keys, options, place=place, lists=lists, needs_label=needs_label), rows
    names = [field.strip() for field in first.fields]
    if layout == "tsv" and _is_codah(names, options, needs_label=needs_label):
        _, context, *choices, label = names = numbered(len(names))
        return ChoiceColumns(context, None, tuple(choices), label, None), by_name(chain(seen, rows), names)
    columns = choose_columns(names, options, place=place, needs_label=needs_label)
    return columns, by_name(chain(seen[:-1], rows), names)


def _is_codah(fields: list[str], options: ReadingOptions, *, needs_label: bool) -> bool:
    """Tell whether a row without header is CODAH's: letters of its category, prompt, at least two choices, label."""
    wants_names = options.text_column or options.pair_column or options.label_column or options.header
    is_label = fields[-1].isdecimal() or (not needs_label and fields[-1] in _PLACEHOLDERS)
    if wants_names or len(fields) < 5 or not is_label:
        return False
    return len(fields[0]) <= 4 and (not fields[0] or fields[0].isalpha())


class _Parser:
    """Rows to examples; remembers the identifiers of all."""

    def __init__(self, columns: ChoiceColumns, *, needs_label: bool) -> None:
        self._columns = columns if needs_label else replace(columns, label=None)
        self._lines: dict[str, int] = {}

    def example(self, row: Row) -> ChoiceExample:
        columns = self._columns
        choices = self._choices(row)
        stem = "" if columns.stem is None else row_text(row.value(columns.stem), "stem", empty=None).strip()
        example = ChoiceExample(
            context=row_text(row.value(columns.context), "context").strip(),
            stem=stem,
            choices=choices,
            label=None if columns.label is None else _label(row.value(columns.label), len(choices)),
            line=row.line,
            identifier=self._identifier(row),
        )
        if example.identifier is not None:
            self._lines[example.identifier] = row.line
        return example

    def _choices(self, row: Row) -> tuple[str, ...]:
        values = [row.value(name) for name in self._columns.choices]
        if self._columns.choices_are_list:
            (values,) = values
        if not isinstance(values, list):
            raise BadRowError("choices are not a list", f"{values!r:.60}")
        if len(values) < 2:
            raise BadRowError("fewer than two choices", str(len(values)))
        return tuple(
            row_text(value, f"choice {number}", empty="empty choice").strip() for number, value in enumerate(values)
        )

    def _identifier(self, row: Row) -> str | None:
        key = self._columns.identifier
        value = row.fields.get(key) if key is not None and isinstance(row.fields, dict) else None
        name = "" if value is None else str(value).strip()
        if not name:
            return None
        if not is_utf8(name):
            raise BadRowError("the id holds half of a surrogate pair", f"{name!r:.80} is not valid Unicode")
        if name in self._lines:
            raise BadRowError("an id appears twice", f"{name!r:.80}, first at line {self._lines[name]}")
        return name


def _label(value: Any, num_choices: int) -> int:
    """Return the right choice, counted from 0, of a number or a letter."""
    text = "" if value is None or isinstance(value, bool | float | list | dict) else str(value).strip()
    if value is None or value == "":
        raise BadRowError("missing label")
    label = -1
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        label = int(text)
    elif len(text) == 1 and text.isascii() and text.isalpha() and num_choices <= _MOST_LETTERS:
        label = ord(text.upper()) - ord("A")
    if not 0 <= label < num_choices:
        last = f"0 to {num_choices - 1}"
        letters = f", or A to {chr(ord('A') + num_choices - 1)}" if num_choices <= _MOST_LETTERS else ""
        raise BadRowError("label is none of the choices", f"{value!r:.80}, expected {last}{letters}")
    return label
