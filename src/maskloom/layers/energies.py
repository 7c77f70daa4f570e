"""Attention of queries to the tokens of a text with four energies, as in recurrent networks (Luong et al. 2015).

`layers.attention` has the Transformer's multi-head scaled dot-product attention.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from maskloom.layers.general_attention import AttentionLayout, masked_softmax

Energy = Literal["dot", "scaled_dot", "mlp", "bilinear"]


class EnergyAttention(nn.Module):
    """softmax(energy(q, k)) k over the keys of each sequence: queries, keys and contexts are (tokens, hidden).

    The energy "dot" is q k, "scaled_dot" is q k / sqrt(hidden), "bilinear" is q W k, and "mlp" is v tanh(W q + U k + b)
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

    def weights(self, queries: Tensor, keys: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return the weight of each key for each query, (n, queries, keys); zero where it is not `allowed`."""
        return masked_softmax(self.scores(queries, keys), allowed)

    def probabilities(self, queries: Tensor, keys: Tensor, layout: AttentionLayout) -> Tensor:
        """Return the attention weights for one pair of texts, (1, queries, keys), for display."""
        return self.weights(queries[None], keys[None], layout.groups[0].allowed)

    def forward(self, queries: Tensor, keys: Tensor, layout: AttentionLayout) -> Tensor:
        """Return the context of every query."""
        if not layout.groups:
            return torch.zeros_like(queries)
        q_slots, k_slots, contexts = layout.queries.to_slots(queries), layout.keys.to_slots(keys), list[Tensor]()
        for group in layout.groups:
            own, allowed = group.keys.rows_of(k_slots), None if group.allowed is None else group.allowed[:, 0]
            contexts.append((self.weights(group.queries.rows_of(q_slots), own, allowed) @ own).flatten(0, 1))
        return layout.queries.from_slots(torch.cat(contexts))[: len(queries)]
