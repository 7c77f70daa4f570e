"""Scores of regression tasks (GLUE STS-B: Pearson and Spearman correlation)."""

from __future__ import annotations

import numpy as np

from maskloom.metrics.metric import checked_pair, checked_primary, gathered


class RegressionMetric:
    """Pearson and Spearman correlation, their mean, and the mean squared error.

    A correlation is not defined when either side is constant, but for rounding, or holds fewer than two examples; it
    then counts 0.
    Spearman's ranks need every value at once, so 16 bytes an example are kept: 1.6 megabytes for 100,000.
    """

    def __init__(self, *, primary: str = "pearson") -> None:
        self.primary = checked_primary(primary, ["pearson", "spearman", "correlation"], "a regression task")
        self._predictions: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Take in predicted and true values, both of shape (examples,)."""
        predictions, targets = checked_pair(predictions, targets, name="correlation")
        self._predictions.append(predictions.astype(np.float64))
        self._targets.append(targets.astype(np.float64))

    def compute(self) -> dict[str, float]:
        """Return correlations in -1..1 and the error in squared units of the labels."""
        from scipy.stats import pearsonr, spearmanr

        predictions = gathered(self._predictions, name="correlation")
        targets = gathered(self._targets, name="correlation")
        scores = {"pearson": 0.0, "spearman": 0.0}
        if not (self.is_constant() or _is_nearly_constant(predictions) or _is_nearly_constant(targets)):
            scores["pearson"] = float(np.asarray(pearsonr(predictions, targets)[0]))
            scores["spearman"] = float(np.asarray(spearmanr(predictions, targets)[0]))
        scores["correlation"] = (scores["pearson"] + scores["spearman"]) / 2
        scores["mean_squared_error"] = float(np.mean((predictions - targets) ** 2))
        return scores

    def is_constant(self) -> bool:
        """Tell whether all predictions, or all targets, are one number: no correlation exists."""
        sides = (self._predictions, self._targets)
        return any(len(np.unique(gathered(side, name="correlation"))) == 1 for side in sides)

    def reference(self) -> float:
        """Return the correlation of a constant answer: none."""
        return 0.0

    def degeneracy(self) -> str | None:
        """Say that every prediction is the same number, where that is so."""
        return "every prediction is the same number" if self.is_constant() else None


def _is_nearly_constant(values: np.ndarray) -> bool:
    """Tell whether the spread drowns in rounding; a correlation of rounding errors means nothing."""
    return bool(np.linalg.norm(values - values.mean()) < 1e-13 * abs(values.mean()))
