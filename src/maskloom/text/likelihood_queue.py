"""Pairs of symbols by freq(pair) / (freq(first) * freq(second)), kept up to date in arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_BLOCK = 128
_NO_KEY = np.iinfo(np.int64).max


class LikelihoodQueue:
    """Pairs by likelihood; a tie goes to the pair whose symbols are older.

    A merge raises the score of every pair that shares a symbol with it, so a heap would be stale all over. Scores lie
    in an array instead, in blocks that each know their best pair; only blocks with a changed score are looked at again.
    A pair has a slot as long as it occurs; slots are not used twice.
    """

    def __init__(self, pair_counts: dict[int, int], symbol_counts: Sequence[int], min_frequency: int) -> None:
        """Start from the counts of all pairs and, by id, of all symbols."""
        self._min_frequency = min_frequency
        self._symbol_counts = np.zeros(max(2 * len(symbol_counts), 64), dtype=np.int64)
        self._symbol_counts[: len(symbol_counts)] = symbol_counts
        self._slots: dict[int, int] = {}
        self._slots_of_symbol: dict[int, _SlotList] = {}
        self._num_slots = 0
        self._allocate(max(_BLOCK, 2 * len(pair_counts)))
        self._change(pair_counts)
        self._rescore(np.arange(self._num_slots))

    def best(self) -> int | None:
        """Return the pair with the highest score, or None when none occurs `min_frequency` times."""
        scores = self._block_scores
        highest = scores.max()
        if highest <= 0:
            return None
        blocks = np.flatnonzero(scores == highest)
        return int(self._block_keys[blocks].min())

    def update(self, changes: dict[int, int], merged: int, symbol: int, num_merged: int) -> None:
        """Apply changes of counts after a merge."""
        first, second, new = merged >> 32, merged & 0xFFFFFFFF, symbol
        if new >= len(self._symbol_counts):
            self._symbol_counts = np.concatenate([self._symbol_counts, np.zeros_like(self._symbol_counts)])
        self._symbol_counts[first] -= num_merged
        self._symbol_counts[second] -= num_merged
        self._symbol_counts[new] += num_merged
        slot = self._slots.pop(merged)
        self._counts[slot] = 0
        self._change(changes)
        touched = [np.array([slot])]
        for symbol_id in {first, second, new}:
            if symbol_id in self._slots_of_symbol:
                touched.append(self._live_slots(symbol_id))
        self._rescore(np.concatenate(touched))

    def _allocate(self, capacity: int) -> None:
        """Make room for at least `capacity` slots, in whole blocks; new slots score nothing."""
        num_blocks = -(-capacity // _BLOCK)
        size = num_blocks * _BLOCK
        old = self._num_slots
        counts, keys, scores = np.zeros(size, np.int64), np.full(size, _NO_KEY), np.zeros(size)
        block_scores, block_keys = np.zeros(num_blocks), np.full(num_blocks, _NO_KEY)
        if old:
            counts[:old], keys[:old], scores[:old] = self._counts[:old], self._keys[:old], self._scores[:old]
            block_scores[: len(self._block_scores)] = self._block_scores
            block_keys[: len(self._block_keys)] = self._block_keys
        self._counts, self._keys, self._scores = counts, keys, scores
        self._block_scores, self._block_keys = block_scores, block_keys

    def _change(self, changes: dict[int, int]) -> None:
        for pair, change in changes.items():
            slot = self._slots.get(pair)
            if slot is None:
                if change:
                    self._add(pair, change)
                continue
            self._counts[slot] += change
            if not self._counts[slot]:
                del self._slots[pair]

    def _add(self, pair: int, count: int) -> None:
        slot = self._num_slots
        if slot == len(self._counts):
            self._allocate(2 * slot)
        first, second = pair >> 32, pair & 0xFFFFFFFF
        self._num_slots += 1
        self._slots[pair] = slot
        self._counts[slot] = count
        self._keys[slot] = pair
        for symbol in {first, second}:
            self._slots_of_symbol.setdefault(symbol, _SlotList()).append(slot)

    def _live_slots(self, symbol: int) -> np.ndarray:
        slots = self._slots_of_symbol[symbol]
        current = slots.current()
        live = self._counts[current] > 0
        if not live.all():
            # the dead ones are looked at this one last time, so that their scores are taken out
            slots.replace(current[live])
        return current

    def _rescore(self, slots: np.ndarray) -> None:
        if not len(slots):
            return
        counts, keys = self._counts[slots], self._keys[slots]
        # float64 products and quotients of the same integers are the same on every machine
        products = self._symbol_counts[keys >> 32].astype(np.float64) * self._symbol_counts[keys & 0xFFFFFFFF]
        is_frequent = counts >= self._min_frequency
        self._scores[slots] = np.where(is_frequent, counts / np.where(is_frequent, products, 1.0), 0.0)
        blocks = np.unique(slots // _BLOCK)
        scores = self._scores.reshape(-1, _BLOCK)[blocks]
        highest = scores.max(axis=1)
        self._block_scores[blocks] = highest
        block_keys = self._keys.reshape(-1, _BLOCK)[blocks]
        self._block_keys[blocks] = np.where(scores == highest[:, None], block_keys, _NO_KEY).min(axis=1)


class _SlotList:
    """A growing array of slots."""

    def __init__(self) -> None:
        self._values = np.zeros(4, np.int64)
        self._size = 0

    def append(self, slot: int) -> None:
        if self._size == len(self._values):
            self._values = np.concatenate([self._values, np.zeros_like(self._values)])
        self._values[self._size] = slot
        self._size += 1

    def current(self) -> np.ndarray:
        return self._values[: self._size]

    def replace(self, slots: np.ndarray) -> None:
        self._values = slots.copy() if len(slots) else np.zeros(4, np.int64)
        self._size = len(slots)
