"""Batches as packed numpy arrays: the tokens of all sequences one after the other, with their lengths."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class PackedBatch:
    """Sequences one after the other without padding: ids and segments (tokens,), lengths (sequences,); int64."""

    token_ids: np.ndarray
    segment_ids: np.ndarray
    lengths: np.ndarray

    @property
    def num_sequences(self) -> int:
        """The number of sequences."""
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        """The number of tokens, special tokens included; there is no padding."""
        return len(self.token_ids)


@dataclass(frozen=True)
class PretrainingBatch(PackedBatch):
    """A batch for masked language modelling and next-sentence prediction (BERT paper 3.3).

    Shapes in words: `token_ids` and `segment_ids` (tokens,), `lengths` (sequences,) in tokens, `mlm_positions`
    (predictions,) ascending indices into the packed tokens, `mlm_labels` (predictions,) the original ids there,
    `nsp_labels` (sequences,) 0 for the actual next text and 1 for a random one, or None without next-sentence
    prediction; all int64.
    """

    mlm_positions: np.ndarray
    mlm_labels: np.ndarray
    nsp_labels: np.ndarray | None

    def split(self, num_sequences: int) -> list[PretrainingBatch]:
        """Cut in order into batches of `num_sequences`, the last perhaps smaller. Raises ValueError below 1."""
        parts = []
        for rows, tokens in _cuts(self.lengths, num_sequences):
            first, last = np.searchsorted(self.mlm_positions, [tokens.start, tokens.stop])
            parts.append(
                PretrainingBatch(
                    token_ids=self.token_ids[tokens],
                    segment_ids=self.segment_ids[tokens],
                    lengths=self.lengths[rows],
                    mlm_positions=self.mlm_positions[first:last] - tokens.start,
                    mlm_labels=self.mlm_labels[first:last],
                    nsp_labels=None if self.nsp_labels is None else self.nsp_labels[rows],
                )
            )
        return parts


@dataclass(frozen=True)
class ClassificationBatch(PackedBatch):
    """A batch for tasks with one target per sequence (BERT paper 4.1).

    Shapes in words: `token_ids` and `segment_ids` (tokens,) int64, `lengths` (sequences,) int64 in tokens, `labels`
    (sequences,) int64 classes or float32 values, (sequences, labels) float32 for multi-label, or None when unknown,
    `indices` (sequences,) int64 places of the examples in their data set.
    """

    labels: np.ndarray | None
    indices: np.ndarray

    def split(self, num_sequences: int) -> list[ClassificationBatch]:
        """Cut in order into batches of `num_sequences`, the last perhaps smaller. Raises ValueError below 1."""
        return [
            ClassificationBatch(
                token_ids=self.token_ids[tokens],
                segment_ids=self.segment_ids[tokens],
                lengths=self.lengths[rows],
                labels=None if self.labels is None else self.labels[rows],
                indices=self.indices[rows],
            )
            for rows, tokens in _cuts(self.lengths, num_sequences)
        ]


@dataclass(frozen=True)
class TokenBatch(PackedBatch):
    """A batch for tasks with a target per token (BERT paper 5.3).

    Shapes in words: `token_ids`, `segment_ids` and `labels` (tokens,) int64, labels -100 where a token is not scored,
    or None when unknown; `lengths` (sequences,) int64 in tokens, `indices` (sequences,) int64 places in the data set.
    `chains` (tokens,) int64 numbers, in ascending order, the runs of tokens whose targets depend on each other, and is
    -1 at tokens of none; None where targets are apart.
    """

    labels: np.ndarray | None
    indices: np.ndarray
    chains: np.ndarray | None = None

    def split(self, num_sequences: int) -> list[TokenBatch]:
        """Cut in order into batches of `num_sequences`, the last perhaps smaller. Raises ValueError below 1."""
        return [
            TokenBatch(
                token_ids=self.token_ids[tokens],
                segment_ids=self.segment_ids[tokens],
                lengths=self.lengths[rows],
                labels=None if self.labels is None else self.labels[tokens],
                indices=self.indices[rows],
                chains=None if self.chains is None else self.chains[tokens],
            )
            for rows, tokens in _cuts(self.lengths, num_sequences)
        ]


@dataclass(frozen=True)
class FeatureBatch(TokenBatch):
    """A batch of tagged tokens with the vectors of their words at hand, from an encoder that does not learn.

    `features` is (words, vectors, width) float32: one row for every token of a chain, in order.
    """

    features: np.ndarray = field(default_factory=lambda: np.empty((0, 1, 1), dtype=np.float32))

    def split(self, num_sequences: int) -> list[TokenBatch]:
        """Cut in order into batches of `num_sequences`, the last perhaps smaller. Raises ValueError below 1."""
        parts: list[TokenBatch] = []
        first = 0
        for part in super().split(num_sequences):
            assert part.chains is not None
            end = first + int((part.chains >= 0).sum())
            parts.append(FeatureBatch(**vars(part), features=self.features[first:end]))
            first = end
        return parts


@dataclass(frozen=True)
class ChoiceBatch(PackedBatch):
    """A batch for multiple choice: the sequences of an example, one a choice, stand together (BERT paper 4.4).

    Shapes in words: `token_ids` and `segment_ids` (tokens,) int64, `lengths` (choices of all examples,) int64 in
    tokens, `labels` (examples,) int64 the right choice, or None when unknown, `indices` and `num_choices` (examples,)
    int64.
    """

    labels: np.ndarray | None
    indices: np.ndarray
    num_choices: np.ndarray

    def split(self, num_examples: int) -> list[ChoiceBatch]:
        """Cut in order into batches of `num_examples`, the last perhaps smaller. Raises ValueError below 1."""
        parts, tokens = [], np.concatenate([[0], np.cumsum(self.lengths)])
        for examples, rows in _cuts(self.num_choices, num_examples):
            span = slice(int(tokens[rows.start]), int(tokens[rows.stop]))
            parts.append(
                ChoiceBatch(
                    token_ids=self.token_ids[span],
                    segment_ids=self.segment_ids[span],
                    lengths=self.lengths[rows],
                    labels=None if self.labels is None else self.labels[examples],
                    indices=self.indices[examples],
                    num_choices=self.num_choices[examples],
                )
            )
        return parts


def _cuts(lengths: np.ndarray, num_sequences: int) -> list[tuple[slice, slice]]:
    """Return, for every part, the slice of its sequences and that of its packed tokens (or of what lengths count)."""
    if num_sequences < 1:
        raise ValueError(f"num_sequences is {num_sequences}, a part of a batch needs at least 1")
    ends = np.concatenate([[0], np.cumsum(lengths)])
    cuts = []
    for first in range(0, len(lengths), num_sequences):
        last = min(first + num_sequences, len(lengths))
        cuts.append((slice(first, last), slice(int(ends[first]), int(ends[last]))))
    return cuts
