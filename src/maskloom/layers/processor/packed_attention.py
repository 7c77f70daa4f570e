"""Attention over packed sequences with torch's fused variable-length kernels: no padding, no groups."""

from __future__ import annotations

import torch
from torch import Tensor

from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.system.devices import has_bf16

_HALF = (torch.float16, torch.bfloat16)


def prefers_packed(qkv: Tensor, layout: SequenceLayout, num_heads: int) -> bool:
    """Return whether the fused kernels support a batch.

    They need half precision on CUDA, compute capability 8.0 or later, head sizes that are a multiple of 8 up to 256,
    and packed sequences of which none is empty.
    """
    is_half = qkv.is_cuda and qkv.dtype in _HALF and has_bf16(qkv.device)
    takes_heads = qkv.shape[1] // (3 * num_heads) in range(8, 257, 8)
    return is_half and takes_heads and layout.is_packed and not layout.has_empty_sequences


def flash_attention(qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: float, *, causal: bool) -> Tensor:
    """Return softmax(q k / sqrt(d)) v per sequence and head: (tokens, 3 hidden) to (tokens, hidden).

    It is the operator beneath `torch.nn.attention.varlen`, whose own function does not support dropout.
    """
    offsets, longest = layout.row_offsets.int(), layout.max_length
    parts = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
    context_tnd, *_ = torch.ops.aten._flash_attention_forward(
        *parts, offsets, offsets, longest, longest, dropout, causal, return_debug_mask=False
    )
    return context_tnd.flatten(1)
