"""The training loop, a generator of step reports for every objective; its caller saves, logs and evaluates.

What happens when a step fails is in `training.faults`; what a GPU gets ahead of time in `training.run_ahead`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from maskloom.data.counter_random import integers
from maskloom.layers.dropout import RowDraws, drawing
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.carrying import carried_on, with_carry
from maskloom.objectives.objective import Objective, SummedObjective, model_device
from maskloom.system.devices import inference_in
from maskloom.system.fault_points import fault_point
from maskloom.training.faults.memory import in_micro_batches_that_fit
from maskloom.training.faults.nonfinite import NonFiniteStepError
from maskloom.training.optimizers import factor_of, parameters_of, rate_of
from maskloom.training.precision import adapted_scale
from maskloom.training.ranks.ranks import ONE_RANK, Ranks
from maskloom.training.run_ahead import BatchesAhead, Launched, StepsAhead, can_run_ahead
from maskloom.training.settings import TrainingSection
from maskloom.training.state import NextBatch, StepReport, TrainState

_DROPOUT_STREAM = 0xD20


def train_steps(
    state: TrainState,
    objective: Objective,
    next_batch: NextBatch,
    *,
    settings: TrainingSection,
    seed: int,
    ranks: Ranks = ONE_RANK,
    factor: Callable[[float], float] | None = None,
) -> Iterator[StepReport]:
    """Train from `state.step` to `settings.steps` (paper 3.4), yielding after each step, with `state` fully updated.

    A batch may be split into micro-batches of `settings.micro_batch_size` sequences: each loss sum is divided by the
    count of the whole batch, so the gradient equals that of one large batch. Gradients are clipped by their global norm
    after accumulation. If memory runs out, micro-batches are halved for good and the batch is repeated. Raises, before
    a step, NonFiniteStepError if loss or gradient norm is not finite, and MemoryExhaustedError if not even one sequence
    fits or memory runs out on one of several ranks. `factor` maps a step to the multiple of the peak learning rate, by
    default as in `settings`.

    With several `ranks`, `next_batch` gives each its part of the batch; all parts have the same number of
    micro-batches.
    """
    model, factor, runs_ahead = state.model, factor or factor_of(settings), can_run_ahead(state, ranks)
    # on a GPU, one to read while it computes and, if it can run ahead, one whose gradients it computes meanwhile
    num_ahead = 2 if runs_ahead else int(ranks.device.type == "cuda")
    batches = BatchesAhead(next_batch, state.position, num_ahead=num_ahead)
    steps = _Steps(state, objective, settings, seed, ranks, batches)
    take = StepsAhead(steps.launch, batches, state, settings).take if runs_ahead else steps.take
    while state.step < settings.steps:
        started = time.perf_counter()
        batch, position = batches.take()
        if not model.training:  # train() visits all modules
            model.train()
        scale = factor(state.step)
        for group in state.optimizer.param_groups:
            group["lr"] = rate_of(group, settings) * scale
        carried = with_carry(batch, objective, model, state.carry)
        num_tokens = ranks.sum_({"tokens": len(batch.token_ids)})["tokens"]
        losses, gradient_norm, is_finite = take(carried)  # accumulate, clip, update
        report = StepReport(
            step=state.step + 1,
            loss=sum(losses.values()),
            losses=losses,
            learning_rate=settings.learning_rate * scale,
            gradient_norm=gradient_norm,
            num_tokens=int(num_tokens),
            seconds=time.perf_counter() - started,
        )
        if not is_finite:
            raise NonFiniteStepError(batch, report, settings, position_after=position)
        state.step += 1
        state.position, state.carry = position, carried_on(carried)
        yield report


@dataclass
class _Steps:
    """Takes steps: accumulates the gradients of a batch, clips them and updates the weights."""

    state: TrainState
    objective: Objective
    settings: TrainingSection
    seed: int
    ranks: Ranks
    batches: BatchesAhead

    def take(self, batch: Any) -> tuple[dict[str, float], float, bool]:
        """Accumulate, clip and update; return mean losses, norm before clipping, and whether they are finite.

        If they are not, nothing is updated. In fp16, the step is first repeated with half the loss scale until the norm
        is finite or the scale is 1; if no scale helps, it stays as it was before the step.
        """
        state, limit = self.state, self.settings.max_grad_norm
        launched = self.launch(batch, state.step)
        losses, norm, is_finite = launched.read()
        losses, is_finite = self.ranks.sum_(losses), not self.ranks.any_(not is_finite)
        overflows = state.loss_scale is not None and self.ranks.any_(not math.isfinite(norm))
        scale, state.loss_scale = state.loss_scale, adapted_scale(state.loss_scale, overflows=overflows)
        if overflows and state.loss_scale != scale:
            found = self.take(batch)
            if not found[2]:
                state.loss_scale = scale
            return found
        if is_finite:
            if limit and norm + 1e-6 >= limit:  # below, clipping would multiply by 1
                clip_grads_with_norm_(parameters_of(state.optimizer), limit, launched.norm, foreach=self._foreach)
            fault_point("training.step")
            state.optimizer.step()
        return losses, norm, is_finite

    @property
    def _foreach(self) -> bool | None:
        """Whether all gradients are scaled by one operation, which torch does not have for Apple GPUs."""
        return None if self.ranks.device.type == "mps" else True

    def launch(self, batch: Any, step: int) -> Launched:
        """Compute the gradients of a step, in micro-batches that fit into memory, and read batches ahead meanwhile."""
        state, scale = self.state, self.state.loss_scale[0] if self.state.loss_scale else 1.0
        draws = StepDraws(self.seed, step)
        accumulate = partial(
            launch_gradients, state.model, self.objective, batch, draws=draws, ranks=self.ranks, loss_scale=scale
        )
        shares = in_micro_batches_that_fit(accumulate, batch, state, self.settings, self.ranks)
        gradients = [weight.grad for weight in parameters_of(state.optimizer) if weight.grad is not None]
        for gradient in gradients if scale != 1.0 else ():
            gradient.mul_(1.0 / scale)
        norm: Any = get_total_norm(gradients, foreach=self._foreach)  # with several ranks, each may hold a shard of it
        launched = Launched(shares, norm.full_tensor() if hasattr(norm, "full_tensor") else norm, scale)
        self.batches.read_ahead()
        return launched


def launch_gradients(
    model: EncoderWithHeads,
    objective: Objective,
    batch: Any,
    micro_batch_size: int | None,
    *,
    draws: StepDraws | None = None,
    ranks: Ranks = ONE_RANK,
    loss_scale: float = 1.0,
) -> dict[str, list[Tensor]]:
    """Add the gradients of a batch to the parameters; return each micro-batch's share of the mean losses by name.

    A GPU may still be computing these. With several ranks, `batch` is this rank's part, and the losses sum over ranks
    to the means over the whole batch. Without `draws`, torch's generator continues from its current state. Losses and
    gradients are multiplied by `loss_scale`.
    """
    counts, first_row = ranks.counts_and_first_row(objective, batch)
    counts = {name: count / loss_scale for name, count in counts.items()}
    found: dict[str, list[Tensor]] = {name: [] for name in counts}
    parts = batch.split(micro_batch_size) if micro_batch_size else [batch]
    for number, micro_batch in enumerate(parts, start=ranks.rank * len(parts)):
        fault_point("training.micro_batch")
        is_last = micro_batch is parts[-1]
        with draws.of(micro_batch, number=number, first_row=first_row) if draws else nullcontext():
            means = ranks.add_gradients(model, objective, micro_batch, counts, is_last=is_last)
        first_row += len(micro_batch.lengths)
        for name, mean in means.items():
            found[name].append(mean)
    return found


def accumulate_gradients(
    model: EncoderWithHeads, objective: Objective, batch: Any, micro_batch_size: int | None, **settings: Any
) -> dict[str, float]:
    """Add the gradients of a batch as `launch_gradients` does, and return the mean losses by name."""
    shares = launch_gradients(model, objective, batch, micro_batch_size, **settings)
    return Launched(shares, torch.zeros((), device=model_device(model))).read()[0]


@dataclass(frozen=True)
class StepDraws:
    """The dropout draws of a step: functions of seed, step, row and position only, however the batch is split.

    Where torch draws the numbers (in a BiLSTM, for rows that are neither tokens nor sequences, and in its attention on
    a GPU), they depend on the number of the micro-batch, counted over the whole batch.
    """

    seed: int
    step: int

    @contextmanager
    def of(self, micro_batch: Any, *, number: int, first_row: int) -> Iterator[None]:
        """Within, draw for a micro-batch; `first_row` is the index of its first sequence in the whole batch."""
        counters = (self.step, number) if number else (self.step,)
        _seed_generators(int(integers(2**62, self.seed, _DROPOUT_STREAM, *counters)))
        key = int(integers(2**32, self.seed, _DROPOUT_STREAM, self.step)) - 2**31
        with drawing(RowDraws(key, first_row, micro_batch.lengths)):
            yield


def _seed_generators(seed: int) -> None:
    """Seed torch's generators.

    `torch.manual_seed` would also format the call stack once for each kind of absent accelerator, which takes half a
    millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


@torch.inference_mode()
def evaluate(
    model: EncoderWithHeads, objective: SummedObjective, batches: Iterator[Any], precision: str = "auto"
) -> dict[str, float]:
    """Return the objective's metrics over batches, with equal weight for every target; memory use is constant.

    `precision` is that of `inference_in`.
    """
    model.eval()
    totals: dict[str, float] = {}
    carry = None
    with inference_in(precision, model_device(model)):  # one context, so that weights are rounded only once
        for plain in batches:
            fault_point("evaluation.batch")
            batch = with_carry(plain, objective, model, carry)
            for name, value in objective.evaluation_sums(model, batch).items():
                totals[name] = totals.get(name, 0.0) + value
            carry = carried_on(batch)
    return objective.evaluation_metrics(totals)
