"""Rows of outputs to tags, entities and where they stand in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from maskloom.metrics.calibration import softmax
from maskloom.metrics.entities import entities_of
from maskloom.tasks.tagging.encoding import EncodedSentences
from maskloom.tasks.tagging.sentences import TaggedSentence


def tag_ids(rows: np.ndarray, num_labels: int) -> np.ndarray:
    """Return the tag of each word, (words,): the best path's where rows (words, 2 * labels) hold one, else the best."""
    if rows.shape[1] == 2 * num_labels:
        # Rows of several models may have been averaged: most paths win, and the likelier tag at a tie.
        return (rows[:, num_labels:] + 1e-3 * rows[:, :num_labels].clip(-30.0)).argmax(axis=1)
    return rows.argmax(axis=1)


def tag_logits(num_labels: int, encoded: EncodedSentences, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return what becomes the probability of each tag at each word, (words, labels)."""
    return encoded.word_rows(outputs)[:, :num_labels]


def decide_tags(labels: Sequence[str], encoded: EncodedSentences, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the ids of the tags of each sentence, (words,)."""
    return encoded.by_sentence(decide_words(labels, encoded, outputs))


def decide_words(labels: Sequence[str], encoded: EncodedSentences, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the ids of the tags of all words, (words,)."""
    return tag_ids(encoded.word_rows(outputs), len(labels))


def decode_tags(
    labels: tuple[str, ...],
    temperature: float,
    encoded: EncodedSentences,
    outputs: Sequence[np.ndarray],
    *,
    names_entities: bool = True,
) -> list[dict[str, Any]]:
    """Return, for each sentence, its `words`, their `tags`, and its `entities`; for plain tags what each word has.

    That is `spans`, the characters (start, end) of each word in the sentence's text, and `tag_probabilities`.

    An entity has `text`, `type`, `start` and `end` in characters of the sentence's text, `words` (first and end place)
    and `probability`: the product of the probabilities of its words' tags, at that temperature. Tags are as they were
    decided; entities are found in them as conlleval does.
    """
    rows = encoded.word_rows(outputs)
    ids = tag_ids(rows, len(labels))
    probabilities = softmax(rows[:, : len(labels)] / temperature)
    chosen = np.take_along_axis(probabilities, ids[:, None], axis=1)[:, 0]
    sides = zip(encoded.sentences, encoded.by_sentence(ids), encoded.by_sentence(chosen), strict=True)
    found = []
    for sentence, tags, probabilities in sides:
        names: list[str] = [labels[number] for number in tags.tolist()]
        row: dict[str, Any] = {"words": list(sentence.words), "tags": names}
        if names_entities:
            row["entities"] = _entities(sentence, names, probabilities)
        else:
            row["spans"] = [list(span) for span in sentence.spans]
            row["tag_probabilities"] = probabilities.tolist()
        found.append(row)
    return found


def _entities(sentence: TaggedSentence, tags: Sequence[str], probabilities: np.ndarray) -> list[dict[str, Any]]:
    found = []
    for kind, first, end in entities_of(tags):
        start, stop = sentence.spans[first][0], sentence.spans[end - 1][1]
        found.append(
            {
                "text": sentence.text[start:stop],
                "type": kind,
                "start": start,
                "end": stop,
                "words": [first, end],
                "probability": float(np.prod(probabilities[first:end])),
            }
        )
    return found


def column_lines(sentence: TaggedSentence, tags: Sequence[str]) -> list[str]:
    """Return a sentence as lines in columns, with the predicted tag as the last, and a blank line behind it.

    The columns are those of the file where it had some, with its separator; a sentence from other files has the word
    alone, with a tab where the word holds a space. A -DOCSTART- line that stood before the sentence comes again.
    """
    columns = sentence.columns or tuple((word,) for word in sentence.words)
    separator = "\t" if any(" " in word for word in sentence.words) else sentence.separator
    lines = []
    if sentence.opening is not None:
        lines += [separator.join([*sentence.opening, "O"]), ""]
    lines += [separator.join([*fields, tag]) for fields, tag in zip(columns, tags, strict=True)]
    return [*lines, ""]
