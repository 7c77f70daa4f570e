"""Recurrent networks over packed sequences: Elman, LSTM, GRU (Elman 1990; Hochreiter and Schmidhuber 1997)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from maskloom.layers.copies import to_device
from maskloom.layers.dropout import Dropout
from maskloom.layers.processor.matrix_products import dense
from maskloom.layers.recurrent_passes import ElmanPass, GruBeforePass, GruPass, LstmPass, Pass, TimeOrder, recurrence
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import CarriedLayer


@dataclass(frozen=True)
class Cell:
    """A recurrent cell with its parameters laid out as in torch's `module`.

    `steps` computes its passes; `kernel` is torch's equivalent function, if any. A state has `num_parts`: h and, for an
    LSTM, c.
    """

    module: Callable[[int, int], nn.RNNBase]
    steps: Pass
    kernel: Callable[..., tuple[Tensor, ...]] | None = None
    num_parts: int = 1


CELLS = {
    "elman_tanh": Cell(nn.RNN, ElmanPass(is_tanh=True), torch.rnn_tanh),
    "elman_sigmoid": Cell(nn.RNN, ElmanPass(is_tanh=False)),
    "lstm": Cell(nn.LSTM, LstmPass(), torch.lstm, num_parts=2),
    "gru": Cell(nn.GRU, GruPass(), torch.gru),
    "gru_before": Cell(nn.GRU, GruBeforePass()),
}
"""All cells by name."""


def read(
    cell: Cell, ways: Sequence[Sequence[Tensor]], vectors: Tensor, at: TimeOrder, first: Tensor
) -> tuple[Tensor, Tensor]:
    """Return h at every token, (tokens, ways size), and the last states of non-empty sequences.

    `ways` has the weights of each direction in torch's order. `first` and the last states are
    (sequences, parts, ways size). On CUDA, torch's kernel is used if the cell has one.
    """
    if vectors.is_cuda and cell.kernel is not None:
        return read_by_kernel(cell.kernel, ways, vectors, at, first)
    of_inputs, of_state, bias, state_bias = (
        torch.cat([way[number] for way in ways]) if len(ways) > 1 else ways[0][number] for number in range(4)
    )
    weight = of_state.view(len(ways), -1, of_state.shape[1])
    inputs = dense(vectors, of_inputs, bias)
    return recurrence(cell.steps, at, inputs, weight, state_bias.view(len(ways), -1), first)


def read_by_kernel(
    kernel: Callable[..., tuple[Tensor, ...]],
    ways: Sequence[Sequence[Tensor]],
    vectors: Tensor,
    at: TimeOrder,
    first: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the same as `read`, computed by a function of torch, one direction after the other.

    It computes in the type of the weights: autocast would give cuDNN fp16, in which small gradients vanish.
    """
    outputs, last, sizes, device = list[Tensor](), list[Tensor](), torch.from_numpy(at.batch_sizes), vectors.device
    vectors, first = (each.to(ways[0][0].dtype) for each in (vectors, first))
    firsts = first.transpose(0, 1).chunk(len(ways), 2)
    for weights, parts, tokens, places in zip(ways, firsts, at.tokens, at.places, strict=True):
        by_time = vectors.index_select(0, to_device(tokens, device))
        state = [part.unsqueeze(0).contiguous() for part in parts]
        state = state if len(state) > 1 else state[0]
        with torch.autocast(device.type, enabled=False):
            output, *ends = kernel(by_time, sizes, state, weights, True, 1, 0.0, torch.is_grad_enabled(), False)
        outputs.append(output.index_select(0, to_device(places, device)))
        last.append(torch.cat(ends).transpose(0, 1))
    return torch.cat(outputs, 1), torch.cat(last, 2)


class RecurrentLayer(CarriedLayer):
    """A recurrent layer that reads each sequence forwards, or in both directions: (tokens, hidden) to (tokens, hidden).

    Two directions share the hidden size, which must be even. Dropout is applied to the inputs, never to the state
    (Zaremba et al. 2014, 3.2). The state of a sequence is (parts, hidden): h and, for an LSTM, c.

    Raises ValueError if the hidden size of a bidirectional layer is odd.
    """

    def __init__(self, cell: str, hidden_size: int, *, bidirectional: bool, dropout: float) -> None:
        super().__init__()
        if bidirectional and hidden_size % 2:
            raise ValueError(f"hidden size {hidden_size} must be even: two directions share it")
        self.cell = CELLS[cell]
        self.state_shape = (self.cell.num_parts, hidden_size)
        width = hidden_size // 2 if bidirectional else hidden_size
        self.forwards = self.cell.module(hidden_size, width)
        self.backwards = self.cell.module(hidden_size, width) if bidirectional else None
        self.dropout = Dropout(dropout)

    def computed(
        self, hidden: Tensor, layout: SequenceLayout, past: None, memory: tuple[Tensor, Any]
    ) -> tuple[Tensor, Tensor]:
        """Return h at every token and the last states, starting from the states in `memory`."""
        vectors, (state, _) = self.dropout(hidden[: layout.num_tokens]), memory
        if not layout.num_tokens:
            return vectors, state
        ways = [rnn.all_weights[0] for rnn in (self.forwards, self.backwards) if rnn is not None]
        at = TimeOrder(layout.sizes, hidden.device, num_ways=len(ways))
        vectors, last = read(self.cell, ways, vectors, at, state.index_select(0, at.nonempty))
        return vectors, state.index_copy(0, at.nonempty, last.to(state.dtype))


class BiLSTM(nn.Module):
    """A stack of bidirectional LSTMs: (tokens, inputs) to (tokens, output_size).

    Each direction has half of `output_size`; ValueError is raised if that is odd. `dropout` is applied between layers.
    """

    def __init__(self, input_size: int, output_size: int, *, num_layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        if output_size < 2 or output_size % 2:
            raise ValueError(f"output_size {output_size} must be even: two directions share it")
        self.output_size = output_size
        self.lstm = nn.LSTM(
            input_size,
            output_size // 2,
            num_layers=num_layers,
            bidirectional=True,
            dropout=dropout if num_layers > 1 else 0.0,
        )

    def forward(self, vectors: Tensor, layout: SequenceLayout) -> Tensor:
        """Read packed vectors (tokens, inputs), each sequence separately; ValueError if the layout does not fit."""
        if len(vectors) != layout.num_tokens:
            raise ValueError(f"{len(vectors)} vectors do not fit a layout of {layout.num_tokens} tokens")
        if not layout.num_tokens:
            return vectors.new_zeros((0, self.output_size))
        at, device = TimeOrder(layout.sizes, vectors.device, num_ways=2), vectors.device
        order, places = to_device(at.tokens[0], device), to_device(at.places[0], device)
        if vectors.is_cuda:
            by_time = vectors.index_select(0, order).to(self.lstm.all_weights[0][0].dtype)
            with torch.autocast(device.type, enabled=False):  # see `read_by_kernel`
                outputs, _ = self.lstm(PackedSequence(by_time, torch.from_numpy(at.batch_sizes)))
            return outputs.data.index_select(0, places)
        first, weights = vectors.new_zeros(at.sizes[0], 2, self.output_size), self.lstm.all_weights
        for number in range(self.lstm.num_layers):
            if number and self.lstm.dropout:  # draw in time order, as torch's kernel does
                by_time = F.dropout(vectors.index_select(0, order), self.lstm.dropout, self.training)
                vectors = by_time.index_select(0, places)
            vectors, _ = read(CELLS["lstm"], weights[2 * number : 2 * number + 2], vectors, at, first)
        return vectors
