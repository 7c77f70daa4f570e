"""Attention with smaller query and key heads than value heads (Vaswani et al. 2017, Table 3, rows B)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.layers.attention import SelfAttention
from maskloom.layers.cross_attention import CrossAttention
from maskloom.layers.processor.matrix_products import Dense


class NarrowSelfAttention(SelfAttention):
    """Self-attention with queries and keys of size `key_size` per head: (tokens, hidden) to (tokens, hidden)."""

    def __init__(
        self, hidden_size: int, num_heads: int, dropout: float, *, key_size: int, causal: bool = False
    ) -> None:
        super().__init__(hidden_size, num_heads, dropout, causal=causal)
        self.key_size = key_size
        self.qkv = Dense.joined(hidden_size, *2 * [num_heads * key_size], hidden_size)

    def projected(self, hidden: Tensor) -> Tensor:
        """Return queries, keys and values, (tokens, 3 hidden)."""
        return _filled(self.qkv(hidden), 2 * self.num_heads, self.key_size, hidden.shape[1] // self.num_heads)


class NarrowCrossAttention(CrossAttention):
    """Attention to another text with queries and keys of size `key_size` per head."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float, *, key_size: int) -> None:
        super().__init__(hidden_size, num_heads, dropout)
        self.key_size = key_size
        self.query = Dense(hidden_size, num_heads * key_size)
        self.key_value = Dense.joined(hidden_size, num_heads * key_size, hidden_size)

    def queries(self, hidden: Tensor) -> Tensor:
        """Return the query of every token, (tokens, hidden)."""
        return _filled(self.query(hidden), self.num_heads, self.key_size, hidden.shape[1] // self.num_heads)

    def keys_values(self, hidden: Tensor) -> Tensor:
        """Return the key and the value of every token, (tokens, 2 hidden)."""
        return _filled(self.key_value(hidden), self.num_heads, self.key_size, hidden.shape[1] // self.num_heads)


def _filled(rows: Tensor, num_narrow: int, key_size: int, size: int) -> Tensor:
    """Return rows in which the first `num_narrow` heads are padded with zeros from `key_size` to `size`.

    They are scaled by (size / key_size)^(1/4), as attention divides scores by sqrt(size) instead of sqrt(key_size).
    """
    narrow, values = rows.tensor_split([num_narrow * key_size], 1)
    heads = narrow.unflatten(1, (num_narrow, key_size)) * (size / key_size) ** 0.25
    return torch.cat([F.pad(heads, (0, size - key_size)).flatten(1), values], 1)
