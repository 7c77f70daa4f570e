"""Sorted tables as LevelDB and TensorFlow write them: keys and values in checksummed blocks, perhaps Snappy-compressed.

Every size and offset is checked against the bytes that are there before anything is taken from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from maskloom.checkpoints.crc32c import crc32c, masked
from maskloom.errors import DataError
from maskloom.foreign_files import read_bytes

MAX_TABLE_BYTES = 16 << 20
"""Also what all blocks together may take when they are decompressed."""
MAX_ENTRIES = 200_000
_MAX_KEY_BYTES = 4096
_FOOTER, _MAGIC = 48, (0xDB4775248B80FB57).to_bytes(8, "little")
_RAW, _SNAPPY = 0, 1


class DamagedError(ValueError):
    """What does not hold together in bytes; who reads a file adds its name."""


def read_table(path: Path) -> dict[bytes, bytes]:
    """Return the entries of a table file of at most 16 MiB, in the order of their keys.

    Raises DataError that names the file and the first thing that is wrong: no table, a checksum that disagrees, sizes
    beyond the file, keys out of order.
    """
    content = memoryview(read_bytes(path, limit=MAX_TABLE_BYTES))
    try:
        return dict(_entries_of_table(content))
    except DamagedError as problem:
        raise DataError(f"{path}: not a whole table of TensorFlow: {problem}") from None


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned number of at most 64 bits and where the next byte is; raises DamagedError at the end."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
    raise DamagedError("a number is cut short or too long")


def _entries_of_table(content: memoryview) -> Iterator[tuple[bytes, bytes]]:
    if len(content) < _FOOTER or content[-8:] != _MAGIC:
        raise DamagedError("its last bytes are not those of a table")
    footer = content[-_FOOTER:-8]
    about, at = _handle(footer, 0)
    index, at = _handle(footer, at)
    if any(footer[at:]):
        raise DamagedError("its last bytes are not those of a table")
    room, last, count = MAX_TABLE_BYTES, b"", 0
    _block(content, about, room)  # about filters, which no checkpoint has
    for _, handle in _entries_of_block(_block(content, index, room)):
        inner = _block(content, _handle(memoryview(handle), 0)[0], room)
        room -= len(inner)
        for key, value in _entries_of_block(inner):
            if count and key <= last:
                raise DamagedError(f"key {key[:80]!r} does not come after {last[:80]!r}")
            last, count = key, count + 1
            if count > MAX_ENTRIES:
                raise DamagedError(f"more than {MAX_ENTRIES:,} entries")
            yield key, value


def _handle(data: memoryview, at: int) -> tuple[tuple[int, int], int]:
    """Return offset and size of a block, and where the next byte is."""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return (offset, size), at


def _block(content: memoryview, handle: tuple[int, int], room: int) -> memoryview:
    """Return the bytes of a block, decompressed, after comparing its checksum."""
    offset, size = handle
    if offset + size + 5 > len(content) - _FOOTER:
        raise DamagedError(f"a block at {offset:,} of {size:,} bytes reaches beyond the {len(content):,} of the file")
    kind = content[offset + size]
    stored = int.from_bytes(content[offset + size + 1 : offset + size + 5], "little")
    if masked(crc32c(content[offset : offset + size + 1])) != stored:
        raise DamagedError(f"the block at {offset:,} does not agree with its checksum")
    data = content[offset : offset + size]
    if kind == _SNAPPY:
        data = memoryview(decompressed(data, room))
    elif kind != _RAW:
        raise DamagedError(f"the block at {offset:,} is compressed in the unknown way {kind}")
    if len(data) > room:
        raise DamagedError(f"its blocks take more than {MAX_TABLE_BYTES:,} bytes")
    return data


def _entries_of_block(block: memoryview) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys, each given by what it shares with the one before, and values."""
    num_restarts = int.from_bytes(block[-4:], "little") if len(block) >= 4 else -1
    end = len(block) - 4 * (num_restarts + 1)
    if num_restarts < 0 or end < 0:
        raise DamagedError("a block is shorter than its own list of places")
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        fresh, at = varint(block, at)
        size, at = varint(block, at)
        if shared > len(key) or shared + fresh > _MAX_KEY_BYTES or at + fresh + size > end:
            raise DamagedError(f"an entry reaches beyond its block, or its key beyond {_MAX_KEY_BYTES:,} bytes")
        key = key[:shared] + bytes(block[at : at + fresh])
        at += fresh
        yield key, bytes(block[at : at + size])
        at += size


def decompressed(data: memoryview, limit: int) -> bytes:
    """Return Snappy-compressed bytes as they were; raises DamagedError for damage and for more than `limit` of them."""
    size, at = varint(data, 0)
    if size > limit:
        raise DamagedError(f"a compressed block would take {size:,} bytes; {limit:,} are left for it")
    found = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:  # bytes as they are
            length = tag >> 2
            if length >= 60:
                width = length - 59
                length, at = int.from_bytes(data[at : at + width], "little"), at + width
            length += 1
            if at + length > len(data):
                raise DamagedError("a compressed block ends in the middle")
            found += data[at : at + length]
            at += length
        else:
            width = (0, 1, 2, 4)[tag & 3]
            offset, at = int.from_bytes(data[at : at + width], "little"), at + width
            length = (tag >> 2) + 1
            if tag & 3 == 1:
                offset, length = offset | (tag >> 5) << 8, 4 + (tag >> 2 & 7)
            if not 1 <= offset <= len(found) or at > len(data):
                raise DamagedError("a compressed block refers to bytes before its beginning")
            start = len(found) - offset
            # a copy may reach into what it has itself just written
            piece = bytes(found[start : start + length])
            found += (piece * -(-length // len(piece)))[:length]
        if len(found) > size:
            raise DamagedError("a compressed block is longer than it says")
    if len(found) != size:
        raise DamagedError("a compressed block is shorter than it says")
    return bytes(found)
