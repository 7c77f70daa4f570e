"""Kinds of task with one vector per text, pair, document or choice (BERT paper 4.1, 4.4).

A text, a pair or a document has one label, a score, or several labels; a document is read as a title and sentences
(Dong et al. 2019). In multiple choice, each choice gets a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from maskloom.data.batch import ChoiceBatch
from maskloom.errors import amount
from maskloom.metrics.calibration import checked_thresholds, fitted, sigmoid, softmax, tune_classes, tune_labels
from maskloom.metrics.labels import ChoiceMetric, MultiLabelMetric, RegressionMetric, SingleLabelMetric
from maskloom.objectives.classification import (
    DocumentClassification,
    MultiLabelClassification,
    MultipleChoice,
    Regression,
    SingleLabelClassification,
)
from maskloom.tasks.catalog import Kind
from maskloom.tasks.choices import ChoiceExample
from maskloom.tasks.encoding import EncodedExamples, encode_both_orders, encode_examples, encoded_texts
from maskloom.tasks.examples import Example, ReadExamples
from maskloom.tasks.labels import checked_weights, encode_labels, labels_config
from maskloom.tasks.settings import ClassificationSettings, DocumentSettings, KindSettings
from maskloom.tasks.task import Outputs, Task
from maskloom.text.sentences import check_language, split_sentences
from maskloom.text.tokenizer import Tokenizer

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


def document_task(labels: tuple[str, ...], primary: str | None, settings: DocumentSettings) -> Task:
    """Return the task, with the scores, thresholds and errors of the multilabel kind.

    Raises ConfigError for a language without sentence-splitting rules, ValueError if no part of the document vector is
    enabled.
    """
    check_language(settings.language)
    uses = (settings.title, settings.guided, settings.own)
    if not any(uses):
        raise ValueError("document.title, guided and own are all false; a document needs at least one of these vectors")
    objective = DocumentClassification(
        checked_weights(settings.class_weights, labels),
        uses,
        settings.similarity,
        settings.implication,
        settings.similar,
        settings.implied,
    )
    return replace(
        classification_task("multilabel", labels, primary, settings),
        kind="document",
        heads=("document",),
        objective=objective,
        encode=lambda data, tokenizer, max_length, **_: _encode_documents(
            settings, data, tokenizer, max_length, encode_labels(data, "multilabel", labels)
        ),
        learned=lambda encoded: label_relations(cast(np.ndarray, encoded.labels), settings),
    )


@dataclass(frozen=True, kw_only=True)
class EncodedDocuments(EncodedExamples):
    """Token ids of documents, each a title and its sentences; `num_left_out` (documents,) counts unread sentences."""

    num_left_out: np.ndarray
    batch_type: type[ChoiceBatch] = ChoiceBatch

    def account(self) -> dict[str, Any]:
        """Return the number of sentences, titles included, and what was truncated or left out, as plain values."""
        numbers = {"num_sentences": int(self.first[-1]), "num_left_out": int(self.num_left_out.sum())}
        return {**super().account(), **numbers}

    def notes(self, path: Path) -> list[str]:
        """Report how many sequences were truncated and how many documents lost sentences, if any."""
        total, num_cut = int(self.num_left_out.sum()), int(np.count_nonzero(self.num_left_out))
        cut = f"{path}: {num_cut:,} of {amount(len(self), 'document')} lose {amount(total, 'sentence')} at the end"
        return [*super().notes(path), *([f"{cut} (document.max_sentences)"] if total else [])]


def _encode_documents(
    settings: DocumentSettings, data: ReadExamples, tokenizer: Tokenizer, max_length: int, labels: np.ndarray | None
) -> EncodedDocuments:
    documents = [_parts(one, settings) for one in data.examples]
    kept = [(title, *sentences[: settings.max_sentences]) for title, sentences in documents]
    fields = encoded_texts(
        ((text, None) for texts in kept for text in texts),
        np.cumsum([0, *map(len, kept)], dtype=np.int64),
        tokenizer,
        max_length,
    )
    num_left_out = [1 + len(sentences) - len(texts) for (_, sentences), texts in zip(documents, kept, strict=True)]
    return EncodedDocuments(**fields, labels=labels, num_left_out=np.array(num_left_out, dtype=np.int64))


def _parts(example: Example, settings: DocumentSettings) -> tuple[str, Sequence[str]]:
    """Return the title and the sentences; without a title, the first sentence serves as both."""
    text = example.text if example.pair is None else example.pair
    sentences = split_sentences(text, language=settings.language) or [text]
    return (sentences[0] if example.pair is None else example.text), sentences


def label_relations(targets: np.ndarray, settings: DocumentSettings) -> dict[str, Any]:
    """Return the label relations that the enabled regularisers use, from 0/1 training targets (documents, labels).

    The similarity of two labels is the cosine of their columns. A label implies a more frequent one if at least
    `implied_from` of its documents also have that one (Sanderson and Croft 1999). Differs from the paper, which uses
    word vectors of the label names and an ontology.
    """
    together = targets.T.astype(np.float64) @ targets
    counts, found = together.diagonal(), dict[str, Any]()
    if settings.similarity:
        cosines = together / np.sqrt(np.maximum(np.outer(counts, counts), 1.0))
        pairs = zip(*np.nonzero(np.triu(cosines, 1)), strict=True)
        found["similar"] = tuple((int(j), int(k), float(cosines[j, k])) for j, k in pairs)
    if settings.implication:
        is_implied = together >= settings.implied_from * counts[:, None]
        pairs = np.argwhere(is_implied & (counts[:, None] > 0) & (counts[:, None] < counts))
        found["implied"] = tuple((int(j), int(k)) for j, k in pairs)
    return found


@dataclass(frozen=True, kw_only=True)
class EncodedChoices(EncodedExamples):
    """Token ids, one sequence per choice; `labels` (examples,) are indices of the right choices, from 0, or None."""

    examples: Sequence[ChoiceExample]
    batch_type: type[ChoiceBatch] = ChoiceBatch

    def account(self) -> dict[str, Any]:
        """Return the total number of choices and the truncation counts, as plain values."""
        return {**super().account(), "num_choices": int(self.first[-1])}


def encode_choices(examples: Sequence[ChoiceExample], tokenizer: Tokenizer, *, max_length: int) -> EncodedChoices:
    """Encode examples in order, pairing each choice with the context; they may have different numbers of choices."""
    first = np.cumsum([0, *(len(example.choices) for example in examples)], dtype=np.int64)
    fields = encoded_texts((pair for example in examples for pair in example.pairs()), first, tokenizer, max_length)
    labels = [example.label for example in examples]
    known = None if None in labels else np.array(labels, dtype=np.int64)
    return EncodedChoices(**fields, labels=known, examples=examples)


# Still finite when divided by the smallest temperature.
_NO_CHOICE = -1e30


def choice_task(labels: tuple[str, ...], primary: str | None, settings: KindSettings) -> Task:
    """Return the multiple-choice task, which has no label names; raises ValueError for any score but accuracy."""
    metric = partial(ChoiceMetric, primary=primary or "accuracy")
    return Task(
        kind="choice",
        labels=(),
        primary=metric().primary,  # raises for an unknown score now, not after training
        heads=("choice",),
        objective=MultipleChoice(),
        encode=lambda data, tokenizer, max_length, **_: encode_choices(data.examples, tokenizer, max_length=max_length),
        # ties go to the first choice
        decide=lambda encoded, outputs: choice_scores(encoded, outputs).argmax(axis=1),
        decode=partial(_decode_choices, settings.temperature),  # pyright: ignore[reportArgumentType]
        metric=metric,
        settings=settings,
        tune=fitted(tune_classes, choice_scores),
        scored_logits=choice_scores,
    )


def choice_scores(_: Any, outputs: Outputs) -> np.ndarray:
    """Return the scores of all examples, (examples, most choices), padded with scores of probability 0."""
    scores = np.full((len(outputs), max(map(len, outputs), default=1)), _NO_CHOICE, dtype=np.float32)
    for row, found in zip(scores, outputs, strict=True):
        row[: len(found)] = found[:, 0]
    return scores


def _decode_choices(temperature: float, encoded: EncodedChoices, outputs: Outputs) -> list[dict[str, Any]]:
    scores = choice_scores(encoded, outputs)
    return [
        {
            "choice": best,
            "choice_text": example.choices[best],
            "probabilities": {str(number): float(row[number]) for number in range(len(example.choices))},
        }
        for example, best, row in zip(
            encoded.examples, scores.argmax(axis=1).tolist(), softmax(scores / temperature), strict=True
        )
    ]
