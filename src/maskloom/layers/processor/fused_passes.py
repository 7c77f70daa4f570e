"""Work on single values in one pass over them: on GPUs torch compiles it to Triton kernels, else nothing is here."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def fuses(x: Tensor) -> bool:
    """Tell whether passes over a tensor are fused: on CUDA, where Triton is installed and takes the GPU."""
    return x.is_cuda and x.dtype in _TYPES and not torch.compiler.is_compiling() and _has_triton(x.device)


@cache
def _has_triton(device: torch.device) -> bool:
    """Triton needs compute capability 7.0."""
    return find_spec("triton") is not None and torch.cuda.get_device_properties(device).major >= 7


def normed_sum(hidden: Tensor, added: Tensor, norm: nn.LayerNorm, rate: float) -> Tensor:
    """Return LN(hidden + dropout(added)), computed in fp32, in the type of `added`: (tokens, hidden), all three."""
    weight, bias = norm.weight, norm.bias
    return _normed_sum(norm.eps, rate)(hidden.to(added.dtype), added, weight, bias)


@cache
def _normed_sum(epsilon: float, rate: float) -> Callable[..., Tensor]:
    def run(hidden: Tensor, added: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        total = hidden.float() + F.dropout(added.float(), rate)
        return F.layer_norm(total, total.shape[-1:], weight, bias, epsilon).to(added.dtype)

    return torch.compile(run)


def loss_and_gradient(
    logits: Tensor, bias: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed cross-entropy of softmax(logits + bias), its gradient to logits, and that to the bias.

    Shapes in words: `logits` (rows, vocabulary), `bias` (vocabulary,), `targets` (rows, 1), `weights` of rows (rows,).
    The sums are in fp32; the gradient to logits has their type.
    """
    return _loss_and_gradient()(logits, bias, targets, weights)


@cache
def _loss_and_gradient() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def run(logits: Tensor, bias: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        logs = (logits.float() + bias).log_softmax(1)
        losses = -logs.gather(1, targets).squeeze(1)
        words = torch.arange(logits.shape[1], device=logits.device)
        gradient = logs.exp() - (words == targets).float()
        if weights is not None:
            losses, gradient = losses * weights, gradient * weights.unsqueeze(1)
        return losses.sum(), gradient.to(logits.dtype), gradient.sum(0)

    return torch.compile(run)
