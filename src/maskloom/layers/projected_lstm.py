"""Forward and backward LSTMs with projected and clipped states (Sak et al. 2014; ELMo)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from maskloom.layers.dropout import Dropout
from maskloom.layers.processor.matrix_products import product
from maskloom.layers.processor.onednn import prefers_onednn
from maskloom.layers.recurrent import TimeOrder, sigmoid_slope, tanh_slope
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import CarriedLayer


class ProjectedLSTMs(CarriedLayer):
    """Two LSTMs over packed sequences, the second from right to left: (tokens, 2 size) to (tokens, 2 size).

    The first reads and writes the left half of each vector, the second the right half (Peters et al. 2018, 3.1). A step
    is c = f c + i tanh(g), clipped to +-`cell_clip`, and h = P (o tanh(c)), of `size`, clipped to +-`clip`; a bound of
    0 disables clipping. With `adds_input`, the input is added to h outside the recurrence. `weight` holds the input
    weights and then the weights of h, for the gates i, f, o, g; the first dimension of all weights is the direction.
    The state of a sequence is (2, size + cell size): h and c of each direction. If `memory` is true, the right halves
    belong to another text of the same lengths, already reversed. Dropout is applied to the inputs. The last state has
    no gradient.
    """

    def __init__(
        self, size: int, cell_size: int, *, cell_clip: float, clip: float, adds_input: bool, dropout: float
    ) -> None:
        super().__init__()
        self.size, self.cell_size, self.clips, self.adds_input = size, cell_size, (cell_clip, clip), adds_input
        self.weight = nn.Parameter(torch.empty(2, 4 * cell_size, 2 * size))
        self.bias = nn.Parameter(torch.empty(2, 1, 4 * cell_size))
        self.projection = nn.Parameter(torch.empty(2, size, cell_size))
        self.dropout, self.state_shape = Dropout(dropout), (2, size + cell_size)

    def computed(
        self, hidden: Tensor, layout: SequenceLayout, past: None, memory: tuple[Tensor, Any]
    ) -> tuple[Tensor, Tensor]:
        """Return h at every token and the last states; `memory` has initial states and whether halves are two texts."""
        inputs, (kept, is_reversed) = self.dropout(hidden[: layout.num_tokens]), memory
        if layout.num_tokens:
            at = TimeOrder(layout.sizes, hidden.device, num_ways=1 if is_reversed else 2)
            by_time = at.by_time(inputs)
            by_time = by_time[0].unflatten(1, (2, -1)).transpose(0, 1) if is_reversed else by_time
            first = kept.index_select(0, at.nonempty).transpose(0, 1).contiguous()
            with torch.autocast(hidden.device.type, enabled=False):
                outputs, last = _Steps.apply(  # pyright: ignore[reportGeneralTypeIssues]
                    by_time.to(self.bias.dtype),
                    first.to(self.bias.dtype),
                    *(self.weight, self.bias, self.projection),
                    (at.batch_sizes, self.clips),
                )
            kept = kept.index_copy(0, at.nonempty, last.transpose(0, 1).to(kept.dtype))
            found = at.packed(outputs.transpose(0, 1).flatten(1)[None] if is_reversed else outputs)
            inputs = found + hidden[: layout.num_tokens] if self.adds_input else found
        return inputs, kept


def _times(x: Tensor, weight: Tensor, out: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias for each direction, written to `out` if given."""
    out = x.new_empty(2, x.shape[1], weight.shape[1]) if out is None else out
    if prefers_onednn(x[0], weight.shape[1]):
        for way in (0, 1):
            out[way] = product(x[way], weight[way], None if bias is None else bias[way, 0])
        return out
    turned = weight.transpose(1, 2)
    return torch.bmm(x, turned, out=out) if bias is None else torch.baddbmm(bias, x, turned, out=out)


