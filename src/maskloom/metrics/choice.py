"""Accuracy of multiple choice (BERT paper 4.4)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from maskloom.metrics.metric import checked_pair, checked_primary


class ChoiceMetric:
    """The fraction of examples whose right choice was taken; choices are numbers from 0, however many there are."""

    def __init__(self, *, primary: str = "accuracy") -> None:
        self.primary = checked_primary(primary, ["accuracy"], "multiple choice")
        self._num_right = 0
        self._predictions: Counter[int] = Counter()
        self._targets: Counter[int] = Counter()

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Take in numbers of choices, both of shape (examples,)."""
        predictions, targets = checked_pair(predictions, targets, name="accuracy")
        self._num_right += int((predictions == targets).sum())
        self._predictions.update(predictions.tolist())
        self._targets.update(targets.tolist())

    def compute(self) -> dict[str, float]:
        """Return the fraction in 0..1. Raises ValueError when there are no examples."""
        return {"accuracy": self._num_right / self._num_examples()}

    def reference(self) -> float:
        """Return the accuracy of always taking the place that is right most often."""
        return max(self._targets.values(), default=0) / self._num_examples()

    def degeneracy(self) -> str | None:
        """Say that every prediction is the same place, where that is so."""
        return "every prediction is the same choice" if len(self._predictions) == 1 else None

    def _num_examples(self) -> int:
        if not self._targets:
            raise ValueError("accuracy: no examples were given; a score of nothing is not defined")
        return self._targets.total()
