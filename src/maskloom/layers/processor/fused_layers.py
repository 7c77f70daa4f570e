"""BERT's embeddings, both halves of its layers, dropout and the vocabulary loss, in few passes on a GPU.

LayerNorm(x + dropout(attention(x))) and LayerNorm(x + dropout(FFN(x))) (Vaswani et al. 2017, 3.1) run in half
precision: matrix products in torch's library, the rest in the kernels of `gpu_kernels`. Norms, softmax, sums and weight
gradients are computed in fp32. Letters: t tokens, h hidden.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.dropout import NO_DRAWS, DeviceDraws, device_draws
from maskloom.layers.sequence_layout import SequenceLayout

_TYPES = (torch.float32, torch.float16, torch.bfloat16)
# Head sizes that attention's kernels support.
_HEAD_SIZES = (16, 32, 64, 128)
# Queries or keys that a program of attention holds, and how each kernel runs: the fastest of many tried on an H200 for
# heads of size 64.
_ATTENTION_ROWS = 64
_ATTENTION_OPTIONS = {
    "attention": {"num_stages": 3, "maxnreg": 104},
    "query_gradient": {"num_stages": 3, "maxnreg": 168},
    "key_gradient": {"num_stages": 3, "maxnreg": 168, "COLUMNS": 32},
}
# Rows and columns that a program sums at a time: the fastest of eight pairs tried on an H100.
_TILE = (32, 64)


def fuses(x: Tensor) -> bool:
    """Return whether the kernels support a tensor: on CUDA with compute capability 8.0 or later and Triton."""
    return x.is_cuda and x.dtype in _TYPES and not torch.compiler.is_compiling() and _has_triton(x.device)


@cache
def _has_triton(device: torch.device) -> bool:
    """Return whether a kernel runs on a device, by trying it: it needs Triton, a C compiler and Python's headers."""
    is_new = torch.cuda.get_device_properties(device).major >= 8
    if not is_new or torch.version.hip is not None or find_spec("triton") is None:
        return False
    try:
        _column_sums(torch.zeros(1, 1, device=device))
    except Exception as error:  # anything that prevents compilation
        reason = "".join(str(error).strip().splitlines()[-1:])
        warnings.warn(f"{device}: Triton kernels do not run here, so training is slower: {reason}", stacklevel=2)
        return False
    return True


def _run(name: str, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel on the device of its first argument; the first call imports Triton."""
    with torch.cuda.device_of(arguments[0]):
        _kernel(name).launch((*grid, 1, 1)[:3], arguments, constants)


@cache
def _kernel(name: str) -> _Kernel:
    from maskloom.layers.processor import gpu_kernels

    return _Kernel(getattr(gpu_kernels, name))


class _Kernel:
    """A Triton function and its compiled variants, which start without Triton's own search for them.

    That search takes several times as long as the start: on a fast GPU, longer than many of our kernels.
    """

    def __init__(self, function: Any) -> None:
        parameters = getattr(function, "params", ())  # not in Triton's interpreter, where nothing is compiled
        self._function, self._compiled = function, {}
        self._is_fixed = [not parameter.do_not_specialize for parameter in parameters]
        self._constants = [parameter.name for parameter in parameters if parameter.is_constexpr]

    def launch(self, grid: tuple[int, ...], arguments: Sequence[Any], constants: Mapping[str, Any]) -> None:
        """Start the kernel; `constants` are its last parameters and Triton's options."""
        kinds = [_kind(each) for each, is_fixed in zip(arguments, self._is_fixed, strict=False) if is_fixed]
        variant = (arguments[0].device.index, *constants.items(), *kinds)
        compiled = self._compiled.get(variant)
        if compiled is None:
            self._compiled[variant] = self._function[grid](*arguments, **constants)
        else:
            compiled[grid](*arguments, *(constants[name] for name in self._constants))


def _kind(argument: Any) -> object:
    """Return what Triton compiles a variant for: a tensor's type and alignment, an integer's size and divisibility."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument == 1, argument % 16 == 0, argument.bit_length() < 32
    return type(argument)


def fused_type(x: Tensor) -> torch.dtype | None:
    """Return autocast's half-precision type if the kernels support a tensor in training, else None."""
    if not (fuses(x) and torch.is_grad_enabled() and torch.is_autocast_enabled("cuda")):
        return None
    return torch.get_autocast_dtype("cuda")


def attends(layout: SequenceLayout, head_size: int) -> bool:
    """Return whether attention's kernels support the sequences and heads of a size."""
    return layout.is_packed and not layout.has_empty_sequences and head_size in _HEAD_SIZES


def thinned(x: Tensor, rate: float) -> Tensor:
    """Return dropout(x) of (rows, width), with the same draws as on a CPU."""
    return _Thinned.apply(x, device_draws(len(x), rate, x.device))  # pyright: ignore[reportReturnType]


class _Thinned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, draws: DeviceDraws) -> Tensor:
        ctx.draws = draws
        return _thin(x, draws)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _thin(gradient, ctx.draws), None


