"""The safetensors format: checking headers before any library opens a file, and serialising tensors."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskloom.errors import DataError
from maskloom.system.foreign_files import check_regular

MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 20_000
_MAX_DIMENSIONS = 16
_MAX_SIZE = 2**48
# The memory that JSON takes depends more on its number of parts than on its length; a tensor has about twelve.
_MAX_PARTS = 40 * MAX_TENSORS
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_WIDTHS = {
    **{name: dtype.itemsize for dtype, name in _NAMES.items()},
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U64", "C64"), 8),
    "U32": 4,
    "U16": 2,
}


class _BadHeaderError(Exception):
    """Raised for an inconsistent header."""


class HeaderEntry(NamedTuple):
    """One tensor in a header: its dtype, as named in the format, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, HeaderEntry]:
    """Return the header entries of a safetensors file by tensor name, after checking the whole header.

    The header may have at most 16 MiB and 20,000 tensors; names must be unique and sizes match types and shapes; the
    tensors must be non-empty and fill the rest of the file without gap or overlap. Raises DataError that names the file
    and the first problem.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or not 2 <= length <= size - 8:
                raise _BadHeaderError(f"its header would take {length:,} bytes, but the file has {size:,}")
            if length > MAX_HEADER_BYTES:
                raise _BadHeaderError(f"its header takes {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
            header = _parsed(file.read(length))
        return _checked(header, size - 8 - length)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _BadHeaderError as error:
        raise DataError(f"{path}: not a valid safetensors file: {error}") from None


def _parsed(text: bytes) -> dict[str, Any]:
    if sum(text.count(mark) for mark in (b"{", b"[", b",", b":")) > _MAX_PARTS:
        raise _BadHeaderError(f"its header has more parts than {MAX_TENSORS:,} tensors need")
    try:
        header = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_refuse)
    except (ValueError, RecursionError) as error:
        raise _BadHeaderError(f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise _BadHeaderError("its header is not a JSON object")
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise _BadHeaderError("its __metadata__ is not an object of strings")
    if len(header) > MAX_TENSORS:
        raise _BadHeaderError(f"its header names {len(header):,} tensors; at most {MAX_TENSORS:,} are read")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _BadHeaderError(f"its header has the key {key[:80]!r} twice")
        found[key] = value
    return found


def _refuse(number: str) -> Any:
    raise _BadHeaderError(f"its header holds {number[:40]}; all of its numbers must be whole")


def _checked(header: dict[str, Any], data_size: int) -> dict[str, HeaderEntry]:
    places: list[tuple[int, int, str]] = []
    entries: dict[str, HeaderEntry] = {}
    for name, value in header.items():
        entries[name], (begin, end) = _entry(f"tensor {name[:80]!r}", value)
        places.append((begin, end, name))
    reached = 0
    for begin, end, name in sorted(places):
        if begin != reached:
            what = "a gap" if begin > reached else "an overlap"
            raise _BadHeaderError(f"tensor {name[:80]!r} begins at {begin:,} instead of {reached:,}: {what}")
        reached = end
    if reached != data_size:
        raise _BadHeaderError(f"its tensors take {reached:,} bytes, but the file holds {data_size:,} for them")
    return entries


def _entry(what: str, value: Any) -> tuple[HeaderEntry, tuple[int, int]]:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _BadHeaderError(f"{what} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _WIDTHS:
        raise _BadHeaderError(f"{what} has the unknown type {dtype!r:.40}")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise _BadHeaderError(f"{what}: shape is not a list of at most {_MAX_DIMENSIONS} whole numbers: {shape!r:.80}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise _BadHeaderError(f"{what}: data_offsets are not two whole numbers: {offsets!r:.80}")
    if 0 in shape:
        raise _BadHeaderError(f"{what} has no values: shape {shape}")
    size = math.prod(shape) * _WIDTHS[dtype]
    if offsets[1] - offsets[0] != size:
        raise _BadHeaderError(f"{what} of shape {shape} takes {size:,} bytes, but data_offsets are {offsets}")
    return HeaderEntry(dtype, tuple(shape)), (offsets[0], offsets[1])


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= _MAX_SIZE for value in values)


def safetensors_pieces(
    tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> Iterator[memoryview]:
    """Yield the header and then each tensor's values, as views of tensors that are contiguous in memory.

    `metadata` is stored in the header. Wider types come first, and names are sorted within a type, so that every tensor
    starts at a multiple of its width. Tensors on another device are copied one at a time.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), _NAMES[item[1].dtype], item[0]))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, tensor in ordered:
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data
