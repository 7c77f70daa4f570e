"""Read documents from .txt and .jsonl files, compressed or not, .parquet files and folders (BERT paper 3.3.2).

Documents of a .txt file end at blank lines, or each file is one document. A line ends with LF, CR LF or CR, or with
CR CR LF, which CR LF becomes by careless copying. Memory holds one document at a time, or 256
rows of a .parquet file, and a document has at most `MAX_DOCUMENT_BYTES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, NamedTuple

from maskloom.data.corpus.compressed_files import COMPRESSIONS, opened, reading_errors
from maskloom.errors import ConfigError, DataError, amount
from maskloom.system.files import file_sha256
from maskloom.system.foreign_files import check_name, check_regular, file_inside, shown_name

MAX_DOCUMENT_BYTES = 1 << 26
"""64 MiB of UTF-8: about ten times the longest novel."""

DocumentRule = Literal["blank-line", "file"]
TEXT_FIELD = "text"
_LANGUAGE = re.compile(r"\.[a-z]{2}")
_KINDS = (".txt", ".jsonl")
_PARQUET = ".parquet"
_KNOWN_KINDS = f"{', '.join(_KINDS)} (also with {' or '.join(COMPRESSIONS)}) and {_PARQUET}"
_NUM_SKIPS_NAMED = 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# a decoded character takes up to four bytes, so long text is decoded piece by piece
_PIECE = 1 << 20
_ROWS_AT_ONCE = 256
_BLOCK = 1 << 20
# CRs at the end of a block that wait for the next block, which may start with LF
_HELD_BACK = 63
_WHITE = b" \t\r\n\x0b\x0c"
# a character set, unlike a group, takes no memory per repetition
_BLANK_LINES = re.compile(rb"\n[ \t\x0b\x0c\r\n]*\n")
_LEADING_BLANK_LINES = re.compile(rb"[ \t\x0b\x0c\r\n]*\n")
_LINE_ENDS = re.compile(rb"\r++(\n?)")


@dataclass(frozen=True)
class Document:
    """One document: its text in UTF-8 with LF line endings, its file, and the line or row (from 1) where it starts."""

    content: bytes
    source: str
    line: int

    @property
    def text(self) -> str:
        """The text, decoded."""
        return self.content.decode("utf-8")

    @property
    def num_characters(self) -> int:
        """The number of characters in the text."""
        return len(self.content) if self.content.isascii() else sum(map(len, _decoded(self.content)))


@dataclass
class ReadingReport:
    """What reading found besides documents; the counts grow as documents are drawn from the iterator."""

    num_documents: int = 0
    num_empty_documents: int = 0
    num_skipped_documents: int = 0
    num_bytes_read: int = 0
    empty_files: list[str] = field(default_factory=list)
    ignored_files: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Why documents were skipped; the first 20 only."""
    sums: dict[Path, str] = field(default_factory=dict)
    """SHA-256 of each file that was read to its end and did not change meanwhile."""

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and names as plain values, without the sums."""
        return {name: value for name, value in vars(self).items() if name != "sums"}


@dataclass(frozen=True)
class SourceFile:
    """A file to read: its path, and its file name or, inside a given folder, the path relative to that folder."""

    path: Path
    name: str


def source_files(paths: str | Path | Iterable[str | Path], report: ReadingReport | None = None) -> list[SourceFile]:
    """List the files that `paths` refer to: files in the order given, folders searched recursively and sorted by name.

    `report.ignored_files` lists what is skipped inside folders: files of unknown kinds, and links to folders or to
    other readable files. A given file with a two-letter language as its suffix, such as train.de, is read as text.
    Raises DataError for a missing path, a given file of unknown kind, a folder without any readable file, a text that
    is not a regular file or whose name is not UTF-8, and a link that is dangling or leads out of its folder.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise DataError("no text files were given")
    report = ReadingReport() if report is None else report
    found: list[SourceFile] = []
    for path in map(Path, given):
        check_name(path)
        if path.is_dir():
            found.extend(_files_of_folder(path, report))
        elif not path.exists():
            raise DataError(f"{path}: no such file or folder")
        elif not _is_known(path) and not _LANGUAGE.fullmatch(_kind(path)):
            raise DataError(f"{path}: unknown kind of file; {_KNOWN_KINDS} can be read")
        else:
            check_regular(path)
            found.append(SourceFile(path, path.name))
    return found


