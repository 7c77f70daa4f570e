"""The training loop, a generator of step reports for every objective; its caller saves, logs and evaluates."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import InitVar, dataclass, field, replace
from itertools import chain, islice
from typing import Any

import torch

from maskloom.data.counter_random import integers
from maskloom.layers.copies import HostCopy
from maskloom.layers.dropout import RowDraws, drawing
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.carrying import Carry, Carrying, carried_on, with_carry
from maskloom.objectives.objective import Objective, SummedObjective, model_device
from maskloom.system.devices import inference_in
from maskloom.system.fault_points import fault_point
from maskloom.training.faults.memory import give_up_kernels, is_out_of_memory, release_cached_memory
from maskloom.training.optimizers import factor_of, make_optimizer, rate_of, recount, step_if
from maskloom.training.precision import FIRST_LOSS_SCALE
from maskloom.training.ranks.ranks import ONE_RANK, Ranks
from maskloom.training.settings import TrainingSection

NextBatch = Callable[[dict[str, int]], tuple[Any, dict[str, int]]]

_DROPOUT_STREAM = 0xD20
# As in torch's GradScaler, the loss scale is doubled after this many steps without an overflow.
_STEPS_OF_A_SCALE = 2000


class NumericalError(ValueError):
    """A loss or a gradient is not finite; the weights were not updated."""


class NonFiniteStepError(NumericalError):
    """A step whose loss or gradient norm is not finite, with its batch and its report.

    The state is as it was before the step, with the gradients of the batch in place. The batch starts at the state's
    `position`, the next one at `position_after`.
    """

    def __init__(self, message: str, batch: Any, report: StepReport, *, position_after: dict[str, int]) -> None:
        super().__init__(message)
        self.batch, self.report, self.position_after = batch, report, position_after


class MemoryExhaustedError(RuntimeError):
    """Memory ran out, for a single sequence or on one of several ranks; the weights were not updated.

    `micro_batch_size` is a size to restart several ranks with, as they cannot halve it in the middle of a step.
    """

    def __init__(self, message: str, *, micro_batch_size: int | None = None) -> None:
        super().__init__(message)
        self.micro_batch_size = micro_batch_size


@dataclass
class TrainState:
    """Everything that a step changes: model and optimiser in place, number of steps, position in the data.

    Dropout draws depend only on seed, step and batch, so no generator state belongs here. `micro_batch_size` overrides
    the settings once "auto" has chosen it or memory has run out, and is None before. `loss_scale` is the factor on
    losses in fp16 and the number of steps that it has held for; None in other precisions. `carry` is what this rank's
    rows pass on to the next batch; None before the first batch and if nothing is carried.
    """

    model: EncoderWithHeads
    optimizer: torch.optim.Optimizer
    step: int
    position: dict[str, int]
    micro_batch_size: int | None = None
    loss_scale: tuple[float, int] | None = None
    carry: Carry | None = None

    @classmethod
    def fresh(cls, model: EncoderWithHeads, settings: TrainingSection) -> TrainState:
        """Return the state before the first step."""
        scale = (FIRST_LOSS_SCALE, 0) if settings.precision == "fp16" else None
        return cls(model=model, optimizer=make_optimizer(model, settings), step=0, position={}, loss_scale=scale)


@dataclass(frozen=True)
class StepReport:
    """The outcome of one step over all ranks. Losses are means in nats over the whole batch.

    `learning_rate` applies to all parameters except heads with a rate of their own.
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
    ranks: Ranks = ONE_RANK,
    factor: Callable[[float], float] | None = None,
) -> Iterator[StepReport]:
    """Train from `state.step` to `settings.steps` (paper 3.4), yielding after each step, with `state` fully updated.

    A batch may be split into micro-batches of `settings.micro_batch_size` sequences: each loss sum is divided by the
    count of the whole batch, so the gradient equals that of one large batch. Gradients are clipped by their global norm
    after accumulation. If memory runs out, micro-batches are halved for good and the batch is repeated. Raises, before
    a step, NonFiniteStepError if loss or gradient norm is not finite, and MemoryExhaustedError if not even one sequence
    fits or memory runs out on one of several ranks. `factor` maps a step to the factor on the peak learning rate, by
    default as in `settings`.

    With several `ranks`, `next_batch` gives each its part of the batch; all parts have the same number of
    micro-batches.
    """
    model, optimizer = state.model, state.optimizer
    factor = factor or factor_of(settings)
    gradients = _Gradients(state, objective, settings, seed, ranks, next_batch)
    while state.step < settings.steps:
        started = time.perf_counter()
        batch, position = gradients.batches.take(state.position)
        if not model.training:  # train() visits all modules
            model.train()
        scale = factor(state.step)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(group, settings) * scale
        carried = with_carry(batch, objective, model, state.carry)
        losses, gradient_norm = gradients.losses_and_norm(carried)
        sizes = ranks.sum_({"sequences": len(batch.lengths), "tokens": len(batch.token_ids)})
        report = StepReport(
            step=state.step + 1,
            loss=sum(losses.values()),
            losses=losses,
            learning_rate=settings.learning_rate * scale,
            gradient_norm=gradient_norm,
            num_sequences=int(sizes["sequences"]),
            num_tokens=int(sizes["tokens"]),
            seconds=time.perf_counter() - started,
        )
        if ranks.any_(not (math.isfinite(report.loss) and math.isfinite(gradient_norm))):
            if gradients.steps_unread:
                recount(optimizer)
                gradients.recompute(carried)
            raise NonFiniteStepError(_not_finite(report, settings), batch, report, position_after=position)
        if not gradients.steps_unread:
            fault_point("training.step")
            optimizer.step()
        state.step += 1
        state.position, state.carry = position, carried_on(carried)
        yield replace(report, seconds=time.perf_counter() - started)


