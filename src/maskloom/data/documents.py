"""Documents from text files: .txt, .jsonl, .parquet, compressed or not, and folders of these (BERT paper 3.3.2).

A blank line ends a document of a .txt file. Memory holds one document at a time, and a document is at most
`MAX_DOCUMENT_BYTES` large.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from maskloom.data.compressed_files import COMPRESSIONS, ByteStream, reading_errors
from maskloom.errors import ConfigError, DataError
from maskloom.foreign_files import check_regular

MAX_DOCUMENT_BYTES = 1 << 26
"""64 MiB of UTF-8: about ten times the longest novel."""

TEXT_FIELD = "text"
_KINDS = (".txt", ".jsonl")
_PARQUET = ".parquet"
_NUM_SKIPS_NAMED = 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Document:
    """One document: its text with line ends as "\\n", the file, and the line or row where it starts, from 1."""

    text: str
    source: str
    line: int


@dataclass
class ReadingReport:
    """What reading met besides documents; counts grow while the documents are drawn."""

    num_documents: int = 0
    num_empty_documents: int = 0
    num_skipped_documents: int = 0
    num_bytes_read: int = 0
    empty_files: list[str] = field(default_factory=list)
    ignored_files: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Why documents were skipped, the first 20."""

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and names as plain values."""
        return {name: list(value) if isinstance(value, list) else value for name, value in vars(self).items()}


@dataclass(frozen=True)
class SourceFile:
    """A file to read: its path, and its name as a person gave it or, inside a given folder, relative to that."""

    path: Path
    name: str


def source_files(paths: str | Path | Iterable[str | Path], report: ReadingReport | None = None) -> list[SourceFile]:
    """List the files that `paths` stand for: files in the order given, folders searched whole and sorted by name.

    Files of unknown kinds inside folders are named in `report.ignored_files`. Raises DataError for a missing path,
    for a given file of unknown kind and for a folder without any file to read.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise DataError("no text files were given")
    found: list[SourceFile] = []
    for path in map(Path, given):
        if path.is_dir():
            found.extend(_files_of_folder(path, report))
        elif not path.exists():
            raise DataError(f"{path}: no such file or folder")
        elif not _is_known(path):
            raise DataError(f"{path}: unknown kind of file; {_known_kinds()} can be read")
        else:
            found.append(SourceFile(path, path.name))
    return found


def read_documents(
    paths: str | Path | Iterable[str | Path],
    *,
    on_bad_text: Literal["error", "skip"] = "error",
    report: ReadingReport | None = None,
) -> Iterator[Document]:
    """Return the documents of files and folders in the order given, one at a time.

    Bad text is bytes that are not UTF-8, NUL characters and lone surrogates: with "error" it raises, with "skip" the
    document or row is left out, counted and named in `report`. Documents without any visible character are left out
    and counted too.

    Raises DataError (file with line, row or byte offset) for bad text, for bad JSON, for a missing or ill-typed
    `text` field, for compressed files that are cut short, for too large documents, and as `source_files` does;
    ConfigError for another `on_bad_text`.
    """
    if on_bad_text not in ("error", "skip"):
        raise ConfigError(f"on_bad_text is {on_bad_text!r:.80}; it must be 'error' or 'skip'")
    report = ReadingReport() if report is None else report
    files = source_files(paths, report)
    return _documents_of_files(files, on_bad_text == "skip", report)


def _files_of_folder(folder: Path, report: ReadingReport | None) -> list[SourceFile]:
    inside: list[Path] = []
    for parent, folders, names in os.walk(folder):
        inside.extend(Path(parent) / name for name in names)
        # a linked folder could lead back here, so it is named, never entered
        inside.extend(Path(parent) / name for name in folders if (Path(parent) / name).is_symlink())
    found: list[SourceFile] = []
    for path in sorted(inside, key=lambda path: path.relative_to(folder).parts):
        if path.is_file() and _is_known(path):
            found.append(SourceFile(path, path.relative_to(folder).as_posix()))
        elif report is not None:
            report.ignored_files.append(str(path))
    if not found:
        raise DataError(f"{folder}: the folder holds no file that can be read; {_known_kinds()} can be")
    return found


def _kind(path: Path) -> str:
    """Return the suffix that says what a file holds, without that of its compression."""
    name = path.name.lower()
    for compression in COMPRESSIONS:
        name = name.removesuffix(compression)
    return Path(name).suffix


def _is_known(path: Path) -> bool:
    return _kind(path) in _KINDS or path.suffix.lower() == _PARQUET


def _known_kinds() -> str:
    return f"{', '.join(_KINDS)}, these with {' or '.join(COMPRESSIONS)}, and {_PARQUET}"


@dataclass(frozen=True)
class _Reader:
    """Judges the texts of one file."""

    path: Path
    skips_bad_text: bool
    report: ReadingReport

    def reject(self, problem: str) -> None:
        """Count a document with bad text, or raise DataError."""
        problem = f"{self.path}, {problem}"
        if not self.skips_bad_text:
            raise DataError(f"{problem}; with on_bad_text 'skip' such documents are left out and counted")
        self.report.num_skipped_documents += 1
        if len(self.report.skipped) < _NUM_SKIPS_NAMED:
            self.report.skipped.append(problem)

    def decode(self, content: bytes, place: str, offset: int = 0) -> str | None:
        """Decode a document or a row; `offset` is where it starts in the text of the file, in bytes."""
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            hint = "; it looks like UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
            value = f"0x{content[error.start]:02x}"
            self.reject(f"{place}: byte {offset + error.start} ({value}) is not UTF-8 ({error.reason}){hint}")
            return None

    def accept(self, text: str, line: int, place: str) -> Document | None:
        """Return the document, or None for one that is empty or rejected."""
        if "\0" in text:
            self.reject(f"{place}: a NUL character after {text.index(chr(0))} characters; is it binary or UTF-16?")
            return None
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = text.strip("\n")
        if not text or text.isspace():
            self.report.num_empty_documents += 1
            return None
        self.report.num_documents += 1
        return Document(text, str(self.path), line)


