"""From token vectors to one vector per sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maskloom.layers.sequence_layout import SequenceLayout


class FirstTokenPooler(nn.Module):
    """tanh(dense(first token)): (tokens, hidden) to (sequences, hidden), values in (-1, 1).

    Differs from the paper: it names the raw final [CLS] state; the published code and weights have this layer.
    An empty sequence pools to zeros.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor, layout: SequenceLayout) -> Tensor:
        """Return one pooled vector per sequence."""
        if layout.num_tokens == 0:
            return hidden.new_zeros(layout.num_sequences, hidden.shape[-1])
        pooled = torch.tanh(self.dense(hidden.index_select(0, layout.first_positions)))
        if layout.has_empty_sequences:
            pooled = pooled * (layout.lengths > 0).unsqueeze(1)
        return pooled
