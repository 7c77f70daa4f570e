"""TensorFlow 1 checkpoints, version 2 (tensor bundles), read without TensorFlow.

`PREFIX.index` is a sorted table from variable names to messages that say type, shape, shard, place and checksum; the
values lie in `PREFIX.data-00000-of-00001` and its like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from maskloom.checkpoints.crc32c import crc32c, masked
from maskloom.checkpoints.sorted_table import DamagedError, read_table, varint
from maskloom.checkpoints.tensor_files import StoredTensor
from maskloom.errors import DataError
from maskloom.foreign_files import file_inside

INDEX_END = ".index"
_MAX_SHARDS, _MAX_DIMENSIONS, _MAX_SIZE = 10_000, 16, 2**48
# Of DataType in types.proto, by number; a string or another type has no values that a model takes.
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
_OBJECT_GRAPH = ".ATTRIBUTES/"


@dataclass(frozen=True)
class _Entry:
    """A BundleEntryProto: where the values of one variable lie."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def open_bundle(index: Path) -> dict[str, StoredTensor]:
    """Return the variables of a checkpoint by name, none of them read; `index` is the file that ends in `.index`.

    Reading a variable compares its CRC-32C. Raises DataError for a damaged index, for shards that are missing or too
    short for what the index says of them, for big-endian values, for variables in slices, and for object-based
    checkpoints of TensorFlow 2, whose names tell nothing of a model.
    """
    table = read_table(index)
    if b"" not in table:
        raise DataError(f"{index}: not the index of a checkpoint: it has no header")
    try:
        num_shards = _num_shards(table[b""])
        entries = {_name(key): _entry(_name(key), value) for key, value in table.items() if key}
    except DamagedError as problem:
        raise DataError(f"{index}: {problem}") from None
    if any(_OBJECT_GRAPH in name for name in entries):
        raise DataError(
            f"{index}: an object-based checkpoint of TensorFlow 2, whose names follow the program that wrote it; "
            "only the layout of TensorFlow 1, with names such as bert/embeddings/word_embeddings, is read"
        )
    prefix = index.name.removesuffix(INDEX_END)
    sizes: dict[int, tuple[Path, int]] = {}
    found = {}
    for name, entry in entries.items():
        if entry.shard not in sizes:
            sizes[entry.shard] = _shard(index, f"{prefix}.data-{entry.shard:05d}-of-{num_shards:05d}")
        path, available = sizes[entry.shard]
        if entry.offset + entry.size > available:
            raise DataError(
                f"{path}: {available:,} bytes, the index has variable {name!r:.80} at {entry.offset:,} with "
                f"{entry.size:,}; the file is cut short or of another checkpoint"
            )
        is_float = entry.dtype in _TYPES and _TYPES[entry.dtype].is_floating_point
        found[name] = StoredTensor(name, entry.shape, is_float, index, _reader(name, entry, path))
    return found


def _shard(index: Path, name: str) -> tuple[Path, int]:
    path = file_inside(index.parent, name)
    if path is None:
        raise DataError(f"{index.parent / name}: cannot be read: there is no such file, which {index.name} names")
    return path, path.stat().st_size


def _reader(name: str, entry: _Entry, path: Path) -> Callable[[], Tensor]:
    def read() -> Tensor:
        if entry.dtype not in _TYPES:
            raise DataError(f"{path}: variable {name!r:.80} holds no numbers (type {entry.dtype})")
        with path.open("rb") as file:
            file.seek(entry.offset)
            values = bytearray(file.read(entry.size))
        if len(values) != entry.size or masked(crc32c(memoryview(values))) != entry.checksum:
            raise DataError(f"{path}: variable {name!r:.80} does not agree with its checksum: the file is damaged")
        if not values:
            return torch.empty(entry.shape, dtype=_TYPES[entry.dtype])
        return torch.frombuffer(values, dtype=_TYPES[entry.dtype]).reshape(entry.shape)

    return read


def _name(key: bytes) -> str:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        raise DamagedError(f"the name {key[:80]!r} is not UTF-8") from None


def _num_shards(message: bytes) -> int:
    """Return the number of files of a BundleHeaderProto whose values this program can read."""
    fields = dict(_fields(message))
    num_shards, version = fields.get(1, 0), dict(_fields(_bytes(fields.get(3, b""))))
    if not isinstance(num_shards, int) or not 1 <= num_shards <= _MAX_SHARDS:
        raise DamagedError(f"its header says {num_shards!r:.40} files; 1 to {_MAX_SHARDS:,} are read")
    if fields.get(2, 0) != 0:
        raise DamagedError("its values are big-endian; only little-endian ones are read")
    if version.get(2, 0) not in (0, 1):
        raise DamagedError(f"it asks for a reader of version {version[2]!r:.40}; this one is of version 1")
    return num_shards


def _entry(name: str, message: bytes) -> _Entry:
    fields = dict(_fields(message))
    if 7 in fields:
        raise DamagedError(f"variable {name!r:.80} is stored in slices, which are not read")
    dtype, shard, offset, size, checksum = (fields.get(number, 0) for number in (1, 3, 4, 5, 6))
    shape = tuple(_sizes(name, _bytes(fields.get(2, b""))))
    numbers = (dtype, shard, offset, size, checksum)
    if not all(isinstance(number, int) and number <= _MAX_SIZE for number in numbers):
        raise DamagedError(f"variable {name!r:.80} has no whole description")
    entry = _Entry(dtype, shape, shard, offset, size, checksum)  # pyright: ignore[reportArgumentType]
    if entry.dtype in _TYPES and entry.size != math.prod(shape) * _TYPES[entry.dtype].itemsize:
        raise DamagedError(f"variable {name!r:.80} of shape {shape} does not take the {size:,} bytes that are said")
    return entry


def _sizes(name: str, message: bytes) -> Iterator[int]:
    """Yield the sizes of a TensorShapeProto."""
    count = 0
    for number, value in _fields(message):
        if number == 3 and value:
            raise DamagedError(f"variable {name!r:.80} has no known shape")
        if number != 2:
            continue
        size = dict(_fields(_bytes(value))).get(1, 0)
        count += 1
        if not isinstance(size, int) or size > _MAX_SIZE or count > _MAX_DIMENSIONS:
            raise DamagedError(f"variable {name!r:.80} has a shape that no tensor has")
        yield size


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise DamagedError("a message is no message")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of the fields of a protocol buffer message: numbers, and bytes as they are."""
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
            raise DamagedError(f"a message has a field of the unknown kind {kind}")
        if at > len(view):
            raise DamagedError("a message is cut short")
        yield tag >> 3, value
