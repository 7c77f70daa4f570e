"""Attention over packed sequences by torch's fused kernels for variable lengths: no padding, no groups."""

from __future__ import annotations

import torch
from torch import Tensor

from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.system.devices import has_bf16

_HALF = (torch.float16, torch.bfloat16)


def prefers_packed(qkv: Tensor, layout: SequenceLayout, num_heads: int) -> bool:
    """Tell whether the fused kernels take a batch: in half precision on CUDA, of sequences that all have a token.

    They need compute capability 8.0 and heads of a size that is a multiple of 8 and at most 256.
    """
    head_size = qkv.shape[1] // (3 * num_heads)
    is_half = qkv.is_cuda and qkv.dtype in _HALF and has_bf16(qkv.device)
    return is_half and head_size in range(8, 257, 8) and layout.is_packed and not layout.has_empty_sequences


def packed_attention(
    qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: float, *, causal: bool = False
) -> Tensor:
    """Return softmax(q k / sqrt(d)) v per sequence and head: (tokens, 3 hidden) to (tokens, hidden).

    It is the operator beneath `torch.nn.attention.varlen`, whose own function knows no dropout.
    """
    q_tnd, k_tnd, v_tnd = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
    offsets, longest = layout.offsets.int(), layout.max_length
    context_tnd, *_rest = torch.ops.aten._flash_attention_forward(
        q_tnd, k_tnd, v_tnd, offsets, offsets, longest, longest, dropout, causal, return_debug_mask=False
    )
    return context_tnd.flatten(1)
