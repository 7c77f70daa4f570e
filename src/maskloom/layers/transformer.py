"""Transformer layers (Vaswani et al. 2017, 3.1; BERT paper 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskloom.layers.attention import KeyValues, LayerState, Memory, SelfAttention
from maskloom.layers.dropout import Dropout, RowDraws, current_draws, drawing
from maskloom.layers.feed_forward import FeedForward
from maskloom.layers.processor.fused_layers import (
    SublayerSettings,
    attends,
    attention_sublayer,
    feed_forward_sublayer,
    fused_type,
)
from maskloom.layers.sequence_layout import SequenceLayout


def residual(
    hidden: Tensor,
    block: Callable[[Tensor], Tensor],
    norm: nn.Module,
    dropout: Dropout,
    *,
    pre_norm: bool = False,
    adapter: nn.Module | None = None,
) -> Tensor:
    """Return LN(x + dropout(block(x))), or with `pre_norm` x + dropout(block(LN(x))).

    An `adapter` is applied to the block's output after dropout (Houlsby et al. 2019, 2.1).
    """
    added = block(norm(hidden) if pre_norm else hidden)
    hidden = dropout.add(hidden, added) if adapter is None else hidden + adapter(dropout(added))
    return hidden if pre_norm else norm(hidden)


class Recomputable(nn.Module):
    """A layer with activation checkpointing: if it `recomputes`, it stores only its input for the backward pass.

    The recomputation uses the same dropout draws (Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost).
    """

    recomputes = False

    def forward(
        self, hidden: Tensor, layout: SequenceLayout, past: LayerState | None = None, memory: Memory | None = None
    ) -> Tensor:
        """Return the next hidden state of every token; `past` caches earlier tokens and is updated in place."""
        if past is not None or not (self.recomputes and torch.is_grad_enabled()):
            return self.computed(hidden, layout, past, memory)
        draws = current_draws()
        place = 0 if draws is None else draws.place
        return checkpoint(  # pyright: ignore[reportReturnType]
            self._computed_with, draws, place, hidden, layout, memory, use_reentrant=False
        )

    def _computed_with(
        self, draws: RowDraws | None, place: int, hidden: Tensor, layout: SequenceLayout, memory: Memory | None
    ) -> Tensor:
        """Return the layer's output with draws starting at `place`, so that a recomputation repeats them."""
        with drawing(draws):
            if draws is not None:
                draws.place = place
            return self.computed(hidden, layout, None, memory)

    def computed(self, hidden: Tensor, layout: SequenceLayout, past: Any, memory: Any) -> Any:
        """Return the next hidden state of every token, as `forward` does."""
        raise NotImplementedError


class CarriedLayer(Recomputable):
    """A layer that carries a state from token to token: (tokens, width) to (tokens, width).

    The state of a sequence has the shape `state_shape` and is zero before the first token. In subclasses, `computed`
    gets (initial states, other memory) as `memory`, and returns vectors and last states (sequences, *state_shape).
    """

    state_shape: tuple[int, ...]

    def forward(
        self, hidden: Tensor, layout: SequenceLayout, past: LayerState | None = None, memory: Any = None
    ) -> Tensor:
        """Return the vector of every token; `past` has the initial state and receives the last state."""
        state = hidden.new_zeros(layout.num_sequences, *self.state_shape)
        state = state if past is None or past.is_empty else past.tensor
        vectors, state = super().forward(hidden, layout, None, (state, memory))  # pyright: ignore[reportArgumentType]
        if past is not None:
            past.tensor = state
        return vectors

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: torch would recompile for the lengths of every batch."""


class TransformerLayer(Recomputable):
    """Attention, then feed-forward, each with a `residual` connection and its own norm, created by `norm`.

    All blocks map (tokens, hidden) to (tokens, hidden), with `cross_attention`, if given, between attention and
    feed-forward. Adapters, one per block, are set from outside.
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        *,
        norm: Callable[[], nn.Module],
        dropout: float,
        pre_norm: bool = False,
        cross_attention: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = attention
        self.attention_layer_norm = norm()
        if cross_attention is not None:
            self.cross_attention = cross_attention
            self.cross_attention_layer_norm = norm()
        self.has_memory = cross_attention is not None
        self.feed_forward = feed_forward
        self.feed_forward_layer_norm = norm()
        self.dropout = Dropout(dropout)
        self.attention_adapter: nn.Module | None = None
        self.cross_attention_adapter: nn.Module | None = None
        self.feed_forward_adapter: nn.Module | None = None

    def computed(
        self, hidden: Tensor, layout: SequenceLayout, past: KeyValues | None = None, memory: Memory | None = None
    ) -> Tensor:
        """Return the next hidden state of every token; `past` caches keys and values and is updated in place."""
        if past is None and memory is None and (settings := self._fused(hidden, layout)) is not None:
            attention, feed_forward = self.attention, self.feed_forward
            parts = attention.qkv, attention.output, self.attention_layer_norm
            hidden = attention_sublayer(hidden, parts, settings)
            parts = feed_forward.up, feed_forward.down, self.feed_forward_layer_norm
            return feed_forward_sublayer(hidden, parts, settings)
        blocks = [(lambda x: self.attention(x, layout, past), self.attention_layer_norm, self.attention_adapter)]
        if self.has_memory:
            norm, adapter = self.cross_attention_layer_norm, self.cross_attention_adapter
            blocks.append((lambda x: self.cross_attention(x, memory), norm, adapter))
        blocks.append((self.feed_forward, self.feed_forward_layer_norm, self.feed_forward_adapter))
        for block, norm, adapter in blocks:
            hidden = residual(hidden, block, norm, self.dropout, pre_norm=self.pre_norm, adapter=adapter)
        return hidden

    def _fused(self, hidden: Tensor, layout: SequenceLayout) -> SublayerSettings | None:
        """Return the settings of both sublayers if it is a BERT layer that GPU kernels can train here, else None."""
        attention, feed_forward, norm = self.attention, self.feed_forward, self.attention_layer_norm
        if (dtype := fused_type(hidden)) is None or self.pre_norm or self.has_memory or layout.rotation is not None:
            return None
        if type(attention) is not SelfAttention or type(feed_forward) is not FeedForward:
            return None
        if self.attention_adapter is not None or self.feed_forward_adapter is not None:
            return None
        is_plain = feed_forward.activation is F.gelu and feed_forward.dropout.p == 0.0 and type(norm) is nn.LayerNorm
        projections = attention.qkv, attention.output, feed_forward.up, feed_forward.down
        own = (each for part in (*projections, norm, self.feed_forward_layer_norm) for each in (part.weight, part.bias))
        learns = all(each is not None and each.requires_grad and each.dtype == torch.float32 for each in own)
        head_size = hidden.shape[1] // attention.num_heads
        if not (is_plain and learns and attends(layout, head_size)):
            return None
        return SublayerSettings(
            layout=layout,
            num_heads=attention.num_heads,
            causal=attention.causal,
            attention_dropout=attention.dropout if attention.training else 0.0,
            dropout=self.dropout.p if self.dropout.training else 0.0,
            epsilon=cast(nn.LayerNorm, norm).eps,
            dtype=dtype,
        )
