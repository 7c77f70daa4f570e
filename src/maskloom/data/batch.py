"""Batches as packed numpy arrays: the concatenated tokens of all sequences, with their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np


@dataclass(frozen=True)
class PackedBatch:
    """Concatenated sequences without padding: ids and segments (tokens,), lengths (sequences,); int64."""

    token_ids: np.ndarray
    segment_ids: np.ndarray
    lengths: np.ndarray
    _positions: ClassVar[tuple[str, ...]] = ()  # fields that hold positions in the packed tokens
    _shared: ClassVar[tuple[str, ...]] = ()  # fields that `split` copies whole to all parts

    @property
    def num_sequences(self) -> int:
        """The number of sequences."""
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        """The number of tokens, special tokens included; there is no padding."""
        return len(self.token_ids)

    def split(self, num_sequences: int) -> list[Self]:
        """Split in order into batches of `num_sequences`; the last may be smaller. Raises ValueError below 1.

        If sequences belong together, such as the choices of an example, a batch has that many groups of them.
        """
        if num_sequences < 1:
            raise ValueError(f"num_sequences is {num_sequences}; it must be at least 1")
        edges = {name: ends.tolist() for name, ends in self._edges().items()}
        every = range(len(edges["token_ids"]))
        parts = []
        for first, last in pairwise([*range(0, every[-1], num_sequences), every[-1]]):
            values: dict[str, Any] = {}
            for name, value in vars(self).items():
                ends = edges.get(name, every)
                values[name] = value if value is None or name in self._shared else value[ends[first] : ends[last]]
            values |= {name: values[name] - edges["token_ids"][first] for name in self._positions}
            parts.append(type(self)(**values))
        return parts

    def _edges(self) -> dict[str, np.ndarray]:
        """Return the boundaries (sequences + 1,) of sequences by field; other fields have one value per sequence."""
        tokens = _ends(self.lengths)
        return {"token_ids": tokens, "segment_ids": tokens}


@dataclass(frozen=True)
class PretrainingBatch(PackedBatch):
    """A batch for masked language modelling and next-sentence prediction (BERT paper 3.3).

    `mlm_positions` (predictions,) are ascending indices into the packed tokens, `mlm_labels` (predictions,) the
    original ids there, `nsp_labels` (sequences,) 0 for the actual next text and 1 for a random or swapped one, or None
    without pairs; all int64. If rows continue those of the previous batch, `begins` (sequences,) bool marks those that
    do not.
    """

    mlm_positions: np.ndarray
    mlm_labels: np.ndarray
    nsp_labels: np.ndarray | None
    begins: np.ndarray | None = None
    _positions = ("mlm_positions",)

    def _edges(self) -> dict[str, np.ndarray]:
        edges = super()._edges()
        predictions = np.searchsorted(self.mlm_positions, edges["token_ids"])
        return {**edges, "mlm_positions": predictions, "mlm_labels": predictions}


@dataclass(frozen=True)
class Texts(PackedBatch):
    """Sequences as a stream gathers them, before a corruption turns them into inputs and targets.

    All fields but the tokens are (sequences,): `keys` distinguish the sequences of an epoch, `epochs` are the epochs
    that key the draws, `pair_labels` and `begins` are passed on to the batch. `following` is the token after each
    sequence cut out of running text. If the stream distinguishes sentences, `sentence_starts` and `sentence_lengths`
    (sentences,) are their positions and lengths in the packed tokens.
    """

    keys: np.ndarray
    epochs: np.ndarray
    pair_labels: np.ndarray | None = None
    following: np.ndarray | None = None
    begins: np.ndarray | None = None
    sentence_starts: np.ndarray | None = None
    sentence_lengths: np.ndarray | None = None

    def predicting(self, ids: np.ndarray, positions: np.ndarray, labels: np.ndarray) -> PretrainingBatch:
        """Return the batch in which the model sees `ids` (tokens,) and predicts `labels` at `positions`."""
        return PretrainingBatch(ids, self.segment_ids, self.lengths, positions, labels, self.pair_labels, self.begins)


@dataclass(frozen=True)
class ClassificationBatch(PackedBatch):
    """A batch for tasks with one target per sequence (BERT paper 4.1).

    `labels` are (sequences,) int64 classes or float32 values, (sequences, labels) float32 for multi-label, or None if
    unknown; `indices` (sequences,) int64 are positions of the examples in their data set.
    """

    labels: np.ndarray | None
    indices: np.ndarray


@dataclass(frozen=True)
class TokenBatch(PackedBatch):
    """A batch for tasks with a target per token (BERT paper 4.3).

    `labels` (tokens,) int64 are -100 for a token that is not scored, or None if unknown; `indices` (sequences,) int64
    are positions in the data set. `chains` (tokens,) int64 numbers, in ascending order, the runs of tokens whose
    targets depend on each other, and is -1 for tokens in no run. `word_vectors` (tokens, size) float32 are the vectors
    of the words that begin at tokens in chains, if the model reads them.
    """

    labels: np.ndarray | None
    indices: np.ndarray
    chains: np.ndarray
    word_vectors: np.ndarray | None = None

    def _edges(self) -> dict[str, np.ndarray]:
        edges = super()._edges()
        return {**edges, **dict.fromkeys(("labels", "chains", "word_vectors"), edges["token_ids"])}


@dataclass(frozen=True, kw_only=True)
class FeatureBatch(TokenBatch):
    """A batch of tagged tokens with precomputed vectors of their words from a frozen encoder.

    `features` is (words, vectors, width) float32: one row for every token in a chain, in order.
    """

    features: np.ndarray

    def _edges(self) -> dict[str, np.ndarray]:
        edges = super()._edges()
        return {**edges, "features": _ends(self.chains >= 0)[edges["token_ids"]]}


@dataclass(frozen=True)
class SourceTargetBatch(PackedBatch):
    """A batch of sources with their targets (Vaswani et al. 2017, 3.1).

    All int64: `target_ids` (target tokens,) what the decoder reads and `labels` (target tokens,) what it predicts
    there, empty and None if targets are unknown; `target_lengths` and `indices` (sequences,), `marks` (sequences,
    marks) the tokens with which every target begins, and the one with which it ends.
    """

    target_ids: np.ndarray
    target_lengths: np.ndarray
    labels: np.ndarray | None
    indices: np.ndarray
    marks: np.ndarray

    @classmethod
    def of_sources(cls, sources: Sequence[Sequence[int]], marks: Sequence[int], numbers: Sequence[int]) -> Self:
        """Return a batch of token ids without targets; `numbers` are the indices of the sources."""
        ids = np.array([token for source in sources for token in source], dtype=np.int64)
        lengths, nothing = np.array([len(source) for source in sources], dtype=np.int64), np.zeros(0, np.int64)
        tiled = np.tile(np.array(marks, dtype=np.int64), (len(sources), 1))
        return cls(ids, ids * 0, lengths, nothing, lengths * 0, None, np.array(numbers, dtype=np.int64), tiled)

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the encoder and the decoder read."""
        return len(self.token_ids) + len(self.target_ids)

    def _edges(self) -> dict[str, np.ndarray]:
        targets = _ends(self.target_lengths)
        return {**super()._edges(), "target_ids": targets, "labels": targets}


