"""Arithmetic in half precision over weights in fp32 (Micikevicius et al. 2018, Mixed Precision Training)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskloom.errors import ConfigError
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.objective import Objective, model_device

FIRST_LOSS_SCALE = 2.0**16
"""What losses in fp16 are multiplied by at first, so that small gradients do not vanish; the loop adapts it."""

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def in_precision(objective: Objective, precision: str, device: torch.device) -> Objective:
    """Return an objective that computes in "fp32", "bf16" or "fp16"; "auto" is bf16 on a GPU that has it, else fp32.

    Raises ConfigError for bf16 on a GPU without it.
    """
    has_bf16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and has_bf16 else "fp32"
    if precision == "bf16" and not has_bf16:
        raise ConfigError(f"training.precision = 'bf16': {device} has no bf16; take 'fp16' or 'fp32'")
    return objective if precision == "fp32" else HalfPrecision(objective, _TYPES[precision])


@dataclass(frozen=True)
class HalfPrecision:
    """An objective whose matrix products are made in bf16 or fp16; weights, norms, softmax and losses stay in fp32."""

    objective: Objective
    dtype: torch.dtype

    def target_counts(self, batch: Any) -> dict[str, float]:
        """Return the counts of the objective."""
        return self.objective.target_counts(batch)

    def loss_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, Tensor]:
        """Return the objective's sums, computed in half precision and summed in fp32."""
        with torch.autocast(model_device(model).type, self.dtype):
            sums = self.objective.loss_sums(model, batch)
        return {name: value.float() for name, value in sums.items()}
