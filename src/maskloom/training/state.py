"""What a training step changes, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.carrying import Carry
from maskloom.training.optimizers import make_optimizer
from maskloom.training.precision import FIRST_LOSS_SCALE
from maskloom.training.settings import TrainingSection

NextBatch = Callable[[dict[str, int]], tuple[Any, dict[str, int]]]
"""Returns the batch at a position in the data, and the position after it."""


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
    num_tokens: int
    seconds: float
