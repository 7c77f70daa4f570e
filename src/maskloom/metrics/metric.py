"""What every metric offers, and the checks that all of them make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from maskloom.errors import UsageError, not_one_of


class Metric(Protocol):
    """A score gathered over batches; `primary` names the entry of `compute()` by which models are compared.

    One that a library computes may also have `signatures()`, which say how, by the name of the score.
    """

    @property
    def primary(self) -> str:
        """Name of the score that decides which model is best; higher is better."""
        ...

    def update(self, predictions: Any, targets: Any) -> None:
        """Take in the decisions and true values of some examples, in one order."""
        ...

    def compute(self) -> dict[str, float]:
        """Return every score of what was taken in. Raises ValueError when nothing was."""
        ...

    def reference(self) -> float | None:
        """Return the primary score of always giving the same answer; None where that says nothing."""
        ...

    def degeneracy(self) -> str | None:
        """Say in what way the predictions are those of a model that answers the same always, or return None."""
        ...


def checked_primary(primary: str, known: Sequence[str], what: str) -> str:
    """Return the name of a score; raises UsageError for one that is not among those of `what`."""
    if primary not in known:
        raise UsageError(f"{what}: metric {not_one_of(primary, known)}")
    return primary


def checked_pair(predictions: np.ndarray, targets: np.ndarray, *, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return both arrays when they agree in shape and hold finite numbers; raises ValueError otherwise."""
    predictions, targets = np.asarray(predictions), np.asarray(targets)
    if predictions.shape != targets.shape:
        raise ValueError(
            f"{name}: predictions have shape {predictions.shape}, targets {targets.shape}; they must agree"
        )
    for what, values in (("prediction", predictions), ("target", targets)):
        finite = np.isfinite(values)
        if not finite.all():
            first = int(np.argwhere(~finite)[0][0])
            raise ValueError(f"{name}: {what} {first} is {values[first]}; a score needs finite numbers")
    return predictions, targets
