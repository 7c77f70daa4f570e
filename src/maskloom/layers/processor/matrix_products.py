"""Matrix products through the faster of two CPU libraries, with the gradients of a dense layer.

torch uses MKL for fp32 products on x86. On non-Intel processors MKL does not use the full 512-bit width; oneDNN, which
torch also ships, does. The results differ only by rounding. The choice depends on the vendor, the instruction set and
the shapes, never on timing, so that runs are bitwise reproducible; MASKLOOM_PRODUCTS=mkl or =onednn overrides the
vendor's default.

oneDNN caches a kernel of more than half a MiB for every shape it sees, and packed batches differ in their number of
tokens. Its row counts are therefore limited to eight values between consecutive powers of two; the remaining rows are
padded with zero rows or given to MKL. In half precision oneDNN computes every product, on any processor: with the
tiles of an Intel processor (AMX) four to seven times as fast as fp32, but making a kernel takes milliseconds.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.errors import ConfigError
from maskloom.layers.activations import ACTIVATIONS, Activation

# Below this number of multiplications, preparing a oneDNN kernel for a new shape costs more than it gains.
_SMALLEST_PRODUCT = 1 << 24
# Bytes that oneDNN may need to create a kernel. Blocks above 32 MiB do not change how much memory malloc retains.
_ROOM_OF_KERNEL = 33 << 20

# Elements of a weight below which packing gains nothing, while oneDNN would cache 0.6 MiB for each row count.
_SMALLEST_PACKED = 1 << 13
_SMALLEST_DECODING = 1 << 19  # smaller ones stay in a cache, from which MKL reads them as fast

_FEWEST_ROWS = 1 << 9  # fewer rows are hardly ever multiplied by oneDNN

# oneDNN's names for the forms of GELU.
_FORMS_OF_GELU = {ACTIVATIONS["gelu"]: "none", ACTIVATIONS["gelu_new"]: "tanh"}
# Vendors of AVX-512 processors on which oneDNN was measured to be faster than MKL (benchmarks/pretraining_step.md).
_ONEDNN_WINS = frozenset({"AuthenticAMD"})


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, int]:
    """Return the processor's vendor string (GenuineIntel, AuthenticAMD) and family, or "" and 0 if unknown."""
    try:
        with cpuinfo.open(encoding="ascii", errors="replace") as file:
            lines = file.read(1 << 12).splitlines()
    except OSError:
        return "", 0
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    family = told.get("cpu family", "")
    return told.get("vendor_id", ""), int(family) if family.isdecimal() else 0


def _smallest_gradient(maker: str, family: int) -> int:
    """Return the number of weight elements below which MKL computes the weight's gradient faster.

    AMD families from 26 on (Zen 5) have full-width 512-bit units, on which oneDNN computes these gradients up to twice
    as fast as MKL; on earlier families it is slower (benchmarks/README.md, points 6 and 9).
    """
    return 1 << 14 if maker == "AuthenticAMD" and family >= 26 else 1 << 20


_MAKER, _FAMILY = _processor()
_SMALLEST_GRADIENT = _smallest_gradient(_MAKER, _FAMILY)
_given = os.environ.get("MASKLOOM_PRODUCTS")
if _given not in (None, "onednn", "mkl"):
    raise ConfigError(f"MASKLOOM_PRODUCTS={_given!r} is neither 'onednn' nor 'mkl'")
_library: Literal["onednn", "mkl"] = _given or ("onednn" if _MAKER in _ONEDNN_WINS else "mkl")


@cache
def _has_wide_kernels() -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    )


def library_of_products() -> str:
    """Describe which library computes fp32 products on the CPU."""
    if not _has_wide_kernels():
        return "torch's own choice: no AVX-512"
    reason = f"MASKLOOM_PRODUCTS={_given}" if _given else f"measured to be faster on {_MAKER or 'this processor'}"
    return f"{'MKL' if _library == 'mkl' else 'oneDNN for large ones, else MKL'}: {reason}"


