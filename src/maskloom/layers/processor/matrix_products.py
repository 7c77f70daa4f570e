"""Matrix products by the faster library, with the gradients of a dense layer."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.activations import ACTIVATIONS, Activation
from maskloom.layers.processor.onednn import (
    SMALLEST_GRADIENT,
    Packable,
    filled_up,
    is_half_on_cpu,
    onednn_product,
    prefers_onednn,
    row_step,
)

# oneDNN's names for the forms of GELU.
_FORMS_OF_GELU = {ACTIVATIONS["gelu"]: "none", ACTIVATIONS["gelu_new"]: "tanh"}


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias, without a gradient: (rows, inputs) and (outputs, inputs) to (rows, outputs).

    MKL writes to `out`, if given: memory that was used just before is faster than fresh memory. oneDNN does not.
    """
    if is_half_on_cpu(x):
        return F.linear(filled_up(x), weight, bias)[: len(x)]
    if not prefers_onednn(x, weight.shape[0]):
        if out is None:
            return F.linear(x, weight, bias)
        return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)
    return onednn_product(filled_up(x), weight, bias)[: len(x)]


def transposes_by_onednn(left: Tensor, right: Tensor) -> bool:
    """Return whether oneDNN computes left^T right: (rows, m) and (rows, n)."""
    return left.shape[1] * right.shape[1] >= SMALLEST_GRADIENT and prefers_onednn(left, right.shape[1])


def transposed_product(left: Tensor, right: Tensor) -> Tensor:
    """Return left^T right, without a gradient: (rows, m) and (rows, n) to (m, n), contiguous."""
    if is_half_on_cpu(left):
        return filled_up(left).t() @ filled_up(right)
    if not transposes_by_onednn(left, right):
        return left.t() @ right
    num_rows, num_left, num_right = len(left), left.shape[1], right.shape[1]
    num_whole = num_rows - num_rows % row_step(num_rows)
    first, second = left[:num_whole].t(), right[:num_whole].t()
    # oneDNN's front end copies a transposed first factor but not a second one: the cheaper one to copy goes first.
    if num_rows * num_left <= (num_rows + num_left) * num_right:
        result = onednn_product(first, second)
    else:
        result = onednn_product(second, first).t().contiguous()
    return result if num_whole == num_rows else result.addmm_(left[num_whole:].t(), right[num_whole:])


class Dense(nn.Linear, Packable):
    """x W^T + b like `nn.Linear`, computed by the faster library: (rows, inputs) to (rows, outputs).

    `widths` are the numbers of outputs of the projections that are `joined` in the matrix, none for a single one.
    """

    widths: tuple[int, ...] = ()

    @classmethod
    def joined(cls, num_inputs: int, *widths: int, bias: bool = True) -> Self:
        """Return projections to these numbers of outputs in one matrix; they are initialised as if separate."""
        made = cls(num_inputs, sum(widths), bias=bias)
        made.widths = widths
        return made

    def forward(self, input: Tensor) -> Tensor:
        """Return the transformed rows."""
        if self.is_packed_for(input):
            return self.packed_product(input)
        return dense(input, self.weight, self.bias)

    def activated(self, input: Tensor, activation: Activation) -> Tensor:
        """Return the activation of the transformed rows; GELU is fused into the product if the weight is packed."""
        form = _FORMS_OF_GELU.get(activation) if self.is_packed_for(input) else None
        return activation(self(input)) if form is None else self.packed_product(input, "gelu", form)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x weight^T + bias with gradients for all three: (rows, inputs) to (rows, outputs)."""
    if not prefers_onednn(x, weight.shape[0]):
        return F.linear(x, weight, bias)
    return _Dense.apply(x, weight, bias)  # pyright: ignore[reportReturnType]


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            product(gradient, weight.t()) if needs_x else None,
            transposed_product(gradient, x) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )
