"""Arrays in HDF5 files as h5py writes them by default: old-style groups and contiguous floats, nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from maskloom.checkpoints.tensor_files import StoredTensor
from maskloom.errors import DataError

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_ROOT_ENTRY = 56  # where the symbol table entry of the root group begins
_SPACE, _TYPE, _LAYOUT, _MORE, _GROUP = 0x01, 0x03, 0x08, 0x10, 0x11  # types of object header messages
_ALIGNED = 8
_MOST_OBJECTS, _DEEPEST = 100_000, 32


def open_hdf5(path: Path) -> dict[str, StoredTensor]:
    """Return the arrays of a file by path, such as "CNN/W_cnn_0"; their values are read later.

    Raises DataError, with the file, for a damaged file and for anything but groups of plain 32- or 64-bit float arrays.
    """
    try:
        file = _File(path)
        return {name: file.array(name, messages) for name, messages in file.objects(file.root, "")}
    except (struct.error, IndexError, ValueError) as error:
        raise DataError(f"{path}: damaged, or not an HDF5 file of plain float arrays: {error}") from None


class _File:
    def __init__(self, path: Path) -> None:
        self._path, self._bytes, self._num_objects = path, np.memmap(path, dtype=np.uint8, mode="r"), 0
        signature, version, sizes = bytes(self._bytes[:8]), self._bytes[8], bytes(self._bytes[13:15])
        if signature != _SIGNATURE or version != 0 or sizes != b"\x08\x08":
            raise ValueError("it does not begin like a file of version 0")
        (self.root,) = self._numbers("<Q", _ROOT_ENTRY + 8)

    def objects(self, address: int, name: str, depth: int = 0) -> Iterator[tuple[str, dict[int, int]]]:
        """Yield the path of each array below an object, with the addresses of its header messages."""
        self._num_objects += 1
        if self._num_objects > _MOST_OBJECTS or depth > _DEEPEST:
            raise ValueError(f"more than {_MOST_OBJECTS} objects, or groups nested more than {_DEEPEST} deep")
        messages = dict(self._messages(address))
        if _GROUP not in messages:
            yield name, messages
            return
        tree, heap = self._numbers("<QQ", messages[_GROUP])
        (names,) = self._numbers("<Q", heap + 24)
        for entry in self._entries(tree):
            place, header = self._numbers("<QQ", entry)
            below = bytes(self._bytes[names + place : names + place + 256]).partition(b"\0")[0].decode()
            yield from self.objects(header, f"{name}/{below}" if name else below, depth + 1)

    def array(self, name: str, messages: dict[int, int]) -> StoredTensor:
        """Return an array whose values are still to be read."""
        if not {_SPACE, _TYPE, _LAYOUT} <= messages.keys():
            raise ValueError(f"{name!r} is neither a group nor an array")
        version, rank = self._numbers("<BB", messages[_SPACE])
        shape = self._numbers(f"<{rank}Q", messages[_SPACE] + (8 if version == 1 else 4))
        kind, order = self._numbers("<BB", messages[_TYPE])
        (size,) = self._numbers("<I", messages[_TYPE] + 4)
        layout = self._numbers("<BB", messages[_LAYOUT])
        if layout != (3, 1) or kind & 15 != 1 or order & 1 or size not in (4, 8):
            raise ValueError(f"{name!r} is not a contiguous array of 4- or 8-byte floats")
        first, num_bytes = self._numbers("<QQ", messages[_LAYOUT] + 2)
        if num_bytes != size * int(np.prod(shape, dtype=object)) or first + num_bytes > len(self._bytes):
            raise ValueError(f"{name!r} is truncated")
        return StoredTensor(name, shape, True, self._path, partial(self._read, first, num_bytes, size, shape))

    def _read(self, first: int, num_bytes: int, size: int, shape: tuple[int, ...]) -> Tensor:
        values = np.array(self._bytes[first : first + num_bytes]).view(f"<f{size}").reshape(shape)
        return torch.from_numpy(values)

    def _messages(self, address: int) -> Iterator[tuple[int, int]]:
        """Yield the type and address of each message in an object header."""
        version, _, number, _, size = self._numbers("<BBHII", address)
        if version != 1:
            raise ValueError(f"an object has version {version}; only 1 is supported")
        blocks = [(address + 16, size)]
        for first, size in blocks:
            place, end = first, first + size
            while place + _ALIGNED <= end and number > 0:
                kind, length = self._numbers("<HH", place)
                number -= 1
                yield kind, place + _ALIGNED
                if kind == _MORE:
                    blocks.append(self._numbers("<QQ", place + _ALIGNED))  # pyright: ignore[reportArgumentType]
                place += _ALIGNED + length

    def _entries(self, tree: int, above: int = _DEEPEST) -> Iterator[int]:
        """Yield the address of each entry of a group."""
        signature, (level, number) = bytes(self._bytes[tree : tree + 4]), self._numbers("<xBH", tree + 4)
        if signature != b"TREE" or level >= above:
            raise ValueError("a group has no tree")
        for child in range(number):
            (node,) = self._numbers("<Q", tree + 32 + 16 * child)
            if level:
                yield from self._entries(node, level)
            else:
                (count,) = self._numbers("<H", node + 6)
                yield from (node + 8 + 40 * entry for entry in range(count))

    def _numbers(self, form: str, place: int) -> tuple[int, ...]:
        return struct.unpack(form, bytes(self._bytes[place : place + struct.calcsize(form)]))
