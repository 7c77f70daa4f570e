"""Half-precision arithmetic with weights in fp32 (Micikevicius et al. 2018, Mixed Precision Training)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.carrying import Carry, Carrying
from maskloom.objectives.objective import Objective, model_device
from maskloom.system.devices import half_type

FIRST_LOSS_SCALE = 2.0**16
"""Initial factor on losses in fp16, so that small gradients do not underflow."""

# As in torch's GradScaler, the loss scale is doubled after this many steps without an overflow.
_STEPS_OF_A_SCALE = 2000

# Sequences timed to find the faster precision, the speed-up that makes bf16 worth its rounding, and how many times as
# long as fp32 it takes where it is emulated.
_NUM_TIMED, _LEAST_GAIN, _EMULATED = 8, 1.1, 1.5


def in_precision(objective: Objective, precision: str, device: torch.device) -> Objective:
    """Return an objective that computes in a precision, whose name is that of `half_type`."""
    dtype = half_type(precision, device)
    if dtype is None:
        return objective
    kind = CarryingHalfPrecision if isinstance(objective, Carrying) else HalfPrecision
    return kind(objective, dtype)


def adapted_scale(loss_scale: tuple[float, int] | None, *, overflows: bool) -> tuple[float, int] | None:
    """Return the loss scale and the number of steps that it has held for, after a step.

    It is halved, down to 1, if the gradients overflow, and doubled after 2,000 steps in which they do not.
    """
    if loss_scale is None:
        return None
    scale, num_held = loss_scale
    if overflows:
        return (scale / 2, 0) if scale > 1.0 else loss_scale
    return (2 * scale, 0) if num_held + 1 == _STEPS_OF_A_SCALE else (scale, num_held + 1)


def fastest_precision(model: EncoderWithHeads, objective: Objective, batch: Any) -> str:
    """Return "bf16" if gradients of a few sequences take clearly less time in it than in fp32, else "fp32".

    The two alternate (A B B A), after a warm-up of each, until one round shows that bf16 is emulated. Where oneDNN has
    no kernels for it, timing it could take minutes, so the answer is fp32. Gradients and torch's generator are left
    unchanged.
    """
    if not _has_bf16_kernels():
        return "fp32"
    part, device = batch.split(_NUM_TIMED)[0], model_device(model)
    seconds: dict[str, list[float]] = {"fp32": [], "bf16": []}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.random.fork_rng(devices=[]):
        for name in ("fp32", "bf16", "fp32", "bf16", "bf16", "fp32", "fp32", "bf16"):
            started = time.perf_counter()
            total = torch.stack(list(in_precision(objective, name, device).loss_sums(model, part).values())).sum()
            torch.autograd.grad(total, parameters, allow_unused=True)
            seconds[name].append(time.perf_counter() - started)
            if len(seconds["bf16"]) == 2 and seconds["bf16"][1] > _EMULATED * seconds["fp32"][1]:
                return "fp32"
    return "bf16" if _LEAST_GAIN * min(seconds["bf16"][1:]) < min(seconds["fp32"][1:]) else "fp32"


def _has_bf16_kernels() -> bool:
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@dataclass(frozen=True)
class HalfPrecision:
    """An objective with matrix products in bf16 or fp16; weights, norms, softmax and losses stay in fp32.

    GPU kernels round the outputs of BERT's layers, and compute norms and sums in fp32 internally.
    """

    objective: Objective
    dtype: torch.dtype

    def target_counts(self, batch: Any) -> dict[str, float]:
        """Return the objective's target counts."""
        return self.objective.target_counts(batch)

    def loss_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, Tensor]:
        """Return the objective's loss sums, computed in half precision and summed in fp32."""
        with torch.autocast(model_device(model).type, self.dtype):
            sums = self.objective.loss_sums(model, batch)
        return {name: value.float() for name, value in sums.items()}


class CarryingHalfPrecision(HalfPrecision):
    """`HalfPrecision` for an objective that carries state from batch to batch."""

    def first_carry(self, model: EncoderWithHeads, num_sequences: int) -> Carry:
        """Return the objective's first carry."""
        assert isinstance(self.objective, Carrying)
        return self.objective.first_carry(model, num_sequences)
