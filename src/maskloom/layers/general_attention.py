"""Attention whose queries and keys have lengths of their own, with biased scores, a past and explicit masks.

It is plain arithmetic for every case; `layers.attention` has the fast path of an encoder's self-attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.layers.copies import to_device
from maskloom.layers.dropout import dropout_factors, head_keys, next_keys
from maskloom.layers.sequence_layout import SequenceLayout

# Lengths up to the first are one group, then each that is at most so many times as long as the shortest.
_SHORT, _RATIO = 8, 9 / 8


class Past(NamedTuple):
    """Keys and values before a batch's own, each (sequences, heads, past, size of a head): a prefix or a memory."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class PairedGroup:
    """Sequences of near-equal lengths, n of them, with q queries and k keys at most.

    `sequences` (n,) numbers them; `query_tokens` (n, q) and `key_tokens` (n, k) are their indices in the packed arrays,
    `context_rows` (n q,) those of the results, a row more than there are behind the last query of a sequence. `allowed`
    (n, 1, q, past + k) is True where a query may attend.
    """

    sequences: Tensor
    query_tokens: Tensor
    key_tokens: Tensor
    context_rows: Tensor
    allowed: Tensor


class AttentionLayout:
    """Which keys the queries of a batch may attend to, made once and shared by all layers."""

    def __init__(
        self,
        queries: SequenceLayout,
        keys: SequenceLayout | None = None,
        *,
        causal: bool = False,
        past: int = 0,
        allowed: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Let every query of a sequence attend to all of its keys, by default those of the same tokens.

        With `causal` a token attends to itself and those before it. `past` keys stand before a sequence's own and may
        always be attended to. `allowed` narrows it down: for each sequence (queries, past + keys), True where a query
        may attend. Raises ValueError for layouts or masks that do not fit together.
        """
        if causal and keys is not None:
            raise ValueError("causal attention is for the keys of the same tokens")
        num_queries = queries.sizes
        num_keys = num_queries if keys is None else keys.sizes
        if len(num_keys) != len(num_queries):
            raise ValueError(f"{len(num_queries)} sequences of queries, {len(num_keys)} of keys")
        query_starts, key_starts = (np.cumsum(lengths) - lengths for lengths in (num_queries, num_keys))
        self.num_rows = queries.num_rows
        self.groups: list[PairedGroup] = []
        for members in _near_equal(num_queries, num_keys):
            query_positions = np.arange(num_queries[members].max())
            key_positions = np.arange(num_keys[members].max())
            is_query = query_positions < num_queries[members, None]
            is_key = key_positions < num_keys[members, None]
            may = np.ones((len(members), len(query_positions), past + len(key_positions)), dtype=bool)
            may[:, :, past:] = is_key[:, None]
            if causal:
                may[:, :, past:] &= key_positions <= query_positions[:, None]
            if allowed is not None:
                for mask, sequence in zip(may, members, strict=True):
                    shape = (int(num_queries[sequence]), past + int(num_keys[sequence]))
                    if allowed[sequence].shape != shape:
                        raise ValueError(f"the mask of sequence {sequence} is not of shape {shape}")
                    mask[: shape[0], : shape[1]] &= allowed[sequence]
            query_tokens = query_starts[members, None] + query_positions
            tensors = (
                members,
                np.where(is_query, query_tokens, 0),
                np.where(is_key, key_starts[members, None] + key_positions, 0),
                np.where(is_query, query_tokens, self.num_rows).ravel(),
                may[:, None],
            )
            self.groups.append(PairedGroup(*(to_device(array, queries.lengths.device) for array in tensors)))


ScoreBias = Callable[[Tensor, PairedGroup], Tensor]
"""From queries (n, heads, q, size) and their group to what is added to the scores, (n or 1, heads, q, past + k)."""


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

    Shapes: (queries, hidden), twice (keys, hidden), to (queries, hidden). A query that may attend to nothing gets
    zeros. Whoever wants scores of another scale multiplies the queries.
    """
    is_keyed = dropout > 0.0 and queries.device.type == "cpu" and not torch.compiler.is_compiling()
    drawn = next_keys(len(queries)) if is_keyed else None
    indices, contexts = [queries.new_zeros(0, dtype=torch.int64)], [values.new_zeros(0, values.shape[1])]
    for group in layout.groups:
        q, k, v = (
            part[tokens].unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for part, tokens in ((queries, group.query_tokens), (keys, group.key_tokens), (values, group.key_tokens))
        )
        if past is not None:
            k = torch.cat([past.keys[group.sequences], k], 2)
            v = torch.cat([past.values[group.sequences], v], 2)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if bias is not None:
            scores = scores + bias(q, group)
        lowest = torch.finfo(scores.dtype).min  # and not minus infinity, whose softmax over nothing is not a number
        probabilities = torch.softmax(scores.masked_fill(~group.allowed, lowest), -1) * group.allowed
        if drawn is not None:
            row_keys = head_keys(drawn[0][group.query_tokens], num_heads)
            probabilities = probabilities * dropout_factors(probabilities, dropout, row_keys, drawn[1])
        elif dropout > 0.0:
            probabilities = F.dropout(probabilities, dropout)
        indices.append(group.context_rows)
        contexts.append((probabilities @ v).transpose(1, 2).flatten(0, 1).flatten(1))
    result = values.new_zeros(layout.num_rows + 1, values.shape[1])
    return result.index_copy(0, torch.cat(indices), torch.cat(contexts))[: len(queries)]


def _near_equal(num_queries: np.ndarray, num_keys: np.ndarray) -> list[np.ndarray]:
    """Return the sequences that have a query, in groups of near-equal numbers of queries and of keys."""
    steps = [
        np.ceil(np.log(np.maximum(lengths, _SHORT) / _SHORT) / math.log(_RATIO)) for lengths in (num_queries, num_keys)
    ]
    _, numbers = np.unique(np.stack(steps, 1)[num_queries > 0], axis=0, return_inverse=True)
    filled = np.flatnonzero(num_queries > 0)
    return [filled[numbers == number] for number in range(numbers.max(initial=-1) + 1)]
