"""Scores of predictions: single labels, multiple labels, choices and numbers (BERT paper 4.1, 4.4)."""

from __future__ import annotations

import math

import numpy as np

from maskloom.metrics.metric import checked_pair, checked_primary


class SingleLabelMetric:
    """Accuracy, macro F1 and Matthews correlation; with two classes also F1 of class 1 (GLUE, MRPC and QQP).

    Takes class ids, not logits. Defined on degenerate input: an F1 is 0 if its precision or recall divides by zero,
    and the Matthews correlation is 0 if all predictions or all targets are the same class.
    """

    what = "class"

    def __init__(self, num_labels: int, *, primary: str = "accuracy") -> None:
        known = ["accuracy", "f1_macro", "matthews", *(["f1"] if num_labels == 2 else [])]
        self.primary = checked_primary(primary, known, f"a task with {num_labels} classes")
        self.num_labels = num_labels
        self._counts = np.zeros((num_labels, num_labels), dtype=np.int64)

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Add class ids, both of shape (examples,); raises ValueError for an id that is not a class."""
        predictions, targets = checked_pair(predictions, targets, name="accuracy")
        for what, values in (("prediction", predictions), ("target", targets)):
            if len(values) and not (values.min() >= 0 and values.max() < self.num_labels):
                raise ValueError(f"a {what} lies outside the classes 0 to {self.num_labels - 1}")
        np.add.at(self._counts, (targets.astype(np.int64), predictions.astype(np.int64)), 1)

    def compute(self) -> dict[str, float]:
        """Return fractions in 0..1, and the Matthews correlation in -1..1."""
        counts, right = self._gathered(), self._counts.diagonal()
        predicted, true = counts.sum(axis=0), counts.sum(axis=1)
        sizes, total = predicted + true, int(counts.sum())
        by_label = _f1(right, sizes)
        scores = {"accuracy": float(right.sum() / total)}
        if self.num_labels == 2:
            scores["f1"] = float(by_label[1])
        # The mean excludes classes that occur nowhere: a class that dev happens to lack is not a failure.
        scores["f1_macro"] = float(by_label[sizes > 0].mean())
        # Gorodkin 2004, equation 8; the products of squares exceed 64 bits
        spread = math.prod(total**2 - int(side @ side) for side in (predicted, true))
        scores["matthews"] = int(right.sum() * total - predicted @ true) / math.sqrt(spread) if spread else 0.0
        return scores

    def reference(self) -> float:
        """Return the primary score of always predicting the most common target."""
        counts = self._gathered().sum(axis=1)
        constant = SingleLabelMetric(self.num_labels, primary=self.primary)
        constant._counts[:, counts.argmax()] = counts
        return constant.compute()[self.primary]

    def degeneracy(self) -> str | None:
        """Report that every prediction is the same class, or right for one example more than that; else None."""
        counts = self._gathered()
        if np.count_nonzero(counts.sum(axis=0)) == 1:
            return f"every prediction is the same {self.what}"
        is_near = self.primary == "accuracy" and counts.trace() == counts.sum(axis=1).max() + 1
        return "accuracy is not above that of a constant answer by more than one example" if is_near else None

    def _gathered(self) -> np.ndarray:
        """Return counts (true classes, predicted classes); raises ValueError if there are no examples."""
        if not self._counts.any():
            raise ValueError("accuracy: no examples were given, so there is no score")
        return self._counts


class MultiLabelMetric:
    """Micro and macro F1 over labels, the fraction of examples whose label set is exactly right, and example scores.

    Example scores are the means of |both| / |either| ("jaccard"), of precision, recall and F1 ("_samples"), each 0 if
    its divisor is, and the fraction of wrong decisions ("hamming_loss"). From Dong et al. 2019 come the F1 of the mean
    precision and recall ("f1_of_means"), and wrong decisions over the number of true labels ("hamming_by_label").

    Takes 0/1 arrays of shape (examples, labels). A label that never occurs on either side has an F1 of 0 in the macro
    mean (scikit-learn's `zero_division=0`), so that the mean always divides by the number of labels.
    """

    def __init__(self, num_labels: int, *, primary: str = "f1_micro") -> None:
        self.primary = checked_primary(primary, ["f1_micro", "f1_macro", "exact_match"], "a multi-label task")
        self.num_labels = num_labels
        self._true_positives, self._predicted, self._actual = np.zeros((3, num_labels), dtype=np.int64)
        self._num_exact = self._num_examples = 0
        self._by_example = np.zeros(5)

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Add predicted and true labels, both (examples, labels); raises ValueError for values other than 0 and 1."""
        predictions, targets = checked_pair(predictions, targets, name="multi-label F1")
        if predictions.ndim != 2 or predictions.shape[1] != self.num_labels:
            raise ValueError(f"multi-label F1: shape {predictions.shape}, expected (examples, {self.num_labels})")
        for values in (predictions, targets):
            if not np.isin(values, (0, 1)).all():
                raise ValueError("multi-label F1: predictions must be 0 or 1; apply the threshold first")
        chosen, true = predictions.astype(bool), targets.astype(bool)
        self._true_positives += (chosen & true).sum(axis=0)
        self._predicted += chosen.sum(axis=0)
        self._actual += true.sum(axis=0)
        self._num_exact += int((chosen == true).all(axis=1).sum())
        self._num_examples += len(chosen)
        both, num_chosen, num_true = (side.sum(axis=1) for side in (chosen & true, chosen, true))
        divisors = np.stack([num_chosen + num_true - both, num_chosen, num_true, (num_chosen + num_true) / 2])
        wrong = (chosen != true).sum() / self.num_labels
        self._by_example += [*(both / np.where(divisors, divisors, 1)).sum(axis=1), wrong]

    def compute(self) -> dict[str, float]:
        """Return fractions in 0..1."""
        if not self._num_examples:
            raise ValueError("multi-label F1: no examples were given, so there is no score")
        by_label = _f1(self._true_positives, self._predicted + self._actual)
        micro = _f1(self._true_positives.sum(), self._predicted.sum() + self._actual.sum())
        exact = self._num_exact / self._num_examples
        names = ("jaccard", "precision_samples", "recall_samples", "f1_samples", "hamming_loss")
        by_example = dict[str, float](zip(names, (self._by_example / self._num_examples).tolist(), strict=True))
        precision, recall = by_example["precision_samples"], by_example["recall_samples"]
        by_example["f1_of_means"] = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        wrong = by_example["hamming_loss"] * self.num_labels * self._num_examples
        by_example["hamming_by_label"] = wrong / max(int(self._actual.sum()), 1)
        return {"f1_micro": float(micro), "f1_macro": float(by_label.mean()), "exact_match": exact, **by_example}

    def reference(self) -> None:
        """Return None: no constant answer is an obvious baseline."""

    def degeneracy(self) -> str | None:
        """Report that no label is ever predicted, or return None."""
        return "no label is ever predicted" if not self._predicted.any() else None


def _f1(true_positives: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return F1 = 2 TP / (predicted + actual), or 0 if the divisor is 0."""
    return 2.0 * true_positives / np.maximum(sizes, 1)


class ChoiceMetric(SingleLabelMetric):
    """The fraction of examples with the right choice; choices are numbered from 0, with any number per example."""

    what = "choice"

    def __init__(self, *, primary: str = "accuracy") -> None:
        super().__init__(0, primary=checked_primary(primary, ["accuracy"], "multiple choice"))

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Add predicted and true choices, both of shape (examples,)."""
        predictions, targets = checked_pair(predictions, targets, name="accuracy")
        more = int(max(predictions.max(initial=-1), targets.max(initial=-1))) + 1 - self.num_labels
        self._counts = np.pad(self._counts, (0, max(more, 0)))
        self.num_labels = len(self._counts)
        super().update(predictions, targets)

    def compute(self) -> dict[str, float]:
        """Return the fraction in 0..1. Raises ValueError if there are no examples."""
        return {"accuracy": super().compute()["accuracy"]}


class RegressionMetric:
    """Pearson and Spearman correlation, their mean, and the mean squared error.

    A correlation is undefined if either side is constant up to rounding, or has fewer than two examples; it is then 0.
    Spearman's ranks need all values together, so 16 bytes per example are kept.
    """

    def __init__(self, *, primary: str = "pearson") -> None:
        self.primary = checked_primary(primary, ["pearson", "spearman", "correlation"], "a regression task")
        self._parts: list[np.ndarray] = []

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Add predicted and true values, both of shape (examples,)."""
        predictions, targets = checked_pair(predictions, targets, name="correlation")
        self._parts.append(np.stack([predictions, targets]).astype(np.float64))

    def compute(self) -> dict[str, float]:
        """Return correlations in -1..1 and the error in squared units of the labels."""
        from scipy.stats import pearsonr, spearmanr

        predictions, targets = self._sides()
        scores = {"pearson": 0.0, "spearman": 0.0}
        if not (_is_constant(predictions) or _is_constant(targets)):
            scores["pearson"] = float(np.asarray(pearsonr(predictions, targets)[0]))
            scores["spearman"] = float(np.asarray(spearmanr(predictions, targets)[0]))
        scores["correlation"] = (scores["pearson"] + scores["spearman"]) / 2
        scores["mean_squared_error"] = float(np.mean((predictions - targets) ** 2))
        return scores

    def reference(self) -> float:
        """Return the correlation of a constant answer: 0."""
        return 0.0

    def degeneracy(self) -> str | None:
        """Report that every prediction is the same number, or return None."""
        return "every prediction is the same number" if _is_constant(self._sides()[0]) else None

    def _sides(self) -> np.ndarray:
        """Return predictions and targets, (2, examples); raises ValueError if there are no examples."""
        if not sum(part.shape[1] for part in self._parts):
            raise ValueError("correlation: no examples were given, so there is no score")
        return np.concatenate(self._parts, axis=1)


def _is_constant(values: np.ndarray) -> bool:
    """Return whether all values are equal, at least up to rounding, so that a correlation would be meaningless."""
    return bool(np.ptp(values) == 0 or np.linalg.norm(values - values.mean()) < 1e-13 * abs(values.mean()))
