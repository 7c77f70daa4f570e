"""Scores of tasks where each example has any number of labels."""

from __future__ import annotations

import numpy as np

from maskloom.metrics.metric import checked_pair, f1, gathered


class MultiLabelMetric:
    """Micro and macro F1 over labels, and the share of examples whose label set is exactly right.

    Takes 0/1 arrays of shape (examples, labels). A label that neither side ever has counts F1 0 in the macro mean
    (scikit-learn's `zero_division=0`), so that the mean always divides by the number of labels.
    """

    def __init__(self, num_labels: int, *, primary: str = "f1_micro") -> None:
        known = ["f1_micro", "f1_macro", "exact_match"]
        if primary not in known:
            raise ValueError(f"metric {primary!r} is not one of {known} (a multi-label task)")
        self.primary = primary
        self.num_labels = num_labels
        self._predictions: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Take in decisions and truths, both of shape (examples, labels); raises ValueError for other than 0 and 1."""
        predictions, targets = checked_pair(predictions, targets, name="multi-label F1")
        if predictions.ndim != 2 or predictions.shape[1] != self.num_labels:
            raise ValueError(f"multi-label F1: shape {predictions.shape}, expected (examples, {self.num_labels})")
        for values in (predictions, targets):
            if not np.isin(values, (0, 1)).all():
                raise ValueError("multi-label F1: takes decisions, 0 or 1; apply the threshold first")
        self._predictions.append(predictions.astype(np.int8))
        self._targets.append(targets.astype(np.int8))

    def compute(self) -> dict[str, float]:
        """Return shares in 0..1."""
        predictions = gathered(self._predictions, name="multi-label F1")
        targets = gathered(self._targets, name="multi-label F1")
        # scikit-learn reads one column as a binary task and would then score class 0 as well; the flat form is equal.
        if self.num_labels == 1:
            micro = macro = f1(targets[:, 0], predictions[:, 0], labels=[0, 1])
        else:
            micro = f1(targets, predictions, average="micro")
            macro = f1(targets, predictions, average="macro")
        exact = float((predictions == targets).all(axis=1).mean())
        return {"f1_micro": micro, "f1_macro": macro, "exact_match": exact}

    def predicts_nothing(self) -> bool:
        """Tell whether no label was ever predicted: the mark of a degenerate run."""
        return not any(part.any() for part in self._predictions)
