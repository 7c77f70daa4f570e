"""The four kinds of task with one vector per text or pair: one label, a score, or several labels (BERT paper 4.1)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from maskloom.metrics.calibration import sigmoid, softmax
from maskloom.metrics.labels import MultiLabelMetric, RegressionMetric, SingleLabelMetric
from maskloom.objectives.classification import MultiLabelClassification, Regression, SingleLabelClassification
from maskloom.tasks.catalog import Kind
from maskloom.tasks.encoding import encode_both_orders, encode_examples
from maskloom.tasks.labels import checked_weights, encode_labels, labels_config
from maskloom.tasks.settings import ClassificationSettings
from maskloom.tasks.task import Outputs, Task
from maskloom.tasks.tuning import checked_thresholds, fitted, tune_classes, tune_labels

PROBLEM_TYPES: dict[Kind, str] = {
    "single": "single_label_classification",
    "pair": "single_label_classification",
    "regression": "regression",
    "multilabel": "multi_label_classification",
}


def classification_task(
    kind: Kind, labels: tuple[str, ...], primary: str | None, settings: ClassificationSettings
) -> Task:
    """Return the task of a kind; `labels` are the label names in id order.

    `primary` is accuracy, f1, f1_macro or matthews for one label; pearson, spearman or correlation for a score;
    f1_micro, f1_macro or exact_match for several labels. Raises ValueError for a score that the kind does not have, and
    for a wrong number of class weights or thresholds.
    """
    encode, tune = encode_both_orders if settings.both_orders else encode_examples, None
    if kind == "regression":
        objective, primary = Regression(), primary or "pearson"
        decide, decode = _scores, lambda logits: [{"score": score} for score in _scores(logits).tolist()]
        metric = partial(RegressionMetric, primary=primary)
    elif kind == "multilabel":
        objective = MultiLabelClassification(checked_weights(settings.class_weights, labels))
        primary = primary or "f1_micro"
        thresholds = checked_thresholds(settings.thresholds, len(labels))
        decide = partial(_chosen_labels, settings.temperature, thresholds)
        decode = partial(_decode_labels, labels, settings.temperature, thresholds)
        tune = partial(tune_labels, primary=primary)
        metric = partial(MultiLabelMetric, len(labels), primary=primary)
    else:
        objective = SingleLabelClassification(checked_weights(settings.class_weights, labels))
        primary = primary or "accuracy"
        decide, decode = partial(np.argmax, axis=1), partial(_decode_class, labels, settings.temperature)
        tune = tune_classes
        metric = partial(SingleLabelMetric, len(labels), primary=primary)
    metric()  # rejects an unknown score now, not after training
    return Task(
        kind=kind,
        labels=labels,
        primary=primary,
        heads=("classifier",),
        objective=objective,
        encode=lambda data, tokenizer, max_length, **_: encode(
            data.examples, tokenizer, max_length=max_length, labels=encode_labels(data, kind, labels)
        ),
        decide=lambda encoded, outputs: decide(_stacked(encoded, outputs)),
        decode=lambda encoded, outputs: decode(_stacked(encoded, outputs)),
        metric=metric,
        published_config={**labels_config(labels or ("score",)), "problem_type": PROBLEM_TYPES[kind]},
        settings=settings,
        tune=None if tune is None else fitted(tune, _stacked),
        scored_logits=None if tune is None else _stacked,
    )


def kind_of_problem(problem_type: str | None, num_labels: int) -> Kind:
    """Return the kind of a model from its config's `problem_type`; without one, a single output means regression."""
    if problem_type == "multi_label_classification":
        return "multilabel"
    if problem_type == "regression" or (problem_type is None and num_labels == 1):
        return "regression"
    return "single"


def _stacked(_: Any, outputs: Outputs) -> np.ndarray:
    """Return the single row of every unit, stacked to (examples, outputs)."""
    return np.concatenate(outputs) if len(outputs) else np.empty((0, 1), dtype=np.float32)


def _scores(logits: np.ndarray) -> np.ndarray:
    return logits[:, 0]


def _chosen_labels(temperature: float, thresholds: np.ndarray, logits: np.ndarray) -> np.ndarray:
    return (sigmoid(logits / temperature) >= thresholds).astype(np.int8)


def _decode_class(names: tuple[str, ...], temperature: float, logits: np.ndarray) -> list[dict[str, Any]]:
    # argmax of the logits: dividing by a high temperature may round two probabilities to the same value
    return [
        {"label": names[best], "probabilities": dict(zip(names, map(float, row), strict=True))}
        for best, row in zip(logits.argmax(axis=1).tolist(), softmax(logits / temperature), strict=True)
    ]


def _decode_labels(
    names: tuple[str, ...], temperature: float, thresholds: np.ndarray, logits: np.ndarray
) -> list[dict[str, Any]]:
    probabilities, chosen = sigmoid(logits / temperature), _chosen_labels(temperature, thresholds, logits)
    return [
        {
            "labels": [name for name, is_chosen in zip(names, marks, strict=True) if is_chosen],
            "probabilities": dict(zip(names, map(float, row), strict=True)),
        }
        for row, marks in zip(probabilities, chosen, strict=True)
    ]
