"""Attention over packed sequences with torch's fused variable-length kernels: no padding, no groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.system.devices import has_bf16

_HALF = (torch.float16, torch.bfloat16)


def prefers_packed(qkv: Tensor, layout: SequenceLayout, num_heads: int) -> bool:
    """Return whether the fused kernels support a batch: half precision on CUDA, packed, without empty sequences."""
    return qkv.is_cuda and takes_packed(qkv.dtype, qkv.shape[1] // (3 * num_heads), qkv.device, layout)


def takes_packed(dtype: torch.dtype, head_size: int, device: torch.device, layout: SequenceLayout) -> bool:
    """Return the same for a CUDA device: compute capability 8.0 or later, head size a multiple of 8 up to 256."""
    is_half = dtype in _HALF and has_bf16(device)
    return is_half and head_size in range(8, 257, 8) and layout.is_packed and not layout.has_empty_sequences


def flash_attention(
    qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: float, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return softmax(q k / sqrt(d)) v per sequence and head, and three arrays that `flash_gradients` needs as well.

    It maps (tokens, 3 hidden) to (tokens, hidden), with the operator beneath `torch.nn.attention.varlen`, whose own
    function does not support dropout.
    """
    offsets, longest = layout.row_offsets.int(), layout.max_length
    context_tnd, log_sums, draws, unused, _ = torch.ops.aten._flash_attention_forward(
        *_by_part(qkv, num_heads), offsets, offsets, longest, longest, dropout, causal, return_debug_mask=False
    )
    return context_tnd.flatten(1), log_sums, draws, unused


def flash_gradients(
    d_context: Tensor,
    qkv: Tensor,
    context: Tensor,
    more: Sequence[Tensor],
    layout: SequenceLayout,
    num_heads: int,
    dropout: float,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, (tokens, heads, head size) each."""
    offsets, longest, (log_sums, draws, unused) = layout.row_offsets.int(), layout.max_length, more
    upper, lower = (each.view(len(qkv), num_heads, -1) for each in (d_context, context))
    return torch.ops.aten._flash_attention_backward(
        upper, *_by_part(qkv, num_heads), lower, log_sums, offsets, offsets, longest, longest, dropout, causal,
        draws, unused,
    )  # fmt: skip


def _by_part(qkv: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    return qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
