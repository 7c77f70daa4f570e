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

    Example e owns the sequences from `e * num_choices` on; a unit is an example. `labels` (examples,) are right choices
    counted from 0, or None. Tokens that did not fit `max_length` were cut from the longer text of a pair.
    """

    examples: Sequence[ChoiceExample]
    num_choices: int
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
        return np.diff(self.offsets[:: self.num_choices])

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
        sequences = (indices[:, None] * self.num_choices + np.arange(self.num_choices)).ravel()
        first, last = indices * self.num_choices, (indices + 1) * self.num_choices
        spans = [slice(*span) for span in zip(self.offsets[first].tolist(), self.offsets[last].tolist(), strict=True)]
        return ChoiceBatch(
            token_ids=np.concatenate([self.token_ids[span] for span in spans]).astype(np.int64),
            segment_ids=np.concatenate([self.segment_ids[span] for span in spans]).astype(np.int64),
            lengths=np.diff(self.offsets)[sequences].astype(np.int64),
            labels=None if self.labels is None else self.labels[indices],
            indices=indices,
            num_choices=self.num_choices,
        )

    def account(self) -> dict[str, Any]:
        """Return what was cut, as plain values."""
        return {
            "max_length": self.max_length,
            "num_choices": self.num_choices,
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

    Raises DataError, with `path` and line, when examples differ in their number of choices or only some have labels.
    """
    num_choices = len(examples[0].choices) if examples else 1
    for example in examples:
        if len(example.choices) != num_choices:
            raise DataError(
                f"{path}: line {example.line}: {len(example.choices)} choices, the first example has {num_choices}"
            )
    ids: list[np.ndarray] = []
    segments: list[np.ndarray] = []
    lengths = [0]
    num_cut = np.zeros(len(examples), dtype=np.int64)
    for first in range(0, len(examples), _ENCODE_AT_ONCE):
        texts = [pair for example in examples[first : first + _ENCODE_AT_ONCE] for pair in example.pairs()]
        for number, encoding in enumerate(tokenizer.encode_batch(texts, max_length=max_length)):
            ids.append(np.asarray(encoding.ids, dtype=np.int32))
            segments.append(np.asarray(encoding.segments, dtype=np.int8))
            lengths.append(len(encoding.ids))
            num_cut[first + number // num_choices] += encoding.num_truncated
    return EncodedChoices(
        examples=examples,
        num_choices=num_choices,
        token_ids=np.concatenate(ids) if ids else np.empty(0, np.int32),
        segment_ids=np.concatenate(segments) if segments else np.empty(0, np.int8),
        offsets=np.cumsum(np.asarray(lengths, dtype=np.int64)),
        labels=_labels(examples, Path(path)),
        max_length=max_length,
        num_truncated_examples=int(np.count_nonzero(num_cut)),
        num_truncated_tokens=int(num_cut.sum()),
    )


def _labels(examples: Sequence[ChoiceExample], path: Path) -> np.ndarray | None:
    labels = [example.label for example in examples]
    if all(label is None for label in labels):
        return None
    if None in labels:
        raise DataError(f"{path}: line {examples[labels.index(None)].line}: missing label (other rows have one)")
    return np.array(labels, dtype=np.int64)
