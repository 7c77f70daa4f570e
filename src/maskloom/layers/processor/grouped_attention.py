"""Attention with dropout over length groups on a CPU, for which torch has no fused kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from maskloom.layers.dropout import NO_DRAWS, dropout_factors, head_keys, next_keys
from maskloom.layers.general_attention import AttentionLayout
from maskloom.layers.processor.onednn import widened
from maskloom.layers.sequence_layout import LengthGroup, SequenceLayout

_Group = tuple[tuple[LengthGroup, ...], Tensor | None]


def grouped_attention(
    slots: Tensor, layout: SequenceLayout, num_heads: int, dropout: float, *, causal: bool = False
) -> Tensor:
    """Return dropout(softmax(q k / sqrt(d))) v per sequence and head: (slots, 3 hidden) to (slots, hidden).

    It is scaled dot-product attention with a hand-written gradient (Vaswani et al. 2017, equation 1). Each group writes
    its part of a shared result and gradient, and the softmax gradient computes its row sums from the context:
    sum_j dP_ij P_ij = dC_i C_i. Padding slots must receive no gradient. Under autocast it is computed in
    fp32: in half precision oneDNN would make a kernel for every length and number of sequences.
    """
    keys = next_keys(layout.num_tokens, layout.slot_tokens) if dropout else (NO_DRAWS.keys, 0.0)
    slots = widened(slots)
    if causal not in (cached := layout.grouping.cached):
        allowed = [group.allowed(slots.device, causal=causal) for group in layout.groups]
        cached[causal] = [((group,), _excluded(mask)) for group, mask in zip(layout.groups, allowed, strict=True)]
    with torch.autocast("cpu", enabled=False):
        return _GroupedAttention.apply(  # pyright: ignore[reportReturnType]
            cached[causal], num_heads, dropout, *keys, slots
        )


def prefers_paired(queries: Tensor, layout: AttentionLayout) -> bool:
    """Return whether `paired_attention` supports a batch: in training on a CPU, if every query has a key."""
    return (
        torch.is_grad_enabled()
        and queries.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and bool(layout.groups)
        and not layout.has_keyless
    )


def paired_attention(
    queries: Tensor, key_values: Tensor, layout: AttentionLayout, num_heads: int, dropout: float
) -> Tensor:
    """Return dropout(softmax(q k / sqrt(d))) v, like `grouped_attention`, for queries and the keys of another text.

    Shapes: (queries, hidden) and (keys, 2 hidden) to (queries, hidden).
    """
    keys = next_keys(len(queries), layout.queries.tokens) if dropout else (NO_DRAWS.keys, 0.0)
    slots = widened(layout.queries.to_slots(queries)), widened(layout.keys.to_slots(key_values))
    if False not in layout.cached:
        layout.cached[False] = [((group.queries, group.keys), _excluded(group.allowed)) for group in layout.groups]
    with torch.autocast("cpu", enabled=False):
        contexts = _GroupedAttention.apply(layout.cached[False], num_heads, dropout, *keys, *slots)
    return layout.queries.from_slots(contexts)[: len(queries)]  # pyright: ignore[reportArgumentType]


class _GroupedAttention(torch.autograd.Function):
    """Attention on slots of queries, keys and values in one array, or of queries and of keys and values in two.

    A group has its part of the slots of each array, and what `_excluded` returns for it.
    Letters: n sequences of a group, s its length, h heads, d head size.
    """

    @staticmethod
    def forward(
        ctx, groups: Sequence[_Group], num_heads: int, dropout: float, keys: Tensor, dither: float, *arrays: Tensor
    ) -> Tensor:
        hidden_size = sum(array.shape[1] for array in arrays) // 3
        contexts = arrays[0].new_empty(len(arrays[0]), hidden_size)
        kept: list[Tensor] = []
        for parts, excluded in groups:
            rows = [part.rows_of(array) for part, array in zip(parts, arrays, strict=True)]
            q, k, v = chain(*(_by_head(each, each.shape[2] // hidden_size, num_heads) for each in rows))
            q.mul_(1.0 / math.sqrt(q.shape[-1]))
            scores = torch.bmm(q, k.transpose(1, 2))
            if excluded is not None:
                scores.view(parts[0].num_sequences, -1, *scores.shape[1:]).add_(excluded)
            probabilities, factors = torch.softmax(scores, -1, out=scores), list[Tensor]()
            if dropout:
                row_keys = head_keys(parts[0].rows_of(keys), num_heads)
                factors.append(dropout_factors(probabilities, dropout, row_keys, dither))
            context = torch.bmm(probabilities * factors[0] if factors else probabilities, v)
            _store(parts[0].rows_of(contexts), context.unsqueeze(0), num_heads)
            kept += [q, k, v, probabilities, *factors, context]
        ctx.num_heads, ctx.shapes = num_heads, [array.shape for array in arrays]
        ctx.groups = [parts for parts, _ in groups]
        ctx.save_for_backward(*kept)
        return contexts

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        kept, hidden_size = ctx.saved_tensors, gradient.shape[1]
        size = len(kept) // max(1, len(ctx.groups))
        results = [gradient.new_empty(shape) for shape in ctx.shapes]
        for number, parts in enumerate(ctx.groups):
            own = kept[size * number : size * (number + 1)]
            (d_context,) = _by_head(parts[0].rows_of(gradient), 1, ctx.num_heads)
            found = [
                d_context.new_empty(result.shape[1] // hidden_size, *like.shape)
                for result, like in zip(results, own, strict=False)  # q and, for keys and values, k
            ]
            _gradients(own, d_context, *chain(*found))
            for part, result, values in zip(parts, results, found, strict=True):
                _store(part.rows_of(result), values, ctx.num_heads)
        return None, None, None, None, None, *results


def _gradients(kept: Sequence[Tensor], d_context: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor) -> None:
    """Fill the gradients of queries, keys and values."""
    q, k, v, probabilities, *factors, context = kept
    thinned = probabilities * factors[0] if factors else probabilities
    torch.bmm(thinned.transpose(1, 2), d_context, out=d_v)
    d_scores = torch.bmm(d_context, v.transpose(1, 2))
    if factors:
        d_scores.mul_(factors[0])
    d_scores.sub_((d_context * context).sum(-1, keepdim=True)).mul_(probabilities)
    torch.bmm(d_scores, k, out=d_q)
    torch.bmm(d_scores.transpose(1, 2), q, out=d_k)
    d_q.mul_(1.0 / math.sqrt(q.shape[-1]))


def _by_head(rows: Tensor, num_parts: int, num_heads: int) -> Tensor:
    """Copy a group's rows (n, s, parts h d) into (parts, n h, s, d)."""
    size = rows.shape[2] // (num_parts * num_heads)
    split = rows.view(*rows.shape[:2], num_parts, num_heads, size).permute(2, 0, 3, 1, 4)
    return split.clone(memory_format=torch.contiguous_format).flatten(1, 2)


def _store(rows: Tensor, values: Tensor, num_heads: int) -> None:
    """Copy (parts, n h, s, d) into a group's rows (n, s, parts h d)."""
    split = values.view(len(values), len(rows), num_heads, *values.shape[2:]).permute(1, 3, 0, 2, 4)
    rows.view(split.shape).copy_(split)


def _excluded(allowed: Tensor | None) -> Tensor | None:
    """Return an additive mask, minus infinity where a query may not attend; None if it may attend everywhere."""
    return None if allowed is None else torch.zeros(allowed.shape).masked_fill_(~allowed, -math.inf)
