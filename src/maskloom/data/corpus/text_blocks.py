"""Split the bytes of a text file into documents, in bounded memory; a line ends with LF, CR LF or CR.

CR CR LF, which CR LF becomes by careless copying, ends one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_BLOCK = 1 << 20
# CRs at the end of a block that wait for the next block, which may start with LF
_HELD_BACK = 63
_WHITE = b" \t\r\n\x0b\x0c"
# a character set, unlike a group, takes no memory per repetition
_BLANK_LINES = re.compile(rb"\n[ \t\x0b\x0c\r\n]*\n")
_LEADING_BLANK_LINES = re.compile(rb"[ \t\x0b\x0c\r\n]*\n")
_LINE_ENDS = re.compile(rb"\r++(\n?)")


def raw_documents(
    read: Callable[[int], bytes],
    *,
    ends_at_blank_lines: bool,
    limit: int,
    too_large: Callable[[int], Exception],
    cuts: bool = False,
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the documents in the blocks that `read(size)` returns: the parts between blank lines, or all as one.

    Each is yielded as its bytes, in which lone CR is already LF, its first line (from 1) and its byte offset. Parts
    that are only white space are skipped. Raises `too_large(line)` for a document of more than `limit` bytes, or
    with `cuts` splits it after the last line ending, else the last blank, else the last character.
    """
    line, offset = 1, 0
    for text, blank_lines in _parts(read, limit, ends_at_blank_lines, cuts):
        leading = _LEADING_BLANK_LINES.match(text)
        begin = leading.end() if leading else 0
        first = line + text.count(b"\n", 0, begin)
        if len(text) > limit and not cuts:
            raise too_large(first)
        if text and not text.isspace():
            yield text[begin:], first, offset + begin
        line += text.count(b"\n") + blank_lines.count(b"\n")
        offset += len(text) + len(blank_lines)
        # otherwise it would stay in memory while the next one is read
        del text


def unix_line_ends(content: bytes) -> bytes:
    """Return text with every line ending replaced by LF."""
    return content if b"\r" not in content else _LINE_ENDS.sub(lambda end: end[1] or b"\n" * len(end[0]), content)


def _parts(
    read: Callable[[int], bytes], limit: int, ends_at_blank_lines: bool, cuts: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Yield each text between blank lines, with the blank lines after it; one that exceeds `limit` is not whole."""
    held, num_white = bytearray(), 0  # bytes of white space at the end, in which blank lines may begin
    for block in _blocks(read):
        searched = max(0, len(held) - num_white)
        held += block
        while ends_at_blank_lines and (blank := _BLANK_LINES.search(held, searched)):
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