def _documents_of_files(files: list[SourceFile], skips_bad_text: bool, report: ReadingReport) -> Iterator[Document]:
    finished = 0
    for source in files:
        path = source.path
        reader = _Reader(path, skips_bad_text, report)
        check_regular(path)
        with reading_errors(path):
            size = path.stat().st_size
        if path.suffix.lower() == _PARQUET:
            # pyarrow is an extra, so it is looked for only when there is something to read with it
            from maskloom.data.parquet import parquet_texts

            for row, content in parquet_texts(path, TEXT_FIELD):
                yield from _document_of_row(reader, content, row)
        else:
            stream = _opened(path)
            try:
                rows = _rows(stream, reader) if _kind(path) == ".jsonl" else _paragraphs(stream, reader)
                for document in _with_reading_errors(rows, path):
                    report.num_bytes_read = finished + stream.position
                    yield document
            finally:
                stream.close()
        if not size:
            report.empty_files.append(str(path))
        finished += size
        report.num_bytes_read = finished


def _opened(path: Path) -> ByteStream:
    with reading_errors(path):
        return ByteStream(path)


def _with_reading_errors(documents: Iterator[Document], path: Path) -> Iterator[Document]:
    """Draw documents such that only errors of reading are translated, never those of the code that uses them."""
    while True:
        with reading_errors(path):
            document = next(documents, None)
        if document is None:
            return
        yield document


def _lines(stream: ByteStream) -> Iterator[bytes]:
    first = True
    for line in iter(partial(stream.lines.readline, MAX_DOCUMENT_BYTES + 1), b""):
        yield line.removeprefix(_BYTE_ORDER_MARK) if first else line
        first = False


def _paragraphs(stream: ByteStream, reader: _Reader) -> Iterator[Document]:
    """Yield the documents of a .txt file: runs of lines between blank lines."""
    has_mark = stream.lines.peek(3)[:3] == _BYTE_ORDER_MARK
    offset = len(_BYTE_ORDER_MARK) if has_mark else 0
    lines: list[bytes] = []
    size, first = 0, 1
    number = 0
    for number, line in enumerate(_lines(stream), start=1):
        if line.isspace():
            if lines:
                yield from _paragraph(reader, lines, first, offset)
            offset += size + len(line)
            lines, size, first = [], 0, number + 1
        else:
            lines.append(line)
            size += len(line)
            if size > MAX_DOCUMENT_BYTES:
                raise DataError(_too_large(reader.path, f"line {first}") + "; put blank lines between documents")
    if lines:
        yield from _paragraph(reader, lines, first, offset)


def _paragraph(reader: _Reader, lines: list[bytes], first: int, offset: int) -> Iterator[Document]:
    place = f"document at line {first}"
    text = reader.decode(b"".join(lines), place, offset)
    document = None if text is None else reader.accept(text, first, place)
    if document is not None:
        yield document


def _rows(stream: ByteStream, reader: _Reader) -> Iterator[Document]:
    """Yield the documents of a .jsonl file: the text field of each line."""
    for number, line in enumerate(_lines(stream), start=1):
        place = f"line {number}"
        if len(line) > MAX_DOCUMENT_BYTES:
            raise DataError(_too_large(reader.path, place))
        text = None if line.isspace() else reader.decode(line, place)
        if text is None:
            continue
        text = _text_of_json(text, f"{reader.path}, {place}")
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            reader.reject(f"{place}: {TEXT_FIELD!r:.80} holds half a surrogate pair, which is no character")
            continue
        document = reader.accept(text, number, place)
        if document is not None:
            yield document


def _text_of_json(line: str, place: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{place}: a row must be an object with the field {TEXT_FIELD!r:.80}, not {type(row).__name__}")
    if TEXT_FIELD not in row:
        held = ", ".join(f"{key!r:.40}" for key in list(row)[:12])
        raise DataError(f"{place}: no field {TEXT_FIELD!r:.80}; the row has {held or 'no fields'}")
    if not isinstance(row[TEXT_FIELD], str):
        raise DataError(f"{place}: field {TEXT_FIELD!r:.80} must be a string, not {type(row[TEXT_FIELD]).__name__}")
    return row[TEXT_FIELD]


def _document_of_row(reader: _Reader, content: bytes, row: int) -> Iterator[Document]:
    place = f"row {row}"
    if len(content) > MAX_DOCUMENT_BYTES:
        raise DataError(_too_large(reader.path, place))
    text = reader.decode(content, place)
    document = None if text is None else reader.accept(text, row, place)
    if document is not None:
        yield document


def _too_large(path: Path, place: str) -> str:
    return f"{path}, {place}: a document of more than {MAX_DOCUMENT_BYTES:,} bytes"
