"""The tagging task: named entities in sentences (BERT paper 4.3), and plain tags of words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from maskloom.metrics.calibration import fitted, softmax, tune_classes
from maskloom.metrics.entities import Entity, EntityMetric, TagTable, entities_of
from maskloom.metrics.labels import SingleLabelMetric
from maskloom.metrics.metric import checked_primary
from maskloom.objectives.tagging import CrfTagging, Tagging
from maskloom.tasks.labels import checked_weights, labels_config
from maskloom.tasks.settings import TaggingSettings
from maskloom.tasks.tagging.encoding import EncodedSentences, encode_sentences
from maskloom.tasks.tagging.features import on_features
from maskloom.tasks.tagging.reading import TaggedSentence, sentence_example
from maskloom.tasks.tagging.schemes import PLAIN, forbidden_pairs, is_plain
from maskloom.tasks.tagging.splitting import UNKNOWN_TRAINING
from maskloom.tasks.task import Task


def tagging_task(labels: tuple[str, ...], primary: str | None, settings: TaggingSettings) -> Task:
    """Return the task of tagging words with `labels`, which are in id order.

    `primary` is f1 (conlleval's), strict_f1 or accuracy; for plain tags, which are not entities, accuracy or f1_macro.
    Raises ValueError for any other score, for a wrong number of class weights, and without labels.
    """
    if not labels:
        raise ValueError("tagging needs the names of its tags")
    crf, context, has_plain_tags = settings.crf, settings.context, is_plain(labels, settings)
    scores = ("accuracy", "f1_macro") if has_plain_tags else ("f1", "strict_f1", "accuracy")
    primary = checked_primary(primary or scores[0], scores, "plain tags" if has_plain_tags else "tagging")
    scheme = PLAIN if has_plain_tags else TagTable.of(labels).scheme()
    forbidden = () if scheme == PLAIN else forbidden_pairs(labels, scheme)
    logits = partial(tag_logits, len(labels))
    task = Task(
        kind="tagging",
        labels=labels,
        primary=primary,
        heads=("tagger", "crf") if crf else ("tagger",),
        objective=CrfTagging(forbidden) if crf else Tagging(checked_weights(settings.class_weights, labels)),
        encode=lambda data, tokenizer, max_length, **_: encode_sentences(
            data.examples, tokenizer, max_length=max_length, labels=labels, context=context, path=data.report.path
        ),
        decide=partial(decide_words if has_plain_tags else decide_tags, labels),  # pyright: ignore[reportArgumentType]
        decode=partial(decode_tags, labels, settings.temperature, names_entities=not has_plain_tags),  # pyright: ignore[reportArgumentType]
        metric=(
            partial(SingleLabelMetric, len(labels), primary=primary)
            if has_plain_tags
            else partial(EntityMetric, labels, primary=primary)
        ),
        published_config=labels_config(labels),
        settings=settings.model_copy(update={"trained_scheme": scheme, "labels": [*labels]}),
        tune=fitted(tune_classes, logits),
        scored_logits=logits,  # pyright: ignore[reportArgumentType]
        forms=dict.fromkeys((".conll", ".txt"), lambda sentence, row: column_lines(sentence, row["tags"])),
        example_of=partial(sentence_example, settings.words or UNKNOWN_TRAINING),
    )
    return task if settings.features is None else on_features(task, settings.features, settings.mix_layer_norm)


def tag_ids(rows: np.ndarray, num_labels: int) -> np.ndarray:
    """Return the tag id of each word, (words,): on the best path if rows are (words, 2 * labels), else the argmax."""
    if rows.shape[1] == 2 * num_labels:
        # Rows may be averaged over several models: the majority of paths wins, and the likelier tag at a tie.
        return (rows[:, num_labels:] + 1e-3 * rows[:, :num_labels].clip(-30.0)).argmax(axis=1)
    return rows.argmax(axis=1)


def tag_logits(num_labels: int, encoded: EncodedSentences, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the scores whose softmax gives the tag probabilities of each word, (words, labels)."""
    return encoded.word_rows(outputs)[:, :num_labels]


def decide_tags(labels: Sequence[str], encoded: EncodedSentences, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the tag ids of each sentence, (words,)."""
    return encoded.by_sentence(decide_words(labels, encoded, outputs))


def decide_words(labels: Sequence[str], encoded: EncodedSentences, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the tag ids of all words, (words,)."""
    return tag_ids(encoded.word_rows(outputs), len(labels))


def decode_tags(
    labels: tuple[str, ...],
    temperature: float,
    encoded: EncodedSentences,
    outputs: Sequence[np.ndarray],
    *,
    names_entities: bool = True,
) -> list[dict[str, Any]]:
    """Return, for each sentence, its `words`, their `tags`, and its `entities`, found as by conlleval.

    An entity has `text`, `type`, `start` and `end` in characters of the sentence's text, `words` (first and end index)
    and `probability`: the product of the probabilities of its words' tags. For plain tags, there are `spans`, the
    characters (start, end) of each word, and `tag_probabilities` instead.
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
            row["entities"] = [_entity(sentence, one, probabilities) for one in entities_of(names)]
        else:
            row["spans"] = [list(span) for span in sentence.spans]
            row["tag_probabilities"] = probabilities.tolist()
        found.append(row)
    return found


def _entity(sentence: TaggedSentence, entity: Entity, probabilities: np.ndarray) -> dict[str, Any]:
    kind, first, end = entity
    start, stop = sentence.spans[first][0], sentence.spans[end - 1][1]
    return {
        "text": sentence.text[start:stop],
        "type": kind,
        "start": start,
        "end": stop,
        "words": [first, end],
        "probability": float(np.prod(probabilities[first:end])),
    }


def column_lines(sentence: TaggedSentence, tags: Sequence[str]) -> list[str]:
    """Return a sentence as lines in columns, with the predicted tag last, followed by a blank line.

    The other columns are those of the file, or the word alone; the separator is a tab if any word contains a space. A
    -DOCSTART- line before the sentence is repeated.
    """
    columns = sentence.columns or tuple((word,) for word in sentence.words)
    separator = "\t" if any(" " in word for word in sentence.words) else sentence.separator
    lines = []
    if sentence.opening is not None:
        lines += [separator.join([*sentence.opening, "O"]), ""]
    lines += [separator.join([*fields, tag]) for fields, tag in zip(columns, tags, strict=True)]
    return [*lines, ""]
