"""Rows of running text: documents one after the other, cut into rows of one length (Radford et al. 2018, 4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from maskloom.data.batch import PretrainingBatch
from maskloom.data.counter_random import Permutation
from maskloom.data.pretraining_loader import PretrainingAccount
from maskloom.errors import DataError

if TYPE_CHECKING:
    from maskloom.config import PretrainingData
    from maskloom.data.corpus.opening import Corpus

# The kinds of draw.
_DOCUMENTS, _ROWS = 401, 402


class RunningTextLoader:
    """Batches of rows of `max_length` tokens, in each of which every next token is predicted.

    An epoch is all documents in an order of its own, with the marks of the tokenizer's `running_text`, as one sequence
    of tokens; it is cut into rows, each of which predicts the first token of the next, and the rows come in an order of
    their own too. What is left at the end, less than a row, is evaluated but not trained on. Batches are exact in
    corpus, documents, settings, seed and position; of every training batch the rows `rows` are made. Raises ValueError
    for a batch size below 1, DataError for less text than a row.
    """

    def __init__(
        self,
        corpus: Corpus,
        documents: np.ndarray | None,
        data: PretrainingData,
        *,
        batch_size: int,
        seed: int,
        rows: slice = slice(None),
    ) -> None:
        """Measure the documents; no text is read before the first batch."""
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, a batch needs at least 1 sequence")
        self._corpus, self._length, self._batch_size = corpus, data.max_length, batch_size
        self._seed, self._rows = seed, rows
        self._documents = np.arange(corpus.num_documents) if documents is None else documents
        marks = corpus.tokenizer.running_text
        self._begin, self._end = (np.array(part, dtype=np.int64) for part in (marks.begin, marks.end))
        first, last = corpus.document_offsets[self._documents], corpus.document_offsets[self._documents + 1]
        sizes = corpus.sentence_offsets[last] - corpus.sentence_offsets[first]
        self._sizes = sizes + len(self._begin) + len(self._end)
        self._num_tokens = int(self._sizes.sum())
        self._num_rows = (self._num_tokens - 1) // self._length
        self._epoch: tuple[int, np.ndarray, np.ndarray] | None = None
        if self._num_tokens < 2:
            raise DataError(f"{corpus.folder}: {self._num_tokens} tokens of running text; there is nothing to predict")

    def next_batch(self, position: dict[str, int]) -> tuple[PretrainingBatch, dict[str, int]]:
        """Return the batch at a position kept as plain numbers, {} for the start, and the position after it."""
        if self._num_rows == 0:
            raise DataError(
                f"{self._corpus.folder}: {self._num_tokens} tokens of running text; a row of data.max_length = "
                f"{self._length} needs {self._length + 1}"
            )
        first = position.get("row", 0)
        epochs, places = np.divmod(np.arange(first, first + self._batch_size)[self._rows], self._num_rows)
        rows: list[np.ndarray] = []
        for epoch in np.unique(epochs).tolist():
            order = Permutation(self._num_rows, self._seed, _ROWS, epoch)
            rows += [self._row(epoch, row) for row in order[places[epochs == epoch]].tolist()]
        return _batch_of(rows), {"row": first + self._batch_size}

    def account(self) -> PretrainingAccount:
        """Return what an epoch holds."""
        return PretrainingAccount(max(1, self._num_rows), float(self._length), float(self._length), 0.0)

    def epoch_batches(self, epoch: int) -> Iterator[PretrainingBatch]:
        """Yield each row of an epoch once, in the order of the text, and what is left at its end as a shorter row."""
        num_rows = -(-(self._num_tokens - 1) // self._length)
        for first in range(0, num_rows, self._batch_size):
            rows = range(first, min(first + self._batch_size, num_rows))
            yield _batch_of([self._row(epoch, row) for row in rows])

    def _row(self, epoch: int, row: int) -> np.ndarray:
        """Return the tokens of a row, and the one that follows: (length + 1,), fewer at the end of an epoch."""
        order, starts = self._order(epoch)
        first = row * self._length
        last = min(first + self._length + 1, self._num_tokens)
        place = int(np.searchsorted(starts, first, side="right")) - 1
        parts = []
        while place < len(order) and starts[place] < last:
            begin = int(starts[place])
            parts.append(self._text(int(order[place]))[max(0, first - begin) : last - begin])
            place += 1
        return np.concatenate(parts)

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the documents in the order of an epoch, and where each starts in its tokens."""
        if self._epoch is None or self._epoch[0] != epoch:
            number = len(self._documents)
            order = Permutation(number, self._seed, _DOCUMENTS, epoch)[np.arange(number)]
            sizes = self._sizes[order]
            self._epoch = (epoch, order, np.cumsum(sizes) - sizes)
        return self._epoch[1], self._epoch[2]

    def _text(self, place: int) -> np.ndarray:
        document = self._documents[place]
        first, last = self._corpus.document_offsets[document], self._corpus.document_offsets[document + 1]
        return np.concatenate([self._begin, self._corpus.sentences(int(first), int(last)), self._end]).astype(np.int64)


def _batch_of(rows: list[np.ndarray]) -> PretrainingBatch:
    lengths = np.array([len(row) - 1 for row in rows], dtype=np.int64)
    tokens = np.concatenate([row[:-1] for row in rows])
    return PretrainingBatch(
        token_ids=tokens,
        segment_ids=np.zeros_like(tokens),
        lengths=lengths,
        mlm_positions=np.arange(len(tokens)),
        mlm_labels=np.concatenate([row[1:] for row in rows]),
        nsp_labels=None,
    )
