"""Fits settings on dev: the temperature of probabilities, and one threshold for each of several labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from maskloom.metrics.calibration import fit_temperature, sigmoid

THRESHOLD = 0.5
TUNED_SETTINGS = ("temperature", "thresholds", "null_threshold")


def fitted(fit: Callable[..., dict[str, Any]], logits_of: Callable[[Any, Any], np.ndarray]) -> Callable[..., Any]:
    """Return a task's `tune`, which calls `fit` with the logits that `logits_of` extracts and with the labels."""
    return lambda encoded, outputs: fit(logits_of(encoded, outputs), encoded.labels)


def tune_classes(logits: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    """Return `temperature` for logits (examples, classes) and ids (examples,); it does not change decisions."""
    return {"temperature": fit_temperature(logits, targets)}


def tune_labels(logits: np.ndarray, targets: np.ndarray, *, primary: str = "f1_macro") -> dict[str, Any]:
    """Return `temperature` and `thresholds` for logits and 0/1 targets, both (examples, labels).

    The thresholds are those that `best_thresholds` finds for `primary` at that temperature.
    """
    temperature = fit_temperature(logits, targets)
    thresholds = best_thresholds(sigmoid(np.asarray(logits) / temperature), targets, primary)
    return {"temperature": temperature, "thresholds": thresholds}


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
