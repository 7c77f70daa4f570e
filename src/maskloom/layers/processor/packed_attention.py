"""Attention over packed sequences by torch's fused kernels for variable lengths: no padding, no groups."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.system.devices import has_bf16

# torch says it of the other, strided kind of nested tensors, of which it makes one inside.
warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors is in prototype", category=UserWarning)

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

    Without dropout it is `torch.nn.attention.varlen`, which knows none; with dropout, and where tokens see only those
    before them, scaled dot-product attention over a jagged nested tensor, which runs the same kernel.
    """
    q_tnd, k_tnd, v_tnd = qkv.view(len(qkv), 3, num_heads, -1).permute(1, 0, 2, 3).contiguous().unbind(0)
    if dropout == 0.0 and not causal and qkv.is_cuda:
        from torch.nn.attention.varlen import varlen_attn  # imports what only CUDA needs

        offsets, longest = layout.offsets.int(), layout.max_length
        return varlen_attn(q_tnd, k_tnd, v_tnd, offsets, offsets, longest, longest).flatten(1)  # pyright: ignore
    q, k, v = (
        torch.nested.nested_tensor_from_jagged(
            part, layout.offsets, min_seqlen=1, max_seqlen=layout.max_length
        ).transpose(1, 2)
        for part in (q_tnd, k_tnd, v_tnd)
    )
    context = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)
    return context.transpose(1, 2).values().reshape(len(qkv), -1)
