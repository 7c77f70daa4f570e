"""Sinusoidal positions (Vaswani et al. 2017, 3.5)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

_WAVELENGTHS = 10_000.0


def sinusoids(position_ids: Tensor, width: int, last: int | None = None) -> Tensor:
    """Return PE of each position, (tokens, width): sin(p / 10000^(2i/d)) at 2i and the cosine at 2i + 1.

    Positions are integers from 0 to `last`, which has no upper limit. If `last` is None, the maximum is read from the
    device, which synchronises. Raises ValueError for an odd width.
    """
    if width % 2:
        raise ValueError(f"sinusoidal positions need an even width, not {width}")
    if last is None:
        last = int(position_ids.max()) if len(position_ids) else 0
    return _table(1 << (last + 1).bit_length(), width, str(position_ids.device)).index_select(0, position_ids)


def exact_sinusoids(length: int, width: int) -> Tensor:
    """Return PE of the positions below `length` in fp64, (length, width), which `sinusoids` rounds to fp32."""
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = torch.arange(length, dtype=torch.float64).unsqueeze(1) * torch.exp(-math.log(_WAVELENGTHS) * exponents)
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)


@lru_cache(maxsize=8)
def _table(length: int, width: int, device: str) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return exact_sinusoids(length, width).float().to(device)
