"""Dense layers in eight-bit integers, for inference: weights are quantised once, activations on the fly.

The scheme is symmetric dynamic quantisation with a scale for each output of a weight and for each row of activations
(Wu et al. 2020, "Integer quantization for deep learning inference", section 3): x W^T is about s_x s_W^T (x_q W_q^T),
and the product in brackets is exact in 32-bit integers. Each row has its own scale, so a text's vector does not depend
on the other texts in its batch.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from maskloom.errors import ConfigError
from maskloom.layers.activations import Activation
from maskloom.layers.attention import SelfAttention
from maskloom.layers.processor.matrix_products import Dense

# Rows are processed in blocks whose values stay in the CPU cache, rounded up to a step as each shape costs a kernel.
_BLOCK_ROWS = 256
_ROW_STEP = 4
_LARGEST = 127
# Where pairs of byte products are summed in 16 bits (AVX2), 2 * 255 * 64 still fits.
_LARGEST_WITHOUT_DOT_PRODUCTS = 63


class Int8Dense(nn.Module):
    """x W^T + b with W and x in eight bits: (rows, inputs) to (rows, outputs), float32 in and out; no gradient.

    The last `num_fine` outputs use x in sixteen bits, through a second product with the rounding error of x.
    """

    weight: Tensor
    fine_weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, dense: nn.Linear, *, num_fine: int = 0) -> None:
        """Quantise a dense layer. Raises ConfigError if the processor has no eight-bit products."""
        super().__init__()
        self.num_fine = num_fine
        weight = dense.weight.detach().float()
        largest = largest_weight()
        scale = weight.abs().amax(1).clamp_(min=torch.finfo(torch.float32).tiny) / largest
        rounded = torch.round(weight / scale.unsqueeze(1)).clamp_(-largest, largest).to(torch.int8)
        # inputs first: in the other order the library is a third slower for few rows
        self.register_buffer("weight", rounded.t().contiguous())
        self.register_buffer("fine_weight", rounded[len(rounded) - num_fine :].t().contiguous())
        self.register_buffer("scale", scale)
        bias = torch.zeros(len(weight)) if dense.bias is None else dense.bias.detach().float()
        self.register_buffer("bias", bias)

    def forward(self, input: Tensor) -> Tensor:
        """Return the transformed rows."""
        result = input.new_empty(len(input), len(self.scale))
        block = _BLOCK_ROWS * torch.get_num_threads()
        for first in range(0, len(input), block):
            self._transform(input[first : first + block], result[first : first + block])
        return result

    def activated(self, input: Tensor, activation: Activation) -> Tensor:
        """Return the activation of the transformed rows, as `Dense` does."""
        return activation(self(input))

    def _transform(self, rows: Tensor, into: Tensor) -> None:
        step = rows.abs().amax(1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny).mul_(1 / _LARGEST)
        scaled = rows / step
        rounded = torch.round(scaled)
        into.copy_(_product(rounded.to(torch.int8), self.weight))
        if self.num_fine:
            rest = scaled.sub_(rounded).mul_(2 * _LARGEST).round_().to(torch.int8)
            into[:, -self.num_fine :].add_(_product(rest, self.fine_weight), alpha=0.5 / _LARGEST)
        torch.addcmul(self.bias, into.mul_(self.scale), step, out=into)


def _product(left: Tensor, weight: Tensor) -> Tensor:
    """Return the product left weight in 32-bit integers."""
    num_rows = len(left)
    if missing := -num_rows % _ROW_STEP:
        left = torch.cat([left, left.new_zeros(missing, left.shape[1])])
    return torch.ops.aten._int_mm(left, weight)[:num_rows]


def quantize_dense_layers(module: nn.Module) -> None:
    """Replace every `Dense` within a module by an `Int8Dense`; other layers stay as they are.

    The fine outputs are the values of self-attention: with MiniLM's weights, they caused most of a vector's error.
    Raises ConfigError if the processor has no eight-bit products, or the module is not on the CPU or has no `Dense`.
    """
    for parameter in module.parameters():
        if (device := parameter.device).type != "cpu":
            raise ConfigError(f"int8: the model is on {device}; eight-bit inference runs only on the CPU")
    if not any(isinstance(part, Dense) for part in module.modules()):
        raise ConfigError(
            "int8: this model has no dense layer of a Transformer, so nothing would change; leave int8 out"
        )
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Dense):
                is_qkv = isinstance(parent, SelfAttention) and name == "qkv"
                setattr(parent, name, Int8Dense(child, num_fine=child.widths[-1] if is_qkv else 0))


@cache
def largest_weight() -> int:
    """Return the largest absolute weight for which this processor's eight-bit products are exact.

    It is 127, or 63 if the processor sums pairs of products in 16 bits. Raises ConfigError if neither is exact.
    """
    if torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        for largest in (_LARGEST, _LARGEST_WITHOUT_DOT_PRODUCTS):
            if _is_exact(largest):
                return largest
    raise ConfigError(
        f"int8: eight-bit inference needs an x86 processor with AVX2 or AVX-512 and torch with oneDNN; this is "
        f"{torch.backends.cpu.get_cpu_capability()} with torch {torch.__version__}. Leave int8 out"
    )


def _is_exact(largest: int) -> bool:
    """Return whether a product with the largest possible sums is exact."""
    left = torch.full((32, 128), _LARGEST, dtype=torch.int8)
    left[::2] = -_LARGEST
    right = torch.full((128, 64), largest, dtype=torch.int8)
    right[:, ::2] = -largest
    expected = (left.to(torch.float64) @ right.to(torch.float64)).to(torch.int32)
    return bool(torch.equal(torch.ops.aten._int_mm(left, right), expected))
