"""How reliable probabilities are: calibration error, Brier score, likelihood, and temperature scaling.

For one class per example (targets (examples,) of ids), softmax turns a row of logits into probabilities; for several
labels (targets (examples, labels) of 0 and 1), the logistic function is applied to each label. Logits are first divided
by a temperature (Guo et al. 2017): above 1 it lowers confidence, below 1 it raises it. The second half fits settings on
dev: the temperature, and one threshold for each of several labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

THRESHOLD = 0.5
TUNED_SETTINGS = ("temperature", "thresholds", "null_threshold")
NUM_BINS = 15
# A model without errors on the data used for fitting would get temperature 0, which does not carry over to other data.
TEMPERATURE_RANGE = (0.05, 20.0)


def softmax(logits: np.ndarray, *, axis: int = -1) -> np.ndarray:
    """Return probabilities along an axis, float64."""
    return np.exp(log_softmax(logits, axis=axis))


def log_softmax(logits: np.ndarray, *, axis: int = -1) -> np.ndarray:
    """Return log probabilities along an axis, in nats, float64; finite for finite logits."""
    shifted = logits.astype(np.float64) - logits.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the probability of each label separately, float64."""
    return 0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))


def log_sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the log probability of each label separately, in nats, float64; finite for finite logits."""
    return -np.logaddexp(0.0, -logits.astype(np.float64))


class CalibrationMetric:
    """Expected calibration error, Brier score and negative log likelihood, accumulated over batches of logits.

    For classes, the error compares the mean probability of the most likely class with its accuracy in `num_bins` bins
    of equal width, weighted by the number of examples in each. For several labels, it compares the mean probability of
    each label with its frequency in the same way, and is averaged over labels. A bin includes its upper edge but not
    its lower one; 0 belongs to the first.
    """

    def __init__(self, *, temperature: float = 1.0, num_bins: int = NUM_BINS) -> None:
        self.temperature = temperature
        self._edges = np.linspace(0.0, 1.0, num_bins + 1)
        self._confidences = self._hits = np.empty((0, 0))
        self._squares = self._likelihood = 0.0
        self._num_rows = self._num_values = 0

    def update(self, logits: np.ndarray, targets: np.ndarray) -> None:
        """Add logits (examples, classes) and true ids (examples,), or 0/1 targets of the same shape as the logits.

        Raises ValueError for shapes that do not match and for logits that are not finite.
        """
        logits, targets = _checked(logits, targets)
        if not len(logits):
            return
        scaled = logits / self.temperature
        if targets.ndim == 1:
            probabilities = softmax(scaled)
            truths = targets[:, None] == np.arange(logits.shape[1])
            confidences = probabilities.max(axis=1, keepdims=True)
            hits = probabilities.argmax(axis=1)[:, None] == targets[:, None]
            self._num_values += len(logits)
        else:
            probabilities = confidences = sigmoid(scaled)
            hits = truths = targets
            self._num_values += logits.size
        self._num_rows += len(logits)
        self._squares += float(((probabilities - truths) ** 2).sum())
        self._likelihood += float(_losses(scaled, targets).sum())
        num_columns, num_bins = confidences.shape[1], len(self._edges) - 1
        if not self._hits.size:
            self._confidences, self._hits = np.zeros((2, num_columns, num_bins))
        bins = np.clip(np.searchsorted(self._edges, confidences, side="left") - 1, 0, num_bins - 1)
        indices = (np.arange(num_columns) * num_bins + bins).ravel()
        for sums, values in ((self._confidences, confidences), (self._hits, hits)):
            sums += np.bincount(indices, values.ravel().astype(np.float64), minlength=sums.size).reshape(sums.shape)

    def compute(self) -> dict[str, float]:
        """Return `calibration_error` (0..1), `brier_score` and `negative_log_likelihood` (nats).

        The Brier score is the squared distance of the probabilities from the targets: for classes, summed over classes
        (0..2) and averaged over examples; for labels, averaged over both (0..1). Raises ValueError without examples.
        """
        if not self._num_rows:
            raise ValueError("calibration: no examples were given, so there is no error to measure")
        errors = np.abs(self._hits - self._confidences).sum(axis=1) / self._num_rows
        return {
            "calibration_error": float(errors.mean()),
            "brier_score": self._squares / self._num_values,
            "negative_log_likelihood": self._likelihood / self._num_values,
        }


def fit_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the temperature in `TEMPERATURE_RANGE` with the highest likelihood; deterministic.

    The likelihood has a single maximum, because it is concave in the inverse temperature. If no temperature beats 1, as
    with logits that are all equal, the result is 1. Raises ValueError if there are no examples.
    """
    from scipy.optimize import minimize_scalar

    logits, targets = _checked(logits, targets)
    if not logits.size:
        raise ValueError("calibration: no examples were given, so there is no temperature to fit")

    def loss(log_temperature: float) -> float:
        return float(_losses(logits / float(np.exp(log_temperature)), targets).mean())

    low, high = TEMPERATURE_RANGE
    found = minimize_scalar(
        loss, bounds=(np.log(low), np.log(high)), method="bounded", options={"xatol": 1e-6, "maxiter": 200}
    )
    return float(np.exp(found.x)) if loss(float(found.x)) < loss(0.0) else 1.0


