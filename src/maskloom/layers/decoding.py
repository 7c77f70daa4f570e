"""A layer's decoding step for one more token per sequence, with everything that is the same for all tokens precomputed.

In a small model a token takes a few hundred calls, most of which only decide what to call next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.activations import Activation
from maskloom.layers.attention import CrossAttention, KeyValues, Memory, SelfAttention
from maskloom.layers.dropout import Dropout
from maskloom.layers.feed_forward import FeedForward
from maskloom.layers.positions import rotated
from maskloom.layers.processor.matrix_products import Dense
from maskloom.layers.processor.onednn import prefers_onednn
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import TransformerLayer

Step = Callable[[Tensor, SequenceLayout, KeyValues, Memory | None], Tensor]

_KNOWN_PARTS = Counter({TransformerLayer: 1, SelfAttention: 1, FeedForward: 1, Dense: 4, nn.LayerNorm: 2, Dropout: 2})
_WITH_MEMORY = _KNOWN_PARTS + Counter({CrossAttention: 1, Dense: 3, nn.LayerNorm: 1})


_WIDEST_RUN = 8  # attention reads this many times the tokens needed; in wider runs, copying them is cheaper


def width_of_runs(layers: Iterable[nn.Module], width: int) -> int:
    """Return how many sequences of a beam search keep their tokens side by side: `width`, or 1 if they cannot.

    They cannot in layers whose attention is not `SelfAttention`, such as one with relative positions.
    """
    is_plain = all(type(getattr(layer, "attention", None)) is SelfAttention for layer in layers)
    return width if is_plain and width <= _WIDEST_RUN else 1


def next_token_step(layer: TransformerLayer, rows: Tensor) -> Step:
    """Return a function that applies `layer` to the newest tokens, of the same shape as `rows` (sequences, hidden).

    It is valid until the layer changes. A layer in training, or with other submodules, is returned as it is.
    """
    if layer.training or Counter(map(type, layer.modules())) not in (_KNOWN_PARTS, _WITH_MEMORY):
        return layer
    attention, feed_forward = cast(SelfAttention, layer.attention), cast(FeedForward, layer.feed_forward)
    qkv, output, down = (_product(part, rows) for part in (attention.qkv, attention.output, feed_forward.down))
    up = _product(feed_forward.up, rows, feed_forward.activation)
    residual = partial(_residual, pre_norm=layer.pre_norm)
    attend = residual(layer.attention_layer_norm, lambda x, layout, past: output(past.attend(rotated(qkv(x), layout))))
    transform = residual(layer.feed_forward_layer_norm, lambda x: down(up(x)))
    read = None
    if layer.has_memory:
        cross = cast(CrossAttention, layer.cross_attention)
        query, context = (_product(part, rows) for part in (cross.query, cross.output))
        read = residual(layer.cross_attention_layer_norm, lambda x, memory: context(memory.attend(cross, query(x))))

    def step(hidden: Tensor, layout: SequenceLayout, past: KeyValues, memory: Memory | None = None) -> Tensor:
        hidden = attend(hidden, layout, past)
        return transform(hidden if read is None else read(hidden, memory))

    return step


def _residual(part: nn.Module, block: Callable[..., Tensor], *, pre_norm: bool) -> Callable[..., Tensor]:
    """Return a function that computes what `transformer.residual` does without dropout."""
    part = cast(nn.LayerNorm, part)
    norm = partial(
        torch.layer_norm, normalized_shape=part.normalized_shape, weight=part.weight, bias=part.bias, eps=part.eps
    )
    if pre_norm:
        return lambda x, *more: x + block(norm(x), *more)
    return lambda x, *more: norm(x + block(x, *more))


def _product(part: Dense, rows: Tensor, activation: Activation | None = None) -> Callable[[Tensor], Tensor]:
    like = rows.new_empty(len(rows), part.weight.shape[1])
    if activation is None and part.is_packed_for(like):
        return part.packed_product
    if part.is_packed_for(like) or prefers_onednn(like, part.weight.shape[0]):
        return part if activation is None else partial(part.activated, activation=activation)
    product = partial(F.linear, weight=part.weight, bias=part.bias)
    return product if activation is None else lambda x: activation(product(x))
