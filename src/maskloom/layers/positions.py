"""Sinusoidal positions (Vaswani et al. 2017, 3.5), and rotary ones (Su et al. 2021, RoFormer, 3.2.2)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.layers.processor.onednn import widened
from maskloom.layers.sequence_layout import SequenceLayout

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


def rotation(positions: Tensor, size: int, num_heads: int) -> Tensor:
    """Return the rotation of queries and keys with heads of `size`: (rows, 1) positions to (rows, 3 hidden / 2, 2).

    Each pair is a cosine and a sine; pair i of a head, counted from 0, has the angle position / 10,000^(2 i / size).
    Values, which follow queries and keys, are not rotated.
    """
    angles = positions * _WAVELENGTHS ** (-torch.arange(0, size, 2, device=positions.device) / size)
    whole = F.pad(angles.repeat(1, 2 * num_heads), (0, num_heads * size // 2))
    return torch.stack((whole.cos(), whole.sin()), 2)


def rotated(qkv: Tensor, layout: SequenceLayout) -> Tensor:
    """Return (rows, 3 hidden) with queries and keys rotated by the layout's rotation (equation 34), if it has one.

    Adjacent features form a complex number, as in equation 12. Half precision is rotated in fp32, and stays so
    under a CPU's autocast, where attention is computed in fp32.
    """
    if layout.rotation is None:
        return qkv
    qkv = widened(qkv)
    pairs = qkv.float().unflatten(1, (-1, 2))
    if torch.compiler.is_compiling():  # compilers and ONNX do not support complex numbers
        (real, imaginary), (cosine, sine) = pairs.unbind(2), layout.rotation.unbind(2)
        turned = torch.stack((real * cosine - imaginary * sine, real * sine + imaginary * cosine), 2)
    else:
        turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(layout.rotation))
    return turned.flatten(1).to(qkv.dtype)
