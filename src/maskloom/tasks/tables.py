"""Reads rows of CSV, TSV, JSONL and text files with their line numbers, and finds the text and label columns."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, NamedTuple

from maskloom.errors import ConfigError, DataError, amount
from maskloom.system.foreign_files import check_regular, is_utf8, read_bytes

# In quotes, with quotes inside that are doubled: many programs write tab-separated files with the quoting of CSV.
_QUOTED = re.compile(r'"(?:[^"]*"")+[^"]*"')
MAX_ROW_BYTES = 16 << 20
"""16 MiB of UTF-8: five times the longest novel in one row."""

LAYOUTS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".txt": "text"}
"""The layout of a table by its suffix; the datasets library writes JSONL to files that end in .json."""


BLANK = "blank line"


class BadRowError(ValueError):
    """Raised for a record that breaks the rule `reason`, at `line` if that is not the record's own."""

    def __init__(self, reason: str, detail: str = "", line: int | None = None) -> None:
        super().__init__(f"{reason}{': ' if detail else ''}{detail:.300}")
        self.reason = reason
        self.line = line


class Row(NamedTuple):
    """The fields of one record and the file line where it starts (from 1).

    `fields` is a list for delimited files and a dict for JSONL; `problem` is the reason why the row cannot be used, if
    any. `place` identifies the record in messages if its line does not.
    """

    fields: list[str] | dict[str, Any]
    line: int
    problem: str | None = None
    place: str | None = None

    @property
    def where(self) -> str:
        """The position of the record in its file, as shown in messages."""
        return self.place or f"line {self.line}"

    def by_name(self) -> dict[str, Any]:
        """Return the values by column name. Raises BadRowError for a row with a problem."""
        if self.problem:
            reason, _, detail = self.problem.partition(": ")
            raise BadRowError(reason, detail)
        assert isinstance(self.fields, dict)
        return self.fields

    def value(self, column: str) -> Any:
        """Return the value of a column. Raises BadRowError if the row has a problem or lacks the column."""
        try:
            return self.by_name()[column]
        except KeyError:
            raise BadRowError("missing key", repr(column)) from None


def by_name(rows: Iterable[Row], names: Sequence[str]) -> Iterator[Row]:
    """Yield delimited rows keyed by column name, the first of equal names; rows of the wrong width get a problem."""
    num_columns, are_unique = len(names), len(set(names)) == len(names)
    for fields, line, problem, _ in rows:
        if len(fields) != num_columns:
            is_cut = any(field.startswith('"') and field.count('"') % 2 for field in fields)
            hint = "; a field begins with a quote: a .tsv is read without quoting, a .csv with it" if is_cut else ""
            problem = problem or f"wrong number of fields: {len(fields)}, expected {num_columns}{hint}"
        if are_unique:
            yield Row(dict(zip(names, fields, strict=False)), line, problem)
        else:
            yield Row(dict(zip(reversed(names), reversed([*fields]), strict=False)), line, problem)


def noting_quotes(rows: Iterable[Row], notes: list[str]) -> Iterator[Row]:
    """Yield rows of a .tsv by column name, and note at the end how many have a field that looks quoted as in CSV."""
    lines: list[int] = []
    for row in rows:
        assert isinstance(row.fields, dict)
        lines += [row.line] if any(map(_QUOTED.fullmatch, row.fields.values())) else []
        yield row
    if lines:
        notes.append(
            f"{amount(len(lines), 'row')} with a field quoted as in CSV, such as line {lines[0]}: a .tsv is read "
            "literally; if the quotes do not belong to the text, save the file as .csv"
        )


def up_to_first(rows: Iterator[Row]) -> list[Row]:
    """Return the rows up to and including the first without a problem, or all if every row has one."""
    taken = []
    for row in rows:
        taken.append(row)
        if row.problem is None:
            break
    return taken


