"""Find, name and look up words of UTF-8 text in bulk, without any Python work per word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskloom.data.batch import ranges

LONGEST_NAMED = 64
"""Maximum length in bytes of a word that can have a name."""

_SPACE, _LETTER, _SYMBOL, _ODD = range(4)
_WHITE = b" \t\n\r"
_PADDING = bytes(LONGEST_NAMED + 16)
# keeps the first 0 to 8 bytes of a little-endian integer
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], dtype=np.uint64)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_OTHER_FACTOR = np.uint64(0xC2B2AE3D27D4EB4F)
_SLOT_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_SMALLEST_TABLE = 1 << 12


@dataclass(frozen=True)
class WordSpans:
    """Byte offsets of words: `starts` and `ends` (words,) int64, and `is_odd` (words,) bool.

    A plain word is a run of ASCII letters and digits, or one ASCII symbol. A chunk between white space that contains
    any other byte is an odd word, and is not split.
    """

    starts: np.ndarray
    ends: np.ndarray
    is_odd: np.ndarray


def byte_classes(odd_symbols: bytes = b"") -> bytes:
    """Return the class of each of the 256 bytes; any chunk that contains one of `odd_symbols` is odd."""
    classes = bytearray([_ODD]) * 256
    for byte in range(33, 127):
        classes[byte] = _LETTER if chr(byte).isalnum() else _SYMBOL
    for byte in _WHITE:
        classes[byte] = _SPACE
    for byte in odd_symbols:
        classes[byte] = _ODD
    return bytes(classes)


def word_spans(content: bytes, classes: bytes) -> WordSpans:
    """Find the words of UTF-8 text, in order; white space is only space, tab, LF and CR."""
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
        # an odd chunk keeps only the edge after white space
        kept = ~is_odd
        kept[0] = True
        kept[1:] |= ~is_word[:-1]
        edges, is_word, is_odd = edges[kept], is_word[kept], is_odd[kept]
    return WordSpans(edges[is_word], np.append(edges[1:], len(content))[is_word], is_odd[is_word])


def word_names(content: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return (2, words) uint64: a 128-bit name for each word, of 1 to `LONGEST_NAMED` bytes without NUL.

    A word of up to 16 bytes is its own name; two longer words share a name with a probability of about 2**-128.
    """
    eights = np.frombuffer(content + _PADDING[: len(_PADDING) - len(content) % 8], dtype="<u8")
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
    """Return (words,) uint64: the bytes from `starts` on as integers, with bytes beyond `sizes` set to zero."""
    indices = starts >> 3
    shifts = (starts.astype(np.uint64) & np.uint64(7)) << np.uint64(3)
    # numpy's shift by 64 gives zero, as an aligned start needs
    joined = (eights[indices] >> shifts) | (eights[indices + 1] << (np.uint64(64) - shifts))
    return joined & _MASKS[np.clip(sizes, 0, 8)]


class WordTable:
    """A hash table from the names of known words to their token ids: 40 to 60 bytes per word, including the ids.

    Uses open addressing with linear probing. Words are numbered from 0 in order of insertion, so the first words, which
    are mostly frequent, are close together in memory.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self._names = np.empty((2, _SMALLEST_TABLE), dtype=np.uint64)
        self._numbers = np.full(2 * _SMALLEST_TABLE, -1, dtype=np.int32)
        self._size = 0
        self.ids = RaggedIds(np.empty(0, dtype=dtype), np.zeros(1, dtype=np.int64))

    def __len__(self) -> int:
        return self._size

    def find(self, names: np.ndarray) -> np.ndarray:
        """Return (words,) int64: the number of the word with each of `names` (2, words), or -1."""
        slots = self._slots(names)
        numbers = self._numbers[slots].astype(np.int64)
        pending = np.flatnonzero(self._differs(numbers, names))
        while len(pending):
            slots[pending] = (slots[pending] + 1) & (len(self._numbers) - 1)
            found = self._numbers[slots[pending]]
            numbers[pending] = found
            pending = pending[self._differs(found, names[:, pending])]
        return numbers

    def add(self, names: np.ndarray, ids: RaggedIds) -> None:
        """Add distinct words that are not in the table yet, with their `names` (2, words) and token ids."""
        first, last = self._size, self._size + names.shape[1]
        if last > self._names.shape[1]:
            capacity = 1 << (last - 1).bit_length()
            self._names = np.pad(self._names, ((0, 0), (0, capacity - self._names.shape[1])))
            self._numbers = np.full(2 * capacity, -1, dtype=np.int32)
            self._insert(0, first)
        self._names[:, first:last] = names
        self._size = last
        self._insert(first, last)
        self.ids = self.ids.joined(ids)

    def _insert(self, first: int, last: int) -> None:
        numbers = np.arange(first, last, dtype=np.int32)
        slots = self._slots(self._names[:, first:last])
        while len(numbers):
            is_free = self._numbers[slots] < 0
            # if several want the same slot, the last one gets it
            self._numbers[slots[is_free]] = numbers[is_free]
            is_left = self._numbers[slots] != numbers
            numbers, slots = numbers[is_left], (slots[is_left] + 1) & (len(self._numbers) - 1)

    def _differs(self, numbers: np.ndarray, names: np.ndarray) -> np.ndarray:
        """Return where a slot holds another word; an empty slot ends the search just like the right word."""
        is_equal = (self._names[0, numbers] == names[0]) & (self._names[1, numbers] == names[1])
        return (numbers >= 0) & ~is_equal

    def _slots(self, names: np.ndarray) -> np.ndarray:
        mixed = names[0] ^ (names[1] * _SLOT_FACTOR)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _FACTOR
        bits = len(self._numbers).bit_length() - 1
        return (mixed >> np.uint64(64 - bits)).astype(np.int64)


@dataclass(frozen=True)
class RaggedIds:
    """Lists of ids of different lengths, concatenated in `flat` (ids,); `edges` (lists + 1,) are their boundaries."""

    flat: np.ndarray
    edges: np.ndarray

    def __len__(self) -> int:
        return len(self.edges) - 1

    @classmethod
    def of_lists(cls, lists: list[list[int]], dtype: np.dtype) -> RaggedIds:
        """Concatenate lists of ids."""
        edges = np.append(0, np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists))))
        return cls(np.fromiter((index for ids in lists for index in ids), dtype, int(edges[-1])), edges)

    def joined(self, other: RaggedIds) -> RaggedIds:
        """Return these lists followed by those of `other`."""
        edges = np.concatenate([self.edges, self.edges[-1] + other.edges[1:]])
        return RaggedIds(np.concatenate([self.flat, other.flat]), edges)

    def take(self, numbers: np.ndarray) -> RaggedIds:
        """Return the lists with indices `numbers` (lists,) int64, in that order and with repetitions."""
        starts = self.edges[numbers]
        edges = np.append(0, np.cumsum(self.edges[numbers + 1] - starts))
        return RaggedIds(self.flat[ranges(starts, np.diff(edges))], edges)
