"""A decoder's layer: attention to itself, to the encoder's output, and feed-forward (Vaswani et al. 2017, 3.1-3.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.attention import KeyValues
from maskloom.layers.dropout import Dropout
from maskloom.layers.general_attention import AttentionLayout, attend_between
from maskloom.layers.processor.matrix_products import Dense
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import residual


class Memory(Protocol):
    """What a decoder's layer attends to beside its own tokens."""

    def attend(self, attention: CrossAttention, queries: Tensor) -> Tensor:
        """Return the context of every query: (queries, hidden) to the same."""
        ...


class CrossAttention(nn.Module):
    """Attention of one text's tokens to all of another: queries of the decoder, keys and values of the encoder's top.

    Dropout falls on the probabilities in training. Raises ValueError when the heads do not divide the hidden size.
    """

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden size {hidden_size} is not divisible by {num_heads} heads")
        self.num_heads, self.dropout = num_heads, dropout
        self.query = Dense(hidden_size, hidden_size)
        self.key_value = Dense(hidden_size, 2 * hidden_size)
        self.key_value.num_joined = 2
        self.output = Dense(hidden_size, hidden_size)

    def forward(self, hidden: Tensor, memory: Memory) -> Tensor:
        """Return the projected context of every token, (tokens, hidden)."""
        return self.output(memory.attend(self, self.queries(hidden)))

    def queries(self, hidden: Tensor) -> Tensor:
        """Return the query of every token, (tokens, hidden)."""
        return self.query(hidden)

    def probabilities(self, hidden: Tensor, memory: PackedMemory) -> Tensor:
        """Return those of a single pair of texts, (heads, tokens, source tokens), for people to look at."""
        keys, _ = self.key_value(memory.hidden).chunk(2, 1)
        q, k = (part.unflatten(1, (self.num_heads, -1)).transpose(0, 1) for part in (self.queries(hidden), keys))
        return (q @ k.transpose(1, 2) / math.sqrt(q.shape[2])).softmax(-1)


@dataclass(frozen=True)
class PackedMemory:
    """The encoder's output (source tokens, hidden) for the packed tokens of targets."""

    hidden: Tensor
    layout: AttentionLayout

    def attend(self, attention: CrossAttention, queries: Tensor) -> Tensor:
        """Return the context of every token of the targets."""
        keys, values = attention.key_value(self.hidden).chunk(2, 1)
        dropout = attention.dropout if attention.training else 0.0
        return attend_between(queries, keys, values, self.layout, attention.num_heads, dropout=dropout)


@dataclass(frozen=True)
class PaddedMemory:
    """One layer's keys and values, (sequences, heads, source, size of a head), made once for all steps of decoding.

    `mask` (sequences, 1, 1, source) is True at real tokens, None where all sources are equally long.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None

    @classmethod
    def of(cls, attention: CrossAttention, hidden: Tensor, layout: SequenceLayout) -> PaddedMemory:
        """Return the keys and values of packed sources, (source tokens, hidden)."""
        rows, is_real = padded(attention.key_value(hidden), layout)
        keys, values = rows.unflatten(2, (2 * attention.num_heads, -1)).transpose(1, 2).chunk(2, 1)
        is_full = int(layout.sizes.min()) == layout.max_length
        return cls(keys, values, None if is_full else is_real[:, None, None])

    def attend(self, attention: CrossAttention, queries: Tensor) -> Tensor:
        """Return the context of the newest token of every sequence."""
        q_nhsd = queries.view(len(queries), attention.num_heads, 1, -1)
        context = F.scaled_dot_product_attention(q_nhsd, self.keys, self.values, attn_mask=self.mask)
        return context.reshape(len(queries), -1)

    def taken(self, rows: Tensor) -> PaddedMemory:
        """Return those sequences, in this order; one may come several times."""
        keys, values = (part.index_select(0, rows) for part in (self.keys, self.values))
        return PaddedMemory(keys, values, None if self.mask is None else self.mask.index_select(0, rows))


def padded(vectors: Tensor, layout: SequenceLayout) -> tuple[Tensor, Tensor]:
    """Return packed vectors (tokens, width) as (sequences, longest, width), zero behind them, and where they are."""
    rows = torch.repeat_interleave(layout.lengths, output_size=layout.num_tokens)
    found = vectors.new_zeros(layout.num_sequences, layout.max_length, vectors.shape[1])
    found[rows, layout.position_ids] = vectors
    return found, torch.arange(layout.max_length, device=vectors.device) < layout.lengths.unsqueeze(1)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, each with a residual and a norm of its own."""

    def __init__(
        self,
        attention: nn.Module,
        cross_attention: CrossAttention,
        feed_forward: nn.Module,
        *,
        norm: Callable[[], nn.Module],
        dropout: float,
        pre_norm: bool = False,
    ) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = attention
        self.attention_layer_norm = norm()
        self.cross_attention = cross_attention
        self.cross_attention_layer_norm = norm()
        self.feed_forward = feed_forward
        self.feed_forward_layer_norm = norm()
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, layout: SequenceLayout, memory: Memory, past: KeyValues | None = None) -> Tensor:
        """Return the next hidden state of every token; `past` has keys and values of those before, and gets more."""
        for block, norm in (
            (lambda x: self.attention(x, layout, past), self.attention_layer_norm),
            (lambda x: self.cross_attention(x, memory), self.cross_attention_layer_norm),
            (self.feed_forward, self.feed_forward_layer_norm),
        ):
            hidden = residual(hidden, block, norm, self.dropout, pre_norm=self.pre_norm)
        return hidden