def _thin(x: Tensor, draws: DeviceDraws) -> Tensor:
    x = x.contiguous()
    out, block = torch.empty_like(x), _block(x.shape[1])
    _run("thinned", (len(x),), x, out, *draws, x.shape[1], BLOCK=block, num_warps=_warps(block))
    return out


def normed_embedding(tables: Sequence[Tensor], ids: Sequence[Tensor], norm: nn.LayerNorm, rate: float) -> Tensor:
    """Return dropout(LayerNorm(word + segment + position)), (t, h), from three tables and their row ids (t,)."""
    draws = device_draws(len(ids[0]), rate, ids[0].device)
    return _NormedEmbedding.apply(  # pyright: ignore[reportReturnType]
        [each.contiguous() for each in ids], norm.eps, draws, *tables, norm.weight, norm.bias
    )


class _NormedEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ids: Sequence[Tensor], epsilon: float, draws: DeviceDraws, *parameters: Tensor) -> Tensor:
        words, segments, positions, scale, shift = parameters
        num_rows, width = len(ids[0]), words.shape[1]
        block, out = _block(width), words.new_empty(num_rows, width)
        means, roots = words.new_empty(2, num_rows, dtype=torch.float32).unbind(0)
        _run("normed_embedding", (num_rows,),
            words, segments, positions, *ids, scale, shift, out, means, roots, *draws, epsilon, width,
            BLOCK=block, DROPS=draws is not NO_DRAWS, num_warps=_warps(block),
        )  # fmt: skip
        ctx.draws = draws
        ctx.save_for_backward(words, segments, positions, *ids, scale, means, roots)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        words, segments, positions, *ids, scale, means, roots = ctx.saved_tensors
        num_rows, width = gradient.shape
        block, num_programs = _block(width), min(num_rows, 4 * _num_processors(gradient.device))
        d_total = words.new_empty(num_rows, width)
        parts = words.new_empty(num_programs, 2 * width)
        _run("normed_embedding_gradient", (num_programs,),
            gradient.contiguous(), words, segments, positions, *ids, scale, means, roots, d_total, parts, *ctx.draws,
            num_rows, width, BLOCK=block, DROPS=ctx.draws is not NO_DRAWS, num_warps=_warps(block),
        )  # fmt: skip
        d_tables = [
            torch.ops.aten.embedding_dense_backward(d_total, rows, len(table), -1, False) if is_wanted else None
            for table, rows, is_wanted in zip((words, segments, positions), ids, ctx.needs_input_grad[3:6], strict=True)
        ]
        return None, None, None, *d_tables, *parts.sum(0).view(2, width)


@dataclass(frozen=True)
class SublayerSettings:
    """The settings of both halves of a layer; dropout rates are 0 outside training."""

    layout: SequenceLayout
    num_heads: int
    causal: bool
    attention_dropout: float
    dropout: float
    epsilon: float
    dtype: torch.dtype


def attention_sublayer(hidden: Tensor, parts: Sequence[Any], settings: SublayerSettings) -> Tensor:
    """Return LayerNorm(x + dropout(attention(x))) of (t, h).

    `parts` are the projection to query, key and value, that of the context, and the norm.
    """
    return _AttentionSublayer.apply(settings, hidden, *_parameters(parts))  # pyright: ignore[reportReturnType]


def feed_forward_sublayer(hidden: Tensor, parts: Sequence[Any], settings: SublayerSettings) -> Tensor:
    """Return LayerNorm(x + dropout(W2 gelu(W1 x))) of (t, h); `parts` are both projections and the norm."""
    return _FeedForwardSublayer.apply(settings, hidden, *_parameters(parts))  # pyright: ignore[reportReturnType]


def _parameters(parts: Sequence[Any]) -> list[Tensor]:
    return [parameter for part in parts for parameter in (part.weight, part.bias)]


