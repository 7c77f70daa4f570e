"""Rows of CSV, TSV, JSONL and text files, each with its line number; nothing about tasks or labels."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from maskloom.errors import DataError
from maskloom.foreign_files import check_regular, is_utf8, read_bytes

MAX_ROW_BYTES = 16 << 20
"""16 MiB of UTF-8: five times the longest novel in one row."""

_BLOCK = 1 << 18
_WIDE_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OTHER_ENDS = (b"\r", "\u2028".encode(), "\u2029".encode())
_LAYOUTS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text"}


BLANK = "blank line"


class BadRowError(ValueError):
    """A record of a file breaks a rule; `reason` is the rule in the form that is counted.

    `line` is where it is broken, if that is not the line of the record.
    """

    def __init__(self, reason: str, detail: str = "", line: int | None = None) -> None:
        super().__init__(f"{reason}{': ' if detail else ''}{detail:.300}")
        self.reason = reason
        self.line = line


class Row(NamedTuple):
    """The fields of one record and the file line where it starts (from 1).

    `fields` is a list for delimited files and a dict for JSONL; `problem` says why the row cannot be used, if so.
    `place` names the record in messages where its line does not.
    """

    fields: list[str] | dict[str, Any]
    line: int
    problem: str | None = None
    place: str | None = None

    @property
    def where(self) -> str:
        """The place of the record in its file, as a message says it."""
        return self.place or f"line {self.line}"

    def by_name(self) -> dict[str, Any]:
        """Return the values by the names of their columns. Raises BadRowError for a row with a problem."""
        if self.problem:
            reason, _, detail = self.problem.partition(": ")
            raise BadRowError(reason, detail)
        assert isinstance(self.fields, dict)
        return self.fields

    def value(self, column: str) -> Any:
        """Return the value of a column. Raises BadRowError for a row with a problem, and for one that lacks it."""
        fields = self.by_name()
        if column not in fields:
            raise BadRowError("missing key", repr(column))
        return fields[column]


def by_name(rows: Iterable[Row], names: Sequence[str]) -> Iterator[Row]:
    """Yield delimited rows with their fields by the names of the columns, the first of a name that comes twice.

    A row of another width has that problem.
    """
    for row in rows:
        problem = row.problem
        if len(row.fields) != len(names):
            problem = problem or f"wrong number of fields: {len(row.fields)}, expected {len(names)}"
        yield Row(dict(zip(reversed(names), reversed([*row.fields]), strict=False)), row.line, problem)


def up_to_first(rows: Iterator[Row]) -> list[Row]:
    """Return the rows up to the first without a problem; all rows, if every one has a problem."""
    taken = []
    for row in rows:
        taken.append(row)
        if row.problem is None:
            break
    return taken


def row_text(value: Any, what: str, *, empty: str | None = "empty text") -> str:
    """Return a field that is a text; raises BadRowError otherwise, and `empty` for a blank one unless that is None."""
    if not isinstance(value, str):
        raise BadRowError("text is not a string", f"{what} is {type(value).__name__}")
    if empty and not value.strip():
        raise BadRowError(empty, f"{what} is {value!r:.80}")
    if not is_utf8(value):
        raise BadRowError("text holds half of a surrogate pair", f"{what} is not valid Unicode")
    return value


def layout_of(path: Path) -> str:
    """Return csv, tsv, jsonl or text by suffix (a final .gz aside); raises DataError for any other suffix."""
    if path.is_dir():
        held = sorted(held.name for held in path.iterdir() if set(held.suffixes) & set(_LAYOUTS))[:8]
        hint = f", such as one of those in it: {', '.join(held)}" if held else ""
        raise DataError(f"{path}: is a folder; a file is expected{hint}")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = suffixes[-2] if len(suffixes) > 1 and suffixes[-1] == ".gz" else (suffixes or [""])[-1]
    if suffix not in _LAYOUTS and not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if suffix not in _LAYOUTS:
        raise DataError(f"{path}: the suffix {suffix!r:.80} is not one of {', '.join(_LAYOUTS)} (each may end in .gz)")
    return _LAYOUTS[suffix]


def read_rows(path: Path, layout: str) -> Iterator[Row]:
    """Yield the rows of a file in order, a header among them.

    `csv` has quoted fields as RFC 4180 says; `tsv` is split at tabs and knows no quotes, as GLUE's files need; `jsonl`
    holds one object a line; `text` gives each line as one field. A UTF-8 byte-order mark and CRLF are taken off. Where
    no line ends with LF, lines end with CR, those of `text` also with U+2028 and U+2029. Raises DataError for a file
    that cannot be read, is empty, is not UTF-8, or is not in that layout, and for a row of more than `MAX_ROW_BYTES`.
    """
    lines = _text_lines(path, _OTHER_ENDS if layout == "text" else _OTHER_ENDS[:1])
    if layout == "csv":
        yield from _csv_rows(path, lines)
    elif layout == "tsv":
        for number, line in lines:
            yield Row(line.split("\t"), number, problem=None if line else BLANK)
    elif layout == "jsonl":
        for number, line in lines:
            yield _json_row(line, number)
    else:
        for number, line in lines:
            yield Row([line], number)


def read_json_row(path: Path, number: int) -> Row:
    """Return the row of a file that is one JSON object, on one line or several; `number` stands for its line.

    Raises DataError for a file that cannot be read, is empty, is not UTF-8, or holds more than `MAX_ROW_BYTES`.
    """
    raw = _without_mark(read_bytes(path, limit=MAX_ROW_BYTES), path)
    if not raw:
        raise DataError(f"{path}: the file is empty")
    return _json_row(_decoded(raw, path, 1), number)


def _text_lines(path: Path, other_ends: tuple[bytes, ...]) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its line end); `other_ends` count where there is no LF."""
    number = 0
    check_regular(path)
    try:
        with _open(path) as file:
            for block in _blocks_of_lines(file, other_ends):
                for line in _lines_of(block, path, number):
                    number += 1
                    yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: after line {number}: the gzip stream is broken: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if number == 0:
        raise DataError(f"{path}: the file is empty")


