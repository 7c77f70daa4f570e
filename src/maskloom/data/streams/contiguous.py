"""Rows that go on where they stopped in the batch before, for state that is carried (Dai et al. 2019, 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from maskloom.data.streams.running_text import RunningText, Stretches

if TYPE_CHECKING:
    from maskloom.config import PretrainingData
    from maskloom.data.corpus.opening import Corpus


class Contiguous(RunningText):
    """The endless, seekable stream whose row i of a batch begins with the token that follows row i of the batch before.

    The running text of an epoch is cut into `batch_size` tracks of one length, or one token more. Step t of an epoch
    has the stretch t of `max_length` tokens of each track; a new epoch has another order of documents, and its tracks
    begin anew. What is left of the tracks, less than a stretch each, is evaluated, as a last and shorter step, but not
    trained on. Raises DataError, in training, for tracks shorter than a row.
    """

    def __init__(
        self, corpus: Corpus, documents: np.ndarray | None, data: PretrainingData, *, seed: int, batch_size: int
    ) -> None:
        """Measure the documents and cut the tracks; no text is read before the first row."""
        super().__init__(corpus, documents, data, seed=seed)
        size, num_longer = divmod(self._num_tokens - 1, batch_size)
        self._track_sizes = size + (np.arange(batch_size) < num_longer)
        self._track_starts = np.cumsum(self._track_sizes) - self._track_sizes
        self._num_rows = size // self._length * batch_size
        self._too_short = (
            f"training.batch_size = {batch_size} rows of data.max_length = {self._length} need "
            f"{batch_size * self._length + 1}"
        )

    def epoch(self, number: int) -> Iterator[Stretches]:
        """Yield the rows of an epoch step by step, and what is left of the tracks as shorter rows."""
        for done in range(0, int(self._track_sizes[0]), self._length):
            left = self._track_sizes[self._track_sizes > done] - done
            first = self._track_starts[: len(left)] + done
            yield Stretches(np.full(len(left), number), first, np.minimum(left, self._length))

    def _starts(self, epoch: int, rows: np.ndarray) -> np.ndarray:
        steps, tracks = np.divmod(rows, len(self._track_sizes))
        return self._track_starts[tracks] + steps * self._length
