"""Rows that go on where they stopped in the batch before, for state that is carried (Dai et al. 2019, 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from maskloom.data.batch import Texts
from maskloom.data.streams.running_text import RunningText, Stretches

if TYPE_CHECKING:
    from maskloom.data.corpus.opening import Corpus
    from maskloom.data.settings import PretrainingData


class Contiguous(RunningText):
    """The endless, seekable stream whose row i of a batch begins with the token that follows row i of the batch before.

    The running text of an epoch is cut into `batch_size` equal tracks. Step t of an epoch has the stretch t of
    `max_length` tokens of each track; a new epoch has another order of documents, and all its tracks begin anew. The
    ends of tracks, shorter than a stretch, and the less than `batch_size` tokens that no track has are evaluated, in
    two batches of their own, but not trained on. Raises DataError, in training, for tracks shorter than a stretch.
    """

    def __init__(
        self, corpus: Corpus, documents: np.ndarray | None, data: PretrainingData, *, seed: int, batch_size: int
    ) -> None:
        """Measure the documents and cut the tracks; no text is read before the first row."""
        super().__init__(corpus, documents, data, seed=seed)
        self._track_size = (self._num_tokens - 1) // batch_size
        self._tracks = np.arange(batch_size) * self._track_size
        self._num_rows = self._track_size // self._length * batch_size
        needed = batch_size * self._length + 1
        self._too_short = f"a batch of {batch_size} rows of data.max_length = {self._length} needs {needed}"

    def epoch(self, number: int) -> Iterator[Stretches]:
        """Yield the rows of an epoch step by step, then the ends of the tracks, and what no track has."""
        epochs = np.full(len(self._tracks), number)
        for done in range(0, self._track_size, self._length):
            length = min(self._length, self._track_size - done)
            yield Stretches(epochs, self._tracks + done, np.full(len(epochs), length))
        yield self._in_order(number, self._track_size * len(epochs))

    def gather(self, rows: Stretches) -> Texts:
        """Return rows with their tokens; those of step 0 begin anew, and those of what no track has."""
        is_first = rows.first % max(1, self._track_size) == 0
        return replace(super().gather(rows), begins=is_first | (rows.first >= self._track_size * len(self._tracks)))

    def _starts(self, epoch: int, rows: np.ndarray) -> np.ndarray:
        steps, tracks = np.divmod(rows, len(self._tracks))
        return self._tracks[tracks] + steps * self._length
