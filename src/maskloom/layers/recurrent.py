"""Recurrent networks over packed sequences: Elman, LSTM, GRU (Elman 1990; Hochreiter and Schmidhuber 1997).

Cells read packed tokens in time order, with hand-written gradients (Werbos 1990): autograd would record every operation
of every step; here a step is one product and a few in-place operations, and whatever does not depend on the previous
step is computed for all tokens together. Letters: n tokens, g rows of a cell's matrices, h its size, w directions of
reading, which run in lockstep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence

from maskloom.layers.copies import to_device
from maskloom.layers.dropout import Dropout
from maskloom.layers.processor.matrix_products import dense
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import CarriedLayer

Tensors = Sequence[Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]  # of inputs (w, n, g), recurrent weights (w, g, h) and their bias (w, g)

sigmoid_slope, tanh_slope = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward  # x y (1 - y), x (1 - y^2)


class TimeOrder:
    """The order of tokens by time step, longest sequence first, for reading forwards or in both directions.

    `tokens` (w, n) is the token at each place, `places` (w, n) the place of each token, `nonempty` (sequences,) the
    non-empty sequences, longest first, and `batch_sizes` (steps,) the number of sequences that reach each step. States
    have one row for each of these sequences, then one for each place; `before` (n,) is the row of the previous state
    of each place, `last` (sequences,) the row of the last state of each sequence. There must be at least one token.
    """

    def __init__(self, lengths: np.ndarray, device: torch.device, *, num_ways: int = 1) -> None:
        numbers, ends = np.arange(int(lengths.sum())), np.cumsum(lengths)
        longest_first = np.argsort(-lengths, kind="stable")
        self.batch_sizes = np.bincount(lengths)[:0:-1].cumsum()[::-1].copy()  # sequences of at least 1, 2, ... tokens
        begins = np.repeat(np.cumsum(self.batch_sizes) - self.batch_sizes, self.batch_sizes)
        steps = np.repeat(np.arange(len(self.batch_sizes)), self.batch_sizes)
        order, places = (ends - lengths)[longest_first][numbers - begins] + steps, np.empty_like(numbers)
        places[order] = numbers
        mirrored = np.repeat(2 * ends - lengths - 1, lengths) - numbers
        self.tokens = np.stack([order, mirrored[order]][:num_ways])
        self.places = np.stack([places, places[mirrored]][:num_ways])
        first = int(self.batch_sizes[0])
        ranked = longest_first[:first]
        self.sizes = [first, *self.batch_sizes.tolist()]
        self.nonempty = to_device(ranked, device)
        self.before = to_device(first + numbers - np.repeat(self.sizes[:-1], self.batch_sizes), device)
        self.last = to_device(first + places[ends[ranked] - 1], device)
        ways = np.arange(num_ways)[:, None]
        self._taken = to_device((self.tokens * num_ways + ways).ravel(), device)
        self._back = to_device((self.places + ways * len(order)).T.ravel(), device)

    def by_time(self, packed: Tensor) -> Tensor:
        """Reorder packed tokens by time, separately for each direction: (n, w size) to (w, n, size)."""
        rows = packed.reshape(self._taken.numel(), -1).index_select(0, self._taken)
        return rows.view(-1, len(packed), rows.shape[1])

    def packed(self, by_time: Tensor) -> Tensor:
        """Reverse `by_time`: (w, n, size) to (n, w size)."""
        return by_time.reshape(self._back.numel(), -1).index_select(0, self._back).view(by_time.shape[1], -1)


def _steps(states: Tensor, sizes: list[int]) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Return, for each step, the previous states and the new states."""
    blocks = states.split(sizes, 1)
    return [block[:, :size] for block, size in zip(blocks, sizes[1:], strict=False)], blocks[1:]


