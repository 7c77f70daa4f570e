"""TensorFlow 1 checkpoints, version 2 (tensor bundles), read without TensorFlow.

`PREFIX.index` is a sorted table from variable names to messages with type, shape, shard and offset; the values are in
`PREFIX.data-00000-of-00001` and the like. Checksums are not verified.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from maskloom.checkpoints.tensor_files import StoredTensor
from maskloom.errors import DataError
from maskloom.system.foreign_files import file_inside, read_bytes

INDEX_END = ".index"
_MAX_SHARDS, _MAX_DIMENSIONS, _MAX_SIZE = 10_000, 16, 2**48
# Numbers of DataType in types.proto; strings and other types hold no values that a model can use.
_TYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    4: torch.uint8,
    5: torch.int16,
    6: torch.int8,
    9: torch.int64,
    10: torch.bool,
    14: torch.bfloat16,
    19: torch.float16,
}


class _Entry(NamedTuple):
    """A BundleEntryProto: the type, shape and location of one variable."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int


def open_bundle(index: Path) -> dict[str, StoredTensor]:
    """Return the variables of a checkpoint by name, without reading their values; `index` is the `.index` file.

    Raises DataError for an inconsistent index, missing or truncated shards, big-endian values, sliced variables, and
    object-based checkpoints of TensorFlow 2.
    """
    content = memoryview(read_bytes(index, limit=_MAX_TABLE_BYTES))
    try:
        table = dict(_entries_of_table(content))
        num_shards = _num_shards(table.pop(b"", None))
        entries = dict(_entry(key, value) for key, value in table.items())
    except DamagedError as problem:
        raise DataError(f"{index}: not a checkpoint index that can be read: {problem}") from None
    if any(".ATTRIBUTES/" in name for name in entries):
        raise DataError(
            f"{index}: an object-based checkpoint of TensorFlow 2, whose names depend on the program that wrote it; "
            "only the layout of TensorFlow 1, with names such as bert/embeddings/word_embeddings, is supported"
        )
    prefix = index.name.removesuffix(INDEX_END)
    sizes: dict[int, tuple[Path, int]] = {}
    found = {}
    for name, entry in entries.items():
        if entry.shard not in sizes:
            shard = f"{prefix}.data-{entry.shard:05d}-of-{num_shards:05d}"
            if (path := file_inside(index.parent, shard)) is None:
                raise DataError(f"{index.parent / shard}: does not exist, but {index.name} names it")
            sizes[entry.shard] = path, path.stat().st_size
        path, available = sizes[entry.shard]
        if entry.offset + entry.size > available:
            raise DataError(
                f"{path}: has {available:,} bytes, but the index has variable {name!r:.80} at {entry.offset:,} "
                f"with {entry.size:,}; the file is truncated or from another checkpoint"
            )
        is_float = entry.dtype in _TYPES and _TYPES[entry.dtype].is_floating_point
        found[name] = StoredTensor(name, entry.shape, is_float, index, partial(_read, name, entry, path))
    return found


def _read(name: str, entry: _Entry, path: Path) -> Tensor:
    if entry.dtype not in _TYPES:
        raise DataError(f"{path}: variable {name!r:.80} holds no numbers (type {entry.dtype})")
    with path.open("rb") as file:
        file.seek(entry.offset)
        values = bytearray(file.read(entry.size))
    if len(values) != entry.size:
        raise DataError(f"{path}: ends within variable {name!r:.80}: the file is truncated")
    if not values:
        return torch.empty(entry.shape, dtype=_TYPES[entry.dtype])
    return torch.frombuffer(values, dtype=_TYPES[entry.dtype]).reshape(entry.shape)


def _num_shards(message: bytes | None) -> int:
    """Return the number of shards from a BundleHeaderProto, after checking that the values can be read here."""
    if message is None:
        raise DamagedError("it has no header")
    fields = dict(_fields(message))
    num_shards, version = fields.get(1, 0), dict(_fields(_bytes(fields.get(3, b""))))
    if not isinstance(num_shards, int) or not 1 <= num_shards <= _MAX_SHARDS:
        raise DamagedError(f"its header says {num_shards!r:.40} files; 1 to {_MAX_SHARDS:,} are supported")
    if fields.get(2, 0) != 0:
        raise DamagedError("its values are big-endian; only little-endian ones are supported")
    if version.get(2, 0) not in (0, 1):
        raise DamagedError(f"it needs a reader of version {version[2]!r:.40}; this one has version 1")
    return num_shards


