"""Scores of tasks where each example has exactly one class (GLUE's accuracy, F1 and Matthews correlation)."""

from __future__ import annotations

import numpy as np

from maskloom.metrics.metric import checked_pair, f1, gathered


class SingleLabelMetric:
    """Accuracy, macro F1 and Matthews correlation; with two classes also F1 of class 1 (GLUE, MRPC and QQP).

    Takes class ids, not logits. Defined on degenerate input: an F1 whose precision or recall divides by zero counts
    0, and the Matthews correlation is 0 when the predictions or the targets are all of one class.
    """

    def __init__(self, num_labels: int, *, primary: str = "accuracy") -> None:
        known = ["accuracy", "f1_macro", "matthews", *(["f1"] if num_labels == 2 else [])]
        if primary not in known:
            raise ValueError(f"metric {primary!r} is not one of {known} (a task of {num_labels} classes)")
        self.primary = primary
        self.num_labels = num_labels
        self._predictions: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Take in class ids, both of shape (examples,); raises ValueError for an id outside the classes."""
        predictions, targets = checked_pair(predictions, targets, name="accuracy")
        for what, values in (("prediction", predictions), ("target", targets)):
            if len(values) and not (values.min() >= 0 and values.max() < self.num_labels):
                raise ValueError(f"a {what} lies outside the classes 0 to {self.num_labels - 1}")
        self._predictions.append(predictions.astype(np.int64))
        self._targets.append(targets.astype(np.int64))

    def compute(self) -> dict[str, float]:
        """Return shares in 0..1, and the Matthews correlation in -1..1."""
        from sklearn.metrics import accuracy_score, matthews_corrcoef

        predictions = gathered(self._predictions, name="accuracy")
        targets = gathered(self._targets, name="accuracy")
        scores = {"accuracy": float(accuracy_score(targets, predictions))}
        if self.num_labels == 2:
            scores["f1"] = f1(targets, predictions, labels=[0, 1])
        # Classes that occur nowhere are left out of the mean: a class that dev happens to lack is not a failure.
        present = np.union1d(targets, predictions)
        scores["f1_macro"] = f1(targets, predictions, labels=present, average="macro")
        is_constant = len(np.unique(predictions)) == 1 or len(np.unique(targets)) == 1
        scores["matthews"] = 0.0 if is_constant else float(matthews_corrcoef(targets, predictions))
        return scores

    def majority_share(self) -> float:
        """Return the accuracy of always answering the commonest target: what a run that learnt nothing reaches."""
        return float(np.bincount(gathered(self._targets, name="accuracy")).max() / sum(map(len, self._targets)))

    def score_of_majority(self) -> dict[str, float]:
        """Return every score of always answering the commonest target."""
        targets = gathered(self._targets, name="accuracy")
        constant = SingleLabelMetric(self.num_labels, primary=self.primary)
        constant.update(np.full_like(targets, np.bincount(targets).argmax()), targets)
        return constant.compute()

    def predicts_one_class(self) -> bool:
        """Tell whether every prediction is the same class: the mark of a degenerate run."""
        return len(np.unique(gathered(self._predictions, name="accuracy"))) == 1
