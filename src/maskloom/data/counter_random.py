"""Random draws that are pure functions of a seed and counters, so any draw can be reproduced at any time.

The words come from the splitmix64 generator (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators"): every counter advances a 64-bit state by a multiple of an odd constant, and a bijective mix follows.
"""

from __future__ import annotations

from typing import overload

import numpy as np

_WORD = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_FACTOR_1 = 0xBF58476D1CE4E5B9
_FACTOR_2 = 0x94D049BB133111EB
_EXACT_FLOAT = 2**53
_TABLE_SIZE = 2**12
_NUM_ROUNDS = 6

Counter = int | np.integer | np.ndarray


def words(seed: int, *counters: Counter) -> np.ndarray:
    """Return 64-bit random words (uint64) for a seed and counters, which broadcast against each other."""
    state = mixed(_as_words(seed))  # not a scalar: numpy wraps arrays silently but warns about scalars
    for counter in counters:
        state = mixed((_as_words(counter) + np.uint64(1)) * np.uint64(_GAMMA) + state)
    return state.reshape(np.broadcast_shapes(*map(np.shape, counters)))


def uniform(seed: int, *counters: Counter) -> np.ndarray:
    """Return uniform draws (float64) in [0, 1), multiples of 2^-53, in the counters' broadcast shape."""
    return (words(seed, *counters) >> np.uint64(11)) * (1.0 / _EXACT_FLOAT)


def integers(n: int | np.ndarray, seed: int, *counters: Counter) -> np.ndarray:
    """Return uniform integers (int64) in [0, n), for an int or array n; raises ValueError outside 1 ... 2^63 - 1."""
    bound = np.asarray(n)
    if bound.size and (int(bound.min()) < 1 or int(bound.max()) >= 2**63):
        raise ValueError(f"n is {n}; a draw needs 1 <= n < 2^63")
    if bound.size and int(bound.max()) > _EXACT_FLOAT:
        return (words(seed, *counters) % bound.astype(np.uint64)).astype(np.int64)
    # (1 - 2^-53) * n rounds below n for every n up to 2^53, so the bound is never drawn.
    return np.asarray(uniform(seed, *counters) * bound).astype(np.int64)


class Permutation:
    """A keyed permutation of range(size) in constant memory: `permutation[i]` is the image of i.

    Large ranges go through a Feistel network over the next power of four, with cycle walking until the value falls
    inside the range (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"); ranges of up to 4096, where such
    a network is too regular, are sorted by one random word per element.
    """

    def __init__(self, size: int, seed: int, *counters: Counter) -> None:
        self.size = int(size)
        self._key = int(words(seed, *counters))
        self._table: np.ndarray | None = None
        if self.size <= _TABLE_SIZE:
            order = words(self._key, np.arange(self.size, dtype=np.int64))
            self._table = np.argsort(order, kind="stable").astype(np.int64)
        half = max(1, ((self.size - 1).bit_length() + 1) // 2)
        self._half_bits = np.uint64(half)
        self._half_mask = np.uint64(2**half - 1)
        self._round_keys = [words(self._key, number).reshape(1) for number in range(_NUM_ROUNDS)]

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: np.ndarray) -> np.ndarray: ...

    def __getitem__(self, index: int | np.ndarray) -> int | np.ndarray:
        """Return the image of an index, or of an array of indices as int64; raises IndexError outside range(size)."""
        indices = np.asarray(index)
        if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= self.size):
            raise IndexError(f"index {index} is outside range({self.size})")
        if self._table is not None:
            images = self._table[indices]
        else:
            values = self._network(indices.reshape(-1).astype(np.uint64))
            while len(outside := np.flatnonzero(values >= np.uint64(self.size))):
                values[outside] = self._network(values[outside])
            images = values.astype(np.int64).reshape(indices.shape)
        return images if isinstance(index, np.ndarray) else int(images)

    def _network(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half_bits, values & self._half_mask
        for key in self._round_keys:
            left, right = right, left ^ (mixed(right * np.uint64(_GAMMA) + key) & self._half_mask)
        return (left << self._half_bits) | right


def _as_words(counter: Counter) -> np.ndarray:
    if isinstance(counter, (int, np.integer)):
        return np.array([int(counter) & _WORD], dtype=np.uint64)
    return np.atleast_1d(counter).astype(np.uint64)


def mixed(values: np.ndarray) -> np.ndarray:
    """Mix every bit of the words into all others, in place, and return the words (the finaliser of splitmix64)."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(_FACTOR_1)
    values ^= values >> np.uint64(27)
    values *= np.uint64(_FACTOR_2)
    values ^= values >> np.uint64(31)
    return values
