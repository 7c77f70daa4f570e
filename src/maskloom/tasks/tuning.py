"""Settings fitted on dev: the temperature of probabilities, and the threshold of each of several labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from maskloom.metrics.calibration import fit_temperature, sigmoid

THRESHOLD = 0.5
TUNED_SETTINGS = ("temperature", "thresholds", "null_threshold")
_EXACT_SWEEPS = 20


def fitted(fit: Callable[..., dict[str, Any]], logits_of: Callable[[Any, Any], np.ndarray]) -> Callable[..., Any]:
    """Return a task's `tune`: `fit` on the logits that `logits_of` takes from the outputs, and on the labels."""

    def tune(encoded: Any, outputs: Any) -> dict[str, Any]:
        return fit(logits_of(encoded, outputs), encoded.labels)

    return tune


def tune_classes(logits: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    """Return `temperature` for logits (examples, classes) and ids (examples,); decisions do not change with it."""
    return {"temperature": fit_temperature(logits, targets)}


def tune_labels(logits: np.ndarray, targets: np.ndarray, *, primary: str = "f1_macro") -> dict[str, Any]:
    """Return `temperature` and `thresholds` for logits and 0/1 targets, both (examples, labels).

    With these thresholds, found by `best_thresholds`, `primary` is highest at that temperature.
    """
    temperature = fit_temperature(logits, targets)
    thresholds = best_thresholds(sigmoid(np.asarray(logits) / temperature), targets, primary)
    return {"temperature": temperature, "thresholds": thresholds}


def best_thresholds(scores: np.ndarray, targets: np.ndarray, primary: str) -> list[float]:
    """Return the thresholds with the highest f1_macro, f1_micro or exact_match; arrays are (examples, labels).

    Macro F1 is the mean of the labels' own F1, so each label has its best by itself. Micro F1 is a quotient of sums
    over labels, and its best is found exactly as that of such quotients is (Dinkelbach 1967): for a value r, each label
    takes the threshold with the highest 2 TP - r chosen; the micro F1 of that is the next r, until it rises no more.
    The fraction of exact rows is raised label by label, the others held, until none rises; better ones may exist.
    """
    columns = list(zip(np.asarray(scores).T, np.asarray(targets).T > 0, strict=True))
    if primary == "f1_macro":
        return [best_threshold(*column) for column in columns]
    thresholds = [THRESHOLD] * len(columns)
    if primary == "f1_micro":
        best = _micro_f1(columns, thresholds)
        while True:
            found = [_best_cut(*column, lambda true, chosen, r=best: 2.0 * true - r * chosen) for column in columns]
            if (reached := _micro_f1(columns, found)) <= best:
                return thresholds
            best, thresholds = reached, found
    is_right = np.array([(score >= THRESHOLD) == is_true for score, is_true in columns])
    for _ in range(_EXACT_SWEEPS):
        before = list(thresholds)
        for label, (score, is_true) in enumerate(columns):
            others = np.delete(is_right, label, axis=0).all(axis=0)
            found = _best_cut(score[others], is_true[others], lambda true, chosen: 2.0 * true - chosen)
            now = (score >= found) == is_true
            if now[others].sum() > is_right[label][others].sum():
                thresholds[label], is_right[label] = found, now
        if thresholds == before:
            break
    return thresholds


def _micro_f1(columns: Sequence[tuple[np.ndarray, np.ndarray]], thresholds: Sequence[float]) -> float:
    chosen = [score >= threshold for (score, _), threshold in zip(columns, thresholds, strict=True)]
    hits = sum(int((marks & is_true).sum()) for marks, (_, is_true) in zip(chosen, columns, strict=True))
    sizes = sum(int(marks.sum() + is_true.sum()) for marks, (_, is_true) in zip(chosen, columns, strict=True))
    return 2.0 * hits / max(sizes, 1)


def best_threshold(scores: np.ndarray, targets: np.ndarray) -> float:
    """Return the threshold of one label with the highest F1; scores and 0/1 targets (examples,), chosen at or above it.

    Every set of examples that some threshold chooses is looked at. Where none beats 0.5, it stays 0.5, as for a label
    without positives. Of others with equal F1 the one nearest to 0.5 is taken, and of two equally near the higher. It
    lies halfway between the lowest chosen score and the next one: rounding elsewhere then changes no decision.
    """
    is_true = np.asarray(targets) > 0
    size = int(is_true.sum())
    # F1 = 2 TP / (chosen + true); comparing it as a quotient of whole numbers makes equal ones equal
    return _best_cut(scores, is_true, lambda true, chosen: 2.0 * true / np.maximum(chosen + size, 1))


def _best_cut(scores: np.ndarray, is_true: np.ndarray, value: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Return the threshold with the highest value, a function of how many true examples and how many at all it chooses.

    To choose none is looked at too, where there is a number above the highest score.
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
    thresholds = np.where(middles > below, middles, above)  # two neighbouring numbers have no third between them
    best = np.flatnonzero(values == values.max())
    return float(thresholds[min(best, key=lambda place: (abs(thresholds[place] - THRESHOLD), -thresholds[place]))])


def checked_thresholds(values: Sequence[float] | None, num_labels: int) -> np.ndarray:
    """Return one threshold per label, (labels,) float64, 0.5 for None; raises ValueError for another number of them."""
    if values is not None and len(values) != num_labels:
        raise ValueError(f"thresholds {values!r:.80}: {num_labels} numbers are expected, one per label")
    return np.full(num_labels, THRESHOLD) if values is None else np.asarray(values, dtype=np.float64)
