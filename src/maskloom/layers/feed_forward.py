"""The position-wise feed-forward block (Vaswani et al. 2017, 3.3) and its gated variant (Shazeer 2020)."""

from __future__ import annotations

from torch import Tensor, nn

from maskloom.layers.activations import activation
from maskloom.layers.dropout import Dropout
from maskloom.layers.processor.matrix_products import Dense


class FeedForward(nn.Module):
    """Two dense layers with an activation between them: (tokens, hidden) to (tokens, hidden).

    Some models apply `dropout` after the activation; some have no `bias`. Raises ValueError for an unknown activation.
    """

    num_inner = 1

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation_name: str, dropout: float = 0.0, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.up = Dense(hidden_size, self.num_inner * intermediate_size, bias=bias)
        self.down = Dense(intermediate_size, hidden_size, bias=bias)
        self.activation = activation(activation_name)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the transformed tokens."""
        return self.down(self.dropout(self.up.activated(hidden, self.activation)))


class GatedFeedForward(FeedForward):
    """down(act(up x) * gate x), up and gate of `intermediate_size` each: (tokens, hidden) to (tokens, hidden).

    With GELU it is GEGLU (Shazeer 2020, GLU Variants Improve Transformer, equations 5-6). Up and gate are one matrix
    product, with the rows of up first.
    """

    num_inner = 2

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the transformed tokens."""
        up, gate = self.up(hidden).chunk(2, -1)
        return self.down(self.dropout(self.activation(up) * gate))
