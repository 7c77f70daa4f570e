"""Tagging as a kind of task: named entities in sentences (BERT paper 5.3)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from maskloom.config import ConfigError, DataError
from maskloom.metrics.calibration import checked_temperature
from maskloom.metrics.entities import EntityMetric, TagTable, is_tag
from maskloom.objectives.crf_tagging import CrfTagging
from maskloom.objectives.tagging import Tagging
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.examples import ReadExamples, ReadingReport
from maskloom.tasks.labels import read_label_names
from maskloom.tasks.tagging.decoding import column_lines, decide_tags, decode_tags, tag_logits, true_tags
from maskloom.tasks.tagging.encoding import EncodedSentences, encode_sentences
from maskloom.tasks.tagging.features import on_features
from maskloom.tasks.tagging.reading import iterate_sentences
from maskloom.tasks.tagging.schemes import forbidden_pairs, tag_names
from maskloom.tasks.tagging.sentences import TaggedSentence
from maskloom.tasks.tagging.windows import Context
from maskloom.tasks.task import Outputs, Task, TaskKind
from maskloom.tasks.tuning import tune_classes
from maskloom.text.tokenizer import Tokenizer

# Models are trained on the tags of this scheme whatever the files are written in; scores by conlleval are the same.
TRAINED_SCHEME = "iob2"
SCORES = ("f1", "strict_f1", "accuracy")


def tagging_task(
    labels: tuple[str, ...] = (), primary: str | None = None, settings: Mapping[str, Any] | None = None
) -> Task:
    """Return the task of tagging words with those tags, in the order of their ids.

    `primary` is f1 (conlleval's), strict_f1 or accuracy. `settings` may hold `scheme` (that of files, "auto" to detect
    it), `context` ("sentence" or "document"), `crf`, `temperature`, and `features`, the recipe's section of that name.
    Raises ValueError for a score that there is not, a temperature that is none, or without labels.
    """
    primary = primary or "f1"
    if primary not in SCORES:
        raise ValueError(f"metric {primary!r} is not one of {list(SCORES)} (tagging)")
    if not labels:
        raise ValueError("tagging needs the names of its tags")
    given = dict(settings or {})
    crf, context = bool(given.get("crf", False)), given.get("context", "sentence")
    known = {"scheme": given.get("scheme", "auto"), "context": context, "crf": crf}
    forbidden: tuple[tuple[int, int], ...] = ()
    if all(map(is_tag, labels)):
        scheme = TagTable.of(labels).scheme()
        known["trained_scheme"], forbidden = scheme, forbidden_pairs(labels, scheme)
    task = Task(
        kind="tagging",
        labels=labels,
        primary=primary,
        heads=("tagger", "crf") if crf else ("tagger",),
        objective=CrfTagging(forbidden) if crf else Tagging(),
        encode=partial(_encode, labels, context),
        decide=partial(decide_tags, labels),  # pyright: ignore[reportArgumentType]
        targets=true_tags,  # pyright: ignore[reportArgumentType]
        decode=partial(decode_tags, labels, checked_temperature(given.get("temperature", 1.0))),  # pyright: ignore[reportArgumentType]
        metric=partial(EntityMetric, labels, primary=primary),
        published_config={
            "id2label": {str(number): name for number, name in enumerate(labels)},
            "label2id": {name: number for number, name in enumerate(labels)},
        },
        settings={**given, **known},
        tune=partial(_tune, len(labels)),
        scored_logits=partial(tag_logits, len(labels)),  # pyright: ignore[reportArgumentType]
        forms={".conll": _lines, ".txt": _lines},
    )
    return on_features(task, given["features"]) if given.get("features") else task


def _encode(
    labels: tuple[str, ...],
    context: Context,
    data: ReadExamples,
    tokenizer: Tokenizer,
    max_length: int,
    *,
    for_training: bool = False,
) -> EncodedSentences:
    path = data.report.path
    return encode_sentences(data.examples, tokenizer, max_length=max_length, labels=labels, context=context, path=path)


def _tune(num_labels: int, encoded: Any, outputs: Outputs, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """Fit the temperature of the probabilities of tags, word by word."""
    return tune_classes(tag_logits(num_labels, encoded, outputs), encoded.labels, leave_out=leave_out)


def _lines(sentence: TaggedSentence, prediction: dict[str, Any]) -> list[str]:
    return column_lines(sentence, prediction["tags"])


def _iterate(
    path: str | Path,
    options: ReadingOptions,
    settings: Mapping[str, Any],
    *,
    needs_label: bool,
    report: ReadingReport,
) -> Iterator[TaggedSentence]:
    return iterate_sentences(
        path,
        options,
        scheme=settings.get("scheme", "auto"),
        target=settings.get("trained_scheme", TRAINED_SCHEME),
        needs_label=needs_label,
        report=report,
    )


def _label_names(train: ReadExamples, options: ReadingOptions, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return all tags of the types of entity in the training data, or those of a file."""
    if options.labels is None:
        tags = {tag for sentence in train.examples for tag in sentence.tags or ()}
        return tag_names({tag[2:] for tag in tags if tag != "O"}, TRAINED_SCHEME)
    names = read_label_names(options.labels)
    wanted = set(tag_names({name[2:] for name in names if is_tag(name) and name != "O"}, TRAINED_SCHEME))
    if set(names) != wanted:
        odd = sorted(set(names) ^ wanted)[0]
        fault = "is not a tag of IOB2" if odd in names else "is missing"
        raise ConfigError(f"{options.labels}: {odd!r} {fault}; tagging needs O, and B- and I- of every type")
    return names


def _check(train: ReadExamples, dev: ReadExamples) -> None:
    for data in (train, dev):
        if all(tag == "O" for sentence in data.examples for tag in sentence.tags or ()):
            raise DataError(
                f"{data.report.path}: every word of {len(data.examples)} sentences has the tag O; there is no entity "
                "to learn from or to score"
            )


TAGGING = TaskKind(name="tagging", iterate=_iterate, label_names=_label_names, check=_check, make=tagging_task)