def _losses(scaled: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return -log p of each target, in nats: (examples,), or (examples, labels)."""
    if targets.ndim == 1:
        return -log_softmax(scaled)[np.arange(len(targets)), targets]
    return -log_sigmoid(np.where(targets > 0, scaled, -scaled))


def _checked(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logits, targets = np.asarray(logits, dtype=np.float64), np.asarray(targets)
    if logits.ndim != 2 or targets.shape not in (logits.shape[:1], logits.shape):
        raise ValueError(f"calibration: logits have shape {logits.shape}, targets {targets.shape}; they must agree")
    if not np.isfinite(logits).all():
        raise ValueError("calibration: a logit is not a finite number")
    if targets.ndim == 2 and not np.isin(targets, (0, 1)).all():
        raise ValueError("calibration: the targets of several labels must be 0 or 1")
    if targets.ndim == 1:
        if len(targets) and not (targets.min() >= 0 and targets.max() < logits.shape[1]):
            raise ValueError(f"calibration: a target lies outside the classes 0 to {logits.shape[1] - 1}")
        targets = targets.astype(np.int64)
    return logits, targets


def fitted(fit: Callable[..., dict[str, Any]], logits_of: Callable[[Any, Any], np.ndarray]) -> Callable[..., Any]:
    """Return a task's `tune`, which calls `fit` with the logits that `logits_of` extracts and with the labels."""
    return lambda encoded, outputs: fit(logits_of(encoded, outputs), encoded.labels)


def tune_classes(logits: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    """Return `temperature` for logits (examples, classes) and ids (examples,); it does not change decisions.

    The result is {} if the examples do not determine it.
    """
    temperature = temperature_or_reason(logits, targets)
    return {} if isinstance(temperature, str) else {"temperature": temperature}


def tune_labels(logits: np.ndarray, targets: np.ndarray, *, primary: str = "f1_macro") -> dict[str, Any]:
    """Return `temperature` and `thresholds` for logits and 0/1 targets, both (examples, labels).

    The thresholds are those that `best_thresholds` finds for `primary` at that temperature, which is 1 if the examples
    do not determine it. The result is {} for a single example.
    """
    if len(logits) < 2:
        return {}
    temperature = tune_classes(logits, targets).get("temperature", 1.0)
    thresholds = best_thresholds(sigmoid(np.asarray(logits) / temperature), targets, primary)
    return {"temperature": temperature, "thresholds": thresholds}


ALL_RIGHT = "the model is right on all of them, so a lower one is always better"


def temperature_or_reason(logits: np.ndarray, targets: np.ndarray) -> float | str:
    """Return the fitted temperature, or why the examples determine none: there is one, or no likelihood is highest."""
    is_right = logits.argmax(axis=1) == targets if np.ndim(targets) == 1 else (logits > 0) == (np.asarray(targets) > 0)
    if len(logits) < 2:
        return "more than one is needed"
    if is_right.all():
        return ALL_RIGHT
    temperature, (low, high) = fit_temperature(logits, targets), TEMPERATURE_RANGE
    if temperature >= 0.999 * high:
        return "the model is worse than chance on them, so a higher one is always better"
    return temperature if temperature > 1.001 * low else f"the best one is below {low:g}, the lowest that is tried"


def best_thresholds(scores: np.ndarray, targets: np.ndarray, primary: str) -> list[float]:
    """Return the thresholds with the highest f1_macro or f1_micro, or 0.5 for any other; arrays (examples, labels).

    Macro F1 is the mean of the labels' F1, so each label is optimised separately. Micro F1 is a ratio of sums over
    labels and is maximised exactly by Dinkelbach's method (1967): for a value r, each label takes the threshold with
    the highest 2 TP - r chosen; the resulting micro F1 is the next r, until it no longer rises.
    """
    columns = list(zip(np.asarray(scores).T, np.asarray(targets).T > 0, strict=True))
    if primary == "f1_macro":
        # F1 = 2 TP / (chosen + true), a ratio of whole numbers, so that equal scores compare equal; true[0] counts all
        return [_best_cut(*each, lambda true, chosen: 2.0 * true / np.maximum(chosen + true[0], 1)) for each in columns]
    thresholds = [THRESHOLD] * len(columns)
    best = _micro_f1(columns, thresholds)
    while primary == "f1_micro":
        found = [_best_cut(*column, lambda true, chosen, r=best: 2.0 * true - r * chosen) for column in columns]
        if (reached := _micro_f1(columns, found)) <= best:
            break
        best, thresholds = reached, found
    return thresholds


def _micro_f1(columns: Sequence[tuple[np.ndarray, np.ndarray]], thresholds: Sequence[float]) -> float:
    chosen = [score >= threshold for (score, _), threshold in zip(columns, thresholds, strict=True)]
    hits = sum(int((marks & is_true).sum()) for marks, (_, is_true) in zip(chosen, columns, strict=True))
    sizes = sum(int(marks.sum() + is_true.sum()) for marks, (_, is_true) in zip(chosen, columns, strict=True))
    return 2.0 * hits / max(sizes, 1)


def _best_cut(scores: np.ndarray, is_true: np.ndarray, value: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Return the threshold with the highest `value`, a function of the numbers of true and of all examples chosen.

    Examples with scores (examples,) at or above it are chosen. Every set of examples that a threshold can choose is
    tried; choosing none is too, if the highest score is below 1. If none beats 0.5, the result is 0.5, as for a label
    without positives. Ties go to the threshold nearest to 0.5, then to the higher one. A threshold lies halfway between
    the lowest chosen score and the next lower one, so that rounding elsewhere changes no decision.
    """
    distinct, indices = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
    num_true = np.bincount(indices, weights=is_true, minlength=len(distinct))[::-1].cumsum()[::-1]
    num_chosen = np.bincount(indices, minlength=len(distinct))[::-1].cumsum()[::-1]
    values = value(np.append(num_true, 0.0), np.append(num_chosen, 0))
    if len(distinct) and distinct[-1] >= 1.0:
        values[-1] = -np.inf
    if values.max() <= values[np.searchsorted(distinct, THRESHOLD)]:
        return THRESHOLD
    below, above = np.concatenate([[0.0], distinct]), np.concatenate([distinct, [1.0]])
    middles = (below + above) / 2
    thresholds = np.where(middles > below, middles, above)  # adjacent floats have no number between them
    best = np.flatnonzero(values == values.max())
    return float(thresholds[min(best, key=lambda place: (abs(thresholds[place] - THRESHOLD), -thresholds[place]))])


def checked_thresholds(values: Sequence[float] | None, num_labels: int) -> np.ndarray:
    """Return one threshold per label, (labels,) float64, 0.5 for None; raises ValueError for a wrong number of them."""
    if values is not None and len(values) != num_labels:
        raise ValueError(f"thresholds {values!r:.80}: expected {num_labels} numbers, one per label")
    return np.full(num_labels, THRESHOLD) if values is None else np.asarray(values, dtype=np.float64)