class _Steps(torch.autograd.Function):
    """All steps of both directions in lockstep, tokens in time order; each weight's gradient is a single product."""

    @staticmethod
    def forward(
        ctx,
        inputs: Tensor,
        first: Tensor,
        weight: Tensor,
        bias: Tensor,
        projection: Tensor,
        plan: tuple[np.ndarray, tuple[float, float]],
    ) -> tuple[Tensor, Tensor]:
        (batch_sizes, (cell_clip, clip)), size, width = plan, inputs.shape[2], projection.shape[2]
        steps = list(pairwise([0, *np.cumsum(batch_sizes).tolist()]))
        number = inputs.shape[1]
        gates, read = (inputs.new_empty(2, number, each) for each in (4 * width, 2 * size))
        cells, squashed = (inputs.new_empty(2, number, width) for _ in range(2))
        outputs, read[:, :, :size] = torch.empty_like(inputs), inputs
        _times(inputs, weight[:, :, :size], gates, bias)
        by_h = weight[:, :, size:].transpose(1, 2)
        last, h, c = first.clone(), first[:, :, :size], first[:, :, size:]
        for begin, end in steps:
            rows, count = slice(begin, end), end - begin
            if count < h.shape[1]:
                last[:, count : h.shape[1], :size], last[:, count : c.shape[1], size:] = h[:, count:], c[:, count:]
            step, cell, squash = gates[:, rows], cells[:, rows], squashed[:, rows]
            read[:, rows, size:] = h[:, :count]
            step.baddbmm_(h[:, :count], by_h)
            opened, new = step[:, :, : 3 * width].sigmoid_(), step[:, :, 3 * width :].tanh_()
            torch.mul(opened[:, :, width : 2 * width], c[:, :count], out=cell)
            cell.addcmul_(opened[:, :, :width], new)
            if cell_clip:
                cell.clamp_(-cell_clip, cell_clip)
            torch.tanh(cell, out=squash)
            h, c = _times(opened[:, :, 2 * width :] * squash, projection, outputs[:, rows]), cell
            if clip:
                h.clamp_(-clip, clip)
        last[:, : h.shape[1], :size], last[:, : h.shape[1], size:] = h, c
        ctx.save_for_backward(first, weight, projection, read, gates, cells, squashed, outputs)
        ctx.steps, ctx.clips = steps, (cell_clip, clip)
        ctx.mark_non_differentiable(last)
        return outputs, last

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_outputs: Tensor, _: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        first, weight, projection, read, gates, cells, squashed, outputs = ctx.saved_tensors
        (cell_clip, clip), steps, size, width = ctx.clips, ctx.steps, outputs.shape[2], projection.shape[2]
        d_gates, d_states = torch.empty_like(gates), d_outputs.clone()
        d_h, d_c = (gates.new_zeros(2, steps[0][1], each) for each in (size, width))
        by_h, by_m = weight[:, :, size:], projection.transpose(1, 2)
        clipped_h, clipped_c = (
            values.abs() >= bound if bound else None for values, bound in ((outputs, clip), (cells, cell_clip))
        )
        for number, (begin, end) in reversed(list(enumerate(steps))):
            rows, count = slice(begin, end), end - begin
            d_state, squash = d_states[:, rows], squashed[:, rows]
            step, (i, f, o, new) = d_gates[:, rows], gates[:, rows].chunk(4, 2)
            d_state += d_h[:, :count]
            if clipped_h is not None:
                d_state.masked_fill_(clipped_h[:, rows], 0.0)
            d_out, d_cell = _times(d_state, by_m), d_c[:, :count]
            d_cell += tanh_slope(d_out * o, squash)
            if clipped_c is not None:
                d_cell.masked_fill_(clipped_c[:, rows], 0.0)
            before = first[:, :count, size:] if number == 0 else cells[:, steps[number - 1][0] :][:, :count]
            d_i, d_f, d_o, d_new = step.chunk(4, 2)
            sigmoid_slope(d_cell * new, i, grad_input=d_i)
            sigmoid_slope(d_cell * before, f, grad_input=d_f)
            sigmoid_slope(d_out * squash, o, grad_input=d_o)
            tanh_slope(d_cell * i, new, grad_input=d_new)
            d_cell *= f
            torch.bmm(step, by_h, out=d_h[:, :count])
        d_inputs = _times(d_gates, weight[:, :, :size].transpose(1, 2))
        d_weight = _times(read.transpose(1, 2), d_gates.transpose(1, 2)).transpose(1, 2).contiguous()
        m = gates[:, :, 2 * width : 3 * width] * squashed
        d_projection = _times(d_states.transpose(1, 2), m.transpose(1, 2))
        return d_inputs, None, d_weight, d_gates.sum(1, keepdim=True), d_projection, None
