"""Dropout (Srivastava et al. 2014) whose random numbers cost little on a processor."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BITS = 16


def dropout_factors(like: Tensor, rate: float) -> Tensor:
    """Return factors of the shape and type of `like`: 0 with probability `rate`, else 1 / (1 - rate).

    Every factor has that probability to the precision of a double. Sixteen random bits decide on each, four to a draw
    of torch's global generator, which is several times cheaper than torch's own Bernoulli numbers; the threshold that
    16 bits cannot express is rounded up or down at random, once a call, so that it is right on average.
    """
    if like.device.type != "cpu":
        return F.dropout(torch.ones_like(like), rate)
    size = like.numel()
    words = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:size].view(like.shape)
    dither = float(torch.rand((), dtype=torch.float64))
    threshold = math.floor(rate * 2**_BITS + dither) - 2 ** (_BITS - 1)
    factors = torch.empty(like.shape, dtype=like.dtype)
    return torch.ge(bits, threshold, out=factors).mul_(1.0 / (1.0 - rate))


class Dropout(nn.Dropout):
    """In training, zero each value with probability `p` and scale the others by 1 / (1 - p); else nothing.

    Raises ValueError for a rate outside [0, 1].
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the thinned values, of any shape."""
        if self._is_native(input):
            return F.dropout(input, self.p, self.training)
        return input * dropout_factors(input, self.p)

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + dropout(x), in one pass over the values where that can be."""
        if self._is_native(x):
            return residual + F.dropout(x, self.p, self.training)
        return torch.addcmul(residual, x, dropout_factors(x, self.p))

    def _is_native(self, x: Tensor) -> bool:
        return not self.training or self.p in (0.0, 1.0) or x.device.type != "cpu"
