"""State that a model carries from one batch to the next (Transformer-XL's memory, truncated back-propagation)."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from maskloom.errors import ConfigError
from maskloom.layers.copies import to_device
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.objective import Objective, model_device

Carry = tuple[Tensor, ...]
"""The state passed from one batch to the next: tensors with a row per sequence, never changed in place."""


@runtime_checkable
class Carrying(Objective, Protocol):
    """An objective whose batches are `CarriedBatch`es: it reads their `carry` and sets `after`, the next carry.

    Row i of a batch continues row i of the previous batch. The training loop stores the carry across micro-batches,
    ranks and checkpoints, and replaces it only after a step that was actually taken.
    """

    def first_carry(self, model: EncoderWithHeads, num_sequences: int) -> Carry:
        """Return the carry of sequences that start afresh."""
        ...


class CarriedBatch:
    """A batch with the `carry` of its rows, and their carry `after` it; other attributes are the batch's own.

    If the batch has `begins` (sequences,) bool, it is True for rows whose text does not continue the previous batch.
    """

    def __init__(self, batch: Any, carry: Carry) -> None:
        self.batch, self.carry, self.after = batch, carry, carry
        self._parts = [self]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch, name)

    def split(self, num_sequences: int) -> list[CarriedBatch]:
        """Split in order into batches of `num_sequences`, each with its rows of the carry."""
        first, self._parts = 0, []
        for part in self.batch.split(num_sequences):
            rows = slice(first, first + len(part.lengths))
            self._parts.append(CarriedBatch(part, tuple(tensor[rows] for tensor in self.carry)))
            first = rows.stop
        return self._parts

    def carried_on(self) -> Carry:
        """Return the carry of all rows, once the loss of every part has been computed."""
        return tuple(torch.cat(tensors).detach() for tensors in zip(*(part.after for part in self._parts), strict=True))


def with_carry(batch: Any, objective: Objective, model: EncoderWithHeads, carry: Carry | None) -> Any:
    """Return a batch with the carry of its rows, if any; raises ConfigError for a different number of sequences."""
    if not isinstance(objective, Carrying):
        return batch
    number, begins = len(batch.lengths), getattr(batch, "begins", None)
    if carry is None or (begins is not None and begins.all()):
        return CarriedBatch(batch, objective.first_carry(model, number))
    if any(len(tensor) != number for tensor in carry):
        raise ConfigError(
            f"training.batch_size: a batch of {number} sequences after one of {len(carry[0])}; the objective carries "
            "state from row to row, so all batches of a run must have the same size"
        )
    if begins is not None and begins.any():
        is_new, first = to_device(begins, model_device(model)), objective.first_carry(model, number)
        pairs = zip(first, carry, strict=True)
        carry = tuple(torch.where(is_new.view(-1, *[1] * (new.dim() - 1)), new, old) for new, old in pairs)
    return CarriedBatch(batch, carry)


def carried_on(batch: Any) -> Carry | None:
    """Return the carry from a batch to the next one, or None if nothing is carried."""
    return batch.carried_on() if isinstance(batch, CarriedBatch) else None
