"""Pooling of token vectors into one vector per sequence."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from maskloom.layers.activations import Activation
from maskloom.layers.sequence_layout import SequenceLayout

Reads = Literal["first", "last", "ends"]


class LastToken(nn.Module):
    """The last token's vector, or both "ends" as in `TokenPooler`: (tokens, hidden) to (sequences, hidden).

    An empty sequence pools to zeros.
    """

    def __init__(self, reads: Reads = "last") -> None:
        super().__init__()
        self.reads: Reads = reads

    def forward(self, hidden: Tensor, layout: SequenceLayout) -> Tensor:
        """Return one vector per sequence."""
        if layout.num_tokens == 0:
            return hidden.new_zeros(layout.num_sequences, hidden.shape[-1])
        read = hidden.index_select(0, layout.first_positions if self.reads == "first" else layout.last_positions)
        if self.reads == "ends":
            half = hidden.shape[1] // 2
            read = torch.cat([read[:, :half], hidden.index_select(0, layout.first_positions)[:, half:]], dim=1)
        pooled = self._pooled(read)
        return pooled * (layout.lengths > 0).unsqueeze(1) if layout.has_empty_sequences else pooled

    def _pooled(self, read: Tensor) -> Tensor:
        return read


class TokenPooler(LastToken):
    """tanh(dense(first token)): (tokens, hidden) to (sequences, hidden), values in (-1, 1).

    Differs from the paper, which uses the raw final [CLS] state; the published code and weights have this layer.
    `activation` replaces tanh. With `reads` "last", the last token replaces the first, as it must where tokens see only
    earlier tokens. "ends" is for a BiLSTM, whose vectors have a forward and a backward half: it joins the first half of
    the last token and the second half of the first token. An empty sequence pools to zeros.
    """

    def __init__(self, hidden_size: int, *, reads: Reads = "first", activation: Activation = torch.tanh) -> None:
        super().__init__(reads)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self._activation = activation

    def _pooled(self, read: Tensor) -> Tensor:
        return self._activation(self.dense(read))


class OverTokens(nn.Module):
    """The "max", "mean" or "sum" over the tokens of each sequence: (tokens, hidden) to (sequences, hidden).

    An empty sequence pools to zeros.
    """

    def __init__(self, kind: Literal["max", "mean", "sum"]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, hidden: Tensor, layout: SequenceLayout) -> Tensor:
        """Return one vector per sequence."""
        rows = torch.repeat_interleave(layout.lengths, output_size=layout.num_tokens)
        zeros = hidden.new_zeros(layout.num_sequences, hidden.shape[1])
        if self.kind != "max":
            summed = zeros.index_add(0, rows, hidden)
            return summed / layout.lengths.clamp(min=1).unsqueeze(1) if self.kind == "mean" else summed
        plain, places = hidden.detach(), rows.unsqueeze(1).expand_as(hidden)
        largest = zeros.scatter_reduce(0, places, plain, "amax", include_self=False)
        if not hidden.requires_grad:
            return largest
        # its own gradient goes element by element; that of the mean of the equal maxima is the same, row by row
        is_largest = largest.index_select(0, rows).eq_(plain)
        mean = zeros.index_add(0, rows, hidden * is_largest) / zeros.index_add(0, rows, is_largest).clamp_(min=1)
        return largest + (mean - mean.detach())