def _blocks_of_lines(file: BufferedReader | gzip.GzipFile, other_ends: tuple[bytes, ...]) -> Iterator[bytes]:
    """Yield a file in blocks that end where a line ends, without that line end; a line beyond the limit is cut."""
    parts, size, has_line_feed = list[bytes](), 0, False
    while size <= MAX_ROW_BYTES and (block := file.read1(_BLOCK)):
        head, end, tail = block.rpartition(b"\n")
        if end:
            yield b"".join([*parts, head])
            parts, size, has_line_feed = [], 0, True
        parts.append(tail)
        size += len(tail)
    last = b"".join(parts)
    if not has_line_feed and size <= MAX_ROW_BYTES:
        for end in other_ends:
            last = last.replace(end, b"\n")
        last = last.removesuffix(b"\n")
    if size:
        yield last


def _lines_of(block: bytes, path: Path, number: int) -> Iterator[str]:
    """Yield the lines of a block, the first of which comes after line `number`."""
    if number == 0:
        block = _without_mark(block, path)
    try:
        text = "\0" if len(block) > MAX_ROW_BYTES else block.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        lines = text.split("\n")
        yield from lines if "\r" not in text else (line.removesuffix("\r") for line in lines)
        return
    for raw in block.split(b"\n"):  # one of them has something wrong; those before it are read
        number += 1
        if len(raw) > MAX_ROW_BYTES:
            raise DataError(_too_large(path, number))
        yield _decoded(raw.removesuffix(b"\r"), path, number)


def _open(path: Path) -> BufferedReader | gzip.GzipFile:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")


def _without_mark(raw: bytes, path: Path) -> bytes:
    if raw.startswith(_WIDE_MARKS):
        raise DataError(f"{path}: line 1: the file is UTF-16 or UTF-32; save it as UTF-8")
    return raw.removeprefix(codecs.BOM_UTF8)


def _decoded(raw: bytes, path: Path, number: int) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        value = raw[error.start]
        raise DataError(
            f"{path}: line {number}: byte {error.start + 1} of the line is 0x{value:02x}, which is not UTF-8; "
            "save the file as UTF-8"
        ) from None
    if "\0" in text:
        raise DataError(f"{path}: line {number}: holds a NUL character; UTF-8 text is expected (is this UTF-16?)")
    return text


def _too_large(path: Path, number: int) -> str:
    return f"{path}: line {number}: a row of more than {MAX_ROW_BYTES:,} bytes, which is the most that is read"


def _csv_rows(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
    first_line, size = 1, 0

    def counted() -> Iterator[str]:
        nonlocal size
        for _, line in lines:
            size += len(line) + 1
            if size > MAX_ROW_BYTES:
                raise DataError(_too_large(path, first_line))
            yield line + "\n"

    csv.field_size_limit(MAX_ROW_BYTES)  # the library's own is 128 KiB, less than some articles
    reader = csv.reader(counted(), strict=True)
    while True:
        first_line, size = reader.line_num + 1, 0
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}: line {first_line}: not valid CSV: {error}; a field with a comma, a quote or a line end "
                'stands in double quotes, with each quote inside it doubled ("")'
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
        return Row({}, number, problem=f"not valid JSON: {error}")
    if not isinstance(value, dict):
        return Row({}, number, problem=f"a JSON object is expected, this is a {type(value).__name__}")
    return Row(value, number)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r:.80} appears twice")
            seen.add(key)
    return found
