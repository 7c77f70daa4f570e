"""The tables of optimisers and of learning-rate schedules.

A schedule gives what the peak rate is multiplied by, at each step from 0 or by the clock.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Set
from functools import partial
from typing import Any

import torch
from torch import nn

from maskloom.models.architectures import architecture_of
from maskloom.models.encoder import Encoder
from maskloom.rows import Rows
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.settings import TrainingSection

# Tells whether a group has the parameters of heads with a learning rate of their own.
_OF_HEADS = "of_heads"


def parameter_groups(model: nn.Module, weight_decay: float, *, has_own_head_rate: bool = False) -> list[dict]:
    """Split the trainable parameters of a model into one group with weight decay and one without.

    Biases, norms and the modules that are `undecayed` in the architecture's row have none. With `has_own_head_rate`,
    the parameters of heads form two further groups, which `rate_of` recognises.
    """
    exempt, groups = _exempt(model), dict[tuple[bool, bool], list[nn.Parameter]]()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            of_heads = has_own_head_rate and "heads" in name.split(".")  # wrappers may add prefixes to names
            groups.setdefault((of_heads, parameter in exempt), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": 0.0 if is_exempt else weight_decay, _OF_HEADS: of_heads}
        for (of_heads, is_exempt), parameters in sorted(groups.items())
    ]


def _exempt(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters without weight decay; biases are recognised by name, such as `bias` or `bias_ih_l0`."""
    rows = [architecture_of(module.config) for module in model.modules() if isinstance(module, Encoder)]
    kinds = (nn.LayerNorm, nn.RMSNorm, *(kind for row in rows for kind in row.undecayed))
    return {
        parameter
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=isinstance(module, kinds))
        if isinstance(module, kinds) or "bias" in name.split("_")
    }


def rate_of(group: dict, settings: TrainingSection) -> float:
    """Return the learning rate of a parameter group before the schedule scales it."""
    own = settings.head_learning_rate if group.get(_OF_HEADS) else None
    return settings.learning_rate if own is None else own


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters that an optimiser updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class AdamW(torch.optim.AdamW):
    """torch's AdamW, fused, without the wrappers that import torch's compiler, which takes about a second.

    Those wrappers keep the compiler out of the optimiser; only blocks of layers are compiled here.
    """

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    state_dict = inspect.unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.AdamW.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))

    def __init__(self, params, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, fused=True)


class BertAdam(AdamW):
    """Adam as in the published BERT code: no bias correction, decoupled decay, epsilon outside the correction.

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p - lr (m / (sqrt(v) + eps) + decay p).
    It runs torch's fused AdamW with step-dependent constants that cancel the bias correction, so it costs the same.
    """

    def __init__(self, params, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, lr, betas, eps)
        self._counted: dict[int, tuple[torch.Tensor, int]] = {}

    @torch.no_grad()
    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step with uncorrected moments; `closure` is passed on to torch."""
        plain = [(group["lr"], group["eps"], group["weight_decay"]) for group in self.param_groups]
        for number, (group, (rate, epsilon, decay)) in enumerate(zip(self.param_groups, plain, strict=True)):
            step, (beta1, beta2) = 1 + self._num_taken(number), group["betas"]
            root = math.sqrt(1.0 - beta2**step)
            group["lr"] = rate * (1.0 - beta1**step) / root
            group["eps"] = epsilon / root
            group["weight_decay"] = decay * root / (1.0 - beta1**step)
        try:
            return super().step(closure)
        finally:
            for group, (rate, epsilon, decay) in zip(self.param_groups, plain, strict=True):
                group["lr"], group["eps"], group["weight_decay"] = rate, epsilon, decay

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state of a copy, whose steps are counted anew."""
        super().__setstate__(state)
        self._counted = {}

    def _num_taken(self, number: int) -> int:
        """Return the number of steps that a group has taken; a GPU is read only for a count not tracked here."""
        first = next((each for each in self.param_groups[number]["params"] if self.state.get(each)), None)
        if first is None:
            return 0
        step, (known, taken) = self.state[first]["step"], self._counted.get(number, (None, 0))
        taken = taken if known is step else int(step)
        self._counted[number] = step, taken + (first.grad is not None)
        return taken


