"""Rows of running text, shuffled (Radford et al. 2018, 4.1) or continued batch by batch (Dai et al. 2019, 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from maskloom.data.batch import Texts
from maskloom.data.corpus.opening import Corpus
from maskloom.data.counter_random import Permutation
from maskloom.data.loader import Columns, Extent, position_numbers
from maskloom.data.settings import PretrainingData
from maskloom.errors import DataError, amount

# The kinds of random draw.
_DOCUMENTS, _ROWS = 401, 402


@dataclass(frozen=True)
class Stretches(Columns):
    """Stretches of running text, (rows,) int64 each: the epoch, the first token in its text, the length in tokens."""

    epochs: np.ndarray
    first: np.ndarray
    lengths: np.ndarray


class RunningText:
    """An endless, seekable stream of rows of `max_length` tokens of running text.

    An epoch is one sequence of tokens, all documents in an order specific to the epoch with their marks, cut into rows
    that are shuffled too. The remainder at the end, less than a row, is evaluated but not trained on. A position is the
    number of rows before it. Raises DataError for fewer than two tokens, and in training for less text than a row.
    """

    def __init__(self, corpus: Corpus, documents: np.ndarray | None, data: PretrainingData, *, seed: int) -> None:
        """Measure the documents with these indices, or all; no text is read before the first row."""
        self._corpus, self._length, self._seed = corpus, data.max_length, seed
        documents = np.arange(corpus.num_documents) if documents is None else documents
        marks = corpus.tokenizer.running_text
        self._begin, self._end = (np.array(part, dtype=np.int64) for part in (marks.begin, marks.end))
        self._first, self._last = self._bounds(corpus, documents)
        self._sizes = self._last - self._first + len(self._begin) + len(self._end)
        self._num_tokens = int(self._sizes.sum())
        self._num_rows = (self._num_tokens - 1) // self._length
        self._too_short = f"a row of data.max_length = {self._length} needs {self._length + 1}"
        self._orders: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._shuffles: dict[int, Permutation] = {}
        if self._num_tokens < 2:
            raise DataError(
                f"{corpus.folder}: {amount(self._num_tokens, 'token')} of running text; there is nothing to predict"
            )

    @staticmethod
    def _bounds(corpus: Corpus, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where each text of some documents begins and ends in the corpus."""
        sentences = (corpus.document_offsets[documents], corpus.document_offsets[documents + 1])
        return corpus.sentence_offsets[sentences[0]], corpus.sentence_offsets[sentences[1]]

    def read(self, position: dict[str, int], num_rows: int) -> tuple[Stretches, dict[str, int]]:
        """Return the rows from a position on, across epoch boundaries, and the position after them."""
        if self._num_rows == 0:
            raise DataError(f"{self._corpus.folder}: {self._num_tokens} tokens of running text; {self._too_short}")
        (row,) = position_numbers(position, "row")
        epochs, indices = np.divmod(np.arange(row, row + num_rows), self._num_rows)
        first = np.concatenate([self._starts(epoch, indices[epochs == epoch]) for epoch in np.unique(epochs).tolist()])
        return Stretches(epochs, first, np.full(num_rows, self._length)), {"row": row + num_rows}

    def epoch(self, number: int) -> Iterator[Stretches]:
        """Yield the rows of an epoch in text order, and the remainder at its end as a shorter row."""
        yield self._in_order(number, 0)

    def extent(self) -> Extent:
        """Return the size of an epoch."""
        num_dropped = self._num_tokens - 1 - self._num_rows * self._length
        return Extent(max(1, self._num_rows), np.array([self._length]), num_dropped_tokens=num_dropped)

    def gather(self, rows: Stretches) -> Texts:
        """Return rows with their tokens and the token that follows each."""
        return self._gathered(rows, self._parts)

    def _gathered(self, rows: Stretches, parts_of: Callable[[int, int, int], Iterator[np.ndarray]]) -> Texts:
        parts: list[np.ndarray] = []
        for epoch, first, length in zip(rows.epochs.tolist(), rows.first.tolist(), rows.lengths.tolist(), strict=True):
            parts += parts_of(epoch, first, first + length + 1)
        tokens = np.concatenate(parts, dtype=np.int64)
        following = np.cumsum(rows.lengths + 1) - 1
        return Texts(
            token_ids=np.delete(tokens, following),
            segment_ids=np.zeros(len(tokens) - len(rows), dtype=np.int64),
            lengths=rows.lengths,
            keys=rows.first,
            epochs=rows.epochs,
            following=tokens[following],
        )

    def _in_order(self, epoch: int, start: int) -> Stretches:
        """Return the rows of an epoch from a token on; the last may be shorter."""
        first = np.arange(start, self._num_tokens - 1, self._length)
        return Stretches(np.full(len(first), epoch), first, np.minimum(self._length, self._num_tokens - 1 - first))

    def _starts(self, epoch: int, rows: np.ndarray) -> np.ndarray:
        """Return the first tokens of some rows of an epoch; rows are numbered in training order."""
        if epoch not in self._shuffles:
            self._shuffles = {epoch: Permutation(self._num_rows, self._seed, _ROWS, epoch)}
        return self._shuffles[epoch][rows] * self._length

    def _parts(self, epoch: int, first: int, last: int) -> Iterator[np.ndarray]:
        """Yield the tokens `first` to `last` (exclusive) of an epoch, as parts of documents and marks."""
        order, starts = self._order(epoch)
        place = int(np.searchsorted(starts, first, side="right")) - 1
        while first < last:
            document, start = order[place], int(starts[place])
            num_begin, begin, end = len(self._begin), int(self._first[document]), int(self._last[document])
            shift = start + num_begin - begin  # from positions in the corpus to positions in the epoch
            stop = end + shift
            yield self._begin[max(0, first - start) : max(0, last - start)]
            yield self._corpus.shards.slice(max(begin, first - shift), max(begin, min(end, last - shift)))
            yield self._end[max(0, first - stop) : max(0, last - stop)]
            first, place = stop + len(self._end), place + 1

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the documents in the order of an epoch, and the epoch's token at which each starts."""
        if epoch not in self._orders:
            order = Permutation(len(self._sizes), self._seed, _DOCUMENTS, epoch)[np.arange(len(self._sizes))]
            self._orders = {epoch: (order, np.cumsum(self._sizes[order]) - self._sizes[order])}
        return self._orders[epoch]


