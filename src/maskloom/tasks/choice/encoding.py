"""Contexts and choices to token ids: one sequence a choice, those of an example together (BERT paper 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maskloom.config import DataError
from maskloom.data.batch import ChoiceBatch
from maskloom.tasks.choice.examples import ChoiceExample
from maskloom.text.tokenizer import Tokenizer

_ENCODE_AT_ONCE = 512


@dataclass(frozen=True)
class EncodedChoices:
    """Token ids of all choices of all examples end to end: sequence i owns `token_ids[offsets[i]:offsets[i + 1]]`.

    Example e owns the sequences `first[e]` to `first[e + 1]`, one a choice; a unit is an example. `labels` (examples,)
    are right choices counted from 0, or None. Tokens that did not fit `max_length` were cut from the longer text of a
    pair.
    """

    examples: Sequence[ChoiceExample]
    first: np.ndarray
    token_ids: np.ndarray
    segment_ids: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray | None
    max_length: int
    num_truncated_examples: int
    num_truncated_tokens: int

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each example, all of its choices together."""
        return np.diff(self.offsets[self.first])

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return len(self)

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.examples)

    def batch(self, indices: np.ndarray) -> ChoiceBatch:
        """Return the examples of those indices, packed in that order, the choices of each in theirs."""
        indices = np.asarray(indices, dtype=np.int64)
        first, last = self.first[indices], self.first[indices + 1]
        sequences = np.concatenate([np.arange(*span) for span in zip(first.tolist(), last.tolist(), strict=True)])
        spans = [slice(*span) for span in zip(self.offsets[first].tolist(), self.offsets[last].tolist(), strict=True)]
        return ChoiceBatch(
            token_ids=np.concatenate([self.token_ids[span] for span in spans]).astype(np.int64),
            segment_ids=np.concatenate([self.segment_ids[span] for span in spans]).astype(np.int64),
            lengths=np.diff(self.offsets)[sequences].astype(np.int64),
            labels=None if self.labels is None else self.labels[indices],
            indices=indices,
            num_choices=last - first,
        )

    def account(self) -> dict[str, Any]:
        """Return how many choices there are in all, and what was cut, as plain values."""
        return {
            "max_length": self.max_length,
            "num_choices": int(self.first[-1]),
            "num_truncated_examples": self.num_truncated_examples,
            "num_truncated_tokens": self.num_truncated_tokens,
            "truncated_share": self.num_truncated_examples / max(len(self), 1),
        }

    def notes(self, path: Path) -> list[str]:
        """Say how many examples were cut, where any were."""
        if not self.num_truncated_examples:
            return []
        return [
            f"{path}: {self.num_truncated_examples} of {len(self)} examples have choices that exceed "
            f"{self.max_length} tokens and lose {self.num_truncated_tokens} tokens"
        ]


def encode_choices(
    examples: Sequence[ChoiceExample], tokenizer: Tokenizer, *, max_length: int, path: str | Path = "input"
) -> EncodedChoices:
    """Encode examples in order, each choice with its context as a pair of its own.

    Examples may differ in their number of choices. Raises DataError, with `path` and line, when only some have labels.
    """
    starts = np.cumsum([0, *(len(example.choices) for example in examples)], dtype=np.int64)
    ids: list[np.ndarray] = []
    segments: list[np.ndarray] = []
    lengths = [0]
    cut: list[int] = []
    for first in range(0, len(examples), _ENCODE_AT_ONCE):
        texts = [pair for example in examples[first : first + _ENCODE_AT_ONCE] for pair in example.pairs()]
        for encoding in tokenizer.encode_batch(texts, max_length=max_length):
            ids.append(np.asarray(encoding.ids, dtype=np.int32))
            segments.append(np.asarray(encoding.segments, dtype=np.int8))
            lengths.append(len(encoding.ids))
            cut.append(encoding.num_truncated)
    cut_before = np.concatenate([[0], np.cumsum(np.asarray(cut, dtype=np.int64))])
    return EncodedChoices(
        examples=examples,
        first=starts,
        token_ids=np.concatenate(ids) if ids else np.empty(0, np.int32),
        segment_ids=np.concatenate(segments) if segments else np.empty(0, np.int8),
        offsets=np.cumsum(np.asarray(lengths, dtype=np.int64)),
        labels=_labels(examples, Path(path)),
        max_length=max_length,
        num_truncated_examples=int(np.count_nonzero(np.diff(cut_before[starts]))),
        num_truncated_tokens=sum(cut),
    )


def _labels(examples: Sequence[ChoiceExample], path: Path) -> np.ndarray | None:
    labels = [example.label for example in examples]
    if all(label is None for label in labels):
        return None
    if None in labels:
        raise DataError(f"{path}: line {examples[labels.index(None)].line}: missing label (other rows have one)")
    return np.array(labels, dtype=np.int64)
