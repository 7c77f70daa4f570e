"""Dropout (Srivastava et al. 2014) with draws that are cheap on a CPU and depend on rows, not on batches."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.copies import to_device
from maskloom.layers.processor.matrix_products import filled_number

# A 32-bit hash with two multiplications, using the factors of Chris Wellons's "lowbias32".
FACTOR_1, FACTOR_2 = 0x7FEB352D, 0x846CA68B - 2**32
GAMMA = 0x9E3779B9 - 2**32
_TARGETS = 0x51ED270B
# Words that each thread hashes at a time, few enough to stay in its cache.
_BLOCK = 32_768
_local = threading.local()


class RowDraws:
    """Random draws for one pass over a batch, computed from a key, the row, the position and the place in the model.

    A row's draws are therefore the same in any micro-batch and on any rank. `key` has 32 bits, `first_row` is the index
    of this batch's first row in the whole batch, `lengths` (rows,) counts tokens, `place` counts the dropout calls.
    """

    def __init__(self, key: int, first_row: int, lengths: np.ndarray) -> None:
        self.place = 0
        self._key, self._first_row, self._lengths = key, first_row, torch.from_numpy(lengths)
        self._on_device: dict[int, Tensor] = {}

    def for_targets(self, lengths: np.ndarray) -> RowDraws:
        """Return independent draws for the target texts of the same rows, with their own lengths."""
        return RowDraws(self._key ^ _TARGETS, self._first_row, lengths)

    @cached_property
    def _keys(self) -> dict[int, Tensor]:
        """The int32 keys of sequences and of tokens, indexed by how many there are."""
        found = self._keys_of(self._lengths, len(self._lengths), num_tokens := int(self._lengths.sum()))
        # padding rows belong to no sequence
        filled = F.pad(found[num_tokens], (0, filled_number(num_tokens) - num_tokens))
        return {**found, len(filled): filled}

    def _keys_of(self, lengths: Tensor, num_sequences: int, num_tokens: int) -> dict[int, Tensor]:
        """Return the keys of sequences and of tokens, indexed by how many there are, on the device of `lengths`."""
        rows = torch.arange(num_sequences, dtype=torch.int32, device=lengths.device) + self._first_row
        sequences = _hashed(_hashed(rows * GAMMA) ^ self._key)
        starts = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths, output_size=num_tokens)
        # from 1: the first token has a key of its own
        positions = torch.arange(1, num_tokens + 1, device=lengths.device) - starts
        owners = torch.repeat_interleave(sequences, lengths, output_size=num_tokens)
        tokens = _hashed(owners + positions.to(torch.int32) * GAMMA)
        return {num_sequences: sequences, num_tokens: tokens}

    def next_place(self, num_rows: int) -> tuple[Tensor, float] | None:
        """Return the next place's keys and a number in [0, 1), or None if `num_rows` fits no tokens or sequences."""
        if num_rows not in self._keys:
            return None
        word, dither = self._next_words()
        return _hashed(self._keys[num_rows] ^ word), dither

    def next_place_on(self, device: torch.device, num_rows: int) -> tuple[Tensor, int, float] | None:
        """Return the row keys on a device, the word that turns them into the next place's keys, a number in [0, 1)."""
        if not self._on_device:
            lengths = self._lengths.numpy()
            self._on_device = self._keys_of(to_device(lengths, device), len(lengths), int(lengths.sum()))
        if num_rows not in self._on_device:
            return None
        return self._on_device[num_rows], *self._next_words()

    def _next_words(self) -> tuple[int, float]:
        self.place += 1
        words = [_hashed_word(_wrapped(number * GAMMA)) for number in (2 * self.place, 2 * self.place + 1)]
        return words[0], (words[1] + 2**31) / 2**32


@contextmanager
def drawing(draws: RowDraws | None) -> Iterator[None]:
    """Within the context, this thread's dropouts use `draws`; with None, torch's generator draws their keys."""
    former, _local.draws = current_draws(), draws
    try:
        yield
    finally:
        _local.draws = former


def current_draws() -> RowDraws | None:
    """Return the draws that this thread's dropouts use, or None if torch's generator draws their keys."""
    return getattr(_local, "draws", None)


def next_keys(num_rows: int) -> tuple[Tensor, float]:
    """Return an int32 key for each row at the model's next place, and a number in [0, 1) used to round the rate."""
    draws = current_draws()
    if draws is not None and (keyed := draws.next_place(num_rows)) is not None:
        return keyed
    keys = torch.empty(num_rows, dtype=torch.int32).random_(-(2**31), 2**31)
    return keys, float(torch.rand((), dtype=torch.float64))


