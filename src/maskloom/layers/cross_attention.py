"""Attention from a decoder to the output of an encoder (Vaswani et al. 2017, 3.2.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from maskloom.layers.general_attention import AttentionLayout, attend_between
from maskloom.layers.processor.grouped_attention import paired_attention, prefers_paired
from maskloom.layers.processor.matrix_products import Dense
from maskloom.layers.sequence_layout import SequenceLayout


class CrossAttention(nn.Module):
    """Attention from the decoder's tokens (queries) to all tokens of the encoder's last layer (keys and values).

    Dropout is applied to the probabilities in training. Raises ValueError if the heads do not divide the hidden size.
    """

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden size {hidden_size} is not divisible by {num_heads} heads")
        self.num_heads, self.dropout = num_heads, dropout
        self.query = Dense(hidden_size, hidden_size)
        self.key_value = Dense.joined(hidden_size, hidden_size, hidden_size)
        self.output = Dense(hidden_size, hidden_size)

    def forward(self, hidden: Tensor, memory: Memory) -> Tensor:
        """Return the projected context of every token, (tokens, hidden)."""
        return self.output(memory.attend(self, self.queries(hidden)))

    def queries(self, hidden: Tensor) -> Tensor:
        """Return the query of every token, (tokens, hidden)."""
        return self.query(hidden)

    def keys_values(self, hidden: Tensor) -> Tensor:
        """Return the key and the value of every token, (tokens, 2 hidden)."""
        return self.key_value(hidden)

    def probabilities(self, hidden: Tensor, memory: PackedMemory) -> Tensor:
        """Return the attention probabilities of one pair of texts, (heads, tokens, source tokens), for display."""
        keys, _ = self.keys_values(memory.hidden).chunk(2, 1)
        q, k = (part.unflatten(1, (self.num_heads, -1)).transpose(0, 1) for part in (self.queries(hidden), keys))
        return (q @ k.transpose(1, 2) / math.sqrt(q.shape[2])).softmax(-1)


@dataclass(frozen=True)
class PackedMemory:
    """The encoder's output (source tokens, hidden), attended to by the packed tokens of targets."""

    hidden: Tensor
    layout: AttentionLayout

    def attend(self, attention: CrossAttention, queries: Tensor) -> Tensor:
        """Return the context of every target token."""
        key_values, num_heads = attention.keys_values(self.hidden), attention.num_heads
        dropout = attention.dropout if attention.training else 0.0
        if prefers_paired(queries, self.layout):
            return paired_attention(queries, key_values, self.layout, num_heads, dropout)
        keys, values = key_values.chunk(2, 1)
        return attend_between(queries, keys, values, self.layout, num_heads, dropout=dropout)


@dataclass(frozen=True)
class PaddedMemory:
    """One layer's keys and values, computed once for all decoding steps.

    Shapes: `keys` (sequences, heads, head size, source), `values` (sequences, heads, source, head size). `mask`
    (sequences, 1, 1, source) is added to the scores. It is 0 at real tokens, or None if all sources are equally long.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None

    @classmethod
    def of(cls, attention: CrossAttention, hidden: Tensor, layout: SequenceLayout) -> PaddedMemory:
        """Return the keys and values of packed sources, (source tokens, hidden)."""
        longest, padded = layout.max_length, layout.padded(attention.keys_values(hidden))
        keys, values = padded.unflatten(2, (2, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None
        if layout.sizes.min() < longest:  # the values of padding are 0, so an empty source yields 0
            is_padding = torch.arange(longest, device=hidden.device) >= layout.lengths.unsqueeze(1)
            mask = torch.finfo(padded.dtype).min * is_padding[:, None, None].to(padded.dtype)
        return cls(keys.transpose(2, 3).contiguous(), values.contiguous(), mask)

    def attend(self, attention: CrossAttention, queries: Tensor) -> Tensor:
        """Return the context of every target's newest token; each source has equally many consecutive targets."""
        number, num_heads, size, _ = self.keys.shape
        # With few queries on a CPU, plain products are several times as fast as torch's fused attention.
        scores = (queries.view(number, -1, num_heads, size).transpose(1, 2) @ self.keys).mul_(size**-0.5)
        scores = scores if self.mask is None else scores.add_(self.mask)
        return (scores.softmax(-1) @ self.values).transpose(1, 2).reshape(len(queries), -1)

    def taken(self, rows: Tensor) -> PaddedMemory:
        """Return the sequences `rows`, in this order; a sequence may be repeated."""
        keys, values = (part.index_select(0, rows) for part in (self.keys, self.values))
        return PaddedMemory(keys, values, None if self.mask is None else self.mask.index_select(0, rows))


Memory = PackedMemory | PaddedMemory
"""What a decoder layer attends to in addition to its own tokens."""
