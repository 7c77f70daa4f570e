"""CRC-32C (Castagnoli), the checksum of TensorFlow's files, over many bytes at once."""

from __future__ import annotations

from functools import cache

import numpy as np

_POLYNOMIAL = 0x82F63B78  # reflected
_LANE, _LANES = 256, 1 << 14
_ALL = 0xFFFFFFFF


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of bytes.

    The register is linear in what it is fed: lanes of bytes are fed side by side, each from zero, and then joined.
    """
    state, view = np.array([_ALL], dtype=np.uint32), memoryview(data)
    for start in range(0, len(view), _LANE * _LANES):
        block = view[start : start + _LANE * _LANES]
        state = _applied(_past_zeros(len(block)), state) ^ _register(block)
    return int(state[0]) ^ _ALL


def masked(crc: int) -> int:
    """Return a checksum as TensorFlow stores it, so that a checksum of bytes with checksums in them tells something."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ALL


@cache
def _table() -> np.ndarray:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_POLYNOMIAL), values >> 1).astype(np.uint32)
    return values


@cache
def _table_of_pairs() -> np.ndarray:
    values = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(2):
        values = _table()[values & 0xFF] ^ (values >> 8)
    return values


def _register(block: memoryview) -> np.ndarray:
    """Return what the register holds after a block, from zero; zeros before the first byte leave it at zero."""
    lanes = 1 << max(0, (-(-len(block) // _LANE) - 1).bit_length())
    padded = np.zeros(lanes * _LANE, dtype=np.uint8)
    padded[len(padded) - len(block) :] = np.frombuffer(block, dtype=np.uint8)
    columns, table = np.ascontiguousarray(padded.view("<u2").reshape(lanes, _LANE // 2).T), _table_of_pairs()
    state = np.zeros(lanes, dtype=np.uint32)
    for column in columns:
        state = table[state.astype(np.uint16) ^ column] ^ (state >> 16)
    size = _LANE
    while len(state) > 1:
        state = _applied(_past_zeros(size), state[0::2]) ^ state[1::2]
        size *= 2
    return state


def _applied(operator: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Apply a linear map, given by the images of the 32 bits, to registers."""
    result = np.zeros_like(states)
    for bit in range(32):
        result ^= np.where((states >> np.uint32(bit)) & 1, operator[bit], 0).astype(np.uint32)
    return result


@cache
def _past_zeros(num_bytes: int) -> np.ndarray:
    """Return the map that moves a register past so many zero bytes."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if num_bytes == 0:
        return bits
    if num_bytes % 2:
        rest = _past_zeros(num_bytes - 1)
        return _table()[rest & 0xFF] ^ (rest >> 8)
    half = _past_zeros(num_bytes // 2)
    return _applied(half, half)
