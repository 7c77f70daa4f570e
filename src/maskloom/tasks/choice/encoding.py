"""Contexts and choices to token ids: one sequence a choice, those of an example together (BERT paper 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from maskloom.data.batch import ChoiceBatch
from maskloom.tasks.choice.reading import ChoiceExample
from maskloom.tasks.encoding import EncodedExamples, encoded_texts
from maskloom.tasks.examples import are_labelled
from maskloom.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class EncodedChoices(EncodedExamples):
    """Token ids of all choices of all examples end to end, one sequence a choice; a unit is an example.

    Example e owns the sequences `first[e]` to `first[e + 1]`. `labels` (examples,) are right choices counted from 0, or
    None.
    """

    examples: Sequence[ChoiceExample]
    first: np.ndarray

    _exceed: ClassVar[str] = "have choices that exceed"

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each example, all of its choices together."""
        return np.diff(self.offsets[self.first])

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.examples)

    def batch(self, indices: np.ndarray) -> ChoiceBatch:
        """Return the examples of those indices, packed in that order, the choices of each in theirs."""
        first, end = self.first[indices], self.first[indices + 1]
        return ChoiceBatch(**self._packed(first, end, indices), num_choices=end - first)

    def account(self) -> dict[str, Any]:
        """Return how many choices there are in all, and what was cut, as plain values."""
        return {"max_length": self.max_length, "num_choices": int(self.first[-1]), **super().account()}


def encode_choices(
    examples: Sequence[ChoiceExample], tokenizer: Tokenizer, *, max_length: int, path: str | Path = "input"
) -> EncodedChoices:
    """Encode examples in order, each choice with its context as a pair of its own.

    Examples may differ in their number of choices. Raises DataError, with `path` and line, when only some have labels.
    """
    first = np.cumsum([0, *(len(example.choices) for example in examples)], dtype=np.int64)
    texts = (pair for example in examples for pair in example.pairs())
    fields = encoded_texts(texts, first, tokenizer, max_length)
    labels = np.array([example.label for example in examples], np.int64) if are_labelled(examples, path) else None
    return EncodedChoices(**fields, labels=labels, examples=examples, first=first)