def _rounded(weights: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return weights in half precision, by one kernel for all."""
    out = [torch.empty_like(weight, dtype=dtype, memory_format=torch.contiguous_format) for weight in weights]
    torch._foreach_copy_(out, list(weights))  # pyright: ignore[reportPrivateImportUsage]
    return out


class _AttentionSublayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, settings: SublayerSettings, hidden: Tensor, *parameters: Tensor) -> Tensor:
        scale, shift = parameters[4:]
        x = hidden.to(settings.dtype).contiguous()
        w_in, b_in, w_out, b_out = _rounded(parameters[:4], settings.dtype)
        draws = device_draws(len(x), settings.attention_dropout, x.device)
        qkv = torch.addmm(b_in, x, w_in.t())
        context, log_sums = _attention(qkv, settings, draws)
        added = torch.addmm(b_out, context, w_out.t())
        ctx.draws = draws, device_draws(len(x), settings.dropout, x.device)
        out, means, roots = _normed_sum(x, added, scale, shift, settings.epsilon, ctx.draws[1])
        ctx.settings, ctx.dtype = settings, hidden.dtype
        ctx.save_for_backward(x, w_in, w_out, qkv, context, added, scale, means, roots, log_sums)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, w_in, w_out, qkv, context, added, scale, means, roots, log_sums = ctx.saved_tensors
        d_x, d_added, (d_scale, d_shift, d_out_bias) = _normed_sum_gradients(
            gradient, x, added, scale, means, roots, ctx.draws[1]
        )
        d_out = weight_gradient(d_added, context)
        d_context = d_added @ w_out
        d_qkv, d_in_bias = _attention_gradients(d_context, qkv, context, log_sums, ctx.settings, ctx.draws[0])
        d_in = weight_gradient(d_qkv, x)
        d_x.addmm_(d_qkv, w_in)
        return None, d_x.to(ctx.dtype), d_in, d_in_bias, d_out, d_out_bias, d_scale, d_shift


class _FeedForwardSublayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, settings: SublayerSettings, hidden: Tensor, *parameters: Tensor) -> Tensor:
        scale, shift = parameters[4:]
        x = hidden.to(settings.dtype).contiguous()
        w_up, b_up, w_down, b_down = _rounded(parameters[:4], settings.dtype)
        inner = torch.addmm(b_up, x, w_up.t())
        activated = F.gelu(inner)
        added = torch.addmm(b_down, activated, w_down.t())
        ctx.draws = device_draws(len(x), settings.dropout, x.device)
        out, means, roots = _normed_sum(x, added, scale, shift, settings.epsilon, ctx.draws)
        ctx.dtype = hidden.dtype
        ctx.save_for_backward(x, w_up, w_down, inner, activated, added, scale, means, roots)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, w_up, w_down, inner, activated, added, scale, means, roots = ctx.saved_tensors
        d_x, d_added, (d_scale, d_shift, d_down_bias) = _normed_sum_gradients(
            gradient, x, added, scale, means, roots, ctx.draws
        )
        d_down = weight_gradient(d_added, activated)
        d_inner, d_up_bias = _gelu_gradient(inner, d_added @ w_down)
        d_up = weight_gradient(d_inner, x)
        d_x.addmm_(d_inner, w_up)
        return None, d_x.to(ctx.dtype), d_up, d_up_bias, d_down, d_down_bias, d_scale, d_shift


def loss_and_gradient(
    logits: Tensor, bias: Tensor, targets: Tensor, weights: Tensor | None, num_words: int
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy of softmax(logits + bias) and the bias gradient; `logits` become their gradient.

    Shapes: `logits` (rows, width), of which only the first `num_words` columns count, `bias` (num_words,), `targets`
    and `weights` (rows,). Sums are in fp32.
    """
    losses, block = logits.new_empty(len(logits), dtype=torch.float32), min(4096, _block(num_words))
    _run("loss_gradient", (len(logits),),
        logits, bias, targets, losses if weights is None else weights, losses, num_words, logits.shape[1],
        BLOCK=block, WEIGHTED=weights is not None, num_warps=8,
    )  # fmt: skip
    return losses.sum(), _column_sums(logits)[:num_words]


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Return gradient^T x in fp32: (rows, outputs) and (rows, inputs), half precision or not, to (outputs, inputs)."""
    if x.is_cuda and x.dtype != torch.float32:
        return torch.mm(gradient.t(), x, out_dtype=torch.float32)
    return (gradient.t() @ x).float()


def _normed_sum(
    hidden: Tensor, added: Tensor, scale: Tensor, shift: Tensor, epsilon: float, draws: DeviceDraws
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, width = hidden.shape
    block, out = _block(width), torch.empty_like(hidden)
    means, roots = hidden.new_empty(2, num_rows, dtype=torch.float32).unbind(0)
    _run("normed_sum", (num_rows,),
        hidden, added, scale, shift, out, means, roots, *draws, epsilon, width,
        BLOCK=block, DROPS=draws is not NO_DRAWS, num_warps=max(1, block // 1024),
    )  # fmt: skip
    return out, means, roots


def _normed_sum_gradients(
    gradient: Tensor, hidden: Tensor, added: Tensor, scale: Tensor, means: Tensor, roots: Tensor, draws: DeviceDraws
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of both summands and, as (3, h), of scale, shift and a bias of `added`."""
    num_rows, width = hidden.shape
    block, num_programs = _block(width), min(num_rows, 4 * _num_processors(hidden.device))
    d_hidden, d_added = torch.empty_like(hidden), torch.empty_like(hidden)
    parts = hidden.new_empty(num_programs, 3 * width, dtype=torch.float32)
    _run("normed_sum_gradient", (num_programs,),
        gradient.to(hidden.dtype).contiguous(), hidden, added, scale, means, roots, d_hidden, d_added, parts, *draws,
        num_rows, width, BLOCK=block, DROPS=draws is not NO_DRAWS, num_warps=_warps(block),
    )  # fmt: skip
    return d_hidden, d_added, parts.sum(0).view(3, width)


def _gelu_gradient(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, which overwrites `gradient`, and its sums over rows."""
    return gradient, _by_columns(x, gradient, gradient, is_gelu=True)


def _column_sums(x: Tensor) -> Tensor:
    """Return the sums over rows in fp32, (width,)."""
    return _by_columns(x, x, x, is_gelu=False)


def _by_columns(x: Tensor, *more: Tensor, is_gelu: bool) -> Tensor:
    """Run a kernel whose programs process blocks of columns and chunks of rows, and add their partial sums."""
    (num_rows, width), (rows, columns) = x.shape, _TILE
    num_blocks = -(-width // columns)
    num_chunks = max(1, min(32 * _num_processors(x.device) // num_blocks, -(-num_rows // rows)))
    parts = x.new_empty(num_chunks, width, dtype=torch.float32)
    _run("column_sums", (num_blocks, num_chunks),
        x, *more, parts, num_rows, width, -(-num_rows // num_chunks),
        ROWS=rows, COLUMNS=columns, OF_GELU=is_gelu, num_warps=4,
    )  # fmt: skip
    return parts.sum(0)


def _attention(qkv: Tensor, settings: SublayerSettings, draws: DeviceDraws) -> tuple[Tensor, Tensor]:
    """Return the context (t, h) and base-2 logarithms of the softmax's sums (heads, t), which its gradient needs."""
    context = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    log_sums = qkv.new_empty(settings.num_heads, len(qkv), dtype=torch.float32)
    _by_blocks("attention", qkv, settings, draws, (qkv, settings.layout.row_offsets, context, log_sums, *draws))
    return context, log_sums


def _attention_gradients(
    d_context: Tensor, qkv: Tensor, context: Tensor, log_sums: Tensor, settings: SublayerSettings, draws: DeviceDraws
) -> tuple[Tensor, Tensor]:
    """Return the gradient of queries, keys and values, and its sums over tokens."""
    d_qkv, alongs, offsets = torch.empty_like(qkv), torch.empty_like(log_sums), settings.layout.row_offsets
    row_keys = torch.empty_like(log_sums, dtype=torch.int32)
    num_parts = (len(offsets) - 1) * _num_blocks(qkv, settings)
    last = (d_context, alongs, row_keys, d_qkv, qkv.new_empty(num_parts, qkv.shape[1], dtype=torch.float32))
    _by_blocks("query_gradient", qkv, settings, draws, (qkv, offsets, context, log_sums, *last, *draws))
    given = (qkv, offsets, log_sums, *last, draws.threshold, draws.factor)
    _by_blocks("key_gradient", qkv, settings, draws, given)
    return d_qkv, last[-1].sum(0)


def _by_blocks(
    name: str, qkv: Tensor, settings: SublayerSettings, draws: DeviceDraws, arguments: Sequence[Any]
) -> None:
    """Run a kernel of attention whose programs process one block of rows of one sequence and head."""
    num_heads, num_blocks = settings.num_heads, _num_blocks(qkv, settings)
    num_sequences = len(settings.layout.row_offsets) - 1
    size, rows, options = qkv.shape[1] // (3 * num_heads), _attention_rows(qkv, settings), _ATTENTION_OPTIONS[name]
    if "COLUMNS" in options:
        options = options | {"COLUMNS": min(rows, options["COLUMNS"])}
    _run(
        name, (num_sequences * num_heads * num_blocks,),
        *arguments, 1.0 / math.sqrt(size), len(qkv), num_blocks, num_heads,
        SIZE=size, ROWS=rows, DROPS=draws is not NO_DRAWS, CAUSAL=settings.causal, num_warps=4, **options,
    )  # fmt: skip


def _num_blocks(qkv: Tensor, settings: SublayerSettings) -> int:
    return -(-settings.layout.max_length // _attention_rows(qkv, settings))


def _attention_rows(qkv: Tensor, settings: SublayerSettings) -> int:
    is_wide = qkv.shape[1] > 3 * 64 * settings.num_heads  # a multiprocessor's shared memory holds fewer rows then
    most = _ATTENTION_ROWS // 2 if is_wide else _ATTENTION_ROWS
    return min(most, max(16, _block(settings.layout.max_length)))


def _block(width: int) -> int:
    """Return the smallest power of two that holds a row."""
    return 1 << max(0, width - 1).bit_length()


def _warps(block: int) -> int:
    return 4 if block <= 2048 else 8


@cache
def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
