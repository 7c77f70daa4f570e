"""Safetensors files with false headers, each in one way."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any


def lying_files() -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of files that every reader must refuse."""
    good = {"a": _entry([2], 0, 8), "b": _entry([2], 8, 16)}
    data = bytes(16)

    def changed(**values: Any) -> dict[str, Any]:
        return {**good, "b": {**good["b"], **values}}

    yield "empty file", b""
    yield "no header", b"\0" * 7
    yield "a pickle", b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94."
    for length in (0, 1, 2**24 + 1, 2**32, 2**60, 2**62, 2**63, 2**64 - 1):
        yield f"header length {length}", _file(good, data, length=length)
    for size in (17, 95):
        yield f"header of {size} MiB", _raw(b"{" + b" " * (size << 20) + b"}", b"")
    for shape in (
        [2**63],
        [2**64],
        [2**32, 2**32],
        [2**63, 2],
        [-1],
        [-2, -1],
        [1.5],
        ["2"],
        [True, 2],
        None,
        2,
        [1] * 1_000,
    ):
        yield f"shape {shape!r:.40}", _file(changed(shape=shape), data)
    for dtype in ("F99", "f32", "", None, 4, "F16", "F4", [], "O"):
        yield f"type {dtype!r}", _file(changed(dtype=dtype), data)
    for offsets in ([8, 800], [16, 8], [-8, 0], [8, 2**64], [8], [8, 16, 24], None, "8", [8.0, 16.0], [4, 12]):
        yield f"offsets {offsets!r}", _file(changed(data_offsets=offsets), data)
    yield "overlap", _file({"a": _entry([2], 0, 8), "b": _entry([2], 4, 12)}, bytes(12))
    yield "same place twice", _file({"a": _entry([2], 0, 8), "b": _entry([2], 0, 8)}, bytes(8))
    yield "gap", _file({"a": _entry([2], 0, 8), "b": _entry([2], 12, 20)}, bytes(20))
    yield "late start", _file({"a": _entry([2], 8, 16)}, data)
    yield "no values at another's place", _file({**good, "c": _entry([0], 8, 8)}, data)
    yield "no values, many", _file({f"z{n}": _entry([0, 2**40], 0, 0) for n in range(1_000)}, b"")
    yield "trailing byte", _file(good, data + b"\0")
    yield "trailing zip", _file(good, data + b"PK\x03\x04" + bytes(100))
    yield "truncated", _file(good, data[:-1])
    yield from _lying_json(good, data)


def _lying_json(good: dict[str, Any], data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "duplicate key", _raw(b'{"a":%b,"a":%b}' % ((json.dumps(good["a"]).encode(),) * 2), data[:8])
    yield "duplicate field", _raw(b'{"a":{"dtype":"F32","dtype":"I8","shape":[2],"data_offsets":[0,8]}}', data[:8])
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e400", b"9" * 5_000):
        yield (
            f"number {number[:9].decode()}",
            _raw(b'{"a":{"dtype":"F32","shape":[%b],"data_offsets":[0,8]}}' % number, data[:8]),
        )
    yield "NaNs by the hundred thousand", _raw(b'{"a":[' + b"NaN," * 100_000 + b"NaN]}", b"")
    yield "depth 10,000 of lists", _raw(b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", b"")
    yield "depth 10,000 of objects", _raw(b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b"")
    yield "1,000,000 entries", _raw(b"{" + b",".join(b'"%d":{}' % n for n in range(1_000_000)) + b"}", b"")
    yield "100,000 whole entries", _many(100_000)
    entry = b'"a":%b' % json.dumps(good["a"]).encode()
    yield "one name 30,000 times", _raw(b"{" + b",".join([entry] * 30_000) + b"}", data[:8])
    yield "a list of millions", _raw(b'{"a":[' + b"999," * 4_000_000 + b"9]}", b"")
    yield "a list", _raw(b"[1, 2]", b"")
    yield "a number", _raw(b"3 ", b"")
    yield "entry a number", _file({**good, "b": 3}, data)
    yield "a further field", _file({**good, "b": {**good["b"], "strides": [1]}}, data)
    yield "metadata of numbers", _file({"__metadata__": {"a": 1}, **good}, data)
    yield "not UTF-8", _raw(b'{"\xff":{}}', b"")
    yield "UTF-16", _raw(json.dumps(good).encode("utf-16"), data)


def _entry(shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def _file(header: Any, data: bytes, length: int | None = None) -> bytes:
    return _raw(json.dumps(header).encode(), data, length)


def _raw(text: bytes, data: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _many(count: int) -> bytes:
    entry = b'"t%d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
    return _raw(b"{" + b",".join(entry % (n, n, n + 1) for n in range(count)) + b"}", bytes(count))
