"""Adam with decoupled weight decay, in the standard form and in Google's form without bias correction."""

from __future__ import annotations

import math
import re

import torch
from torch import nn

from maskloom.config import TrainingSection

# The name rule of the published code: everything decays except LayerNorm parameters and biases.
_EXEMPT = re.compile(r"(^|[._])(layer_?norm|bias)([._]|$)", re.IGNORECASE)


# A group with this key holds parameters of heads, which have a learning rate of their own.
_OF_HEADS = "of_heads"
_HEAD = re.compile(r"(^|\.)heads\.")


def belongs_to_head(name: str) -> bool:
    """Tell whether the parameter of that name is a head's; prefixes added by wrappers do not change it."""
    return _HEAD.search(name) is not None


def decays(name: str) -> bool:
    """Tell whether the parameter of that name decays; LayerNorm parameters and biases do not.

    The rule looks at whole name parts, so prefixes added by wrappers such as torch.compile do not change it.
    """
    return _EXEMPT.search(name) is None


def parameter_groups(model: nn.Module, weight_decay: float, *, has_own_head_rate: bool = False) -> list[dict]:
    """Split the trainable parameters of a model into one group that decays and one that does not.

    With `has_own_head_rate` the parameters of heads are two further groups, which `rate_of` tells apart.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = []
    for of_heads in (False, True) if has_own_head_rate else (None,):
        part = [(name, parameter) for name, parameter in named if of_heads in (None, belongs_to_head(name))]
        mark = {_OF_HEADS: True} if of_heads else {}
        groups += [
            {"params": [parameter for name, parameter in part if decays(name)], "weight_decay": weight_decay, **mark},
            {"params": [parameter for name, parameter in part if not decays(name)], "weight_decay": 0.0, **mark},
        ]
    return [group for group in groups if group["params"]]


def rate_of(group: dict, settings: TrainingSection) -> float:
    """Return the learning rate of a group of parameters before the schedule scales it."""
    own = settings.head_learning_rate if group.get(_OF_HEADS) else None
    return settings.learning_rate if own is None else own


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
    has_own = settings.head_learning_rate is not None
    groups = parameter_groups(model, settings.weight_decay, has_own_head_rate=has_own)
    for group in groups if has_own else ():
        group["lr"] = rate_of(group, settings)
    betas = (settings.adam_beta1, settings.adam_beta2)
    if settings.optimizer == "bert_adam":
        return BertAdam(groups, lr=settings.learning_rate, betas=betas, eps=settings.adam_epsilon)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, eps=settings.adam_epsilon, fused=True)
