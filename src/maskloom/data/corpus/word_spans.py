"""Words of UTF-8 text found and named many at a time, with no work in Python for a single word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LONGEST_NAMED = 64
"""Bytes of a word that its name can tell apart; words that are longer have none."""

_SPACE, _LETTER, _SYMBOL, _ODD = range(4)
_WHITE = b" \t\n\r"
_PADDING = bytes(LONGEST_NAMED + 16)
# keeps the first 0 to 8 bytes of a little-endian integer
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], dtype=np.uint64)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_OTHER_FACTOR = np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True)
class WordSpans:
    """Where words lie in bytes: `starts` and `ends` (words,) int64, and `is_odd` (words,) bool.

    A plain word is a run of ASCII letters and digits, or one ASCII symbol. What lies between white space and holds any
    other byte is odd, and stays in one piece.
    """

    starts: np.ndarray
    ends: np.ndarray
    is_odd: np.ndarray


def byte_classes(odd_symbols: bytes = b"") -> bytes:
    """Return the kind of each of the 256 bytes; `odd_symbols` make odd whatever they stand in."""
    classes = bytearray([_ODD]) * 256
    for byte in range(33, 127):
        classes[byte] = _LETTER if chr(byte).isalnum() else _SYMBOL
    for byte in _WHITE:
        classes[byte] = _SPACE
    for byte in odd_symbols:
        classes[byte] = _ODD
    return bytes(classes)


def word_spans(content: bytes, classes: bytes) -> WordSpans:
    """Find the words of UTF-8 text in their order; white space is space, tab and line ends only."""
    kinds = np.frombuffer(content.translate(classes), dtype=np.uint8)
    if not len(kinds):
        nothing = np.empty(0, dtype=np.int64)
        return WordSpans(nothing, nothing, nothing.astype(bool))
    is_edge = kinds == _SYMBOL
    is_edge[0] = True
    is_edge[1:] |= kinds[1:] != kinds[:-1]
    edges = np.flatnonzero(is_edge)
    kinds = kinds[edges]
    is_word = kinds != _SPACE
    is_odd = kinds == _ODD
    if is_odd.any():
        chunk = np.cumsum(~is_word)
        chunk_is_odd = np.zeros(int(chunk[-1]) + 1, dtype=bool)
        chunk_is_odd[chunk[is_odd]] = True
        is_odd = chunk_is_odd[chunk] & is_word
        # of an odd chunk only the edge after white space stays
        kept = ~is_odd
        kept[0] = True
        kept[1:] |= ~is_word[:-1]
        edges, is_word, is_odd = edges[kept], is_word[kept], is_odd[kept]
    ends = np.append(edges[1:], len(content))
    return WordSpans(edges[is_word], ends[is_word], is_odd[is_word])


def word_names(content: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return (2, words) uint64: 128 bits that name each word of 1 to `LONGEST_NAMED` bytes without NUL.

    Up to 16 bytes the name is the word itself; longer words share a name with a probability of about 2**-128.
    """
    padding = _PADDING[: len(_PADDING) - len(content) % 8]
    eights = np.frombuffer(content + padding, dtype="<u8")
    sizes = ends - starts
    names = np.empty((2, len(starts)), dtype=np.uint64)
    names[0] = _eight_bytes(eights, starts, sizes)
    names[1] = _eight_bytes(eights, starts + 8, sizes - 8)
    longer = np.flatnonzero(sizes > 16)
    if len(longer):
        first, second = names[:, longer]
        for offset in range(16, LONGEST_NAMED, 8):
            part = _eight_bytes(eights, starts[longer] + offset, sizes[longer] - offset)
            first = (first ^ part ^ (first >> np.uint64(29))) * _FACTOR
            second = (second ^ (second >> np.uint64(31))) * _OTHER_FACTOR + part
        names[0, longer], names[1, longer] = first, second
    return names


def _eight_bytes(eights: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return (words,) uint64: the bytes from `starts` on as integers, with zeros for those beyond `sizes`."""
    places = starts >> 3
    shifts = (starts.astype(np.uint64) & np.uint64(7)) << np.uint64(3)
    # numpy shifts by 64 to zero, which is what an aligned start needs
    joined = (eights[places] >> shifts) | (eights[places + 1] << (np.uint64(64) - shifts))
    return joined & _MASKS[np.clip(sizes, 0, 8)]
