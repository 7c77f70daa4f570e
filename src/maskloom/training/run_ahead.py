"""Work that a GPU gets ahead of time, so that it does not wait while the host reads batches, losses and logs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from maskloom.layers.copies import HostCopy
from maskloom.objectives.carrying import CarriedBatch
from maskloom.system.fault_points import fault_point
from maskloom.training.optimizers import forget_step, parameters_of, step_if
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.settings import TrainingSection
from maskloom.training.state import NextBatch, TrainState


class BatchesAhead:
    """The batches from a position on, in order; some are read ahead of time."""

    def __init__(self, next_batch: NextBatch, position: dict[str, int], *, num_ahead: int) -> None:
        self._next_batch, self._after, self._num_ahead = next_batch, position, num_ahead
        self._read: deque[tuple[Any, dict[str, int]]] = deque()

    def take(self) -> tuple[Any, dict[str, int]]:
        """Return the next batch, and the position after it."""
        return self._read.popleft() if self._read else self._next()

    @property
    def coming(self) -> Any:
        """The batch that `take` will return next, if it has been read, else None."""
        return self._read[0][0] if self._read else None

    def read_ahead(self) -> None:
        """Read until `num_ahead` batches are there."""
        while len(self._read) < self._num_ahead:
            self._read.append(self._next())

    def _next(self) -> tuple[Any, dict[str, int]]:
        batch, self._after = self._next_batch(self._after)
        return batch, self._after


class Launched:
    """The losses of a batch and the norm of its gradients, which a GPU may still be computing.

    `shares` are each micro-batch's shares of the mean losses by name, times `scale`.
    """

    def __init__(self, shares: dict[str, list[Tensor]], norm: Tensor, scale: float = 1.0) -> None:
        self.norm, self._scale = norm, scale
        self._num_shares = {name: len(each) for name, each in shares.items()}
        self._numbers = torch.stack([*chain(*shares.values()), norm]).detach()
        self._copy = HostCopy(self._numbers)

    @property
    def is_finite(self) -> Tensor:
        """Whether losses and norm are finite, as a boolean on their device."""
        return self._numbers.isfinite().all()

    def read(self) -> tuple[dict[str, float], float, bool]:
        """Wait for a single copy from the GPU; return losses by name, norm, and whether they are finite."""
        values = iter(self._copy.tensor().tolist())
        losses = {name: sum(islice(values, number), 0.0) / self._scale for name, number in self._num_shares.items()}
        norm = next(values)
        return losses, norm, math.isfinite(sum(losses.values()) + norm)


def can_run_ahead(state: TrainState, ranks: Ranks) -> bool:
    """Tell whether steps can be launched before their losses are read: on a single GPU, without a loss scale."""
    is_alone = ranks.device.type == "cuda" and ranks.world_size == 1 and not ranks.is_sharded
    return is_alone and state.loss_scale is None and bool(state.optimizer.defaults.get("fused"))


@dataclass
class StepsAhead:
    """Takes the loop's steps, but launches each before its losses are read, and then the next batch's gradients.

    The optimiser is told on the device to do nothing in a step that is not finite.
    """

    launch: Callable[[Any, int], Launched]
    batches: BatchesAhead
    state: TrainState
    settings: TrainingSection
    _ahead: Launched | None = None

    def take(self, batch: Any) -> tuple[dict[str, float], float, bool]:
        """Accumulate, clip and update; return mean losses, norm, and whether they are finite.

        If they are not, the gradients of the step are in place again.
        """
        state, limit = self.state, self.settings.max_grad_norm
        launched = self._ahead or self.launch(batch, state.step)
        if limit:
            clip_grads_with_norm_(parameters_of(state.optimizer), limit, launched.norm, foreach=True)
        fault_point("training.step")
        known = {*state.optimizer.state}
        step_if(state.optimizer, launched.is_finite)
        self._ahead = None if isinstance(batch, CarriedBatch) else self._launched_ahead()
        losses, norm, is_finite = launched.read()
        if not is_finite:
            forget_step(state.optimizer, known)
            self.launch(batch, state.step)
        return losses, norm, is_finite

    def _launched_ahead(self) -> Launched | None:
        """Launch the gradients of the coming batch, if there is one; they must not depend on this step's."""
        step, coming = self.state.step + 1, self.batches.coming
        if coming is None or step >= self.settings.steps:
            return None
        try:
            return self.launch(coming, step)
        except Exception:  # the step that it belongs to tries again, and raises it if it must
            return None
