"""Scores of tasks where each example has exactly one class (GLUE's accuracy, F1 and Matthews correlation)."""

from __future__ import annotations

import numpy as np

from maskloom.metrics.metric import checked_pair, checked_primary, f1


class SingleLabelMetric:
    """Accuracy, macro F1 and Matthews correlation; with two classes also F1 of class 1 (GLUE, MRPC and QQP).

    Takes class ids, not logits. Defined on degenerate input: an F1 whose precision or recall divides by zero counts
    0, and the Matthews correlation is 0 when the predictions or the targets are all of one class.
    """

    def __init__(self, num_labels: int, *, primary: str = "accuracy") -> None:
        known = ["accuracy", "f1_macro", "matthews", *(["f1"] if num_labels == 2 else [])]
        self.primary = checked_primary(primary, known, f"a task of {num_labels} classes")
        self.num_labels = num_labels
        self._counts = np.zeros((num_labels, num_labels), dtype=np.int64)

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Take in class ids, both of shape (examples,); raises ValueError for an id outside the classes."""
        predictions, targets = checked_pair(predictions, targets, name="accuracy")
        for what, values in (("prediction", predictions), ("target", targets)):
            if len(values) and not (values.min() >= 0 and values.max() < self.num_labels):
                raise ValueError(f"a {what} lies outside the classes 0 to {self.num_labels - 1}")
        np.add.at(self._counts, (targets.astype(np.int64), predictions.astype(np.int64)), 1)

    def compute(self) -> dict[str, float]:
        """Return fractions in 0..1, and the Matthews correlation in -1..1."""
        from sklearn.metrics import accuracy_score, matthews_corrcoef

        # Every score is a function of how often each class was taken for each; one weighted row a cell is enough.
        targets, predictions = np.nonzero(self._gathered())
        weights = self._counts[targets, predictions]
        scores = {"accuracy": float(accuracy_score(targets, predictions, sample_weight=weights))}
        if self.num_labels == 2:
            scores["f1"] = f1(targets, predictions, labels=[0, 1], sample_weight=weights)
        # Classes that occur nowhere are left out of the mean: a class that dev happens to lack is not a failure.
        present = np.union1d(targets, predictions)
        scores["f1_macro"] = f1(targets, predictions, labels=present, average="macro", sample_weight=weights)
        is_constant = len(np.unique(predictions)) == 1 or len(np.unique(targets)) == 1
        scores["matthews"] = (
            0.0 if is_constant else float(matthews_corrcoef(targets, predictions, sample_weight=weights))
        )
        return scores

    def reference(self) -> float:
        """Return the primary score of always answering the commonest target."""
        return self.score_of_majority()[self.primary]

    def score_of_majority(self) -> dict[str, float]:
        """Return every score of always answering the commonest target."""
        counts = self._gathered().sum(axis=1)
        constant = SingleLabelMetric(self.num_labels, primary=self.primary)
        constant._counts[:, counts.argmax()] = counts
        return constant.compute()

    def predicts_one_class(self) -> bool:
        """Tell whether every prediction is the same class: the mark of a degenerate run."""
        return int((self._gathered().sum(axis=0) > 0).sum()) == 1

    def degeneracy(self) -> str | None:
        """Say that every prediction is the same class, where that is so."""
        return "every prediction is the same class" if self.predicts_one_class() else None

    def _gathered(self) -> np.ndarray:
        """Return counts (true classes, predicted classes); raises ValueError when there are no examples."""
        if not self._counts.any():
            raise ValueError("accuracy: no examples were given; a score of nothing is not defined")
        return self._counts