def step_if(optimizer: torch.optim.Optimizer, is_good: torch.Tensor) -> None:
    """Take a step if a boolean on the device is true, without synchronisation; only for fused optimisers."""
    optimizer.found_inf = (~is_good).float()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        optimizer.step()
    finally:
        del optimizer.found_inf  # pyright: ignore[reportAttributeAccessIssue]


def forget_step(optimizer: torch.optim.Optimizer, known: Set[torch.Tensor]) -> None:
    """Remove what a step that `step_if` skipped left: state of parameters other than `known`, and its count."""
    for parameter in optimizer.state.keys() - known:
        del optimizer.state[parameter]
    if isinstance(optimizer, BertAdam):
        optimizer._counted = {}


def _adam(kind: Callable[..., torch.optim.Optimizer], groups: list[dict], settings: TrainingSection):
    betas = (settings.adam_beta1, settings.adam_beta2)
    return kind(groups, lr=settings.learning_rate, betas=betas, eps=settings.adam_epsilon)


OPTIMIZERS: Rows[Callable[[list[dict], TrainingSection], torch.optim.Optimizer]] = Rows(
    "training.optimizer",
    {"adamw": partial(_adam, AdamW), "bert_adam": partial(_adam, BertAdam)},
)
"""Optimisers by their names in recipes, each created from parameter groups, with their weight decay, and settings."""


def make_optimizer(model: nn.Module, settings: TrainingSection) -> torch.optim.Optimizer:
    """Create the optimiser that a recipe names for a model's trainable parameters (paper 3.4)."""
    has_own = settings.head_learning_rate is not None
    groups = parameter_groups(model, settings.weight_decay, has_own_head_rate=has_own)
    return OPTIMIZERS[settings.optimizer](groups, settings)


SCHEDULES: Rows[Callable[..., float]] = Rows(
    "training.schedule",
    {
        # a straight line from 1 at W to 0 at N, as in transformers
        "linear": lambda step, warmup_steps, steps: max(0.0, (steps - step) / max(1, steps - warmup_steps)),
        # as in the published BERT code, whose decay starts at step 0, so that the rate jumps at W
        "google": lambda step, warmup_steps, steps: max(0.0, 1.0 - step / steps),
        # half a cosine from 1 at W to 0 at N (Radford et al. 2018, 4.1)
        "cosine": lambda step, warmup_steps, steps: (
            0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))))
        ),
        # sqrt(W/s), which does not fall to 0 (Vaswani et al. 2017, equation 3, with its peak scaled to 1)
        "inverse_sqrt": lambda step, warmup_steps, steps: math.sqrt(max(1, warmup_steps) / max(1, warmup_steps, step)),
        "constant": lambda step, warmup_steps, steps: 1.0,
    },
)
"""Factors on the peak learning rate at step s of N, after a warm-up of W steps, by their names in recipes."""


def make_schedule(name: str, *, warmup_steps: float, steps: float) -> Callable[[float], float]:
    """Return a function of the step, from 0: s/W during warm-up, so 0 at first, then the schedule of that name."""

    def factor(step: float) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        return SCHEDULES[name](step, warmup_steps=warmup_steps, steps=steps)

    return factor