class DeviceDraws(NamedTuple):
    """The draws of a kernel: a key for each row, a word for the place, and the threshold and factor of the rate."""

    keys: Tensor
    word: int
    threshold: int
    factor: float


NO_DRAWS = DeviceDraws(torch.empty(0, dtype=torch.int32), 0, 0, 1.0)
"""The draws when nothing is dropped; an empty tensor has address 0, which kernels accept on any device."""


def device_draws(num_rows: int, rate: float, device: torch.device) -> DeviceDraws:
    """Return the draws of the next place for kernels on a device.

    Tokens and sequences of a step get the same draws as on a CPU; other rows, and calls outside a step, get new ones.
    """
    if not rate:
        return NO_DRAWS
    draws = current_draws()
    keyed = None if draws is None else draws.next_place_on(device, num_rows)
    if keyed is None:
        keys, dither = next_keys(num_rows)
        keyed = to_device(keys.numpy(), device), 0, dither
    keys, word, dither = keyed
    return DeviceDraws(keys, word, math.floor(rate * 2**16 + dither), 1.0 / (1.0 - rate) if rate < 1.0 else 0.0)


def head_keys(keys: Tensor, num_heads: int) -> Tensor:
    """Return the keys of each head's rows: (sequences, length) to (sequences, heads, length)."""
    starts = (torch.arange(num_heads, dtype=torch.int32) << 16) * GAMMA  # a row has fewer than 2^16 words
    return keys.unsqueeze(1) + starts.unsqueeze(1)


def dropout_factors(like: Tensor, rate: float, keys: Tensor, dither: float) -> Tensor:
    """Return factors of the shape and type of `like`: 0 with probability `rate`, else 1 / (1 - rate).

    `keys` has the shape of `like` without its last dimension, along which a counter is added to the row's key. Each
    factor takes 16 bits of a hash; `dither` rounds a threshold that 16 bits cannot express, so it is right on average.
    """
    threshold = math.floor(rate * 2**16 + dither) - 2**15
    factors = torch.empty(like.shape, dtype=like.dtype)
    width = like.shape[-1]
    rows, out = keys.reshape(-1, 1), factors.view(-1, width) if like.numel() else factors
    columns = torch.arange(-(-width // 2), dtype=torch.int32) * GAMMA
    size = max(1, _BLOCK * torch.get_num_threads() // max(1, len(columns)))
    for first in range(0, len(rows) if like.numel() else 0, size):
        bits = _hashed(rows[first : first + size] + columns).view(torch.int16)[:, :width]
        torch.ge(bits, threshold, out=out[first : first + size])
    return factors.mul_(1.0 / (1.0 - rate))


def _hashed(words: Tensor) -> Tensor:
    """Hash int32 words in place; both 16-bit halves of each result are usable."""
    # The right shift extends the sign, and xor with it would clear the highest bit, so the last step adds.
    words.bitwise_xor_(words >> 16).mul_(FACTOR_1)
    words.bitwise_xor_(words >> 15).mul_(FACTOR_2)
    return words.add_(words >> 16)


def _hashed_word(word: int) -> int:
    """Hash one int32 word as `_hashed` does."""
    word = _wrapped((word ^ word >> 16) * FACTOR_1)
    word = _wrapped((word ^ word >> 15) * FACTOR_2)
    return _wrapped(word + (word >> 16))


def _wrapped(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


class Dropout(nn.Dropout):
    """In training, zero values with probability `p` and divide the rest by 1 - p; ValueError for p outside [0, 1]."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the values after dropout, (rows, width)."""
        if not self.training:
            return input
        if self._is_native(input):
            return _native_dropout(input, self.p)
        return input * dropout_factors(input, self.p, *next_keys(len(input)))

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + dropout(x), in one pass over the values where possible."""
        if not self.training:
            return residual + x
        if self._is_native(x):
            return residual + _native_dropout(x, self.p)
        return torch.addcmul(residual, x, dropout_factors(x, self.p, *next_keys(len(x))))

    def _is_native(self, x: Tensor) -> bool:
        return self.p in (0.0, 1.0) or x.device.type != "cpu" or torch.compiler.is_compiling()


def _native_dropout(x: Tensor, rate: float) -> Tensor:
    """Return dropout(x), computed by our GPU kernel with the CPU's draws where that kernel runs, else by torch."""
    if 0.0 < rate < 1.0 and x.is_cuda and x.ndim == 2:
        from maskloom.layers.processor.fused_layers import fuses, thinned  # it imports this module

        if fuses(x):
            return thinned(x, rate)
    return F.dropout(x, rate)
