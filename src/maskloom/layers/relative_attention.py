"""Unscaled attention with biases by distance (Raffel et al. 2019, 2.1; Shaw et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.attention import CrossAttention, KeyValues, PastTokens
from maskloom.layers.dropout import dropout_factors, head_keys, next_keys
from maskloom.layers.processor.matrix_products import Dense
from maskloom.layers.processor.onednn import widened
from maskloom.layers.sequence_layout import SequenceLayout


class QueryDense(Dense):
    """Joined projections of which the first, for queries, starts smaller."""


class RelativeBias(nn.Module):
    """Score biases shared by all layers of a stack: a number for each head and each bucket of distances (2.1).

    The second half of the buckets is for keys after the query, the first half for all others; with `causal`, all are
    for keys up to the query. Within each set, half of the buckets hold a single distance; the others grow
    geometrically up to `max_distance`, and the last one also holds all longer distances.
    """

    def __init__(self, num_buckets: int, max_distance: int, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.max_distance, self.causal = max_distance, causal

    def buckets(self, distances: Tensor) -> Tensor:
        """Return the bucket of each distance (key position minus query position)."""
        number = len(self.weight) if self.causal else len(self.weight) // 2
        first = 0 if self.causal else (distances > 0) * number
        distances = (-distances).clamp(min=0) if self.causal else distances.abs()
        exact = number // 2
        share = torch.log(distances.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = (exact + (share * (number - exact)).to(torch.int64)).clamp(max=number - 1)
        return first + torch.where(distances < exact, distances, far)

    def between(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return biases for query positions (n, q) and key positions (n, k): (n, heads, q, k)."""
        buckets = self.buckets(keys.unsqueeze(1) - queries.unsqueeze(2))
        return F.embedding(buckets, self.weight).permute(0, 3, 1, 2)

    def within(self, layout: SequenceLayout) -> SequenceLayout:
        """Return the layout with the score biases of each group, minus infinity where a query may not attend."""
        biases = []
        for group, place in zip(layout.groups, layout.group_positions(), strict=True):
            bias, allowed = self.between(place, place), group.allowed(place.device, causal=self.causal)
            biases.append(bias if allowed is None else bias.masked_fill(~allowed, -math.inf))
        return replace(layout, given=layout.grouping, biases=tuple(biases))

    def after(self, layout: SequenceLayout, past: PastTokens) -> SequenceLayout:
        """Return the layout with biases for the newest tokens, which attend to themselves and the tokens in `past`."""
        keys = torch.arange(past.longest, device=past.lengths.device).unsqueeze(0)
        bias = self.between(past.lengths.unsqueeze(1) - 1, keys)
        bias = bias if past.mask is None else bias.masked_fill(~past.mask, -math.inf)
        return replace(layout, biases=(bias,))


class RelativeSelfAttention(nn.Module):
    """Attention within sequences with the layout's score biases: (tokens, hidden) to (tokens, hidden).

    Heads may have any size, and projections have no biases. Scores are not divided by the square root of the head size;
    the initial weights compensate for that.
    """

    def __init__(self, hidden_size: int, num_heads: int, head_size: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.qkv = QueryDense.joined(hidden_size, *3 * [num_heads * head_size], bias=False)
        self.output = Dense(num_heads * head_size, hidden_size, bias=False)

    def forward(self, hidden: Tensor, layout: SequenceLayout, past: KeyValues | None = None) -> Tensor:
        """Return the projected context of every token, which also attends to the earlier tokens in `past`."""
        qkv = self.qkv(hidden)
        if past is not None and not past.is_empty:
            return self.output(past.attend(qkv, layout.biases[0], 1.0))
        if past is not None:
            past.begin(qkv, layout)
        return self.output(_attend(qkv, layout, self.num_heads, self.dropout if self.training else 0.0))

    def probabilities(self, hidden: Tensor, layout: SequenceLayout, past: KeyValues | None = None) -> Tensor:
        """Return the attention probabilities of one sequence, (heads, tokens, tokens), for display."""
        tokens = self.qkv(hidden)[: layout.num_tokens]
        queries, keys, _ = tokens.unflatten(1, (3, self.num_heads, -1)).permute(1, 2, 0, 3)
        return (queries @ keys.transpose(1, 2) + layout.biases[0][0]).softmax(-1)


class UnscaledCrossAttention(CrossAttention):
    """Attention to another text without biases and scaling, with heads of any size."""

    def __init__(self, hidden_size: int, num_heads: int, head_size: int, dropout: float) -> None:
        nn.Module.__init__(self)
        self.num_heads, self.dropout, self.factor = num_heads, dropout, math.sqrt(head_size)
        self.query = QueryDense.joined(hidden_size, num_heads * head_size, bias=False)
        self.key_value = Dense.joined(hidden_size, *2 * [num_heads * head_size], bias=False)
        self.output = Dense(num_heads * head_size, hidden_size, bias=False)

    def queries(self, hidden: Tensor) -> Tensor:
        """Return every token's query, multiplied by the scores' divisor, (tokens, heads times their size)."""
        return self.factor * self.query(hidden)


def _attend(qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: float) -> Tensor:
    """Return softmax(q k + bias) v per sequence and head: (tokens, 3 hidden) to (tokens, hidden).

    With dropout on a CPU it is computed in fp32 under autocast, like `grouped_attention`.
    """
    if not layout.groups:
        return qkv.new_zeros(0, qkv.shape[1] // 3)
    is_keyed = dropout > 0.0 and qkv.device.type == "cpu" and not torch.compiler.is_compiling()
    keys, dither = next_keys(layout.num_tokens, layout.slot_tokens) if is_keyed else (None, 0.0)
    contexts, qkv = [], qkv if keys is None else widened(qkv)
    parts = layout.to_slots(qkv).split([group.num_slots for group in layout.groups])
    for group, part, bias in zip(layout.groups, parts, layout.biases, strict=True):
        q, k, v = part.view(group.num_sequences, group.length, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        bias = bias.to(q.dtype)
        if keys is None:
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=1.0)
        else:
            row_keys = head_keys(group.rows_of(keys), num_heads)
            with torch.autocast("cpu", enabled=False):
                probabilities = torch.softmax(q @ k.transpose(2, 3) + bias, -1)
                context = (probabilities * dropout_factors(probabilities, dropout, row_keys, dither)) @ v
        contexts.append(context.transpose(1, 2).reshape(group.num_slots, -1))
    return layout.from_slots(torch.cat(contexts))
