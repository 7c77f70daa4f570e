"""Matrix products through the faster of the processor's two libraries, with the gradients of a dense layer.

torch takes MKL for fp32 products on x86, and MKL leaves the 512-bit half of processors by other makers unused; oneDNN,
which torch carries too, does not. The results differ by rounding only. The choice depends on the machine and the
shapes, never on timing, so that a run repeats to the bit.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Below this number of multiplications oneDNN's preparation of a kernel for a new shape costs more than it wins.
_SMALLEST_PRODUCT = 1 << 24


@cache
def _has_wide_kernels() -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def prefers_onednn(x: Tensor, num_outputs: int) -> bool:
    """Tell whether the product of `x` (rows, inputs) with a matrix of so many outputs goes to oneDNN."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.ndim == 2
        and x.numel() * num_outputs >= _SMALLEST_PRODUCT
        and _has_wide_kernels()
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias, without a gradient: (rows, inputs) and (outputs, inputs) to (rows, outputs).

    Both may be transposed views, which costs no copy.
    """
    if prefers_onednn(x, weight.shape[0]):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


class Dense(nn.Linear):
    """x W^T + b as `nn.Linear` computes it, by the faster library: (rows, inputs) to (rows, outputs)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the transformed rows."""
        return dense(input, self.weight, self.bias)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x weight^T + bias with gradients to all three: (rows, inputs) to (rows, outputs)."""
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
            _weight_gradient(gradient, x) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


def _weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Return gradient^T x: (outputs, inputs). A transposed first factor is copied, so the cheaper one goes there."""
    num_rows, num_outputs, num_inputs = len(x), gradient.shape[1], x.shape[1]
    if num_rows * num_outputs <= (num_rows + num_outputs) * num_inputs:
        return product(gradient.t(), x.t())
    return product(x.t(), gradient.t()).t().contiguous()
