"""The interface of metrics, and the checks that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from maskloom.errors import UsageError, not_one_of


class Metric(Protocol):
    """A score accumulated over batches; `primary` names the entry of `compute()` by which models are compared.

    Higher is better. A metric that a library computes may also have `signatures()`, which describe the computation, by
    name of the score.
    """

    primary: str

    def update(self, predictions: Any, targets: Any) -> None:
        """Add the predictions and true values of some examples, in the same order."""
        ...

    def compute(self) -> dict[str, float]:
        """Return all scores of the examples so far. Raises ValueError if there are none."""
        ...

    def reference(self) -> float | None:
        """Return the primary score of always giving the same answer, or None if that is not informative."""
        ...

    def degeneracy(self) -> str | None:
        """Describe how the predictions are those of a model that always gives the same answer, or return None."""
        ...


def checked_primary(primary: str, known: Sequence[str], what: str) -> str:
    """Return the name of a score; raises UsageError for a name that is not a score of `what`."""
    if primary not in known:
        raise UsageError(f"{what}: metric {not_one_of(primary, known)}")
    return primary


def checked_pair(predictions: np.ndarray, targets: np.ndarray, *, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return both arrays; raises ValueError if their shapes differ or a value is not finite."""
    predictions, targets = np.asarray(predictions), np.asarray(targets)
    if predictions.shape != targets.shape:
        raise ValueError(f"{name}: shapes {predictions.shape} of predictions, {targets.shape} of targets must agree")
    for what, values in (("prediction", predictions), ("target", targets)):
        finite = np.isfinite(values)
        if not finite.all():
            first = int(np.argwhere(~finite)[0][0])
            raise ValueError(f"{name}: {what} {first} is {values[first]}; a score needs finite numbers")
    return predictions, targets