def check_rule(files: list[SourceFile], documents: DocumentRule) -> None:
    """Raise ConfigError if `documents` is "file" but there is no plain text, the only kind that the rule affects."""
    if documents == "file" and not any(is_plain_text(source.path) for source in files):
        raise ConfigError(
            "--documents file: the text has no .txt file, and each row of a .jsonl or .parquet file is a document "
            "anyway; leave it out"
        )


def refuse_output_inside(paths: str | Path | Iterable[str | Path], out: Path) -> None:
    """Raise ConfigError if `out` lies in a folder of text, where the next run would read the output as text."""
    for path in [paths] if isinstance(paths, str | Path) else paths:
        folder = Path(path)
        if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"--out {out} lies inside {folder}, which is read as text; write to a folder outside it")


def read_documents(
    paths: str | Path | Iterable[str | Path],
    *,
    on_bad_text: Literal["error", "skip"] = "error",
    documents: DocumentRule = "blank-line",
    report: ReadingReport | None = None,
    longest: int | None = None,
) -> Iterator[Document]:
    """Return an iterator over the documents of files and folders, in the order given.

    Documents of a .txt file end at blank lines, or with "file" at its end; in the other formats each row is a document.
    A .txt document of more than `longest` bytes is split instead of being rejected as too large. Bad text (bytes that
    are not UTF-8, NUL characters, lone surrogates) raises with "error"; "skip" drops the document, counts it and lists
    it in `report`. Documents without any visible character are dropped and counted too.

    Raises DataError (with the file and the line, row or byte offset) for bad text, bad JSON, a missing or ill-typed
    `text` field, truncated compressed files, documents that are too large, a file that changes while it is read, and as
    `source_files` does; ConfigError for any other `on_bad_text` or `documents`.
    """
    if on_bad_text not in ("error", "skip"):
        raise ConfigError(f"on_bad_text is {on_bad_text!r:.80}; it must be 'error' or 'skip'")
    if documents not in ("blank-line", "file"):
        raise ConfigError(f"documents is {documents!r:.80}; it must be 'blank-line' or 'file'")
    report = ReadingReport() if report is None else report
    return _documents_of_files(source_files(paths, report), on_bad_text == "skip", documents, report, longest)


def _files_of_folder(folder: Path, report: ReadingReport) -> list[SourceFile]:
    # a linked folder could lead back here, so it is listed but never entered
    inside = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    found: list[SourceFile] = []
    for path in sorted(inside, key=lambda path: path.relative_to(folder).parts):
        name, is_read_elsewhere = path.relative_to(folder).as_posix(), False
        if path.is_symlink() and not path.is_dir():
            check_name(path)
            file_inside(folder, name)  # raises if it leads out of the folder
            is_read_elsewhere = _is_known(path.resolve())
        if path.is_dir() or not _is_known(path) or is_read_elsewhere:
            report.ignored_files.append(shown_name(str(path)))
            continue
        check_name(path)
        check_regular(path)
        found.append(SourceFile(path, name))
    if not found:
        raise DataError(f"{folder}: the folder contains no files that can be read; {_KNOWN_KINDS} can be")
    return found


