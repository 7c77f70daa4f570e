"""Dropout (Srivastava et al. 2014) with draws that are cheap on a CPU and depend on rows, not on batches."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.copies import to_device
from maskloom.layers.processor.onednn import filled_number

# A 32-bit hash with two multiplications, using the factors of Chris Wellons's "lowbias32".
FACTOR_1, FACTOR_2 = 0x7FEB352D, 0x846CA68B - 2**32
GAMMA = 0x9E3779B9 - 2**32
_TARGETS = 0x51ED270B
# Words that each thread hashes at a time, few enough to stay in its cache.
_BLOCK = 131_072
_local = threading.local()
_CPU = torch.device("cpu")


class RowDraws:
    """Random draws for one pass over a batch, computed from a key, the row, the position and the place in the model.

    A row's draws are therefore the same in any micro-batch and on any rank. `key` has 32 bits, `first_row` is the index
    of this batch's first row in the whole batch, `lengths` (rows,) counts tokens, `place` counts the dropout calls.
    """

    def __init__(self, key: int, first_row: int, lengths: np.ndarray) -> None:
        self.place = 0
        self._key, self._first_row, self._lengths = key, first_row, lengths
        self._keys: dict[torch.device, dict[int, Tensor]] = {}

    def for_targets(self, lengths: np.ndarray) -> RowDraws:
        """Return independent draws for the target texts of the same rows, with their own lengths."""
        return RowDraws(self._key ^ _TARGETS, self._first_row, lengths)

    def next_place(self, num_rows: int, device: torch.device = _CPU) -> tuple[Tensor, int, float] | None:
        """Return row keys on a device, the word that turns them into the next place's keys, and a number in [0, 1).

        The result is None if `num_rows` fits no tokens or sequences.
        """
        if device not in self._keys:
            self._keys[device] = self._keys_on(device)
        if num_rows not in self._keys[device]:
            return None
        self.place += 1
        words = [_hashed_word(_wrapped(number * GAMMA)) for number in (2 * self.place, 2 * self.place + 1)]
        return self._keys[device][num_rows], words[0], (words[1] + 2**31) / 2**32

    def _keys_on(self, device: torch.device) -> dict[int, Tensor]:
        """Return the int32 keys of sequences and of tokens, indexed by how many there are."""
        num_sequences, num_tokens = len(self._lengths), int(self._lengths.sum())
        lengths = to_device(self._lengths, device)
        rows = torch.arange(num_sequences, dtype=torch.int32, device=device) + self._first_row
        sequences = _hashed(_hashed(rows * GAMMA) ^ self._key)
        starts = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths, output_size=num_tokens)
        # from 1: the first token has a key of its own
        positions = torch.arange(1, num_tokens + 1, device=device) - starts
        owners = torch.repeat_interleave(sequences, lengths, output_size=num_tokens)
        tokens = _hashed(owners + positions.to(torch.int32) * GAMMA)
        # in a batch of single tokens, rows may be either: such a sequence has the key of its token
        sequences = torch.where(lengths == 1, _hashed(sequences + GAMMA), sequences)
        found = {num_sequences: sequences, num_tokens: tokens}
        num_filled = filled_number(num_tokens, device)  # padding rows belong to no sequence
        found[num_filled] = F.pad(tokens, (0, num_filled - num_tokens))
        return found


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


def next_keys(num_rows: int, order: Tensor | None = None) -> tuple[Tensor, float]:
    """Return an int32 key for each row (or row of `order`) at the next place, and a number in [0, 1) to round rates."""
    draws = current_draws()
    if draws is not None and (keyed := draws.next_place(num_rows)) is not None:
        keys, dither = _hashed(keyed[0] ^ keyed[1]), keyed[2]
    else:
        keys = torch.empty(num_rows, dtype=torch.int32).random_(-(2**31), 2**31)
        dither = float(torch.rand((), dtype=torch.float64))
    return (keys if order is None else keys.index_select(0, order)), dither


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
    keyed = None if draws is None else draws.next_place(num_rows, device)
    if keyed is None:
        keys, dither = next_keys(num_rows)
        keyed = to_device(keys.numpy(), device), 0, dither
    keys, word, dither = keyed
    return DeviceDraws(keys, word, math.floor(rate * 2**16 + dither), 1.0 / (1.0 - rate) if rate < 1.0 else 0.0)


def head_keys(keys: Tensor, num_heads: int) -> Tensor:
    """Return the keys of each head's rows: (sequences, length) to (sequences, heads, length)."""
    return keys.unsqueeze(1) + _counters(num_heads, 16).unsqueeze(1)  # a row has fewer than 2^16 words


def dropout_factors(like: Tensor, rate: float, keys: Tensor, dither: float) -> Tensor:
    """Return factors of the shape and type of `like`: 0 with probability `rate`, else 1 / (1 - rate).

    `keys` has the shape of `like` without its last dimension, along which a counter is added to the row's key. Each
    factor takes 16 bits of a hash; `dither` rounds a threshold that 16 bits cannot express, so it is right on average.
    """
    threshold = math.floor(rate * 2**16 + dither) - 2**15
    factors = torch.empty(like.shape, dtype=like.dtype)
    width = like.shape[-1]
    rows, out = keys.reshape(-1, 1), factors.view(-1, width) if like.numel() else factors
    columns = _counters(-(-width // 2))
    size = max(1, _BLOCK * torch.get_num_threads() // max(1, len(columns)))
    for first in range(0, len(rows) if like.numel() else 0, size):
        bits = _hashed(rows[first : first + size] + columns).view(torch.int16)[:, :width]
        torch.ge(bits, threshold, out=out[first : first + size])
    return factors.mul_(1.0 / (1.0 - rate))


@lru_cache(maxsize=512)  # the same numbers come back in every layer
def _counters(number: int, shift: int = 0) -> Tensor:
    return (torch.arange(number, dtype=torch.int32, device=_CPU) << shift) * GAMMA


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
        if not self._is_native(input):
            return input * dropout_factors(input, self.p, *next_keys(len(input)))
        if 0.0 < self.p < 1.0 and input.is_cuda and input.ndim == 2:
            from maskloom.layers.processor.fused_layers import fuses, thinned  # it imports this module

            if fuses(input):
                return thinned(input, self.p)  # with the draws of a CPU
        return F.dropout(input, self.p)

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + dropout(x), in one pass over the values where possible."""
        if not self.training or self._is_native(x):
            return residual + self.forward(x)
        return torch.addcmul(residual, x, dropout_factors(x, self.p, *next_keys(len(x))))

    def _is_native(self, x: Tensor) -> bool:
        return self.p in (0.0, 1.0) or x.device.type != "cpu" or torch.compiler.is_compiling()
