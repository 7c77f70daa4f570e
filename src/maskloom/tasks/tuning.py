"""Settings fitted on dev: the temperature of probabilities, and the threshold of each of several labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from maskloom.metrics.calibration import checked_temperature, fit_temperature, sigmoid

THRESHOLD = 0.5
THRESHOLD_SETTINGS = ("thresholds", "null_threshold")
TUNED_SETTINGS = ("temperature", *THRESHOLD_SETTINGS)


def tune_classes(logits: np.ndarray, targets: np.ndarray, *, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """Return `temperature` for logits (examples, classes) and ids (examples,); decisions do not change with it."""
    return {} if "temperature" in leave_out else {"temperature": fit_temperature(logits, targets)}


def tune_labels(
    logits: np.ndarray, targets: np.ndarray, *, settings: Mapping[str, Any], leave_out: Collection[str] = ()
) -> dict[str, Any]:
    """Return `temperature` and `thresholds` for logits and 0/1 targets, both (examples, labels).

    Thresholds are fitted to the probabilities that the temperature gives. Where they are left out, those in `settings`
    move with a new temperature, so that the same labels are chosen as before.
    """
    old = checked_temperature(settings.get("temperature", 1.0))
    new = old if "temperature" in leave_out else fit_temperature(logits, targets)
    tuned: dict[str, Any] = {} if "temperature" in leave_out else {"temperature": new}
    if "thresholds" not in leave_out:
        probabilities = sigmoid(np.asarray(logits) / new)
        tuned["thresholds"] = [best_threshold(*column) for column in zip(probabilities.T, targets.T, strict=True)]
    elif settings.get("thresholds") is not None and new != old:
        thresholds = checked_thresholds(settings["thresholds"], np.asarray(logits).shape[1])
        with np.errstate(divide="ignore"):
            odds = np.log(thresholds) - np.log1p(-thresholds)
        tuned["thresholds"] = sigmoid(odds * old / new).tolist()
    return tuned


def best_threshold(scores: np.ndarray, targets: np.ndarray) -> float:
    """Return the threshold of one label with the highest F1; scores and 0/1 targets (examples,), chosen at or above it.

    Every set of examples that some threshold chooses is looked at. Where none beats 0.5, it stays 0.5, as for a label
    without positives. Of others with equal F1 the one nearest to 0.5 is taken, and of two equally near the higher. It
    lies halfway between the lowest chosen score and the next one: rounding elsewhere then changes no decision.
    """
    scores, is_true = np.asarray(scores, dtype=np.float64), np.asarray(targets) > 0
    distinct, places = np.unique(scores, return_inverse=True)
    num_true = np.bincount(places, weights=is_true, minlength=len(distinct))[::-1].cumsum()[::-1]
    num_chosen = np.bincount(places, minlength=len(distinct))[::-1].cumsum()[::-1]
    # F1 = 2 TP / (chosen + true); comparing it as a quotient of whole numbers makes equal ones equal
    f1 = 2.0 * num_true / np.maximum(num_chosen + is_true.sum(), 1)
    at_half = int(np.searchsorted(distinct, THRESHOLD))
    f1_at_half = f1[at_half] if at_half < len(distinct) else 0.0
    if not len(distinct) or f1.max() <= f1_at_half:
        return THRESHOLD
    below = np.concatenate([[0.0], distinct[:-1]])
    middles = (below + distinct) / 2
    thresholds = np.where(middles > below, middles, distinct)  # two neighbouring numbers have no third between them
    best = np.flatnonzero(f1 == f1.max())
    return float(thresholds[min(best, key=lambda place: (abs(thresholds[place] - THRESHOLD), -thresholds[place]))])


def checked_thresholds(values: Any, num_labels: int) -> np.ndarray:
    """Return one threshold a label, (labels,) float64, 0.5 for None; raises ValueError for other than such shares."""
    if values is None:
        return np.full(num_labels, THRESHOLD)
    is_list = isinstance(values, list | tuple) and all(isinstance(value, int | float) for value in values)
    if not is_list or len(values) != num_labels or not all(0.0 <= value <= 1.0 for value in values):
        raise ValueError(f"thresholds {values!r:.80}: {num_labels} numbers from 0 to 1 are expected, one a label")
    return np.asarray(values, dtype=np.float64)
