"""TensorFlow 1 checkpoints, version 2 (tensor bundles), read without TensorFlow.

`PREFIX.index` is a sorted table from variable names to messages with type, shape, shard and offset; the values are in
`PREFIX.data-00000-of-00001` and the like. Checksums are not verified.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskloom.checkpoints.tensor_files import StoredTensor
from maskloom.errors import DataError
from maskloom.system.foreign_files import file_inside, read_bytes

INDEX_END = ".index"
_MAX_TABLE_BYTES, _MAX_ENTRIES, _MAX_KEY_BYTES = 16 << 20, 200_000, 4096
_MAX_SHARDS, _MAX_DIMENSIONS, _MAX_SIZE = 10_000, 16, 2**48
_FOOTER, _MAGIC = 48, (0xDB4775248B80FB57).to_bytes(8, "little")
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


class _DamagedError(ValueError):
    """Raised for inconsistent bytes; the caller that reads the file adds its name."""


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise _DamagedError(problem)


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
    except _DamagedError as problem:
        raise DataError(f"{index}: not a checkpoint index that can be read: {problem}") from None
    if any(".ATTRIBUTES/" in name for name in entries):
        raise DataError(
            f"{index}: an object-based checkpoint of TensorFlow 2, whose names depend on the program that wrote it; "
            "only the layout of TensorFlow 1, with names such as bert/embeddings/word_embeddings, is supported"
        )
    prefix = index.name.removesuffix(INDEX_END)
    numbers = {entry.shard for entry in entries.values()}
    shards = {number: _shard(index, f"{prefix}.data-{number:05d}-of-{num_shards:05d}") for number in numbers}
    found = {}
    for name, entry in entries.items():
        path, available = shards[entry.shard]
        if entry.offset + entry.size > available:
            raise DataError(
                f"{path}: has {available:,} bytes, but the index has variable {name!r:.80} at {entry.offset:,} "
                f"with {entry.size:,}; the file is truncated or from another checkpoint"
            )
        is_float = entry.dtype in _TYPES and _TYPES[entry.dtype].is_floating_point
        found[name] = StoredTensor(name, entry.shape, is_float, index, partial(_read, name, entry, path))
    return found


def _shard(index: Path, name: str) -> tuple[Path, int]:
    if (path := file_inside(index.parent, name)) is None:
        raise DataError(f"{index.parent / name}: does not exist, but {index.name} names it")
    return path, path.stat().st_size


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
    _require(message is not None, "it has no header")
    fields = dict(_fields(message))
    num_shards, needed = fields.get(1, 0), dict(_fields(fields.get(3, b""))).get(2, 0)
    is_possible = isinstance(num_shards, int) and 1 <= num_shards <= _MAX_SHARDS
    _require(is_possible, f"its header says {num_shards!r:.40} files; 1 to {_MAX_SHARDS:,} are supported")
    _require(fields.get(2, 0) == 0, "its values are big-endian; only little-endian ones are supported")
    _require(needed in (0, 1), f"it needs a reader of version {needed!r:.40}; this one has version 1")
    return num_shards


def _entry(key: bytes, message: bytes) -> tuple[str, _Entry]:
    """Return the name of a variable and its description, a BundleEntryProto."""
    try:
        name = key.decode("utf-8")
    except UnicodeDecodeError:
        raise _DamagedError(f"the name {key[:80]!r} is not UTF-8") from None
    fields, variable = dict(_fields(message)), f"variable {name!r:.80}"
    _require(7 not in fields, f"{variable} is stored in slices, which are not supported")
    dtype, shard, offset, size = numbers = [fields.get(number, 0) for number in (1, 3, 4, 5)]
    are_possible = all(isinstance(number, int) and number <= _MAX_SIZE for number in numbers)
    _require(are_possible, f"{variable} has an invalid description")
    entry = _Entry(dtype, _sizes(variable, fields.get(2, b"")), shard, offset, size)
    if entry.dtype in _TYPES:
        needed = math.prod(entry.shape) * _TYPES[entry.dtype].itemsize
        _require(size == needed, f"{variable} of shape {entry.shape} does not take the stated {size:,} bytes")
    return name, entry


def _sizes(variable: str, message: bytes) -> tuple[int, ...]:
    """Return the shape in a TensorShapeProto."""
    sizes = []
    for number, value in _fields(message):
        _require(number != 3 or not value, f"{variable} has an unknown shape")
        if number == 2:
            sizes.append(dict(_fields(value)).get(1, 0))
            is_possible = len(sizes) <= _MAX_DIMENSIONS and all(isinstance(size, int) for size in sizes)
            is_possible = is_possible and math.prod(size or 1 for size in sizes) <= _MAX_SIZE
            _require(is_possible, f"{variable} has an impossible shape")
    return tuple(sizes)


class _Bytes:
    """Bytes that are read from front to back; raises _DamagedError at their end."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data, self._at = memoryview(data), 0

    def __len__(self) -> int:
        return len(self._data) - self._at

    def take(self, number: int) -> bytes:
        """Return the next bytes."""
        _require(number <= len(self), "a message or an entry is truncated")
        self._at += number
        return bytes(self._data[self._at - number : self._at])

    def varint(self) -> int:
        """Return an unsigned integer of up to 64 bits, stored in groups of 7 bits."""
        value = 0
        for shift in range(0, 70, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value >> 64 == 0:
                return value
        raise _DamagedError("a number is too long")


def _fields(message: object) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field of a protocol buffer message: integers, or raw bytes."""
    if not isinstance(message, bytes):
        raise _DamagedError("found a number instead of a message")
    rest = _Bytes(message)
    while rest:
        number, kind = divmod(rest.varint(), 8)
        if kind == 0:
            yield number, rest.varint()
        elif kind == 2:
            yield number, rest.take(rest.varint())
        else:
            _require(kind in (1, 5), f"a message has a field of unknown kind {kind}")
            yield number, rest.take(8 if kind == 1 else 4)


def _entries_of_table(content: memoryview) -> Iterator[tuple[bytes, bytes]]:
    _require(len(content) >= _FOOTER and content[-8:] == _MAGIC, "its last bytes are not those of a table")
    footer, last, count = _Bytes(content[-_FOOTER:-8]), b"", 0
    _block(content, footer)  # describes filters, which no checkpoint has
    for _, handle in _entries_of_block(_block(content, footer)):
        for key, value in _entries_of_block(_block(content, _Bytes(handle))):
            _require(key > last or not count, f"key {key[:80]!r} does not come after {last[:80]!r}")
            last, count = key, count + 1
            _require(count <= _MAX_ENTRIES, f"more than {_MAX_ENTRIES:,} entries")
            yield key, value


def _block(content: memoryview, handle: _Bytes) -> memoryview:
    """Return the block at the offset and of the size in a handle; a compression byte and 4 of a checksum follow it."""
    offset, size = handle.varint(), handle.varint()
    is_inside = offset + size + 5 <= len(content) - _FOOTER
    _require(is_inside, f"a block of {size:,} bytes at {offset:,} exceeds the file of {len(content):,}")
    is_plain = content[offset + size] == 0
    _require(is_plain, f"the block at {offset:,} is compressed; TensorFlow never compresses checkpoints")
    return content[offset : offset + size]


def _entries_of_block(block: memoryview) -> Iterator[tuple[bytes, bytes]]:
    """Yield the prefix-compressed keys and their values."""
    end = len(block) - 4 * (int.from_bytes(block[-4:], "little") + 1)
    _require(end >= 0, "a block is shorter than its own list of restarts")
    rest, key = _Bytes(block[:end]), b""
    while rest:
        num_shared, num_fresh, size = rest.varint(), rest.varint(), rest.varint()
        is_possible = num_shared <= len(key) and num_shared + num_fresh <= _MAX_KEY_BYTES
        _require(is_possible, f"a key exceeds {_MAX_KEY_BYTES:,} bytes or the one before it")
        key = key[:num_shared] + rest.take(num_fresh)
        yield key, rest.take(size)