def _entry(key: bytes, message: bytes) -> tuple[str, _Entry]:
    """Return the name of a variable and its description, a BundleEntryProto."""
    try:
        name = key.decode("utf-8")
    except UnicodeDecodeError:
        raise DamagedError(f"the name {key[:80]!r} is not UTF-8") from None
    fields = dict(_fields(message))
    if 7 in fields:
        raise DamagedError(f"variable {name!r:.80} is stored in slices, which are not supported")
    dtype, shard, offset, size = numbers = [fields.get(number, 0) for number in (1, 3, 4, 5)]
    shape = _sizes(name, _bytes(fields.get(2, b"")))
    if not all(isinstance(number, int) and number <= _MAX_SIZE for number in numbers):
        raise DamagedError(f"variable {name!r:.80} has an invalid description")
    entry = _Entry(dtype, shape, shard, offset, size)  # pyright: ignore[reportArgumentType]
    if entry.dtype in _TYPES and entry.size != math.prod(shape) * _TYPES[entry.dtype].itemsize:
        raise DamagedError(f"variable {name!r:.80} of shape {shape} does not take the stated {size:,} bytes")
    return name, entry


def _sizes(name: str, message: bytes) -> tuple[int, ...]:
    """Return the shape in a TensorShapeProto."""
    sizes: list[int] = []
    for number, value in _fields(message):
        if number == 3 and value:
            raise DamagedError(f"variable {name!r:.80} has an unknown shape")
        if number == 2:
            size = dict(_fields(_bytes(value))).get(1, 0)
            sizes.append(size if isinstance(size, int) else _MAX_SIZE + 1)
            if len(sizes) > _MAX_DIMENSIONS or math.prod(size or 1 for size in sizes) > _MAX_SIZE:
                raise DamagedError(f"variable {name!r:.80} has an impossible shape")
    return tuple(sizes)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise DamagedError("found a number instead of a message")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field of a protocol buffer message: integers, or raw bytes."""
    view, at = memoryview(message), 0
    while at < len(view):
        tag, at = varint(view, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(view, at)
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            value, at = int.from_bytes(view[at : at + width], "little"), at + width
        elif kind == 2:
            size, at = varint(view, at)
            value, at = bytes(view[at : at + size]), at + size
        else:
            raise DamagedError(f"a message has a field of unknown kind {kind}")
        if at > len(view):
            raise DamagedError("a message is truncated")
        yield tag >> 3, value


_MAX_TABLE_BYTES = 16 << 20
MAX_ENTRIES = 200_000
_MAX_KEY_BYTES = 4096
_FOOTER, _MAGIC = 48, (0xDB4775248B80FB57).to_bytes(8, "little")


class DamagedError(ValueError):
    """Raised for inconsistent bytes; the caller that reads the file adds its name."""


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned varint of up to 64 bits and the next position; raises DamagedError if truncated or longer."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80 and value >> 64 == 0:
            return value, at
    raise DamagedError("a number is truncated or too long")


def _entries_of_table(content: memoryview) -> Iterator[tuple[bytes, bytes]]:
    if len(content) < _FOOTER or content[-8:] != _MAGIC:
        raise DamagedError("its last bytes are not those of a table")
    footer = content[-_FOOTER:-8]
    about, at = _handle(footer, 0)
    index, at = _handle(footer, at)
    if any(footer[at:]):
        raise DamagedError("its last bytes are not those of a table")
    last, count = b"", 0
    _block(content, about)  # describes filters, which no checkpoint has
    for _, handle in _entries_of_block(_block(content, index)):
        for key, value in _entries_of_block(_block(content, _handle(memoryview(handle), 0)[0])):
            if count and key <= last:
                raise DamagedError(f"key {key[:80]!r} does not come after {last[:80]!r}")
            last, count = key, count + 1
            if count > MAX_ENTRIES:
                raise DamagedError(f"more than {MAX_ENTRIES:,} entries")
            yield key, value


def _handle(data: memoryview, at: int) -> tuple[tuple[int, int], int]:
    """Return the offset and size of a block, and the next position."""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return (offset, size), at


def _block(content: memoryview, handle: tuple[int, int]) -> memoryview:
    """Return the bytes of a block, after which come a compression byte and a checksum of four bytes."""
    offset, size = handle
    if offset + size + 5 > len(content) - _FOOTER:
        raise DamagedError(f"a block of {size:,} bytes at {offset:,} exceeds the file of {len(content):,}")
    if content[offset + size]:
        raise DamagedError(f"the block at {offset:,} is compressed; TensorFlow never compresses checkpoints")
    return content[offset : offset + size]


def _entries_of_block(block: memoryview) -> Iterator[tuple[bytes, bytes]]:
    """Yield the prefix-compressed keys and their values."""
    num_restarts = int.from_bytes(block[-4:], "little") if len(block) >= 4 else -1
    end = len(block) - 4 * (num_restarts + 1)
    if num_restarts < 0 or end < 0:
        raise DamagedError("a block is shorter than its own list of restarts")
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        fresh, at = varint(block, at)
        size, at = varint(block, at)
        if shared > len(key) or shared + fresh > _MAX_KEY_BYTES or at + fresh + size > end:
            raise DamagedError(f"an entry exceeds its block, or its key exceeds {_MAX_KEY_BYTES:,} bytes")
        key = key[:shared] + bytes(block[at : at + fresh])
        at += fresh
        yield key, bytes(block[at : at + size])
        at += size
