"""Adam with decoupled weight decay, in the standard form and in Google's form without bias correction."""

from __future__ import annotations

import math
import re

import torch
from torch import nn

from maskloom.config import TrainingSection

# The name rule of the published code: everything decays except LayerNorm parameters and biases.
_EXEMPT = re.compile(r"(^|[._])(layer_?norm|bias)([._]|$)", re.IGNORECASE)


def decays(name: str) -> bool:
    """Tell whether the parameter of that name decays; LayerNorm parameters and biases do not.

    The rule looks at whole name parts, so prefixes added by wrappers such as torch.compile do not change it.
    """
    return _EXEMPT.search(name) is None


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Split the trainable parameters of a model into one group that decays and one that does not."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    decayed = [parameter for name, parameter in named if decays(name)]
    exempt = [parameter for name, parameter in named if not decays(name)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": exempt, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


class BertAdam(torch.optim.AdamW):
    """Adam as the published BERT code has it: no bias correction, decoupled decay, epsilon outside the correction.

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p - lr (m / (sqrt(v) + eps) + decay p).
    It runs torch's fused AdamW with step-dependent constants that cancel the bias correction, so it costs the same.
    """

    def __init__(self, params, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, fused=True)

    @torch.no_grad()
    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step with the plain moments; `closure` is passed on to torch."""
        plain = [(group["lr"], group["eps"], group["weight_decay"]) for group in self.param_groups]
        for group, (rate, epsilon, decay) in zip(self.param_groups, plain, strict=True):
            step = self._steps_taken(group) + 1
            beta1, beta2 = group["betas"]
            root = math.sqrt(1.0 - beta2**step)
            group["lr"] = rate * (1.0 - beta1**step) / root
            group["eps"] = epsilon / root
            group["weight_decay"] = decay * root / (1.0 - beta1**step)
        try:
            return super().step(closure)
        finally:
            for group, (rate, epsilon, decay) in zip(self.param_groups, plain, strict=True):
                group["lr"], group["eps"], group["weight_decay"] = rate, epsilon, decay

    def _steps_taken(self, group: dict) -> int:
        for parameter in group["params"]:
            state = self.state.get(parameter)
            if state:
                return int(state["step"])
        return 0


def make_optimizer(model: nn.Module, settings: TrainingSection) -> torch.optim.AdamW:
    """Build the optimiser that a recipe names over a model's trainable parameters (paper 3.4)."""
    groups = parameter_groups(model, settings.weight_decay)
    betas = (settings.adam_beta1, settings.adam_beta2)
    if settings.optimizer == "bert_adam":
        return BertAdam(groups, lr=settings.learning_rate, betas=betas, eps=settings.adam_epsilon)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, eps=settings.adam_epsilon, fused=True)