def prefers_onednn(x: Tensor, num_outputs: int) -> bool:
    """Return whether oneDNN computes the product of `x` (rows, inputs) with a matrix of `num_outputs` outputs."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.ndim == 2
        and x.numel() * num_outputs >= _SMALLEST_PRODUCT
        and _has_wide_kernels()
        and torch.backends.mkldnn.enabled
        and _library != "mkl"
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


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
    num_rows, x = len(x), filled_up(x)
    return _onednn_product(x, weight, bias)[:num_rows]


def filled_up(x: Tensor) -> Tensor:
    """Return x padded with zero rows to a multiple of `row_step`, so that oneDNN sees few shapes."""
    num_missing = -len(x) % row_step(len(x))
    return torch.cat([x, x.new_zeros(num_missing, x.shape[1])]) if num_missing else x


def transposed_product(left: Tensor, right: Tensor) -> Tensor:
    """Return left^T right, without a gradient: (rows, m) and (rows, n) to (m, n), contiguous."""
    if is_half_on_cpu(left):
        return filled_up(left).t() @ filled_up(right)
    num_rows, num_left, num_right = len(left), left.shape[1], right.shape[1]
    if num_left * num_right < _SMALLEST_GRADIENT or not prefers_onednn(left, num_right):
        return left.t() @ right
    num_whole = num_rows - num_rows % row_step(num_rows)
    first, second = left[:num_whole].t(), right[:num_whole].t()
    # oneDNN's front end copies a transposed first factor but not a second one: the cheaper one to copy goes first.
    if num_rows * num_left <= (num_rows + num_left) * num_right:
        result = _onednn_product(first, second)
    else:
        result = _onednn_product(second, first).t().contiguous()
    return result if num_whole == num_rows else result.addmm_(left[num_whole:].t(), right[num_whole:])


@lru_cache(maxsize=512)  # fewer kernels than oneDNN caches
def _find_room(*_shapes: object) -> None:
    """Raise RuntimeError if there is no memory for a kernel: oneDNN would write to address 0 and crash the process."""
    try:
        torch.empty(_ROOM_OF_KERNEL, dtype=torch.uint8)
    except RuntimeError as error:
        raise RuntimeError(f"could not create a primitive: {error}") from None


def _onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    _find_room(x.shape, x.stride(), weight.shape, weight.stride())
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def is_half_on_cpu(x: Tensor) -> bool:
    """Return whether a tensor is in half precision on a CPU, where oneDNN computes its products."""
    return x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16)


def unrounded(x: Tensor) -> Tensor:
    """Return half precision that a CPU's autocast has made in fp32, and anything else as it is."""
    return x.float() if is_half_on_cpu(x) and torch.is_autocast_enabled("cpu") else x


def filled_number(num_rows: int, device: torch.device) -> int:
    """Return the number of rows for tokens or predictions, at least `num_rows`, that lets products reuse preparations.

    On a CPU, products then need no padding of their own. For CUDA's, a new number of rows costs a search; those in half
    precision get up to 1/64 more rows.
    """
    if device.type != "cpu":
        is_half = device.type == "cuda" and torch.is_autocast_enabled("cuda")
        return num_rows + -num_rows % max(1, row_step(num_rows) // 8) if is_half else num_rows
    is_fp32_plain = (
        num_rows < _FEWEST_ROWS or _library == "mkl" or not _has_wide_kernels() or not torch.backends.mkldnn.enabled
    )
    if is_fp32_plain and not torch.is_autocast_enabled("cpu"):
        return num_rows
    return num_rows + -num_rows % row_step(num_rows)


def row_step(num_rows: int) -> int:
    """Return the step between row counts near `num_rows`: an eighth of the power of two below it, at least 1."""
    return max(1, 1 << num_rows.bit_length() >> 4)


class Packable(nn.Module):
    """A module with one `weight` (outputs, inputs), of which a second copy may be packed in oneDNN's format."""

    _packed: tuple[Tensor, Tensor, int] | None = None
    bias: Tensor | None
    weight: Tensor

    @property
    def _bias(self) -> Tensor | None:
        return self.bias

    def pack(self) -> None:
        """Pack a copy of the weight for use without gradients; it is valid until the weight changes."""
        packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        self._packed = packed, self.weight, self.weight._version

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the packed weight, which torch can neither copy nor pickle."""
        return {**self.__dict__, "_packed": None}

    def is_packed_for(self, x: Tensor) -> bool:
        """Return whether rows like `x` are multiplied with the packed weight."""
        return (
            self._packed is not None
            and not torch.is_grad_enabled()
            and self._packed[1] is self.weight
            and self._packed[2] == self._packed[1]._version
            and x.device.type == "cpu"
            and x.dtype == torch.float32
            and x.ndim == 2
            and (len(x) > 0 if _library == "onednn" else 4 <= len(x) <= 32)
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled("cpu")
        )

    def packed_product(self, x: Tensor, activation: str = "none", form: str = "") -> Tensor:
        """Return activation(x W^T + b) for rows that it `is_packed_for`; `activation` and `form` are oneDNN's names."""
        assert self._packed is not None
        num_rows, x = len(x), filled_up(x)
        _find_room(x.shape, self._packed[1].shape, activation)
        result = torch.ops.mkldnn._linear_pointwise(x, self._packed[0], self._bias, activation, [], form)
        return result[:num_rows]


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


def pack_for_inference(module: nn.Module, *, decodes: bool = False) -> None:
    """Pack the larger weights within a module where products go to oneDNN; they then occupy memory twice.

    Products with few rows become up to twice as fast. With 4 to 32 rows this also holds where other products go to MKL,
    so a module that `decodes` is packed there as well.
    """
    if not (_has_wide_kernels() and (_library == "onednn" or decodes) and torch.backends.mkldnn.enabled):
        return
    smallest = _SMALLEST_PACKED if _library == "onednn" else _SMALLEST_DECODING
    for layer in module.modules():
        if not isinstance(layer, Packable) or layer.weight.numel() < smallest:
            continue
        if layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32:
            layer.pack()


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