@dataclass(frozen=True)
class Cell:
    """A recurrent cell with its parameters laid out as in torch's `module`.

    `kernel` is torch's equivalent function, if any. A state has `num_parts`: h and, for an LSTM, c.
    """

    module: Callable[[int, int], nn.RNNBase]
    kernel: Callable[..., tuple[Tensor, ...]] | None = None
    num_parts: int = 1

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor, states: Tensors, sizes: list[int]) -> Tensors:
        """Fill the states (w, sequences + n, h) except the initial ones; return what else `backward` needs.

        `inputs` (w, n, g), the products of inputs and weights, may be overwritten.
        """
        raise NotImplementedError

    def backward(self, weight: Tensor, states: Tensors, kept: Tensors, grads: Tensors, at: TimeOrder) -> Gradients:
        """Return the gradients; `grads`, the outside gradients of the states, get those from later steps in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Elman(Cell):
    """h = activation(W x + U h + b), where the activation is tanh or sigmoid (Elman 1990)."""

    is_tanh: bool = True

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor, states: Tensors, sizes: list[int]) -> Tensors:
        activation, transposed = torch.tanh if self.is_tanh else torch.sigmoid, weight.transpose(1, 2)
        inputs += bias.unsqueeze(1)
        for rows, before, after in zip(inputs.split(sizes[1:], 1), *_steps(states[0], sizes), strict=True):
            activation(rows.baddbmm_(before, transposed), out=after)
        return ()

    def backward(self, weight: Tensor, states: Tensors, kept: Tensors, grads: Tensors, at: TimeOrder) -> Gradients:
        h = states[0][:, at.sizes[0] :]
        inputs = 1 - h * h if self.is_tanh else h * (1 - h)
        steps = [*zip(inputs.split(at.sizes[1:], 1), *_steps(grads[0], at.sizes), strict=True)]
        for rows, before, after in reversed(steps):
            before.baddbmm_(rows.mul_(after), weight)
        return inputs, inputs.transpose(1, 2) @ states[0].index_select(1, at.before), inputs.sum(1)


class _Lstm(Cell):
    """c = f c + i tanh(g), h = o tanh(c); gates in the order i, f, g, o (Gers et al. 2000)."""

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor, states: Tensors, sizes: list[int]) -> Tensors:
        inputs += bias.unsqueeze(1)
        size, transposed = weight.shape[2], weight.transpose(1, 2)
        tanhs = torch.empty_like(states[1][:, sizes[0] :])
        first = inputs[..., : 2 * size]
        parts = [part.split(sizes[1:], 1) for part in (inputs, first, *inputs.chunk(4, 2), tanhs)]
        (h, next_h), (c, next_c) = (_steps(state, sizes) for state in states)
        for rows, gates, i, f, g, o, tanh, h_0, c_0, h_1, c_1 in zip(*parts, h, c, next_h, next_c, strict=True):
            rows.baddbmm_(h_0, transposed)
            gates.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c_0, out=c_1).addcmul_(i, g)
            torch.mul(o, torch.tanh(c_1, out=tanh), out=h_1)
        return inputs, tanhs

    def backward(self, weight: Tensor, states: Tensors, kept: Tensors, grads: Tensors, at: TimeOrder) -> Gradients:
        (gates, tanhs), size = kept, weight.shape[2]
        i, f, g, o = gates.chunk(4, 2)
        inputs = torch.empty_like(gates)
        d_i, d_f, d_g, d_o = inputs.chunk(4, 2)
        sigmoid_slope(g, i, grad_input=d_i)
        sigmoid_slope(states[1].index_select(1, at.before), f, grad_input=d_f)
        tanh_slope(i, g, grad_input=d_g)
        sigmoid_slope(tanhs, o, grad_input=d_o)
        of_c = inputs[..., : 3 * size].unflatten(2, (3, size))
        parts = [part.split(at.sizes[1:], 1) for part in (inputs, of_c, d_o, tanh_slope(o, tanhs), f)]
        (h, next_h), (c, next_c) = (_steps(grad, at.sizes) for grad in grads)
        for rows, by_c, by_h, slope, f_1, h_0, c_0, h_1, c_1 in reversed(
            [*zip(*parts, h, c, next_h, next_c, strict=True)]
        ):
            c_1.addcmul_(h_1, slope)
            by_h.mul_(h_1)
            by_c.mul_(c_1.unsqueeze(2))
            c_0.addcmul_(c_1, f_1)
            h_0.baddbmm_(rows, weight)
        return inputs, inputs.transpose(1, 2) @ states[0].index_select(1, at.before), inputs.sum(1)


class _Gru(Cell):
    """h = z h + (1 - z) tanh(W x + r (U h + b)); gates in the order r, z, n, reset applied after the product."""

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor, states: Tensors, sizes: list[int]) -> Tensors:
        size, transposed = weight.shape[2], weight.transpose(1, 2)
        news, of_gates = inputs[..., 2 * size :].clone(), inputs[..., : 2 * size]
        inputs[..., 2 * size :] = 0
        inputs += bias.unsqueeze(1)
        parts = [part.split(sizes[1:], 1) for part in (inputs, of_gates, *inputs.chunk(3, 2), news)]
        for rows, gates, r, z, product, new, before, after in zip(*parts, *_steps(states[0], sizes), strict=True):
            rows.baddbmm_(before, transposed)
            gates.sigmoid_()
            torch.lerp(new.addcmul_(r, product).tanh_(), before, z, out=after)
        return inputs, news

    def backward(self, weight: Tensor, states: Tensors, kept: Tensors, grads: Tensors, at: TimeOrder) -> Gradients:
        (gates, news), size, before = kept, weight.shape[2], states[0].index_select(1, at.before)
        r, z, product = gates.chunk(3, 2)
        products, slope = torch.empty_like(gates), tanh_slope(1 - z, news)
        d_r, d_z, d_product = products.chunk(3, 2)
        sigmoid_slope(slope * product, r, grad_input=d_r)
        sigmoid_slope(before - news, z, grad_input=d_z)
        torch.mul(slope, r, out=d_product)
        by_h = products.unflatten(2, (3, size))
        parts = [part.split(at.sizes[1:], 1) for part in (products, by_h, z)]
        for rows, by_gate, z_1, h_0, h_1 in reversed([*zip(*parts, *_steps(grads[0], at.sizes), strict=True)]):
            by_gate.mul_(h_1.unsqueeze(2))
            h_0.addcmul_(h_1, z_1).baddbmm_(rows, weight)
        inputs = products.clone()
        torch.mul(slope, grads[0][:, at.sizes[0] :], out=inputs[..., 2 * size :])
        return inputs, products.transpose(1, 2) @ before, products.sum(1)


class _GruBefore(Cell):
    """h = z h + (1 - z) tanh(W x + U (r h) + b); reset applied before the product (Cho et al. 2014, equations 5-8)."""

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor, states: Tensors, sizes: list[int]) -> Tensors:
        inputs += bias.unsqueeze(1)
        size = weight.shape[2]
        of_gates, of_new = weight.transpose(1, 2).split([2 * size, size], 2)
        left = torch.empty_like(states[0][:, sizes[0] :])
        parts = [part.split(sizes[1:], 1) for part in (inputs[..., : 2 * size], *inputs.chunk(3, 2), left)]
        for gates, r, z, new, rest, before, after in zip(*parts, *_steps(states[0], sizes), strict=True):
            gates.baddbmm_(before, of_gates).sigmoid_()
            new.baddbmm_(torch.mul(r, before, out=rest), of_new).tanh_()
            torch.lerp(new, before, z, out=after)
        return inputs, left

    def backward(self, weight: Tensor, states: Tensors, kept: Tensors, grads: Tensors, at: TimeOrder) -> Gradients:
        (gates, left), size, before = kept, weight.shape[2], states[0].index_select(1, at.before)
        r, z, new = gates.chunk(3, 2)
        inputs = torch.empty_like(gates)
        d_r, d_z, d_new = inputs.chunk(3, 2)
        sigmoid_slope(before, r, grad_input=d_r)
        sigmoid_slope(before - new, z, grad_input=d_z)
        tanh_slope(1 - z, new, grad_input=d_new)
        of_gates, of_new = weight.split([2 * size, size], 1)
        by_h = inputs[..., size:].unflatten(2, (2, size))
        parts = [part.split(at.sizes[1:], 1) for part in (inputs[..., : 2 * size], by_h, d_r, d_new, r, z)]
        steps = [*zip(*parts, *_steps(grads[0], at.sizes), strict=True)]
        for rows, by_gate, reset, candidate, r_1, z_1, h_0, h_1 in reversed(steps):
            by_gate.mul_(h_1.unsqueeze(2))
            rest = candidate @ of_new
            reset.mul_(rest)
            h_0.addcmul_(h_1, z_1).addcmul_(rest, r_1).baddbmm_(rows, of_gates)
        found = [inputs[..., : 2 * size].transpose(1, 2) @ before, d_new.transpose(1, 2) @ left]
        return inputs, torch.cat(found, 1), inputs.sum(1)


CELLS: dict[str, Cell] = {
    "elman_tanh": _Elman(nn.RNN, torch.rnn_tanh),
    "elman_sigmoid": _Elman(nn.RNN, is_tanh=False),
    "lstm": _Lstm(nn.LSTM, torch.lstm, num_parts=2),
    "gru": _Gru(nn.GRU, torch.gru),
    "gru_before": _GruBefore(nn.GRU),
}
"""All cells by name."""


class _Recurrence(torch.autograd.Function):
    """All steps of a cell: inputs (n, w g) with bias, weight (w, g, h) and bias (w, g) of states, and first states."""

    @staticmethod
    def forward(ctx, cell: Cell, at: TimeOrder, inputs: Tensor, weight: Tensor, bias: Tensor, first: Tensor):
        by_time, number = at.by_time(inputs), at.sizes[0]
        shape = (len(weight), number + len(inputs), weight.shape[2])
        states = [by_time.new_empty(shape) for _ in range(first.shape[1])]
        for state, part in zip(states, first.unbind(1), strict=True):
            state[:, :number] = part.view(number, len(weight), -1).transpose(0, 1)
        ctx.cell, ctx.at, ctx.num_parts = cell, at, len(states)
        ctx.save_for_backward(weight, *states, *cell.forward(by_time, weight, bias, states, at.sizes))
        last = [state.index_select(1, at.last).transpose(0, 1).flatten(1) for state in states]
        return at.packed(states[0][:, number:]), torch.stack(last, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_outputs: Tensor, d_last: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        (weight, *kept), at, number = ctx.saved_tensors, ctx.at, ctx.at.sizes[0]
        states, kept = kept[: ctx.num_parts], kept[ctx.num_parts :]
        grads = [torch.zeros_like(state) for state in states]
        grads[0][:, number:] = at.by_time(d_outputs)
        for grad, part in zip(grads, d_last.unbind(1), strict=True):
            grad.index_add_(1, at.last, part.reshape(number, len(weight), -1).transpose(0, 1))
        d_inputs, d_weight, d_bias = ctx.cell.backward(weight, states, kept, grads, at)
        d_first = torch.stack([grad[:, :number].transpose(0, 1).flatten(1) for grad in grads], 1)
        return None, None, at.packed(d_inputs), d_weight, d_bias, d_first


def read(
    cell: Cell, ways: Sequence[Sequence[Tensor]], vectors: Tensor, at: TimeOrder, first: Tensor
) -> tuple[Tensor, Tensor]:
    """Return h at every token, (tokens, ways size), and the last states of non-empty sequences.

    `ways` has the weights of each direction in torch's order. `first` and the last states are
    (sequences, parts, ways size). On CUDA, torch's kernel is used if the cell has one. Otherwise double backward is not
    supported.
    """
    if vectors.is_cuda and cell.kernel is not None:
        return read_by_kernel(cell.kernel, ways, vectors, at, first)
    of_inputs, of_state, bias, state_bias = (
        torch.cat([way[number] for way in ways]) if len(ways) > 1 else ways[0][number] for number in range(4)
    )
    weight = of_state.view(len(ways), -1, of_state.shape[1])
    inputs, first = (each.to(weight.dtype) for each in (dense(vectors, of_inputs, bias), first))
    return _Recurrence.apply(  # pyright: ignore[reportReturnType]
        cell, at, inputs, weight, state_bias.view(len(ways), -1), first
    )


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