class Contiguous(RunningText):
    """An endless, seekable stream in which row i of a batch continues row i of the batch before.

    The running text of an epoch is cut into `batch_size` equal tracks. Step t of an epoch has stretch t, of
    `max_length` tokens, of each track; a new epoch has another document order and starts all tracks afresh. The ends of
    tracks, shorter than a stretch, and the fewer than `batch_size` tokens in no track are evaluated, in two separate
    batches, but not trained on. Raises DataError, in training, for tracks shorter than a stretch.
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
        """Yield the rows of an epoch step by step, then the ends of the tracks, then the tokens in no track."""
        epochs = np.full(len(self._tracks), number)
        for done in range(0, self._track_size, self._length):
            length = min(self._length, self._track_size - done)
            yield Stretches(epochs, self._tracks + done, np.full(len(epochs), length))
        yield self._in_order(number, self._track_size * len(epochs))

    def _gathered(self, rows: Stretches, parts_of: Callable[[int, int, int], Iterator[np.ndarray]]) -> Texts:
        """Return rows with their tokens; `begins` marks the rows of step 0, and of the tokens in no track."""
        is_first = rows.first % max(1, self._track_size) == 0
        return replace(
            super()._gathered(rows, parts_of), begins=is_first | (rows.first >= self._track_size * len(self._tracks))
        )

    def _starts(self, epoch: int, rows: np.ndarray) -> np.ndarray:
        steps, tracks = np.divmod(rows, len(self._tracks))
        return self._tracks[tracks] + steps * self._length