def read_and_predicted(
    targets: np.ndarray, lengths: np.ndarray, start: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return decoder inputs, their lengths, and labels for packed targets (Vaswani et al. 2017, 3.1).

    The inputs are the targets shifted right by one token, with `start` first. Without a start, the inputs are all
    tokens of a target but the last, and the labels all but the first.
    """
    ends = np.cumsum(lengths)
    if start is None:
        return np.delete(targets, ends - 1), lengths - 1, np.delete(targets, ends - lengths)
    ids = np.roll(targets, 1)
    ids[ends - lengths] = start
    return ids, lengths, targets


@dataclass(frozen=True)
class ChoiceBatch(PackedBatch):
    """A batch for multiple choice: the sequences of an example, one per choice, are adjacent (BERT paper 4.4).

    All int64: `labels` (examples,) the right choice, or None if unknown, `indices` and `num_choices` (examples,).
    """

    labels: np.ndarray | None
    indices: np.ndarray
    num_choices: np.ndarray

    def _edges(self) -> dict[str, np.ndarray]:
        rows = _ends(self.num_choices)
        return {**{name: edges[rows] for name, edges in super()._edges().items()}, "lengths": rows}


@dataclass(frozen=True)
class BothOrdersBatch(ChoiceBatch):
    """A batch of pairs in both orders, A B and then B A (Radford et al. 2018, 3.3).

    `labels` are those of `ClassificationBatch`, one for each pair; `num_choices` (pairs,) are all 2.
    """


def sorted_batches(lengths: np.ndarray, max_tokens: int, max_examples: int | None = None) -> list[np.ndarray]:
    """Return batches as int64 arrays of indices into `lengths` (examples,), longest examples first, for inference.

    A batch has at most `max_tokens` tokens, or one longer example, and at most `max_examples` examples. The largest
    comes first, so that running out of memory shows immediately.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    ends = _ends(lengths[order])
    batches, first = [], 0
    while first < len(order):
        last = int(np.searchsorted(ends, ends[first] + max_tokens, side="right")) - 1
        last = max(last if max_examples is None else min(last, first + max_examples), first + 1)
        batches.append(order[first:last])
        first = last
    return batches


def _ends(lengths: np.ndarray) -> np.ndarray:
    """Return where each part begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)])


def ranges(first: np.ndarray | int, counts: np.ndarray) -> np.ndarray:
    """Return `counts` consecutive numbers from each `first` on, concatenated."""
    return np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
