"""oneDNN, the faster of two CPU libraries for many matrix products: when it computes one, and how it is called.

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
from typing import Any, Literal

import torch
from torch import Tensor, nn

from maskloom.errors import ConfigError

# Below this number of multiplications, preparing a oneDNN kernel for a new shape costs more than it gains.
_SMALLEST_PRODUCT = 1 << 24
# Bytes that oneDNN may need to create a kernel. Blocks above 32 MiB do not change how much memory malloc retains.
_ROOM_OF_KERNEL = 33 << 20

# Elements of a weight below which packing gains nothing, while oneDNN would cache 0.6 MiB for each row count.
_SMALLEST_PACKED = 1 << 13
_SMALLEST_DECODING = 1 << 19  # smaller ones stay in a cache, from which MKL reads them as fast

_FEWEST_ROWS = 1 << 9  # fewer rows are hardly ever multiplied by oneDNN

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
SMALLEST_GRADIENT = _smallest_gradient(_MAKER, _FAMILY)
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
        x.numel() * num_outputs >= _SMALLEST_PRODUCT
        and _library != "mkl"
        and _are_plain(x)
        and torch.backends.mkldnn.enabled
        and _has_wide_kernels()
    )


def _are_plain(x: Tensor) -> bool:
    """Return whether these are rows in fp32 on a CPU, outside of autocast and torch.compile."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.ndim == 2
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def _are_rounded(x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether these are rows on a CPU that autocast rounds to a type, outside of torch.compile."""
    is_on = x.device.type == "cpu" and x.ndim == 2 and torch.is_autocast_enabled("cpu")
    return is_on and torch.get_autocast_dtype("cpu") == dtype and not torch.compiler.is_compiling()


def filled_up(x: Tensor) -> Tensor:
    """Return x padded with zero rows to a multiple of `row_step`, so that oneDNN sees few shapes."""
    num_missing = -len(x) % row_step(len(x))
    return torch.cat([x, x.new_zeros(num_missing, x.shape[1])]) if num_missing else x


def is_half_on_cpu(x: Tensor) -> bool:
    """Return whether a tensor is in half precision on a CPU, where oneDNN computes its products."""
    return x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16)


def widened(x: Tensor) -> Tensor:
    """Return in fp32 what autocast has rounded to half precision on a CPU, and anything else as it is."""
    return x.float() if is_half_on_cpu(x) and torch.is_autocast_enabled("cpu") else x


def filled_number(num_rows: int, device: torch.device) -> int:
    """Return the number of rows for tokens or predictions, at least `num_rows`, that lets products reuse preparations.

    On a CPU, products then need no padding of their own. For CUDA's, a new number of rows costs a search; those in half
    precision get up to 1/64 more rows.
    """
    step, is_half = row_step(num_rows), device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type)
    if device.type != "cpu":
        return num_rows + -num_rows % max(1, step // 8) if is_half else num_rows
    is_wide = num_rows >= _FEWEST_ROWS and _library != "mkl" and _has_wide_kernels() and torch.backends.mkldnn.enabled
    return num_rows + -num_rows % step if is_half or is_wide else num_rows


def row_step(num_rows: int) -> int:
    """Return the step between row counts near `num_rows`: an eighth of the power of two below it, at least 1."""
    return max(1, 1 << num_rows.bit_length() >> 4)


@lru_cache(maxsize=512)  # fewer kernels than oneDNN caches
def _find_room(*_shapes: object) -> None:
    """Raise RuntimeError if there is no memory for a kernel: oneDNN would write to address 0 and crash the process."""
    try:
        torch.empty(_ROOM_OF_KERNEL, dtype=torch.uint8)
    except RuntimeError as error:
        raise RuntimeError(f"could not create a primitive: {error}") from None


def onednn_product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none", form: str = ""
) -> Tensor:
    """Return activation(x weight^T + bias): (rows, inputs) and (outputs, inputs) to (rows, outputs).

    The weight may be packed; `activation` and `form` are oneDNN's names. Raises RuntimeError if memory has run out.
    """
    _find_room(x.shape, x.stride(), weight.shape, weight.is_mkldnn or weight.stride(), activation)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], form)


class Packable(nn.Module):
    """A module with one `weight` (outputs, inputs), of which a second copy may be packed in oneDNN's format."""

    _packed: tuple[Tensor, Tensor, int] | None = None
    bias: Tensor | None
    weight: Tensor

    @property
    def _bias(self) -> Tensor | None:
        return self.bias

    def pack(self, dtype: torch.dtype = torch.float32) -> None:
        """Pack a copy of the weight, rounded to a type, for use without gradients until the weight changes.

        A tensor made in inference mode is not packed, because nothing shows whether it has changed.
        """
        if self.weight.is_inference():
            return
        packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach().to(dtype), None)
        self._packed = packed, self.weight, self.weight._version

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the packed weight, which torch can neither copy nor pickle."""
        return {**self.__dict__, "_packed": None}

    def is_packed_for(self, x: Tensor) -> bool:
        """Return whether rows like `x` are multiplied with the packed weight."""
        if self._packed is None or torch.is_grad_enabled():
            return False
        packed, weight, version = self._packed
        if weight is not self.weight or weight._version != version or not len(x):
            return False
        if packed.dtype == torch.float32:
            return _are_plain(x) and (_library == "onednn" or 4 <= len(x) <= 32)
        return _are_rounded(x, packed.dtype)

    def packed_product(self, x: Tensor, activation: str = "none", form: str = "") -> Tensor:
        """Return activation(x W^T + b) for rows that it `is_packed_for`; `activation` and `form` are oneDNN's names."""
        assert self._packed is not None
        packed, bias = self._packed[0], self._bias
        if bias is not None:
            bias = bias.to(packed.dtype)
        return onednn_product(filled_up(x.to(packed.dtype)), packed, bias, activation, form)[: len(x)]


def pack_for_inference(module: nn.Module, *, decodes: bool = False, dtype: torch.dtype = torch.float32) -> None:
    """Pack the larger weights within a module where products go to oneDNN; they then occupy memory twice.

    Products with few rows become up to twice as fast. With 4 to 32 rows this also holds where other products go to MKL,
    so a module that `decodes` is packed there as well. With `dtype` bf16, whose products are oneDNN's on any processor,
    the copies are rounded, and used under autocast: a call then need not round the weights.
    """
    is_half = dtype != torch.float32
    if not (_has_wide_kernels() and (_library == "onednn" or decodes or is_half) and torch.backends.mkldnn.enabled):
        return
    smallest = _SMALLEST_PACKED if _library == "onednn" or is_half else _SMALLEST_DECODING
    for layer in module.modules():
        if not isinstance(layer, Packable) or layer.weight.numel() < smallest:
            continue
        if layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32:
            layer.pack(dtype)
