"""Rotary position embeddings (Su et al. 2021, RoFormer, 3.2.2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.layers.processor.onednn import unrounded
from maskloom.layers.sequence_layout import SequenceLayout

_BASE = 10_000.0


def rotation(positions: Tensor, size: int, num_heads: int) -> Tensor:
    """Return the rotation of queries and keys with heads of `size`: (rows, 1) positions to (rows, 3 hidden / 2, 2).

    Each pair is a cosine and a sine; pair i of a head, counted from 0, has the angle position / 10,000^(2 i / size).
    Values, which follow queries and keys, are not rotated.
    """
    angles = positions * _BASE ** (-torch.arange(0, size, 2, device=positions.device) / size)
    whole = F.pad(angles.repeat(1, 2 * num_heads), (0, num_heads * size // 2))
    return torch.stack((whole.cos(), whole.sin()), 2)


def rotated(qkv: Tensor, layout: SequenceLayout) -> Tensor:
    """Return (rows, 3 hidden) with queries and keys rotated by the layout's rotation (equation 34), if it has one.

    Adjacent features form a complex number, as in equation 12. Half precision is rotated in fp32, and stays so
    under a CPU's autocast, where attention is computed in fp32.
    """
    if layout.rotation is None:
        return qkv
    qkv = unrounded(qkv)
    pairs = qkv.float().unflatten(1, (-1, 2))
    if torch.compiler.is_compiling():  # compilers and ONNX do not support complex numbers
        (real, imaginary), (cosine, sine) = pairs.unbind(2), layout.rotation.unbind(2)
        turned = torch.stack((real * cosine - imaginary * sine, real * sine + imaginary * cosine), 2)
    else:
        turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(layout.rotation))
    return turned.flatten(1).to(qkv.dtype)
