"""The training loop: a generator of step reports for every objective; saving, logging, evaluating are its caller's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from maskloom.config import TrainingSection
from maskloom.data.counter_random import integers
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.objective import Objective, SummedObjective
from maskloom.training.optimizers import make_optimizer, rate_of
from maskloom.training.schedules import make_schedule

NextBatch = Callable[[dict[str, int]], tuple[Any, dict[str, int]]]

_DROPOUT_STREAM = 0xD20


class NumericalError(ValueError):
    """A loss or a gradient is not finite; the weights were not stepped."""


@dataclass
class TrainState:
    """Everything that a step changes: model and optimiser in place, steps taken, position in the data.

    Dropout draws depend on (seed, step) alone, so no generator state belongs here.
    """

    model: EncoderWithHeads
    optimizer: torch.optim.Optimizer
    step: int
    position: dict[str, int]

    @classmethod
    def fresh(cls, model: EncoderWithHeads, settings: TrainingSection) -> TrainState:
        """Return the state before the first step."""
        return cls(model=model, optimizer=make_optimizer(model, settings), step=0, position={})


@dataclass(frozen=True)
class StepReport:
    """What one step did. Losses are means in nats over the whole batch; `position` is where the next batch starts.

    `learning_rate` is that of everything but heads with a rate of their own.
    """

    step: int
    loss: float
    losses: dict[str, float]
    learning_rate: float
    gradient_norm: float
    num_sequences: int
    num_tokens: int
    seconds: float


def train_steps(
    state: TrainState,
    objective: Objective,
    next_batch: NextBatch,
    *,
    settings: TrainingSection,
    seed: int,
) -> Iterator[StepReport]:
    """Train from `state.step` to `settings.steps` (paper 3.4), yielding after each step, when `state` is whole.

    A batch may be split into micro-batches of `settings.micro_batch_size` sequences: each loss sum is divided by the
    count of the whole batch, so the gradient is that of one big batch. Gradients are clipped by their global norm
    after accumulation. Raises NumericalError, before stepping, when the loss or the gradient norm is not finite.
    """
    model, optimizer = state.model, state.optimizer
    factor = make_schedule(settings.schedule, warmup_steps=settings.resolved_warmup_steps(), steps=settings.steps)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    while state.step < settings.steps:
        started = time.perf_counter()
        batch, position = next_batch(state.position)
        model.train()
        torch.manual_seed(int(integers(2**62, seed, _DROPOUT_STREAM, state.step)))
        scale = factor(state.step)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(group, settings) * scale
        optimizer.zero_grad(set_to_none=True)
        losses = accumulate_gradients(model, objective, batch, settings.micro_batch_size)
        gradient_norm = _clip(parameters, settings.clip_norm)
        loss = sum(losses.values())
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            own = settings.head_learning_rate
            now = f"{settings.learning_rate}{'' if own is None else f', of heads {own}'}"
            raise NumericalError(
                f"step {state.step + 1}: loss {loss} with gradient norm {gradient_norm}; the weights were not changed. "
                f"Losses by name: {losses}. A smaller training.learning_rate (now {now}) may help."
            )
        optimizer.step()
        state.step += 1
        state.position = position
        yield StepReport(
            step=state.step,
            loss=loss,
            losses=losses,
            learning_rate=settings.learning_rate * scale,
            gradient_norm=gradient_norm,
            num_sequences=len(batch.lengths),
            num_tokens=len(batch.token_ids),
            seconds=time.perf_counter() - started,
        )


def accumulate_gradients(
    model: EncoderWithHeads, objective: Objective, batch: Any, micro_batch_size: int | None
) -> dict[str, float]:
    """Add the gradients of a batch to the parameters, in micro-batches, and return the mean losses by name.

    A loss without targets in the whole batch counts 0.
    """
    counts = objective.target_counts(batch)
    totals = dict.fromkeys(counts, 0.0)
    for micro_batch in batch.split(micro_batch_size) if micro_batch_size else [batch]:
        sums = objective.loss_sums(model, micro_batch)
        means = {name: total / max(counts[name], 1e-12) for name, total in sums.items() if counts[name] > 0}
        if means:
            torch.stack(list(means.values())).sum().backward()
        for name, mean in means.items():
            totals[name] += float(mean.detach())
    return totals


def _clip(parameters: list[torch.Tensor], clip_norm: float | None) -> float:
    """Scale all gradients so that their global L2 norm is at most `clip_norm`; return the norm before scaling."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return 0.0
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    if clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm, foreach=True)
    return float(norm)


@torch.inference_mode()
def evaluate(model: EncoderWithHeads, objective: SummedObjective, batches: Iterator[Any]) -> dict[str, float]:
    """Return the objective's metrics over batches, each target weighing the same; memory does not grow with them."""
    model.eval()
    totals: dict[str, float] = {}
    for batch in batches:
        for name, value in objective.evaluation_sums(model, batch).items():
            totals[name] = totals.get(name, 0.0) + value
    return objective.evaluation_metrics(totals)
