"""Tagging as the rest of the package is told of it: named entities, and plain tags of words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from maskloom.errors import ConfigError, DataError
from maskloom.metrics.entities import entities_of, is_tag
from maskloom.tasks.examples import ReadExamples, checked_text
from maskloom.tasks.kind import TaskKind, Verdict
from maskloom.tasks.labels import read_label_names
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.tagging.reading import TaggedSentence, iterate_sentences
from maskloom.tasks.tagging.schemes import PLAIN, TRAINED_SCHEME, tag_names
from maskloom.tasks.tagging.settings import TaggingSection, TaggingSettings
from maskloom.tasks.tagging.splitting import UNKNOWN_TRAINING, WordSplitter

if TYPE_CHECKING:
    from maskloom.tasks.task import Task


def _make(labels: tuple[str, ...], primary: str | None, settings: TaggingSettings) -> Task:
    from maskloom.tasks.tagging.task import tagging_task  # torch

    return tagging_task(labels, primary, settings)


def is_plain(labels: Collection[str], settings: TaggingSettings) -> bool:
    """Tell whether tags stand for single words: where the settings say so, or where some are no entity tags."""
    return PLAIN in (settings.scheme, settings.trained_scheme) or not all(map(is_tag, labels))


def _label_names(train: ReadExamples, options: ReadingOptions, settings: TaggingSettings) -> tuple[str, ...]:
    """Return all tags of the types of entity in the training data, or plain tags as they occur, or those of a file."""
    tags = {tag for sentence in train.examples for tag in sentence.tags or ()}
    if is_plain(tags, settings):
        names = read_label_names(options.labels) if options.labels else tuple(sorted(tags))
        if len(names) == 1:
            raise ConfigError(
                f"{options.labels or train.report.path}: the only tag is {names[0]!r:.80}; tagging needs at least two"
            )
        return names
    if options.labels is None:
        return tag_names({tag[2:] for tag in tags if tag != "O"}, TRAINED_SCHEME)
    names = read_label_names(options.labels)
    wanted = set(tag_names({name[2:] for name in names if is_tag(name) and name != "O"}, TRAINED_SCHEME))
    if set(names) != wanted:
        odd = sorted(set(names) ^ wanted)[0]
        fault = "is not a tag of IOB2" if odd in names else "is missing"
        raise ConfigError(f"{options.labels}: {odd!r:.80} {fault}; tagging needs O, and B- and I- of every type")
    return names


def _check(train: ReadExamples, dev: ReadExamples) -> None:
    for data in (train, dev):
        tags = {tag for sentence in data.examples for tag in sentence.tags or ()}
        if tags == {"O"} or (len(tags) == 1 and data is train and not is_tag(*tags)):
            rule = "there is no entity to learn from or to score" if tags == {"O"} else "there is nothing to learn"
            raise DataError(
                f"{data.report.path}: every word of {len(data.examples)} sentences has the tag {min(tags):.60}; {rule}"
            )


def example_of(splitter: WordSplitter, item: Any, number: int) -> TaggedSentence:
    """Return the sentence of a text, or of a list of its words; a document of its own."""
    if isinstance(item, list):
        words = tuple(checked_text(word, number, may_be_blank=False) for word in item)
        sentence = TaggedSentence(words, None, number + 1, number, number)
    else:
        text = checked_text(item, number, may_be_blank=False)
        sentence = TaggedSentence.of_text(text, splitter.spans(text), number + 1, number, number)
    if not sentence.words:
        raise DataError(f"input {number}: a sentence without words")
    return sentence


def _judge(sentence: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    true_tags, tags = [labels[number] for number in target.tolist()], prediction["tags"]
    if "entities" in prediction:
        truth, answer = (_entities(sentence.words, found) for found in (true_tags, tags))
        probability = min((entity["probability"] for entity in prediction["entities"]), default=None)
    else:
        sides = [(word, tag, other) for word, tag, other in zip(sentence.words, true_tags, tags, strict=True)]
        truth = ", ".join(f"{word} {tag}" for word, tag, other in sides if tag != other)
        answer = ", ".join(f"{word} {other}" for word, tag, other in sides if tag != other)
        probability = min(prediction["tag_probabilities"], default=None)
    return Verdict(truth, answer, float(true_tags != tags), probability)


def _entities(words: Sequence[str], tags: list[str]) -> str:
    return ", ".join(f"{' '.join(words[first:end])} {kind}" for kind, first, end in entities_of(tags)) or "none"


TAGGING = TaskKind(
    name="tagging",
    iterate=iterate_sentences,
    label_names=_label_names,
    check=_check,
    make=_make,
    example_of=partial(example_of, UNKNOWN_TRAINING),
    data_settings=lambda train: {"words": WordSplitter.learned(one.words for one in train.examples)},
    pipeline_tag="token-classification",
    section=TaggingSection,
    settings=TaggingSettings,
    judge=_judge,
    targets_by_example=lambda sentences, targets: sentences.by_sentence(targets),
    first_settings={"trained_scheme": PLAIN},
    predicts_on_text=True,
    reads_tokens=True,
    known_by="tagger",
)
