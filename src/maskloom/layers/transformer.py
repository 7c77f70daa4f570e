"""Transformer layers (Vaswani et al. 2017, 3.1; BERT paper 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskloom.layers.attention import Kept, KeyValues
from maskloom.layers.dropout import Dropout, current_draws
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

    An `adapter` maps what is added, after dropout (Houlsby et al. 2019, 2.1).
    """
    added = block(norm(hidden) if pre_norm else hidden)
    hidden = dropout.add(hidden, added) if adapter is None else hidden + adapter(dropout(added))
    return hidden if pre_norm else norm(hidden)


class Recomputable(nn.Module):
    """A layer that may be computed again: one that `recomputes` keeps its input alone for the backward pass.

    It is computed with the same dropout draws (Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost).
    """

    recomputes = False

    def forward(self, hidden: Tensor, layout: SequenceLayout, past: Kept | None = None) -> Tensor:
        """Return the next hidden state of every token; `past` has what is kept of those before, and gets more."""
        if past is not None:
            return self.computed(hidden, layout, past)
        if self.recomputes and torch.is_grad_enabled():
            draws = current_draws()
            place = None if draws is None else draws.place
            return checkpoint(  # pyright: ignore[reportReturnType]
                self._computed_from, place, hidden, layout, use_reentrant=False
            )
        return self.computed(hidden, layout)

    def _computed_from(self, place: int | None, hidden: Tensor, layout: SequenceLayout) -> Tensor:
        draws = current_draws()
        if draws is not None and place is not None:
            draws.place = place  # computed again, the layer draws what it drew before
        return self.computed(hidden, layout)

    def computed(self, hidden: Tensor, layout: SequenceLayout, past: Any = None) -> Tensor:
        """Return the next hidden state of every token, as `forward` does."""
        raise NotImplementedError


class TransformerLayer(Recomputable):
    """Attention, then feed-forward, each with a `residual` and a norm of its own, which `norm` makes.

    Both blocks map (tokens, hidden) to the same. Adapters, one a block, are set from outside.
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        *,
        norm: Callable[[], nn.Module],
        dropout: float,
        pre_norm: bool = False,
    ) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = attention
        self.attention_layer_norm = norm()
        self.feed_forward = feed_forward
        self.feed_forward_layer_norm = norm()
        self.dropout = Dropout(dropout)
        self.attention_adapter: nn.Module | None = None
        self.feed_forward_adapter: nn.Module | None = None

    def computed(self, hidden: Tensor, layout: SequenceLayout, past: KeyValues | None = None) -> Tensor:
        """Return the next hidden state of every token; `past` has keys and values of those before, and gets more."""
        for block, norm, adapter in (
            (lambda x: self.attention(x, layout, past), self.attention_layer_norm, self.attention_adapter),
            (self.feed_forward, self.feed_forward_layer_norm, self.feed_forward_adapter),
        ):
            hidden = residual(hidden, block, norm, self.dropout, pre_norm=self.pre_norm, adapter=adapter)
        return hidden
