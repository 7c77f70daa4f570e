"""Token ids of words, looked up by the words' 128-bit names, many at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_SMALLEST = 1 << 12
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_OTHER_FACTOR = np.uint64(0xD6E8FEB86659FD93)


class WordTable:
    """Ids of the tokens of each known word: 40 to 60 bytes a word with its ids.

    Open addressing with linear probing; numbers of words count from 0 in the order of adding, so that the words that
    come first, mostly frequent ones, lie together.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self._names = np.empty((2, _SMALLEST), dtype=np.uint64)
        self._numbers = np.full(2 * _SMALLEST, -1, dtype=np.int32)
        self._size = 0
        self.ids = RaggedIds(np.empty(0, dtype=dtype), np.zeros(1, dtype=np.int64))

    def __len__(self) -> int:
        return self._size

    def find(self, names: np.ndarray) -> np.ndarray:
        """Return (words,) int64: the number of the word of each name of `names` (2, words), or -1."""
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
        """Add words that are not there yet, each once, by `names` (2, words)."""
        first, last = self._size, self._size + names.shape[1]
        capacity = self._names.shape[1]
        if last > capacity:
            while last > capacity:
                capacity *= 2
            grown = np.empty((2, capacity), dtype=np.uint64)
            grown[:, :first] = self._names[:, :first]
            self._names = grown
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
            # of several that want the same place the last one gets it
            self._numbers[slots[is_free]] = numbers[is_free]
            is_left = self._numbers[slots] != numbers
            numbers, slots = numbers[is_left], (slots[is_left] + 1) & (len(self._numbers) - 1)

    def _differs(self, numbers: np.ndarray, names: np.ndarray) -> np.ndarray:
        """Tell where a place holds another word; an empty place ends the search like the right word."""
        is_equal = (self._names[0, numbers] == names[0]) & (self._names[1, numbers] == names[1])
        return (numbers >= 0) & ~is_equal

    def _slots(self, names: np.ndarray) -> np.ndarray:
        mixed = names[0] ^ (names[1] * _OTHER_FACTOR)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _FACTOR
        bits = len(self._numbers).bit_length() - 1
        return (mixed >> np.uint64(64 - bits)).astype(np.int64)


@dataclass(frozen=True)
class RaggedIds:
    """Lists of ids of different lengths: joined in `flat` (ids,); `edges` (lists + 1,) are where they begin and end."""

    flat: np.ndarray
    edges: np.ndarray

    def __len__(self) -> int:
        return len(self.edges) - 1

    @classmethod
    def of_lists(cls, lists: list[list[int]], dtype: np.dtype) -> RaggedIds:
        """Join lists of ids."""
        edges = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=edges[1:])
        return cls(np.fromiter((index for ids in lists for index in ids), dtype, int(edges[-1])), edges)

    def joined(self, other: RaggedIds) -> RaggedIds:
        """Return the lists of both, in order."""
        edges = np.concatenate([self.edges, self.edges[-1] + other.edges[1:]])
        return RaggedIds(np.concatenate([self.flat, other.flat]), edges)

    def take(self, numbers: np.ndarray) -> RaggedIds:
        """Return lists by `numbers` (lists,) int64, in that order and as often as they are named."""
        starts = self.edges[numbers]
        edges = np.zeros(len(numbers) + 1, dtype=np.int64)
        np.cumsum(self.edges[numbers + 1] - starts, out=edges[1:])
        places = np.repeat(starts - edges[:-1], np.diff(edges))
        places += np.arange(len(places))
        return RaggedIds(self.flat[places], edges)
