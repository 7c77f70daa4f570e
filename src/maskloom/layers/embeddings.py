"""Summed embeddings: word, segment and position (BERT paper 3.2), or word and position (Radford et al. 2018, 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maskloom.layers.dropout import Dropout
from maskloom.layers.processor.fused_layers import fused_type, normed_embedding
from maskloom.layers.processor.matrix_products import Dense


class TokenEmbeddings(nn.Module):
    """Word + segment + optional position embedding, LayerNorm, dropout: (tokens,) to (tokens, hidden).

    With an `embedding_size` other than `hidden_size`, a projection follows (Lan et al. 2019, ALBERT, 3.1).
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        num_segments: int,
        num_positions: int | None,
        hidden_size: int,
        layer_norm_eps: float,
        dropout: float,
        embedding_size: int | None = None,
    ) -> None:
        super().__init__()
        embedding_size = embedding_size or hidden_size
        self.word = table(vocab_size, embedding_size)
        self.segment = table(num_segments, embedding_size)
        self.position = None if num_positions is None else table(num_positions, embedding_size)
        self.layer_norm = nn.LayerNorm(embedding_size, eps=layer_norm_eps)
        self.dropout = Dropout(dropout)
        self.projection = None if embedding_size == hidden_size else Dense(embedding_size, hidden_size)

    def forward(self, token_ids: Tensor, segment_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Return the normalised sum for every token, projected to the hidden size if the two sizes differ."""
        summed = self._summed(token_ids, segment_ids, position_ids)
        return summed if self.projection is None else self.projection(summed).to(summed.dtype)

    def _summed(self, token_ids: Tensor, segment_ids: Tensor, position_ids: Tensor) -> Tensor:
        words = self.word.weight
        if self.position is not None and words.dtype == torch.float32 and fused_type(words) is not None:
            tables = [words, self.segment.weight, self.position.weight]
            rate = self.dropout.p if self.dropout.training else 0.0
            return normed_embedding(tables, (token_ids, segment_ids, position_ids), self.layer_norm, rate)
        total = self.word(token_ids) + self.segment(segment_ids)
        if self.position is not None:
            total = total + self.position(position_ids)
        return self.dropout(self.layer_norm(total))


class WordEmbeddings(nn.Module):
    """Word and, with `num_positions`, learned position embeddings, then dropout: (tokens,) ids to (tokens, hidden)."""

    def __init__(self, vocab_size: int, hidden_size: int, dropout: float = 0.0, num_positions: int = 0) -> None:
        super().__init__()
        self.word = table(vocab_size, hidden_size)
        self.position = table(num_positions, hidden_size) if num_positions else None
        self.dropout = Dropout(dropout)

    def forward(self, token_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Return the vector of every token; `position_ids` (tokens,) are needed if positions have embeddings."""
        total = self.word(token_ids)
        return self.dropout(total if self.position is None else total + self.position(position_ids))


def table(num_rows: int, num_columns: int) -> nn.Embedding:
    """Return a trainable table whose values are set later, by `initialize` or from a file.

    The constructor of nn.Embedding draws values, and a draw on the meta device makes torch import its compiler, which
    takes as long as all other imports together.
    """
    return nn.Embedding.from_pretrained(torch.empty(num_rows, num_columns), freeze=False)
