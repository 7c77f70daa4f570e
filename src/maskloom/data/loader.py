"""Batches as a function of a position: the rows of any stream, gathered and corrupted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from maskloom.data.corruption import Batch, Corruption, Gathered
from maskloom.errors import DataError


@dataclass(frozen=True)
class Columns:
    """Rows of a stream as index columns: arrays with one entry per row, used to gather the tokens later."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def take(self, rows: np.ndarray | slice) -> Self:
        """Return some rows, in the order given."""
        return type(self)(**{name: column[rows] for name, column in vars(self).items()})

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        """Return the concatenated rows of several groups."""
        if len(parts) == 1:
            return parts[0]
        return cls(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})


@dataclass(frozen=True)
class Extent:
    """The size of an epoch of a stream: its number of rows, and the lengths in tokens of representative rows.

    `num_marks` tokens of every row are never predicted. Training skips `num_dropped_tokens` tokens per epoch.
    """

    num_rows: int
    lengths: np.ndarray
    num_marks: int = 0
    num_dropped_tokens: int = 0


Rows = TypeVar("Rows", bound=Columns)


class Stream(Protocol[Rows, Gathered]):
    """An endless, seekable sequence of rows, epoch after epoch; a position is a few integers by name."""

    def read(self, position: dict[str, int], num_rows: int) -> tuple[Rows, dict[str, int]]:
        """Return the rows from a position ({} is the start), across epoch boundaries, and the position after them."""
        ...

    def epoch(self, number: int) -> Iterator[Rows]:
        """Yield all rows of an epoch once, in groups of any size."""
        ...

    def gather(self, rows: Rows) -> Gathered:
        """Return the rows with their tokens, as input for a corruption."""
        ...

    def extent(self) -> Extent:
        """Return the size of an epoch."""
        ...


@dataclass(frozen=True)
class Account:
    """The contents of an epoch; tokens per instance include special tokens, and training skips the dropped tokens.

    `cut_fraction` is the fraction of the predictions required by the rate that `max_predictions_per_seq` removes.
    """

    num_instances: int
    tokens_per_instance: float
    predictions_per_instance: float
    cut_fraction: float
    num_dropped_tokens: int = 0


class Loader(Generic[Batch]):
    """Batches of a stream's rows, determined exactly by stream, corruption and position.

    Only the slice `rows` of every training batch is created, with the same positions and draws as in the whole batch:
    several processes together create the batch that one process would.
    """

    def __init__(
        self, stream: Stream, corrupt: Corruption[Any, Batch], *, batch_size: int, rows: slice = slice(None)
    ) -> None:
        self._stream, self._corrupt, self._batch_size, self._rows = stream, corrupt, batch_size, rows

    def next_batch(self, position: dict[str, int]) -> tuple[Batch, dict[str, int]]:
        """Return the batch at a position ({} is the start) and the position after it; a batch may span epochs."""
        rows, after = self._stream.read(position, self._batch_size)
        return self._batch(rows.take(self._rows)), after

    def epoch_batches(self, epoch: int) -> Iterator[Batch]:
        """Yield each row of an epoch once, with the draws of that epoch; the last batch may be smaller."""
        pending: list[Any] = []
        for rows in self._stream.epoch(epoch):
            joined = rows.join([*pending, rows])
            whole = len(joined) - len(joined) % self._batch_size
            for first in range(0, whole, self._batch_size):
                yield self._batch(joined.take(slice(first, first + self._batch_size)))
            pending = [joined.take(slice(whole, None))]
        if pending and len(pending[0]):
            yield self._batch(pending[0])

    def account(self) -> Account:
        """Return the contents of an epoch."""
        extent = self._stream.extent()
        predicted, wanted = (float(part.sum()) for part in self._corrupt.counts(extent.lengths, extent.num_marks))
        tokens, predictions = float(extent.lengths.mean()), predicted / len(extent.lengths)
        return Account(extent.num_rows, tokens, predictions, 1.0 - predicted / wanted, extent.num_dropped_tokens)

    def _batch(self, rows: Columns) -> Batch:
        return self._corrupt(self._stream.gather(rows))


def position_numbers(position: dict[str, int], *names: str) -> list[int]:
    """Return a position's numbers by name, zeros for {}; raises DataError for wrong names and negative numbers."""
    whole = all(type(value) is int and value >= 0 for value in position.values())
    if (position and sorted(position) != sorted(names)) or not whole:
        raise DataError(f"data position {position}: expected whole numbers from 0 for {', '.join(names)}")
    return [position.get(name, 0) for name in names]
