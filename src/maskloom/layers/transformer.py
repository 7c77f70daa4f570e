"""Transformer layers (Vaswani et al. 2017, 3.1; BERT paper 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskloom.layers.attention import KeyValues
from maskloom.layers.dropout import Dropout, current_draws
from maskloom.layers.sequence_layout import SequenceLayout


class TransformerLayer(nn.Module):
    """Attention, then feed-forward, each with a residual and a LayerNorm: x = LN(x + dropout(block(x))).

    With `pre_norm` it is x = x + dropout(block(LN(x))). Both blocks map (tokens, hidden) to the same. A layer that
    `recomputes` keeps its input alone and is computed again in the backward pass, with the same dropout draws (Chen et
    al. 2016, Training Deep Nets with Sublinear Memory Cost).
    """

    recomputes = False

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        *,
        hidden_size: int,
        layer_norm_eps: float,
        dropout: float,
        pre_norm: bool = False,
    ) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = attention
        self.attention_layer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.feed_forward = feed_forward
        self.feed_forward_layer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, layout: SequenceLayout, past: KeyValues | None = None) -> Tensor:
        """Return the next hidden state of every token; `past` has keys and values of those before, and gets more."""
        if past is not None:
            return self._computed(hidden, layout, past=past)
        if self.recomputes and torch.is_grad_enabled():
            draws = current_draws()
            place = None if draws is None else draws.place
            return checkpoint(  # pyright: ignore[reportReturnType]
                self._computed, hidden, layout, place, use_reentrant=False
            )
        return self._computed(hidden, layout)

    def _computed(
        self, hidden: Tensor, layout: SequenceLayout, place: int | None = None, *, past: KeyValues | None = None
    ) -> Tensor:
        draws = current_draws()
        if draws is not None and place is not None:
            draws.place = place  # computed again, the layer draws what it drew before
        if self.pre_norm:
            hidden = self.dropout.add(hidden, self.attention(self.attention_layer_norm(hidden), layout, past))
            return self.dropout.add(hidden, self.feed_forward(self.feed_forward_layer_norm(hidden)))
        hidden = self.attention_layer_norm(self.dropout.add(hidden, self.attention(hidden, layout, past)))
        return self.feed_forward_layer_norm(self.dropout.add(hidden, self.feed_forward(hidden)))
