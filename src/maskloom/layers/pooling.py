"""From token vectors to one vector per sequence."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from maskloom.layers.activations import Activation
from maskloom.layers.sequence_layout import SequenceLayout

Reads = Literal["first", "last", "ends"]


class TokenPooler(nn.Module):
    """tanh(dense(first token)): (tokens, hidden) to (sequences, hidden), values in (-1, 1).

    Differs from the paper: it names the raw final [CLS] state; the published code and weights have this layer. Another
    `activation` takes the place of tanh.
    One that `reads` the last token takes that in place of the first, as it must where tokens see only those before
    them. Of a BiLSTM, whose halves of a vector read forwards and backwards, it reads both ends: half of the last token
    and half of the first. An empty sequence pools to zeros.
    """

    def __init__(self, hidden_size: int, *, reads: Reads = "first", activation: Activation = torch.tanh) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.reads, self._activation = reads, activation

    def forward(self, hidden: Tensor, layout: SequenceLayout) -> Tensor:
        """Return one pooled vector per sequence."""
        if layout.num_tokens == 0:
            return hidden.new_zeros(layout.num_sequences, hidden.shape[-1])
        positions = layout.first_positions if self.reads == "first" else layout.last_positions
        read = hidden.index_select(0, positions)
        if self.reads == "ends":
            half = hidden.shape[1] // 2
            read = torch.cat([read[:, :half], hidden.index_select(0, layout.first_positions)[:, half:]], dim=1)
        pooled = self._activation(self.dense(read))
        if layout.has_empty_sequences:
            pooled = pooled * (layout.lengths > 0).unsqueeze(1)
        return pooled


class LastToken(nn.Module):
    """The last token's vector: (tokens, hidden) to (sequences, hidden); zeros for an empty sequence."""

    def forward(self, hidden: Tensor, layout: SequenceLayout) -> Tensor:
        """Return one vector per sequence."""
        if layout.num_tokens == 0:
            return hidden.new_zeros(layout.num_sequences, hidden.shape[-1])
        last = hidden.index_select(0, layout.last_positions)
        return last * (layout.lengths > 0).unsqueeze(1) if layout.has_empty_sequences else last
