"""Attention with dropout over length groups on a processor, where torch has no kernel for it that is fused."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from maskloom.layers.dropout import dropout_factors, head_keys, next_keys
from maskloom.layers.sequence_layout import LengthGroup, SequenceLayout


def grouped_attention(
    slots: Tensor, layout: SequenceLayout, num_heads: int, dropout: float, *, causal: bool = False
) -> Tensor:
    """Return dropout(softmax(q k / sqrt(d))) v per sequence and head: (slots, 3 hidden) to (slots, hidden).

    It is scaled dot-product attention written out with its gradient (Vaswani et al. 2017, equation 1). Each group
    writes its part of one result and of one gradient, and the softmax's gradient takes its row sums from the context:
    sum_j dP_ij P_ij = dC_i C_i. Padding slots must receive no gradient.
    """
    keys, dither = next_keys(layout.num_tokens)
    if layout.slot_tokens is not None:
        keys = keys[layout.slot_tokens]
    return _GroupedAttention.apply(  # pyright: ignore[reportReturnType]
        slots, layout.groups, num_heads, dropout, keys, dither, causal
    )


class _GroupedAttention(torch.autograd.Function):
    """Letters: n sequences of a group, s its length, h heads, d size of a head."""

    @staticmethod
    def forward(
        ctx,
        slots: Tensor,
        groups: tuple[LengthGroup, ...],
        num_heads: int,
        dropout: float,
        keys: Tensor,
        dither: float,
        causal: bool,
    ) -> Tensor:
        contexts = slots.new_empty(slots.shape[0], slots.shape[1] // 3)
        kept: list[Tensor] = []
        for group in groups:
            q, k, v = _by_head(slots, group, 3, num_heads)
            q.mul_(1.0 / math.sqrt(q.shape[-1]))
            probabilities = _probabilities(q, k, group, num_heads, causal=causal)
            group_keys = keys.narrow(0, group.first_slot, group.num_slots).view(group.num_sequences, group.length)
            factors = dropout_factors(probabilities, dropout, head_keys(group_keys, num_heads), dither)
            context = torch.bmm(probabilities * factors, v)
            _store(contexts, group, context.unsqueeze(0), num_heads)
            kept += [q, k, v, probabilities, factors, context]
        ctx.groups, ctx.num_heads = groups, num_heads
        ctx.save_for_backward(*kept)
        return contexts

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        kept = ctx.saved_tensors
        result = gradient.new_empty(gradient.shape[0], 3 * gradient.shape[1])
        for number, group in enumerate(ctx.groups):
            q, k, v, probabilities, factors, context = kept[6 * number : 6 * number + 6]
            (d_context,) = _by_head(gradient, group, 1, ctx.num_heads)
            d_qkv = torch.empty((3, *q.shape), dtype=q.dtype)
            torch.bmm((probabilities * factors).transpose(1, 2), d_context, out=d_qkv[2])
            d_scores = torch.bmm(d_context, v.transpose(1, 2)).mul_(factors)
            d_scores.sub_((d_context * context).sum(-1, keepdim=True)).mul_(probabilities)
            torch.bmm(d_scores, k, out=d_qkv[0])
            torch.bmm(d_scores.transpose(1, 2), q, out=d_qkv[1])
            d_qkv[0].mul_(1.0 / math.sqrt(q.shape[-1]))
            _store(result, group, d_qkv, ctx.num_heads)
        return result, None, None, None, None, None, None


def _by_head(slots: Tensor, group: LengthGroup, num_parts: int, num_heads: int) -> Tensor:
    """Copy a group's rows (n s, parts h d) into (parts, n h, s, d)."""
    rows = slots.narrow(0, group.first_slot, group.num_slots)
    split = rows.view(group.num_sequences, group.length, num_parts, num_heads, -1).permute(2, 0, 3, 1, 4)
    return split.clone(memory_format=torch.contiguous_format).flatten(1, 2)


def _store(slots: Tensor, group: LengthGroup, values: Tensor, num_heads: int) -> None:
    """Copy (parts, n h, s, d) into a group's rows (n s, parts h d)."""
    num_parts, _, length, size = values.shape
    rows = slots.narrow(0, group.first_slot, group.num_slots)
    shape = (group.num_sequences, length, num_parts, num_heads, size)
    rows.view(shape).copy_(values.view(num_parts, group.num_sequences, num_heads, length, size).permute(1, 3, 0, 2, 4))


def _probabilities(q: Tensor, k: Tensor, group: LengthGroup, num_heads: int, *, causal: bool) -> Tensor:
    """Return softmax(q k) over the keys that a query may attend to: (n h, s, s)."""
    scores = torch.bmm(q, k.transpose(1, 2))
    allowed = group.mask(causal=causal)
    if causal and allowed is None:
        scores.add_(torch.full((group.length, group.length), -math.inf, dtype=scores.dtype).triu_(1))
    elif allowed is not None:
        excluded = torch.zeros(allowed.shape, dtype=scores.dtype).masked_fill_(~allowed, -math.inf)
        scores.view(group.num_sequences, num_heads, group.length, group.length).add_(excluded)
    return torch.softmax(scores, -1, out=scores)