def _decoded(content: bytes) -> Iterator[str]:
    """Decode UTF-8 piece by piece, splitting at character boundaries."""
    start = 0
    while start < len(content):
        end = start + _PIECE
        while end < len(content) and content[end] & 0xC0 == 0x80 and end > start + _PIECE - 4:
            end -= 1
        try:
            yield content[start:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise UnicodeDecodeError("utf-8", content, start + error.start, start + error.end, error.reason) from None
        start = end


def is_plain_text(path: Path) -> bool:
    """Return whether a file that can be read holds plain text, in which blank lines may end documents."""
    return _kind(path) not in (".jsonl", _PARQUET)


def _kind(path: Path) -> str:
    """Return the suffix that identifies a file's format, ignoring a compression suffix."""
    name = path.name.lower()
    for compression in COMPRESSIONS:
        name = name.removesuffix(compression)
    return Path(name).suffix


def _is_known(path: Path) -> bool:
    return _kind(path) in _KINDS or path.suffix.lower() == _PARQUET


class _Text(NamedTuple):
    """The text of a document as it stands in a file: its line or row, what messages call that, and its byte offset."""

    content: bytes
    line: int
    place: str
    offset: int = 0

    @property
    def problem(self) -> str | None:
        """Why the text is bad, or None."""
        try:
            for _ in _decoded(self.content):
                pass
        except UnicodeDecodeError as error:
            hint = "; it looks like UTF-16" if self.content[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
            bad = self.content[error.start : error.start + 2]
            reason = "an unpaired surrogate" if b"\xed\xa0" <= bad < b"\xed\xc0" else error.reason
            return f"byte {self.offset + error.start + 1} (0x{bad[0]:02x}) is not UTF-8 ({reason}){hint}"
        if (nul := self.content.find(b"\0")) >= 0:
            before = amount(len(self.content[:nul].decode()), "character")
            return f"a NUL character after {before}; is the file binary or UTF-16?"
        return None


def _documents_of_files(
    files: list[SourceFile], skips_bad_text: bool, rule: DocumentRule, report: ReadingReport, longest: int | None
) -> Iterator[Document]:
    finished = 0
    for path in (source.path for source in files):
        check_regular(path)
        # an error of the code that takes the documents is raised there, not at a yield
        with reading_errors(path):
            before = path.stat()
            for text, position in _texts_of_file(path, rule, longest):
                if position > before.st_size:  # it might never end
                    raise DataError(f"{path}: grew while being read; run again once nothing writes to it any more")
                report.num_bytes_read = finished + position
                if document := _document(path, text, skips_bad_text, report):
                    yield document
                # otherwise they would stay in memory while the next one is read
                del text, document
            report.sums[path] = file_sha256(path)
            now = path.stat()
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (before.st_size, before.st_mtime_ns, before.st_ino):
            raise DataError(
                f"{path}: changed while being read ({before.st_size:,} bytes before, {now.st_size:,} now); "
                "run again once nothing writes to it any more"
            )
        if not before.st_size:
            report.empty_files.append(str(path))
        finished += before.st_size
        report.num_bytes_read = finished


def _document(path: Path, text: _Text, skips_bad_text: bool, report: ReadingReport) -> Document | None:
    """Return the document of a text, or None if it is empty or bad; counts all three."""
    if problem := text.problem:
        problem = f"{path}, {text.place}: {problem}"
        if not skips_bad_text:
            raise DataError(f"{problem}; --on-bad-text skip leaves such documents out and counts them")
        report.num_skipped_documents += 1
        if len(report.skipped) < _NUM_SKIPS_NAMED:
            report.skipped.append(problem)
        return None
    content = _unix_line_ends(text.content).strip(b"\n")
    if not content[:1].isalnum() and all(piece.isspace() for piece in _decoded(content)):
        report.num_empty_documents += 1
        return None
    report.num_documents += 1
    return Document(content, str(path), text.line)


def _unix_line_ends(content: bytes) -> bytes:
    """Return text with every line ending replaced by LF."""
    return content if b"\r" not in content else _LINE_ENDS.sub(lambda end: end[1] or b"\n" * len(end[0]), content)


def _texts_of_file(path: Path, rule: DocumentRule, longest: int | None) -> Iterator[tuple[_Text, int]]:
    """Yield the texts of a file, each with the number of bytes read so far."""
    if path.suffix.lower() == _PARQUET:
        yield from ((text, 0) for text in _texts_of_table(path))
        return
    with opened(path) as (file, raw):
        texts = _plain_texts(path, file, rule, longest) if is_plain_text(path) else _texts_of_rows(path, file)
        for text in texts:
            yield text, raw.tell()
            del text


def _plain_texts(path: Path, file: BufferedReader, rule: DocumentRule, longest: int | None) -> Iterator[_Text]:
    """Yield the documents of a plain text that are not only white space; lone CR is already LF in them.

    One of more than `longest` bytes is split after the last line ending, else the last blank, else the last character.
    """
    limit, by_line = longest or MAX_DOCUMENT_BYTES, rule == "blank-line"
    line, offset = 1, len(_BYTE_ORDER_MARK) if file.peek(3)[:3] == _BYTE_ORDER_MARK else 0
    file.read(offset)
    for text, blank_lines in _parts(file.read, limit, by_line, cuts=longest is not None):
        leading = _LEADING_BLANK_LINES.match(text)
        begin = leading.end() if leading else 0
        first = line + text.count(b"\n", 0, begin)
        if len(text) > limit and longest is None:
            advice = "put blank lines between documents" if by_line else "split the file"
            raise DataError(f"{_too_large(path, f'line {first}')}; {advice}")
        if text and not text.isspace():
            yield _Text(text[begin:], first, f"document at line {first}", offset + begin)
        line += text.count(b"\n") + blank_lines.count(b"\n")
        offset += len(text) + len(blank_lines)
        # otherwise it would stay in memory while the next one is read
        del text


def _parts(read: Callable[[int], bytes], limit: int, by_line: bool, *, cuts: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yield each text between blank lines, with the blank lines after it; one that exceeds `limit` is not whole."""
    held, num_white = bytearray(), 0  # bytes of white space at the end, in which blank lines may begin
    for block in _blocks(read):
        searched = max(0, len(held) - num_white)
        held += block
        while by_line and (blank := _BLANK_LINES.search(held, searched)):
            yield _taken(held, blank.start() + 1), _taken(held, blank.end() - blank.start() - 1)
            searched = 0
        body = block.rstrip(_WHITE)
        num_white = len(block) - len(body) if body else num_white + len(block)
        if len(held) > limit:
            characters = (at for at in range(len(held) - 1, 0, -1) if held[at] & 0xC0 != 0x80)
            end = held.rfind(b"\n") + 1 or held.rfind(b" ") + 1 or next(characters, 0)
            yield _taken(held, (cuts and end) or len(held)), b""
    last = held.rfind(b"\n") + 1
    if last and held[last:].isspace():
        del held[last:]
    yield bytes(held), b""


def _taken(held: bytearray, number: int) -> bytes:
    """Remove the first bytes, and return them."""
    first = bytes(memoryview(held)[:number])
    del held[:number]
    return first


def _blocks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield blocks in which each line ends with LF, with as many bytes as before."""
    rest = b""
    while block := read(_BLOCK):
        block = rest + block
        end = max(len(block.rstrip(b"\r")), len(block) - _HELD_BACK)
        rest = block[end:]
        yield _with_line_feeds(block[:end])
    yield _with_line_feeds(rest)


def _with_line_feeds(block: bytes) -> bytes:
    if block.count(b"\r") == block.count(b"\r\n"):
        return block
    return _LINE_ENDS.sub(lambda end: end[0] if end[1] else b"\n" * len(end[0]), block)


def _texts_of_rows(path: Path, file: BufferedReader) -> Iterator[_Text]:
    """Yield the text field of each line of a .jsonl file, or the line itself if it is not UTF-8."""
    lines = iter(partial(file.readline, MAX_DOCUMENT_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        place = f"line {number}"
        line = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        if len(line) > MAX_DOCUMENT_BYTES:
            raise DataError(_too_large(path, place))
        if line.isspace():
            continue
        text = _Text(line, number, place)
        yield text if text.problem else text._replace(content=_text_of_row(line, f"{path}, {place}"))


def _text_of_row(line: bytes, place: str) -> bytes:
    """Return the text of a row in UTF-8, which encodes no lone surrogate: it becomes bytes that are not UTF-8."""
    if len(line) > _PIECE and not line.isascii() and b"\\u" not in line:
        # one character per byte takes a quarter of the memory, and the syntax of JSON is ASCII
        try:
            return _text_of_json(line.decode("latin-1"), place).encode("latin-1")
        except DataError:
            pass  # parse again below, so that the error refers to the row's own characters
    return _text_of_json(line, place).encode("utf-8", "surrogatepass")


def _text_of_json(line: bytes | str, place: str) -> str:
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


def _too_large(path: Path, place: str) -> str:
    return f"{path}, {place}: a document of more than {MAX_DOCUMENT_BYTES:,} bytes"


def _texts_of_table(path: Path) -> Iterator[_Text]:
    """Yield the text field of each row of a .parquet file."""
    column = TEXT_FIELD
    try:  # pyarrow is an optional dependency
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError(
            f"{path}: reading .parquet needs pyarrow; install it with: pip install 'maskloom[parquet]'"
        ) from None
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            if column not in (names := file.schema_arrow.names):
                held = ", ".join(sorted(name[:40] for name in names)[:12])
                raise DataError(f"{path}: no column {column!r}; the file has {held or 'none'}")
            kind = file.schema_arrow.field(column).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
                raise DataError(f"{path}: column {column!r} must hold strings, not {kind}")
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column]):
                for content in batch.column(0).cast(pa.large_binary()).to_pylist():
                    row += 1
                    if content is None:
                        raise DataError(f"{path}, row {row}: column {column!r} has no value")
                    if len(content) > MAX_DOCUMENT_BYTES:
                        raise DataError(_too_large(path, f"row {row}"))
                    yield _Text(content, row, f"row {row}")
    except DataError:
        raise
    # names and numbers of a damaged file can also fail to convert to Python objects
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        raise DataError(f"{path}, after row {row}: not a valid Parquet file: {error}") from None
