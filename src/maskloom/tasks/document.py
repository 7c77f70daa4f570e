"""Multi-label classification of documents, each read as a title and sentences (Dong et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from maskloom.data.batch import ChoiceBatch
from maskloom.errors import amount
from maskloom.objectives.classification import DocumentClassification
from maskloom.tasks.classification import classification_task
from maskloom.tasks.encoding import EncodedGroups, encoded_texts
from maskloom.tasks.examples import Example, ReadExamples
from maskloom.tasks.labels import checked_weights, encode_labels
from maskloom.tasks.settings import DocumentSettings
from maskloom.tasks.task import Task
from maskloom.text.sentences import check_language, split_sentences
from maskloom.text.tokenizer import Tokenizer


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
        encode=lambda data, tokenizer, max_length, **_: _encode(
            settings, data, tokenizer, max_length, encode_labels(data, "multilabel", labels)
        ),
        learned=lambda encoded: label_relations(cast(np.ndarray, encoded.labels), settings),
    )


@dataclass(frozen=True)
class EncodedDocuments(EncodedGroups):
    """Token ids of documents, each a title and its sentences; `num_left_out` (documents,) counts unread sentences."""

    num_left_out: np.ndarray

    _batch: ClassVar = ChoiceBatch

    def account(self) -> dict[str, Any]:
        """Return the number of sentences, titles included, and what was truncated or left out, as plain values."""
        numbers = {"num_sentences": int(self.first[-1]), "num_left_out": int(self.num_left_out.sum())}
        return {**super().account(), **numbers}

    def notes(self, path: Path) -> list[str]:
        """Report how many sequences were truncated and how many documents lost sentences, if any."""
        total, num_cut = int(self.num_left_out.sum()), int(np.count_nonzero(self.num_left_out))
        cut = f"{path}: {num_cut} of {amount(len(self), 'document')} lose {amount(total, 'sentence')} at the end"
        return [*super().notes(path), *([f"{cut} (document.max_sentences)"] if total else [])]


def _encode(
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
