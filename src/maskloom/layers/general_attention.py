"""Attention between queries and keys of different lengths, in plain arithmetic.

`attend_between` takes scaled dot products, with score biases, past keys and explicit masks; `EnergyAttention` takes one
of four energies. `layers.attention` has the fast path for an encoder's self-attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.copies import to_device
from maskloom.layers.dropout import dropout_factors, head_keys, next_keys
from maskloom.layers.processor.onednn import widened
from maskloom.layers.sequence_layout import LengthGroup, SequenceLayout, SlotPlaces

# Lengths up to `_SHORT` form one group; each group of longer ones spans a factor of `_RATIO`.
_SHORT, _RATIO = 16, 5 / 4

Energy = Literal["dot", "scaled_dot", "mlp", "bilinear"]


class Past(NamedTuple):
    """Keys and values that precede a batch's own, each (sequences, heads, past, head size): a prefix or a memory."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class PairedGroup:
    """A group of n sequences of near-equal lengths, with at most q queries and k keys.

    `sequences` (n,) are their indices; `queries` and `keys` are their slots. `allowed` (n, 1, q or 1, past + k) is True
    where a query may attend, or None if it may attend everywhere.
    """

    sequences: Tensor
    queries: LengthGroup
    keys: LengthGroup
    allowed: Tensor | None


class AttentionLayout:
    """Which keys the queries of a batch may attend to, computed once and shared by all layers.

    `queries` and `keys` are their slots, in the order of the groups. `has_keyless` is true if some queries may have no
    key to attend to. In `cached`, attention keeps what is the same in all layers.
    """

    def __init__(
        self,
        queries: SequenceLayout,
        keys: SequenceLayout | None = None,
        *,
        causal: bool = False,
        past: int = 0,
        allowed: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Let every query of a sequence attend to all of its keys; by default, keys are from the same tokens.

        With `causal`, each token attends only to itself and earlier tokens. `past` keys precede a sequence's own and
        are always visible. `allowed` restricts this further: for each sequence a mask (queries, past + keys), True
        where a query may attend. Raises ValueError for layouts or masks that do not fit together.
        """
        if causal and keys is not None:
            raise ValueError("causal attention needs keys of the same tokens")
        keys = queries if keys is None else keys
        if len(keys.sizes) != len(queries.sizes):
            raise ValueError(f"{len(queries.sizes)} sequences of queries, but {len(keys.sizes)} of keys")
        self.groups: list[PairedGroup] = []
        query_places, key_places = SlotPlaces(queries.sizes), SlotPlaces(keys.sizes)
        has_keyless, device = allowed is not None, queries.lengths.device
        for members in _near_equal(queries.sizes, keys.sizes) if queries.num_tokens else []:
            own_queries, is_query = query_places.add(members)
            own_keys, is_key = key_places.add(members)
            may = np.ones((len(members), 1, past + is_key.shape[1]), dtype=bool)
            may[:, 0, past:] = is_key
            has_keyless |= not may.any(2).all()
            if causal:
                before = np.tri(is_query.shape[1], is_key.shape[1], dtype=bool)
                may = may & np.pad(before, ((0, 0), (past, 0)), constant_values=True)
            if allowed is not None:
                may = np.repeat(may, is_query.shape[1] // may.shape[1], 1)
                for mask, sequence in zip(may, members, strict=True):
                    shape = (int(queries.sizes[sequence]), past + int(keys.sizes[sequence]))
                    if allowed[sequence].shape != shape:
                        raise ValueError(f"the mask of sequence {sequence} does not have shape {shape}")
                    mask[: shape[0], : shape[1]] &= allowed[sequence]
            mask = None if may.all() else to_device(may[:, None], device)
            self.groups.append(PairedGroup(to_device(members, device), own_queries, own_keys, mask))
        self.queries = query_places.slots(queries.num_rows, device)
        self.keys = key_places.slots(keys.num_rows, device)
        self.has_keyless, self.cached = has_keyless, dict[bool, Any]()


ScoreBias = Callable[[Tensor, PairedGroup], Tensor]
"""Maps queries (n, heads, q, size) and their group to biases for the scores, (n or 1, heads, q, past + k)."""


def attend_between(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: AttentionLayout,
    num_heads: int,
    *,
    bias: ScoreBias | None = None,
    past: Past | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(q k / sqrt(d) + bias) v per sequence and head (Vaswani et al. 2017, equation 1).

    Shapes: (queries, hidden), (keys, hidden) and (keys, hidden) to (queries, hidden). A query that may attend to
    nothing gets zeros. For another scale of the scores, multiply the queries.
    """
    if not layout.groups:
        return values.new_zeros(len(queries), values.shape[1])
    is_keyed = dropout > 0.0 and queries.device.type == "cpu" and not torch.compiler.is_compiling()
    drawn = next_keys(len(queries), layout.queries.tokens) if is_keyed else None
    q_slots, k_slots, v_slots = (
        slots.to_slots(part) for part, slots in ((queries, layout.queries), (keys, layout.keys), (values, layout.keys))
    )
    contexts = []
    for group in layout.groups:
        parts = (group.queries.rows_of(q_slots), group.keys.rows_of(k_slots), group.keys.rows_of(v_slots))
        q, k, v = (part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in parts)
        if past is not None:
            k = torch.cat([past.keys[group.sequences], k], 2)
            v = torch.cat([past.values[group.sequences], v], 2)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if bias is not None:
            scores = scores + bias(q, group)
        probabilities = masked_softmax(scores, group.allowed)
        if drawn is not None:
            row_keys = head_keys(group.queries.rows_of(drawn[0]), num_heads)
            probabilities = probabilities * dropout_factors(probabilities, dropout, row_keys, drawn[1])
        elif dropout > 0.0:
            probabilities = F.dropout(probabilities, dropout)
        contexts.append((probabilities @ v).transpose(1, 2).flatten(0, 1).flatten(1))
    return layout.queries.from_slots(torch.cat(contexts))[: len(queries)]


def masked_softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Return the softmax over the allowed entries, and zeros for rows without any; under autocast in fp32."""
    scores = widened(scores)
    if allowed is None:
        return scores.softmax(-1)
    lowest = torch.finfo(scores.dtype).min  # not minus infinity: a fully masked row would become NaN
    return scores.masked_fill(~allowed, lowest).softmax(-1) * allowed


class EnergyAttention(nn.Module):
    """softmax(energy(q, k)) k over the keys of each sequence: queries, keys and contexts are (tokens, hidden).

    The energy "dot" is q k, "scaled_dot" is q k / sqrt(hidden), "bilinear" is q W k, and "mlp" is v tanh(W q + U k + b)
    (Bahdanau et al. 2015, A.1.2; Luong et al. 2015). A query without any key gets zeros.
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


def _near_equal(num_queries: np.ndarray, num_keys: np.ndarray) -> list[np.ndarray]:
    """Return groups of sequences with near-equal numbers of queries and of keys."""
    steps = [
        np.ceil(np.log(np.maximum(lengths, _SHORT) / _SHORT) / math.log(_RATIO)) for lengths in (num_queries, num_keys)
    ]
    _, numbers = np.unique(np.stack(steps, 1), axis=0, return_inverse=True)
    return [np.flatnonzero(numbers == number) for number in range(numbers.max(initial=-1) + 1)]
