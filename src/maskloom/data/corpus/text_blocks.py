"""Split the bytes of a text file into documents, in bounded memory and with any kind of line ending.

A line ends with LF, CR LF, CR, U+2028 or U+2029; U+0085 ends a line only in a file without any other line ending,
because elsewhere it is what remains of an ellipsis in text decoded wrongly. CR CR LF, which careless copying makes of
CR LF, ends one line.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_BLOCK = 1 << 20
# bytes of line endings at the end of a block that wait for the next block, which may start with LF
_HELD_BACK = 63
_WHITE = b" \t\r\n\x0b\x0c"
_LINE_ENDS = re.compile(rb"(?:\r|\xe2\x80[\xa8\xa9])++(\n?)")
# a character set, unlike a group, takes no memory per repetition
_BLANK_LINES = re.compile(rb"\n[ \t\x0b\x0c\r\n]*\n")
_LEADING_BLANK_LINES = re.compile(rb"[ \t\x0b\x0c\r\n]*\n")
_NEXT_LINE = b"\xc2\x85"


@dataclass(frozen=True)
class RawDocument:
    """The bytes of a document as in the file, the number of its first line (from 1), and its byte offset.

    U+2028, U+2029 and lone CR are already replaced by LF, padded with blanks so that byte offsets do not change.
    """

    content: bytes
    line: int
    offset: int


def raw_documents(
    read: Callable[[int], bytes],
    *,
    ends_at_blank_lines: bool,
    limit: int,
    too_large: Callable[[int], Exception],
    start: int = 0,
    cuts: bool = False,
) -> Iterator[RawDocument]:
    """Yield the documents in the blocks that `read(size)` returns: the parts between blank lines, or all as one.

    Parts that are only white space are skipped. Raises `too_large(line)` for a document of more than `limit` bytes, or
    with `cuts` splits it after the last line ending, else the last blank, else the last character. `start` is the file
    offset of the first byte.
    """
    gathered: list[bytes] = []
    size, line, offset = 0, 1, start
    has_line_end, most = False, 1 << 62 if cuts else limit  # pieces exceed `limit` by at most a block
    for piece in _pieces(read, limit):
        has_line_end = has_line_end or b"\n" in piece
        position = 0
        for blank in _BLANK_LINES.finditer(piece) if ends_at_blank_lines else ():
            gathered.append(piece[position : blank.start() + 1])
            num_lines = sum(part.count(b"\n") for part in gathered)
            yield from _document(gathered, line, offset, most, too_large)
            line += num_lines + piece.count(b"\n", blank.start() + 1, blank.end())
            offset += size + blank.end() - position
            gathered, size, position = [], 0, blank.end()
        gathered.append(piece[position:] if position else piece)
        size += len(gathered[-1])
        if size > most:
            raise too_large(line)
        while size > limit:
            content = b"".join(gathered)
            characters = (at for at in range(size - 1, 0, -1) if content[at] & 0xC0 != 0x80)
            end = content.rfind(b"\n") + 1 or content.rfind(b" ") + 1 or next(characters, size)
            yield from _document([content[:end]], line, offset, most, too_large)
            line, offset = line + content.count(b"\n", 0, end), offset + end
            gathered, size = [content[end:]], size - end
    gathered = gathered if has_line_end else [b"".join(gathered)]
    if not has_line_end and _NEXT_LINE in gathered[0]:
        content = gathered.pop().replace(_NEXT_LINE, b" \n")
        yield from raw_documents(
            io.BytesIO(content).read,
            ends_at_blank_lines=ends_at_blank_lines,
            limit=limit,
            too_large=too_large,
            start=offset,
            cuts=cuts,
        )
    else:
        yield from _document(gathered, line, offset, most, too_large)


def unix_line_ends(content: bytes) -> bytes:
    """Return text with every line ending except U+0085 replaced by LF."""
    if b"\r" not in content and not _has_separator(content):
        return content
    return _LINE_ENDS.sub(lambda ends: ends[1] or b"\n" * (ends[0].count(b"\r") + ends[0].count(b"\xe2")), content)


def _document(
    gathered: list[bytes], line: int, offset: int, limit: int, too_large: Callable[[int], Exception]
) -> Iterator[RawDocument]:
    """Yield the gathered document, without surrounding blank lines, unless it is only white space."""
    content = gathered[0] if len(gathered) == 1 else b"".join(gathered)
    gathered.clear()
    leading = _LEADING_BLANK_LINES.match(content)
    if leading:
        line, offset = line + leading[0].count(b"\n"), offset + leading.end()
        content = content[leading.end() :]
    last = content.rfind(b"\n") + 1
    if last and content[last:].isspace():
        content = content[:last]
    if len(content) > limit:
        raise too_large(line)
    if content and not content.isspace():
        yield RawDocument(content, line, offset)


def _pieces(read: Callable[[int], bytes], limit: int) -> Iterator[bytes]:
    """Yield all bytes, split before a line that is not blank, or before white space inside a long line."""
    rest = b""
    for block in _blocks_with_line_feeds(read):
        chunk = rest + block if rest else block
        body = chunk.rstrip(_WHITE)
        # the last non-blank line waits for its end, and a blank one for the blank lines that may follow
        cut = body.rfind(b"\n") + 1 or (len(body) if len(chunk) >= _BLOCK else 0)
        if not body:
            cut = (chunk.rfind(b"\n") + 1 or len(chunk)) if len(chunk) > limit else 0
        if cut:
            yield chunk[:cut]
        rest = chunk[cut:]
    if rest:
        yield rest


def _blocks_with_line_feeds(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield blocks in which each line ending ends with LF and has as many bytes as before."""
    rest = b""
    while block := read(_BLOCK):
        chunk = rest + block if rest else block
        num_open = min(len(chunk) - len(chunk.rstrip(b"\r\xe2\x80\xa8\xa9")), _HELD_BACK)
        rest = chunk[len(chunk) - num_open :]
        yield _line_feeds_in_place(chunk[: len(chunk) - num_open] if num_open else chunk)
    if rest:
        yield _line_feeds_in_place(rest)


def _line_feeds_in_place(block: bytes) -> bytes:
    if block.count(b"\r") == block.count(b"\r\n") and not _has_separator(block):
        return block
    return _LINE_ENDS.sub(_padded, block)


def _padded(ends: re.Match[bytes]) -> bytes:
    """Return line endings padded to the same length: one LF if they end with LF, else one LF for each."""
    if ends[1]:
        return ends[0] if b"\xe2" not in ends[0] else b" " * (len(ends[0]) - 1) + b"\n"
    return ends[0].replace(b"\r", b"\n").replace(b"\xe2\x80\xa8", b"  \n").replace(b"\xe2\x80\xa9", b"  \n")


def _has_separator(content: bytes) -> bool:
    return b"\xe2\x80\xa8" in content or b"\xe2\x80\xa9" in content
