"""TFRecord files of tf.train.Example messages, written without TensorFlow.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these bytes, the message, and its own sum.
A message is protocol-buffers wire format: Example { features = 1 { feature = 1: map of name to Feature } }, where a
Feature holds a packed list of floats (2) or of 64-bit integers (3).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_MASK_DELTA = 0xA282EAD8
_FLOATS, _INTEGERS = 2, 3


def example(features: Mapping[str, Sequence[int] | Sequence[float]]) -> bytes:
    """Return a serialised tf.train.Example; a list with a float in it is a list of floats (fp32), any other int64."""
    return _field(1, b"".join(_field(1, _entry(name, values)) for name, values in features.items()))


def record(message: bytes) -> bytes:
    """Return a message framed as one record of a TFRecord file."""
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_crc32c(length)) + message + struct.pack("<I", masked_crc32c(message))


def masked_crc32c(content: bytes) -> int:
    """Return the CRC-32C (RFC 3720) of bytes, rotated right by 15 bits, plus a constant, as TFRecord files hold it."""
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(content: bytes) -> int:
    """Return the CRC-32C (Castagnoli; RFC 3720) of bytes."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    entries = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_TABLE = _table()


def _entry(name: str, values: Sequence[int] | Sequence[float]) -> bytes:
    if any(isinstance(value, float) for value in values):
        packed, kind = struct.pack(f"<{len(values)}f", *values), _FLOATS
    else:
        packed, kind = b"".join(_varint(int(value)) for value in values), _INTEGERS
    return _field(1, name.encode()) + _field(2, _field(kind, _field(1, packed)))


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # negative numbers are two's complement
    if value < 0x80:
        return bytes([value])
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