def row_text(value: Any, what: str, *, empty: str | None = "empty text") -> str:
    """Return a text field; raises BadRowError for any other value and, with reason `empty` unless None, for blanks."""
    if not isinstance(value, str):
        raise BadRowError("text is not a string", f"{what} is {type(value).__name__}")
    if empty and not value.strip():
        raise BadRowError(empty, f"{what} is {value!r:.80}")
    if not is_utf8(value):
        raise BadRowError("text contains an unpaired surrogate", f"{what} is not valid Unicode")
    return value


def suffix_of(path: Path) -> str:
    """Return the suffix of a file, without a final .gz, in lower case."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def layout_of(path: Path) -> str:
    """Return csv, tsv, jsonl or text by suffix (ignoring a final .gz); raises DataError for any other suffix."""
    if path.is_dir():
        held = sorted(held.name for held in path.iterdir() if set(held.suffixes) & set(LAYOUTS))[:8]
        hint = f", such as one of these in it: {', '.join(held)}" if held else ""
        raise DataError(f"{path}: is a folder; expected a file{hint}")
    suffix = suffix_of(path)
    if suffix not in LAYOUTS and not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if suffix not in LAYOUTS:
        shown = f"{suffix or path.suffix!r:.80}"
        raise DataError(f"{path}: the suffix {shown} is not one of {', '.join(LAYOUTS)} (each may end in .gz)")
    return LAYOUTS[suffix]


def read_rows(path: Path, layout: str) -> Iterator[Row]:
    """Yield the rows of a file in order, including any header.

    `csv` has quoted fields as in RFC 4180; `tsv` is split at tabs and has no quoting, as GLUE's files require; `jsonl`
    has one object per line; `text` gives each line as one field. A UTF-8 byte-order mark and the CR of CRLF are
    removed. If no line ends with LF, lines end with CR. Raises DataError for a file that cannot be read, is empty, is
    not UTF-8, or is not in that layout, and for a row of more than `MAX_ROW_BYTES`.
    """
    lines = read_lines(path)
    if layout == "csv":
        yield from _csv_rows(path, lines)
        return
    for number, line in lines:
        if layout == "tsv":
            yield Row(line.split("\t"), number, problem=None if line else BLANK)
        else:
            yield _json_row(line, number) if layout == "jsonl" else Row([line], number)


def read_json_row(path: Path, number: int) -> Row:
    """Return the row of a file with a single JSON object, on one line or several; `number` is used as its line.

    Raises DataError for a file that cannot be read, is empty, is not UTF-8, or holds more than `MAX_ROW_BYTES`.
    """
    raw = read_bytes(path, limit=MAX_ROW_BYTES).removeprefix(codecs.BOM_UTF8)
    if not raw:
        raise DataError(f"{path}: the file is empty")
    return _json_row(_decoded(raw, path, 1), number)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line of a file; CR ends the lines of a file without LF."""
    number = 0
    check_regular(path)
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            for raw in _raw_lines(file):
                number += 1
                if len(raw) > MAX_ROW_BYTES:
                    raise DataError(_too_large(path, number))
                yield number, _decoded(raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw, path, number)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: after line {number}: the gzip stream is corrupt: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if number == 0:
        raise DataError(f"{path}: the file is empty")