def factor_of(settings: TrainingSection) -> Callable[[float], float]:
    """Return what the peak learning rate is multiplied by at each step of a run, whether extended or not.

    Before an extension's `at`, the factor follows the number of steps planned until then; from `at` on, it follows a
    run of the new number of steps with the same warm-up. The transition is linear over the first W steps after `at`, or
    over all that are left if fewer: a rate that fell to 0 rises as gently as at the start, and a high one falls.
    """
    warmup, plans = settings.resolved_warmup_steps(), settings.extensions
    first, *later = [*(plan.steps for plan in plans), settings.steps]
    factor = make_schedule(settings.schedule, warmup_steps=warmup, steps=first)
    for plan, steps in zip(plans, later, strict=True):
        after = make_schedule(settings.schedule, warmup_steps=warmup, steps=steps)
        factor = _joined(factor, after, plan.at, min(warmup, steps - plan.at))
    return factor


def _joined(
    before: Callable[[float], float], after: Callable[[float], float], at: int, length: int
) -> Callable[[float], float]:
    start = before(at)

    def factor(step: float) -> float:
        if step < at:
            return before(step)
        if step >= at + length:
            return after(step)
        return start + (after(step) - start) * (step - at) / length

    return factor


# The whole time, in the units that replace steps in a schedule by the clock.
_TIME = 1e9
_DIGITS = 6
# Evaluations and saves in a run whose recipe does not specify their intervals, and how many times as long as one of
# them takes the steps after it take at least.
_PARTS, _STEPS_PER_PAUSE = 10, 9


class TimeBudget:
    """The time of a run, from the start of its first step, including evaluations and saves.

    The fraction used is the same on all `ranks`, by the first one's clock. The `fractions` of the last steps are kept
    until they are logged, so that the learning rate of each step is known afterwards. Time between a stop and its
    resume does not count, nor do steps lost by a kill.
    """

    def __init__(
        self, seconds: float, settings: TrainingSection, ranks: Ranks, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        warmup_steps = _TIME * settings.warmup_ratio
        self._schedule = make_schedule(settings.schedule, warmup_steps=warmup_steps, steps=_TIME)
        self._ranks, self._now = ranks, now
        self._before, self._started = 0.0, None
        self.fractions: list[float] = []
        self.fraction, self._part = 0.0, 0
        self._is_paused, self._next_pause = False, 0.0

    def start(self) -> None:
        """Start the clock."""
        self._started = self._now()

    def used(self) -> float:
        """Return the seconds used by this process's clock, including those before a resume."""
        return self._before + (0.0 if self._started is None else self._now() - self._started)

    def factor(self, _step: float) -> float:
        """Return what to multiply the peak learning rate by in the step that begins now, and record its fraction."""
        before = self.fraction
        self._look()
        if self._is_paused:
            self._is_paused, self._next_pause = False, self.fraction + _STEPS_PER_PAUSE * (self.fraction - before)
        self.fractions.append(self.fraction)
        return self._schedule(_TIME * self.fraction)

    def is_used_up(self) -> bool:
        """Tell whether no time is left for another step, the same on all ranks."""
        self._look()
        return self.fraction >= 1.0

    def enters_new_part(self) -> bool:
        """Tell whether the step that just ended is the first to end in another tenth of the time.

        After a pause for evaluation and saving, steps take at least nine times as long as it did before the next.
        """
        part = int(self.fraction * _PARTS)
        if part <= self._part or self.fraction < self._next_pause:
            return False
        self._part, self._is_paused = part, True
        return True

    def taken(self) -> list[float]:
        """Return the fractions at the steps since the last call, in order."""
        fractions, self.fractions = self.fractions, []
        return fractions

    def as_dict(self) -> dict[str, Any]:
        """Return the state to store in a checkpoint."""
        return {"seconds": self.used(), "fractions": list(self.fractions)}

    def restore(self, values: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self._before, self.fractions = values["seconds"], list(values["fractions"])
        self._part = int(min(1.0, self._before / self.seconds) * _PARTS)

    def _look(self) -> None:
        mine = min(1.0, round(self.used() / self.seconds, _DIGITS)) if self._ranks.is_first else 0.0
        self.fraction = self._ranks.sum_({"fraction": mine})["fraction"]
