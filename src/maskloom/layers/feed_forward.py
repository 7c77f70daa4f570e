"""The position-wise feed-forward block (Vaswani et al. 2017, 3.3)."""

from __future__ import annotations

from torch import Tensor, nn

from maskloom.layers.activations import activation
from maskloom.layers.processor.matrix_products import Dense


class FeedForward(nn.Module):
    """Two dense layers with an activation between: (tokens, hidden) to (tokens, hidden).

    Raises ValueError for an activation name that is not known.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, activation_name: str) -> None:
        super().__init__()
        self.up = Dense(hidden_size, intermediate_size)
        self.down = Dense(intermediate_size, hidden_size)
        self.activation = activation(activation_name)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the transformed tokens."""
        return self.down(self.up.activated(hidden, self.activation))