def _raw_lines(file: BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    """Yield the lines of a file without their ends; a line beyond the size limit is truncated."""
    line = file.readline(MAX_ROW_BYTES + 2)
    if not line.endswith(b"\n") and len(line) <= MAX_ROW_BYTES:  # the whole file
        yield from line.removesuffix(b"\r").split(b"\r") if line else ()
        return
    while line:
        yield line.removesuffix(b"\n").removesuffix(b"\r")
        line = file.readline(MAX_ROW_BYTES + 2)


def _decoded(raw: bytes, path: Path, number: int) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"{path}: line {number}: byte {error.start + 1} of the line"
        raise DataError(f"{place} is 0x{raw[error.start]:02x}, which is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        raise DataError(f"{path}: line {number}: contains a NUL character; expected UTF-8 text (is this UTF-16?)")
    return text


def _too_large(path: Path, number: int) -> str:
    return f"{path}: line {number}: a row larger than {MAX_ROW_BYTES:,} bytes, the limit for one row"


def _csv_rows(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
    first_line, size = 1, 0

    def counted() -> Iterator[str]:
        nonlocal size
        for _, line in lines:
            size += len(line) + 1
            if size > MAX_ROW_BYTES:
                raise DataError(_too_large(path, first_line))
            yield line + "\n"

    csv.field_size_limit(MAX_ROW_BYTES)  # the default is 128 KiB, less than some articles
    reader = csv.reader(counted(), strict=True)
    while True:
        first_line, size = reader.line_num + 1, 0
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}: line {first_line}: not valid CSV: {error}; a field with a comma, a quote or a line break "
                'must be in double quotes, with each quote inside it doubled ("")'
            ) from None
        yield Row(fields or [""], first_line, problem=None if fields not in ([], [""]) else BLANK)


def _json_row(line: str, number: int) -> Row:
    if not line.strip():
        return Row({}, number, problem=BLANK)
    try:
        value = json.loads(line, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except RecursionError:
        return Row({}, number, problem="JSON nested too deeply")
    except ValueError as error:
        hint = "; expected one object per line" if line.strip() in ("[", "{") else ""
        return Row({}, number, problem=f"not valid JSON: {error}{hint}")
    if not isinstance(value, dict):
        hint = "; expected one object per line, not a list of them" if isinstance(value, list) else ""
        return Row({}, number, problem=f"expected a JSON object, got a {type(value).__name__}{hint}")
    return Row(value, number)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.80} appears twice")
        found[key] = value
    return found


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
TEXTS = ("text", "sentence", "sentence1", "text_a", "review", "question")
"""The usual column names of single texts."""


class UsualNames(NamedTuple):
    """Column names that are tried, in this order, if the user gave none; `noun` is what messages call a label.

    A first text is used only together with the second text of its entry in `pairs`; single texts may not have both.
    """

    pairs: Sequence[tuple[str, str]] = _PAIRS
    texts: Sequence[str] = TEXTS
    labels: Sequence[str] = ("label", "labels", "score", "gold_label", "is_duplicate", "class")
    noun: str = "label"


@dataclass(frozen=True)
class ReadingOptions:
    """How the user wants a file to be read; columns that are None are found by their usual names.

    A column is a header name or, in a file without a header, a number from 1. `format` is a row of the catalog such as
    `cola` or `glue:rte`. `labels` is a file with one label name per line. `on_bad_rows="skip"` drops and counts rows
    that break a rule instead of stopping. `target_suffix` is the suffix of the file of targets next to a file of
    sources.
    """

    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
    format: str | None = None
    labels: str | None = None
    on_bad_rows: Literal["error", "skip"] = "error"
    target_suffix: str | None = None

    def __post_init__(self) -> None:
        for name in ("text_column", "pair_column", "label_column", "format", "labels", "target_suffix"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ConfigError(f"{name} = {value!r:.80}: expected a str or None, got {type(value).__name__}")
        if self.on_bad_rows not in ("error", "skip"):
            raise ConfigError(f"on_bad_rows = {self.on_bad_rows!r:.80}: must be 'error' or 'skip'")

    @property
    def columns(self) -> tuple[str | None, str | None, str | None]:
        """The columns of the text, the second text and the label, each None if not given."""
        return self.text_column, self.pair_column, self.label_column

    def as_dict(self) -> dict[str, Any]:
        """Return the options that were given."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def check_stored(reading: dict[str, Any], path: Path) -> None:
    """Raise DataError, naming the file, for stored reading options with an unknown key or a wrong value."""
    names = sorted(ReadingOptions.__dataclass_fields__)
    if unknown := sorted(set(reading).difference(names)):
        raise DataError(f"{path}, reading: unknown key {unknown[0]!r:.80}; known: {', '.join(names)}")
    try:
        ReadingOptions(**{key: value for key, value in reading.items() if value is not None})
    except ConfigError as error:
        raise DataError(f"{path}, reading: {error}") from None


class Columns(NamedTuple):
    """Column names of the text, the second text and the label; numbers from 1 if the file has no header."""

    text: str
    pair: str | None
    label: str | None


def is_column_number(column: str) -> bool:
    """Return whether a column is given as a number of up to six digits."""
    return column.isdecimal() and len(column) <= 6


def choose_names(
    names: Sequence[str],
    options: ReadingOptions,
    usual: UsualNames,
    *,
    place: str,
    takes_pair: bool | None,
    needs_label: bool,
) -> Columns:
    """Find the text, second text and label among `names`, which are header names or object keys.

    `takes_pair` None means that a second text is optional. Raises DataError for missing columns, and where a second
    text would be left out.
    """
    lower = {name.lower(): name for name in reversed(names)}
    given_label = options.label_column if needs_label or options.label_column in names else None
    for wanted in (options.text_column, options.pair_column, given_label):
        if wanted is not None and wanted not in names:
            raise DataError(f"{place}: there is no column {wanted!r:.80}; the columns are {listed(names)}")
    label = given_label or next((lower[name] for name in usual.labels if name in lower), None)
    if not needs_label and label in (options.text_column, options.pair_column):
        label = None
    text, pair = options.text_column, options.pair_column
    if text is None and pair is None:
        found = next(([lower[name] for name in row] for row in usual.pairs if lower.keys() >= {*row}), None)
        if found and takes_pair is not False:
            text, pair = found
        elif found and label not in found:
            how = "name one with --text-column; to read pairs, fine-tune with --task pair, or embed with --pair-column"
            raise DataError(f"{place}: {found[0]!r:.80} and {found[1]!r:.80} are both texts; {how}")
    if text is None:
        text = next((lower[name] for name in usual.texts if name in lower and lower[name] not in (pair, label)), None)
    if text is None and label is not None and label.lower() in usual.texts:
        left = f"{label!r:.80} was given as the label column, which leaves no text column"
        raise DataError(f"{place}: {left} among {listed(names)}; name it with --text-column")
    if text is None:
        by_number = "--text-column, by number (from 1) if the file has no header"
        raise no_column("text column", usual.texts, names, place, by_number)
    if takes_pair and pair is None:
        raise no_column("second text", [second for _, second in usual.pairs], names, place, "--pair-column")
    if needs_label and label is None:
        raise no_column(f"{usual.noun} column", usual.labels, names, place, "--label-column")
    check_single([name for name in (text, pair, label) if name is not None], names, place)
    return Columns(text, pair, label)


def check_single(chosen: Sequence[str], names: Sequence[str], place: str) -> None:
    """Raise ConfigError if a column is chosen for two roles, DataError if the header repeats its name."""
    for name in chosen:
        if chosen.count(name) > 1:
            another = "name another with --text-column, --pair-column or --label-column"  # one may be found by its name
            raise ConfigError(f"{place}: one column is used twice: {name!r:.80}; {another}")
        if names.count(name) > 1:
            raise DataError(f"{place}: the header has {names.count(name)} columns named {name!r:.80}")


def no_column(what: str, known: Sequence[str], names: Sequence[str], place: str, option: str) -> DataError:
    """Return the error for a table without one of the known columns, which can be named by an option."""
    return DataError(f"{place}: no {what} ({', '.join(known)}) among {listed(names)}; name it with {option}")


def listed(names: Sequence[str]) -> str:
    """Return column names as shown in a message."""
    shown = ", ".join(repr(name[:40]) for name in names[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    is_uncut = len(names) == 1 and (";" in names[0] or "\t" in names[0])
    hint = " (one column: is the separator a semicolon or a tab?)" if is_uncut else ""
    return shown + more + (" (in quotes: save it as .csv)" if {name[:1] for name in names} == {'"'} else hint)
