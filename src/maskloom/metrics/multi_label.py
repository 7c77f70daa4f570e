"""Scores of tasks where each example has any number of labels."""

from __future__ import annotations

import numpy as np

from maskloom.metrics.metric import checked_pair, checked_primary


class MultiLabelMetric:
    """Micro and macro F1 over labels, and the fraction of examples whose label set is exactly right.

    Takes 0/1 arrays of shape (examples, labels). A label that neither side ever has counts F1 0 in the macro mean
    (scikit-learn's `zero_division=0`), so that the mean always divides by the number of labels.
    """

    def __init__(self, num_labels: int, *, primary: str = "f1_micro") -> None:
        self.primary = checked_primary(primary, ["f1_micro", "f1_macro", "exact_match"], "a multi-label task")
        self.num_labels = num_labels
        self._true_positives, self._predicted, self._actual = np.zeros((3, num_labels), dtype=np.int64)
        self._num_exact = self._num_examples = 0

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Take in decisions and truths, both of shape (examples, labels); raises ValueError for other than 0 and 1."""
        predictions, targets = checked_pair(predictions, targets, name="multi-label F1")
        if predictions.ndim != 2 or predictions.shape[1] != self.num_labels:
            raise ValueError(f"multi-label F1: shape {predictions.shape}, expected (examples, {self.num_labels})")
        for values in (predictions, targets):
            if not np.isin(values, (0, 1)).all():
                raise ValueError("multi-label F1: takes decisions, 0 or 1; apply the threshold first")
        chosen, true = predictions.astype(bool), targets.astype(bool)
        self._true_positives += (chosen & true).sum(axis=0)
        self._predicted += chosen.sum(axis=0)
        self._actual += true.sum(axis=0)
        self._num_exact += int((chosen == true).all(axis=1).sum())
        self._num_examples += len(chosen)

    def compute(self) -> dict[str, float]:
        """Return fractions in 0..1."""
        if not self._num_examples:
            raise ValueError("multi-label F1: no examples were given; a score of nothing is not defined")
        # F1 = 2 TP / (predicted + actual), for each label and for all of them together
        by_label = _f1(self._true_positives, self._predicted + self._actual)
        micro = _f1(self._true_positives.sum(), self._predicted.sum() + self._actual.sum())
        exact = self._num_exact / self._num_examples
        return {"f1_micro": float(micro), "f1_macro": float(by_label.mean()), "exact_match": exact}

    def reference(self) -> None:
        """Return None: no constant answer is an obvious rival."""

    def degeneracy(self) -> str | None:
        """Say that no label is ever predicted, where that is so."""
        return "no label is ever predicted" if self.predicts_nothing() else None

    def predicts_nothing(self) -> bool:
        """Tell whether no label was ever predicted: the mark of a degenerate run."""
        return not self._predicted.any()


def _f1(true_positives: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return 2.0 * true_positives / np.maximum(sizes, 1)
