"""Attention by four energies: of the tokens of one text for queries, as recurrent networks have it (Luong et al. 2015).

`layers.attention` has the Transformer's, many heads of scaled dot products.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from maskloom.layers.general_attention import AttentionLayout

Energy = Literal["dot", "scaled_dot", "mlp", "bilinear"]


class EnergyAttention(nn.Module):
    """softmax(energy(q, k)) k over the keys of each sequence: queries and keys (tokens, hidden), contexts the same.

    The energy is q k, "scaled_dot" divides it by sqrt(hidden), "bilinear" is q W k, and "mlp" is v tanh(W q + U k + b)
    (Bahdanau et al. 2015, A.1.2). A query without any key gets zeros.
    """

    def __init__(self, energy: Energy, hidden_size: int) -> None:
        super().__init__()
        self.energy, has_query = energy, energy in ("mlp", "bilinear")
        self.query = nn.Linear(hidden_size, hidden_size, bias=False) if has_query else None
        self.key = nn.Linear(hidden_size, hidden_size) if energy == "mlp" else None
        self.score = nn.Linear(hidden_size, 1, bias=False) if energy == "mlp" else None

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the energies of (n, queries, hidden) and (n, keys, hidden): (n, queries, keys)."""
        if self.query is not None:
            queries = self.query(queries)
        if self.key is not None and self.score is not None:
            return self.score((queries.unsqueeze(2) + self.key(keys).unsqueeze(1)).tanh()).squeeze(3)
        scores = queries @ keys.transpose(1, 2)
        return scores / math.sqrt(keys.shape[2]) if self.energy == "scaled_dot" else scores

    def weights(self, queries: Tensor, keys: Tensor, allowed: Tensor) -> Tensor:
        """Return what each query reads of each key, (n, queries, keys), where it is `allowed` to."""
        scores = self.scores(queries, keys)
        return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1) * allowed

    def probabilities(self, queries: Tensor, keys: Tensor, layout: AttentionLayout) -> Tensor:
        """Return those of a single pair of texts, (1, queries, keys), for people to look at."""
        return self.weights(queries[None], keys[None], layout.groups[0].allowed[:, 0])

    def forward(self, queries: Tensor, keys: Tensor, layout: AttentionLayout) -> Tensor:
        """Return the context of every query."""
        indices, contexts = [queries.new_zeros(0, dtype=torch.int64)], [queries[:0]]
        for group in layout.groups:
            own = keys[group.key_tokens]
            read = self.weights(queries[group.query_tokens], own, group.allowed[:, 0])
            indices.append(group.context_rows)
            contexts.append((read @ own).flatten(0, 1))
        result = queries.new_zeros(layout.num_rows + 1, queries.shape[1])
        return result.index_copy(0, torch.cat(indices), torch.cat(contexts))[: len(queries)]
