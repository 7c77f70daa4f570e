"""Recurrent networks over packed sequences: Elman's, LSTM, GRU (Elman 1990; Hochreiter and Schmidhuber 1997)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from maskloom.layers.attention import Kept
from maskloom.layers.copies import to_device
from maskloom.layers.dropout import Dropout
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import Recomputable

State = tuple[Tensor, ...]
"""The state of a cell, each part (sequences, size): h first, then c of an LSTM."""


@dataclass(frozen=True)
class Cell:
    """A recurrent cell, whose parameters are laid out as those of torch's `module`.

    `step` takes a module, the products of inputs and weights with their bias (sequences, gates) and the state before,
    and returns the next one. A `kernel` of torch does the same with all steps of packed sequences.
    """

    module: Callable[[int, int], nn.RNNBase]
    step: Callable[[nn.RNNBase, Tensor, State], State]
    kernel: Callable[..., tuple[Tensor, ...]] | None = None
    num_parts: int = 1


def _weights(rnn: nn.RNNBase) -> tuple[Tensor, Tensor]:
    return rnn.weight_hh_l0, rnn.bias_hh_l0  # pyright: ignore[reportReturnType]


def elman(activation: Callable[[Tensor], Tensor]) -> Callable[[nn.RNNBase, Tensor, State], State]:
    """h = activation(W x + U h + b)."""
    return lambda rnn, inputs, state: (activation(inputs + F.linear(state[0], *_weights(rnn))),)


def _lstm(rnn: nn.RNNBase, inputs: Tensor, state: State) -> State:
    """c = f c + i tanh(g), h = o tanh(c); gates in the order i, f, g, o (Gers et al. 2000)."""
    i, f, g, o = (inputs + F.linear(state[0], *_weights(rnn))).chunk(4, 1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(rnn: nn.RNNBase, inputs: Tensor, state: State) -> State:
    """h = z h + (1 - z) tanh(W x + r (U h + b)), the reset after the product."""
    (r, z, n), (h_r, h_z, h_n) = inputs.chunk(3, 1), F.linear(state[0], *_weights(rnn)).chunk(3, 1)
    z, n = (z + h_z).sigmoid(), (n + (r + h_r).sigmoid() * h_n).tanh()
    return (z * state[0] + (1 - z) * n,)


def _gru_before(rnn: nn.RNNBase, inputs: Tensor, state: State) -> State:
    """h = z h + (1 - z) tanh(W x + U (r h) + b), the reset before the product (Cho et al. 2014, equations 5 to 8)."""
    (h,), (weight, bias), size = state, _weights(rnn), 2 * rnn.hidden_size
    r, z = (inputs[:, :size] + F.linear(h, weight[:size], bias[:size])).sigmoid().chunk(2, 1)
    n = (inputs[:, size:] + F.linear(r * h, weight[size:], bias[size:])).tanh()
    return (z * h + (1 - z) * n,)


CELLS = {
    "elman_tanh": Cell(nn.RNN, elman(torch.tanh), torch.rnn_tanh),
    "elman_sigmoid": Cell(nn.RNN, elman(torch.sigmoid)),
    "lstm": Cell(nn.LSTM, _lstm, torch.lstm, num_parts=2),
    "gru": Cell(nn.GRU, _gru, torch.gru),
    "gru_before": Cell(nn.GRU, _gru_before),
}
"""The cells by name."""


def unrolled(
    cell: Cell, rnn: nn.RNNBase, by_time: Tensor, batch_sizes: np.ndarray, state: State
) -> tuple[Tensor, State]:
    """Run a cell over vectors in the order of time, (tokens, inputs), longest sequence first.

    Returns h at every token and the last state of every sequence, in the same orders.
    """
    inputs = F.linear(by_time, rnn.weight_ih_l0, rnn.bias_ih_l0)  # pyright: ignore[reportArgumentType]
    outputs, ended = list[Tensor](), list[State]()
    for rows in inputs.split(batch_sizes.tolist()):
        if len(rows) < len(state[0]):
            ended.append(tuple(part[len(rows) :] for part in state))
            state = tuple(part[: len(rows)] for part in state)
        state = cell.step(rnn, rows, state)
        outputs.append(state[0])
    ended.append(state)
    return torch.cat(outputs), tuple(torch.cat(parts) for parts in zip(*reversed(ended), strict=True))


class RecurrentLayer(Recomputable):
    """A cell that reads each sequence forwards, or two that read it both ways: (tokens, hidden) to the same.

    Two share the hidden size, which must be even. Dropout falls on the inputs, never on the state (Zaremba et al. 2014,
    3.1). All tokens are multiplied with the input weights at once; then each step takes the sequences that still go on,
    so no padding is ever computed. What is kept of a sequence is its last state, (parts, hidden): h, and c of an LSTM.
    Raises ValueError for an odd size of two.
    """

    def __init__(self, cell: str, hidden_size: int, *, bidirectional: bool, dropout: float) -> None:
        super().__init__()
        if bidirectional and hidden_size % 2:
            raise ValueError(f"hidden size {hidden_size}: two directions share it, so it must be even")
        self.cell = CELLS[cell]
        self.state_shape = (self.cell.num_parts, hidden_size)
        width = hidden_size // 2 if bidirectional else hidden_size
        self.forwards = self.cell.module(hidden_size, width)
        self.backwards = self.cell.module(hidden_size, width) if bidirectional else None
        self.dropout = Dropout(dropout)

    def computed(
        self, hidden: Tensor, layout: SequenceLayout, past: Kept | None = None, memory: object = None
    ) -> Tensor:
        """Return h at every token; `past` has the state before the first one, zeros where empty, and gets the last."""
        vectors, sizes = self.dropout(hidden[: layout.num_tokens]), layout.sizes
        kept = vectors.new_zeros(len(sizes), *self.state_shape) if past is None or past.is_empty else past.kept
        if layout.num_tokens:
            order, places, batch_sizes = time_order(sizes)
            ranked = np.argsort(-sizes, kind="stable")[: batch_sizes[0]]
            mirrored = np.repeat(2 * np.cumsum(sizes) - sizes - 1, sizes) - np.arange(len(order))
            going, device = to_device(ranked, hidden.device), hidden.device
            read, outputs, last = kept.index_select(0, going), list[Tensor](), list[Tensor]()
            ways = [(self.forwards, order, places), (self.backwards, mirrored[order], places[mirrored])]
            for (rnn, taken, back), first in zip(ways, read.chunk(1 if self.backwards is None else 2, 2), strict=False):
                by_time = vectors.index_select(0, to_device(taken, device))
                output, state = self._run(rnn, by_time, batch_sizes, tuple(first.unbind(1)))
                outputs.append(output.index_select(0, to_device(back, device)))
                last.append(torch.stack(state, 1))
            vectors = torch.cat(outputs, 1)
            kept = kept.index_copy(0, going, torch.cat(last, 2).to(kept.dtype))
        if past is not None:
            past.kept = kept
        return vectors

    def _run(self, rnn: nn.RNNBase, by_time: Tensor, batch_sizes: np.ndarray, state: State) -> tuple[Tensor, State]:
        # on processors torch's backward pass fills an array of all tokens with zeros at every step
        is_fast = by_time.is_cuda or (by_time.device.type == "cpu" and not torch.is_grad_enabled())
        if (kernel := self.cell.kernel) is None or not is_fast:
            return unrolled(self.cell, rnn, by_time, batch_sizes, state)
        parts = [part.unsqueeze(0).contiguous() for part in state]
        flat = [rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0]
        steps, first = torch.from_numpy(batch_sizes), parts if len(parts) > 1 else parts[0]
        output, *last = kernel(by_time, steps, first, flat, True, 1, 0.0, self.training, False)
        return output, tuple(part[0] for part in last)


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
