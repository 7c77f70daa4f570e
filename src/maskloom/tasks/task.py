"""A task: how its data is read and encoded, which head and loss it takes, how outputs are decoded and scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from maskloom.metrics import Metric, MultiLabelMetric, RegressionMetric, SingleLabelMetric
from maskloom.objectives.classification import (
    MultiLabelClassification,
    Regression,
    SequenceObjective,
    SingleLabelClassification,
)
from maskloom.tasks.catalog.row import Kind
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.encoding import EncodedExamples, encode_examples
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.labels import encode_labels
from maskloom.tasks.reading import read_examples
from maskloom.text.tokenizer import Tokenizer

PROBLEM_TYPES: dict[Kind, str] = {
    "single": "single_label_classification",
    "pair": "single_label_classification",
    "regression": "regression",
    "multilabel": "multi_label_classification",
}
_THRESHOLD = 0.5


@dataclass(frozen=True)
class Task:
    """A data set kind as plain functions.

    `read(path, options, needs_label=...)` gives examples, `encode(data, tokenizer, max_length)` token ids with labels,
    `head(hidden_size, dropout)` a fresh classifier, `decide(logits)` what the metric scores, and `decode(logits)` one
    dictionary a prediction with probabilities by label name. Logits are arrays (examples, outputs).
    """

    kind: Kind
    labels: tuple[str, ...]
    primary: str
    read: Callable[..., ReadExamples]
    encode: Callable[[ReadExamples, Tokenizer, int], EncodedExamples]
    head: Callable[[int, float], nn.Module]
    objective: SequenceObjective
    decide: Callable[[np.ndarray], np.ndarray]
    decode: Callable[[np.ndarray], list[dict[str, Any]]]
    metric: Callable[[], Metric]

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the head: one a label, and one for a score."""
        return max(len(self.labels), 1)


def make_task(
    kind: Kind,
    labels: Sequence[str] = (),
    *,
    primary: str | None = None,
    class_weights: Sequence[float] | None = None,
) -> Task:
    """Return the task of a kind with its label names in the order of their ids.

    `primary` is the score by which models are compared: accuracy, f1, f1_macro or matthews for one label; pearson,
    spearman or correlation for a score; f1_micro, f1_macro or exact_match for several labels. Raises ValueError for
    a score that the kind does not have.
    """
    names = tuple(labels)
    if kind == "regression":
        objective, primary = Regression(), primary or "pearson"
        decide, decode, metric = _scores, _decode_scores, partial(RegressionMetric, primary=primary)
    elif kind == "multilabel":
        objective, primary = MultiLabelClassification(), primary or "f1_micro"
        decide, decode = _chosen_labels, partial(_decode_labels, names)
        metric = partial(MultiLabelMetric, len(names), primary=primary)
    else:
        objective = SingleLabelClassification(tuple(class_weights) if class_weights is not None else None)
        primary = primary or "accuracy"
        decide, decode = _best_class, partial(_decode_class, names)
        metric = partial(SingleLabelMetric, len(names), primary=primary)
    metric()  # an unknown score is an error here, not after training
    return Task(
        kind=kind,
        labels=names,
        primary=primary,
        read=partial(_read, kind),
        encode=partial(_encode, kind, names),
        head=partial(_head, max(len(names), 1)),
        objective=objective,
        decide=decide,
        decode=decode,
        metric=metric,
    )


def kind_of_problem(problem_type: str | None, num_labels: int) -> Kind:
    """Return the kind of a model by the `problem_type` of its config; without one, one output means regression."""
    if problem_type == "multi_label_classification":
        return "multilabel"
    if problem_type == "regression" or (problem_type is None and num_labels == 1):
        return "regression"
    return "single"


def _read(kind: Kind, path: str | Path, options: ReadingOptions | None = None, *, needs_label: bool = True):
    return read_examples(path, kind, options, needs_label=needs_label)


def _encode(
    kind: Kind, names: tuple[str, ...], data: ReadExamples, tokenizer: Tokenizer, max_length: int
) -> EncodedExamples:
    return encode_examples(data.examples, tokenizer, max_length=max_length, labels=encode_labels(data, kind, names))


def _head(num_outputs: int, hidden_size: int, dropout: float) -> nn.Module:
    from maskloom.models.heads import ClassificationHead

    return ClassificationHead(hidden_size, num_outputs, dropout)


def _best_class(logits: np.ndarray) -> np.ndarray:
    return logits.argmax(axis=1)


def _scores(logits: np.ndarray) -> np.ndarray:
    return logits[:, 0]


def _chosen_labels(logits: np.ndarray) -> np.ndarray:
    return (_sigmoid(logits) >= _THRESHOLD).astype(np.int8)


def _decode_class(names: tuple[str, ...], logits: np.ndarray) -> list[dict[str, Any]]:
    exponents = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probabilities = exponents / exponents.sum(axis=1, keepdims=True)
    return [
        {"label": names[int(row.argmax())], "probabilities": dict(zip(names, map(float, row), strict=True))}
        for row in probabilities
    ]


def _decode_labels(names: tuple[str, ...], logits: np.ndarray) -> list[dict[str, Any]]:
    probabilities, chosen = _sigmoid(logits), _chosen_labels(logits)
    return [
        {
            "labels": [name for name, is_chosen in zip(names, marks, strict=True) if is_chosen],
            "probabilities": dict(zip(names, map(float, row), strict=True)),
        }
        for row, marks in zip(probabilities, chosen, strict=True)
    ]


def _decode_scores(logits: np.ndarray) -> list[dict[str, Any]]:
    return [{"score": float(score)} for score in logits[:, 0]]


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))
