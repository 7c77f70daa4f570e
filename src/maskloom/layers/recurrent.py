"""A bidirectional LSTM over packed sequences (Hochreiter and Schmidhuber 1997; BERT paper 5.3, 5.1)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from maskloom.layers.copies import to_device
from maskloom.layers.sequence_layout import SequenceLayout


class BiLSTM(nn.Module):
    """Layers of two LSTMs, one reading forwards and one backwards: (tokens, inputs) to (tokens, output_size).

    `output_size` counts both directions together, each having half of it; it must be even. `dropout` thins what passes
    from one layer to the next. No state passes between sequences, and no padding is ever computed.
    """

    def __init__(self, input_size: int, output_size: int, *, num_layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        if output_size < 2 or output_size % 2:
            raise ValueError(f"output_size is {output_size}; two directions share it, so it must be even")
        self.output_size = output_size
        self.lstm = nn.LSTM(
            input_size,
            output_size // 2,
            num_layers=num_layers,
            bidirectional=True,
            dropout=dropout if num_layers > 1 else 0.0,
        )

    def forward(self, vectors: Tensor, layout: SequenceLayout) -> Tensor:
        """Read packed vectors (tokens, inputs), each sequence by itself; ValueError for a layout of other tokens."""
        if len(vectors) != layout.num_tokens:
            raise ValueError(f"{len(vectors)} vectors do not fit a layout of {layout.num_tokens} tokens")
        if not layout.num_tokens:
            return vectors.new_zeros((0, self.output_size))
        order, indices, batch_sizes = time_order(layout.sizes)
        by_time = vectors.index_select(0, to_device(order, vectors.device))
        outputs, _ = self.lstm(PackedSequence(by_time, torch.from_numpy(batch_sizes)))
        return outputs.data.index_select(0, to_device(indices, vectors.device))


def time_order(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how packed tokens are reordered step by step, longest sequence first, as recurrent layers read them.

    The first array names the token at each place of the new order, the second the place of each token, both (tokens,);
    the third counts the sequences that are still going at each step, (steps,). Empty sequences have no part.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    ranks = np.empty(len(lengths), dtype=np.int64)
    ranks[np.argsort(-lengths, kind="stable")] = np.arange(len(lengths))
    steps = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    order = np.lexsort((np.repeat(ranks, lengths), steps))
    return order, np.argsort(order), np.bincount(steps)
