"""Multi-head self-attention over packed sequences (Vaswani et al. 2017, 3.2; BERT paper 3.1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.grouped_attention import grouped_attention
from maskloom.layers.matrix_products import Dense
from maskloom.layers.packed_attention import packed_attention, prefers_packed
from maskloom.layers.sequence_layout import SequenceLayout


class SelfAttention(nn.Module):
    """Attention within sequences: (tokens, hidden) to (tokens, hidden), each token over its own sequence only.

    Query, key and value projections are one matrix product, rows in that order. With `causal` a token attends to itself
    and the tokens before it. Dropout falls on the attention probabilities in training. Raises ValueError when the heads
    do not divide the hidden size.
    """

    def __init__(self, hidden_size: int, num_heads: int, dropout: float, *, causal: bool = False) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden size {hidden_size} is not divisible by {num_heads} heads")
        self.num_heads = num_heads
        self.dropout = dropout
        self.causal = causal
        self.qkv = Dense(hidden_size, 3 * hidden_size)
        self.output = Dense(hidden_size, hidden_size)

    def forward(self, hidden: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the projected context of every token."""
        dropout = self.dropout if self.training else 0.0
        return self.output(attend(self.qkv(hidden), layout, self.num_heads, dropout, causal=self.causal))


def attend(qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: float, *, causal: bool = False) -> Tensor:
    """Return softmax(q k / sqrt(d)) v per sequence and head: (tokens, 3 hidden) to (tokens, hidden).

    With `causal` the softmax runs over a token and those before it. Letters: n sequences of a length group, s its
    length, h heads, d size of a head.
    """
    if prefers_packed(qkv, layout):
        return packed_attention(qkv, layout, num_heads, dropout, causal=causal)
    slots = layout.to_slots(qkv)
    if not layout.groups:
        return qkv.new_zeros(0, qkv.shape[1] // 3)
    if dropout > 0.0 and slots.device.type == "cpu" and not torch.compiler.is_compiling():
        return layout.from_slots(grouped_attention(slots, layout, num_heads, dropout, causal=causal))
    contexts = []
    parts = slots.split([group.num_slots for group in layout.groups])
    for group, qkv_nshd3 in zip(layout.groups, parts, strict=True):
        q_nhsd, k_nhsd, v_nhsd = qkv_nshd3.view(group.num_sequences, group.length, 3, num_heads, -1).permute(
            2, 0, 3, 1, 4
        )
        mask = group.mask(causal=causal)
        is_causal = causal and mask is None
        context_nhsd = F.scaled_dot_product_attention(
            q_nhsd, k_nhsd, v_nhsd, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
        )
        contexts.append(context_nhsd.transpose(1, 2).reshape(group.num_slots, -1))
    return layout.from_slots(contexts[0] if len(contexts) == 1 else torch.cat(contexts))