class _Batches:
    """Reads batches in order; for a GPU, some ahead, while the GPU computes."""

    def __init__(self, next_batch: NextBatch, *, num_ahead: int) -> None:
        self._next_batch, self._num_ahead = next_batch, num_ahead
        self._read: deque[tuple[Any, dict[str, int]]] = deque()
        self._after: dict[str, int] = {}

    def take(self, position: dict[str, int]) -> tuple[Any, dict[str, int]]:
        """Return the batch at a position, which must be that after the one last taken, and the position after it."""
        if not self._read:
            self._after = position
            self._read_one()
        return self._read.popleft()

    @property
    def coming(self) -> Any:
        """The batch that `take` will return next, if it has been read, else None."""
        return self._read[0][0] if self._read else None

    def read_ahead(self) -> None:
        """Read until the wanted number of batches is there."""
        while len(self._read) < self._num_ahead:
            self._read_one()

    def _read_one(self) -> None:
        self._read.append(self._next_batch(self._after))
        self._after = self._read[-1][1]


@dataclass(frozen=True)
class StepDraws:
    """The dropout draws of a step: functions of seed, step, row and position only, however the batch is split.

    Where torch draws the numbers (in recurrent layers and in its attention on a GPU), they depend on the number of the
    micro-batch, counted over the whole batch.
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


def counts_and_first_row(objective: Objective, batch: Any, ranks: Ranks) -> tuple[dict[str, float], int]:
    """Return the target counts of the whole batch, and the number of its sequences on earlier ranks."""
    names = [f"sequences of rank {rank}" for rank in range(ranks.world_size)]
    own = {name: float(len(batch.lengths)) if rank == ranks.rank else 0.0 for rank, name in enumerate(names)}
    counts = ranks.sum_(objective.target_counts(batch) | own)
    before = [counts.pop(name) for name in names]
    return counts, int(sum(before[: ranks.rank]))


def launch_gradients(
    model: EncoderWithHeads,
    objective: Objective,
    batch: Any,
    micro_batch_size: int | None,
    *,
    draws: StepDraws | None = None,
    ranks: Ranks = ONE_RANK,
    loss_scale: float = 1.0,
    meanwhile: Callable[[], object] = lambda: None,
) -> dict[str, list[torch.Tensor]]:
    """Add the gradients of a batch to the parameters; return each micro-batch's share of the mean losses by name.

    A GPU may still be computing these. With several ranks, `batch` is this rank's part, and the losses sum over ranks
    to the means over the whole batch. Without `draws`, torch's generator continues from its current state. Losses and
    gradients are multiplied by `loss_scale`. `meanwhile` is called once all work has been queued on a GPU.
    """
    counts, first_row = counts_and_first_row(objective, batch, ranks)
    counts = {name: count / loss_scale for name, count in counts.items()}
    found: dict[str, list[torch.Tensor]] = {name: [] for name in counts}
    parts = batch.split(micro_batch_size) if micro_batch_size else [batch]
    for number, micro_batch in enumerate(parts, start=ranks.rank * len(parts)):
        fault_point("training.micro_batch")
        is_last = micro_batch is parts[-1]
        with draws.of(micro_batch, number=number, first_row=first_row) if draws else nullcontext():
            means = ranks.add_gradients(model, objective, micro_batch, counts, is_last=is_last)
        first_row += len(micro_batch.lengths)
        for name, mean in means.items():
            found[name].append(mean)
    meanwhile()
    return found


def accumulate_gradients(
    model: EncoderWithHeads, objective: Objective, batch: Any, micro_batch_size: int | None, **settings: Any
) -> dict[str, float]:
    """Add the gradients of a batch as `launch_gradients` does, and return the mean losses by name."""
    return _numbers(launch_gradients(model, objective, batch, micro_batch_size, **settings))[0]


def _numbers(found: dict[str, list[torch.Tensor]], *more: torch.Tensor) -> tuple[dict[str, float], list[float]]:
    """Return the sum of what was found for each name, 0 for nothing, and further numbers, in one copy from a GPU."""
    tensors = [*chain(*found.values()), *more]
    return _sums(found, torch.stack(tensors).tolist() if tensors else [])


def _sums(found: dict[str, list[torch.Tensor]], numbers: list[float]) -> tuple[dict[str, float], list[float]]:
    values = iter(numbers)
    return {name: sum(islice(values, len(parts)), 0.0) for name, parts in found.items()}, list(values)


@dataclass
class _Gradients:
    """Computes the gradients of successive steps."""

    state: TrainState
    objective: Objective
    settings: TrainingSection
    seed: int
    ranks: Ranks
    next_batch: InitVar[NextBatch]
    batches: _Batches = field(init=False)
    # what `_with_norm` returned for the coming batch
    _ahead: tuple[dict[str, list[torch.Tensor]], torch.Tensor] | None = None

    def __post_init__(self, next_batch: NextBatch) -> None:
        # on a GPU, one to read while it computes, and one to compute before the loss of this step is read
        num_ahead = 2 if self.steps_unread else int(self.ranks.device.type == "cuda")
        self.batches = _Batches(next_batch, num_ahead=num_ahead)

    def losses_and_norm(self, batch: Any) -> tuple[dict[str, float], float]:
        """Compute the clipped gradients of a step; return its mean losses and the norm before clipping.

        If `steps_unread`, the optimiser has by then taken the step, unless it was bad, and the gradients are those of
        the coming batch. Losses and norm are read together, in one GPU synchronisation. In fp16 the step is repeated
        with half the loss scale until its gradients are finite or the scale is 1; a scale that holds for 2,000 steps is
        doubled.
        """
        state, limit = self.state, self.settings.max_grad_norm
        parameters = self._parameters
        if self.steps_unread:
            return self._stepped(batch)
        while True:
            found = self._launched(batch, state.step)
            scale, num_held = state.loss_scale or (1.0, 0)
            for parameter in parameters if scale != 1.0 else ():
                if parameter.grad is not None:
                    parameter.grad.mul_(1.0 / scale)
            total = _total_norm(parameters)
            losses, (norm,) = _numbers(found, total)
            losses = self.ranks.sum_(losses)
            # not clipped: gradients with a non-finite norm, so that its source stays visible, and those that clipping
            # would multiply by 1
            if limit is not None and math.isfinite(norm) and norm + 1e-6 >= limit:
                torch.nn.utils.clip_grads_with_norm_(parameters, limit, total, foreach=True)
            if state.loss_scale is None:
                return losses, norm
            losses = {name: loss / scale for name, loss in losses.items()}
            is_finite = not self.ranks.any_(not math.isfinite(norm))
            if is_finite:
                state.loss_scale = (2 * scale, 0) if num_held + 1 == _STEPS_OF_A_SCALE else (scale, num_held + 1)
            if is_finite or scale == 1.0:
                return losses, norm
            state.loss_scale = (scale / 2, 0)

    @property
    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.state.optimizer.param_groups for parameter in group["params"]]

    @property
    def steps_unread(self) -> bool:
        """Whether the optimiser's step is launched before the loss is read, so that no GPU has to wait in between."""
        is_alone = self.ranks.device.type == "cuda" and self.ranks.world_size == 1 and not self.ranks.is_sharded
        return is_alone and self.state.loss_scale is None and bool(self.state.optimizer.defaults.get("fused"))

    def _stepped(self, batch: Any) -> tuple[dict[str, float], float]:
        """Launch a whole step, which has no effect if loss or norm is not finite, and return its losses and norm.

        The gradients of the coming batch are launched before these are read, so that the GPU has work meanwhile.
        """
        limit = self.settings.max_grad_norm
        found, total = self._ahead or self._with_norm(batch, self.state.step)
        numbers = torch.stack([*chain(*found.values()), total])
        copy, is_finite = HostCopy(numbers.detach()), numbers.isfinite().all()
        if limit is not None:
            # a norm of 0 clips nothing, so it stays visible which gradients are not finite
            torch.nn.utils.clip_grads_with_norm_(self._parameters, limit, total.where(is_finite, 0.0), foreach=True)
        fault_point("training.step")
        step_if(self.state.optimizer, is_finite)
        self._ahead = self._launched_ahead()
        losses, (norm,) = _sums(found, copy.array().tolist())
        return losses, norm

    def _launched_ahead(self) -> tuple[dict[str, list[torch.Tensor]], torch.Tensor] | None:
        """Launch the gradients of the coming batch, if there is one that does not depend on what this one carries."""
        step, coming = self.state.step + 1, self.batches.coming
        if coming is None or step >= self.settings.steps or isinstance(self.objective, Carrying):
            return None
        try:
            return self._with_norm(coming, step)
        except Exception:  # the step that it belongs to tries again, and raises it if it must
            return None

    def _with_norm(self, batch: Any, step: int) -> tuple[dict[str, list[torch.Tensor]], torch.Tensor]:
        """Launch the gradients of a batch; return its losses and the norm."""
        found = self._launched(batch, step)
        return found, _total_norm(self._parameters)

    def recompute(self, batch: Any) -> None:
        """Put the gradients of the step in place again, where the coming batch has replaced them."""
        self._ahead = None
        self._launched(batch, self.state.step)

    def _launched(self, batch: Any, step: int) -> dict[str, list[torch.Tensor]]:
        """Compute the gradients of a whole step and return its losses; halve micro-batches if memory runs out.

        A failed attempt has no effect: its gradients are dropped, and the batch is repeated from its start.
        """
        state, wanted = self.state, self.settings.micro_batch_size
        while True:
            state.optimizer.zero_grad(set_to_none=True)
            size = state.micro_batch_size or (wanted if isinstance(wanted, int) else None)
            try:
                return launch_gradients(
                    state.model,
                    self.objective,
                    batch,
                    size,
                    draws=StepDraws(self.seed, step),
                    ranks=self.ranks,
                    loss_scale=state.loss_scale[0] if state.loss_scale else 1.0,
                    meanwhile=self.batches.read_ahead,
                )
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.ranks.world_size > 1:  # the others wait in collectives that this rank will not join
                    raise self._out_of_memory_here(size, batch, str(error)) from error
                why = str(error) or type(error).__name__
            # outside the handler, as the exception kept the activations of the attempt alive
            state.optimizer.zero_grad(set_to_none=True)
            release_cached_memory()
            state.micro_batch_size = self._halved(size, batch, why)

    def _halved(self, size: int | None, batch: Any, why: str) -> int:
        """Return half the micro-batch size, or 1 again after disabling oneDNN; else raises MemoryExhaustedError."""
        whole = len(batch.split(1))
        size = min(size or whole, whole)
        if size == 1 and not give_up_kernels(why):
            raise MemoryExhaustedError(
                f"step {self.state.step + 1}: memory ran out on a micro-batch of one sequence (the longest of the "
                f"batch has {int(max(batch.lengths))} tokens): {why}. The weights were not changed. Use shorter "
                "sequences (data.max_length), a smaller model or more memory."
            )
        return (size + 1) // 2

    def _out_of_memory_here(self, size: int | None, batch: Any, why: str) -> MemoryExhaustedError:
        here = f"rank {self.ranks.rank} of {self.ranks.world_size}"
        half = self._halved(size, batch, f"{why} ({here})")
        return MemoryExhaustedError(
            f"step {self.state.step + 1}: memory ran out on {here} and the weights were not changed; when restarted "
            "by torchrun's --max-restarts or with --resume, all ranks continue from the last checkpoint in "
            f"micro-batches of {half}",
            micro_batch_size=half,
        )


def _not_finite(report: StepReport, settings: TrainingSection) -> str:
    own = settings.head_learning_rate
    now = f"{settings.learning_rate}{'' if own is None else f', for heads {own}'}"
    return (
        f"step {report.step}: loss {report.loss} with gradient norm {report.gradient_norm}; the weights were not "
        f"changed. Losses by name: {report.losses}. A smaller training.learning_rate (now {now}) may help."
    )


def _total_norm(parameters: list[torch.Tensor]) -> torch.Tensor:
    """Return the global L2 norm of all gradients, on their device."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros((), device=parameters[0].device)
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    # each rank may hold a shard of every gradient
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # pyright: ignore[reportAttributeAccessIssue]


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
