"""The sequence-to-sequence task: sources and targets as token ids, and texts from the results of a search."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from maskloom.data.batch import SourceTargetBatch, read_and_predicted
from maskloom.errors import DataError
from maskloom.generation.search import Generation
from maskloom.generation.sources import most_tokens
from maskloom.metrics.metric import checked_primary
from maskloom.metrics.texts import TEXT_SCORES, TextMetric
from maskloom.objectives.sequence_to_sequence import SequenceToSequence
from maskloom.tasks.encoding import EncodedData, EncodedExamples, encode_examples, encoded_texts
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.seq2seq.reading import targets_of
from maskloom.tasks.settings import Seq2SeqSettings
from maskloom.tasks.task import Outputs, Task
from maskloom.text.tokenizer import Tokenizer

# Spaces before closing punctuation, after opening punctuation, and around marks within words.
_BEFORE = re.compile(r" ([.,!?;:%)\]}])")
_AFTER = re.compile(r"([(\[{]) ")
_WITHIN = re.compile(r"(?<=\w) (['’-]) (?=\w)")


def seq2seq_task(labels: tuple[str, ...], primary: str | None, settings: Seq2SeqSettings) -> Task:
    """Return the task; raises UsageError unless `primary` is bleu, chrf, exact_match, rouge1, rouge2 or rougeL."""
    metric = partial(TextMetric, primary=checked_primary(primary or "bleu", TEXT_SCORES, "texts"))
    generation = Generation(
        max_tokens=settings.max_target_length,
        beam=settings.beam,
        length_penalty=settings.length_penalty,
        min_tokens=settings.min_tokens,
        no_repeat_ngram=settings.no_repeat_ngram,
    )
    return Task(
        kind="seq2seq",
        labels=(),
        primary=primary or "bleu",
        heads=("decoder",),
        objective=SequenceToSequence(settings.label_smoothing, generation),
        encode=partial(_encode, settings),
        decide=_texts,
        decode=lambda encoded, outputs: [{"text": text} for text in _texts(encoded, outputs)],
        metric=metric,
        targets=attrgetter("texts"),
        settings=settings,
    )


@dataclass(frozen=True)
class EncodedTargets(EncodedData):
    """Token ids of sources and, if known, targets; target i of `targets` is `token_ids[offsets[i]:offsets[i + 1]]`.

    `texts` has all targets of each source, the first of which is encoded with `tokenizer`. `marks` are the tokens that
    begin every target, and the one that ends it. If there is a `start` token, decoders read it first and predict the
    whole target.
    """

    sources: EncodedExamples
    targets: EncodedExamples | None
    texts: list[tuple[str, ...]] | None
    marks: tuple[int, ...]
    tokenizer: Tokenizer
    start: int | None = None

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each source, plus those of its target that the decoder reads."""
        read = 0 if self.targets is None else self.targets.lengths - (self.start is None)
        return self.sources.lengths + read

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, indices: np.ndarray) -> SourceTargetBatch:
        """Return the sources and targets at these indices, packed in this order."""
        source = self.sources.batch(indices)
        ids, lengths, labels = np.zeros(0, np.int64), np.zeros(len(indices), np.int64), None
        if self.targets is not None:
            target = self.targets.batch(indices)
            ids, lengths, labels = read_and_predicted(target.token_ids, target.lengths, self.start)
        marks = np.tile(np.array(self.marks, dtype=np.int64), (len(indices), 1))
        return SourceTargetBatch(
            source.token_ids, source.segment_ids, source.lengths, ids, lengths, labels, source.indices, marks
        )

    def account(self) -> dict[str, Any]:
        """Return the truncation counts, as plain values."""
        cut, targets = {}, self.targets
        if targets is not None:
            cut["num_truncated_targets"] = targets.num_truncated_examples
            cut["num_truncated_target_tokens"] = targets.num_truncated_tokens
        return {**self.sources.account(), **cut}

    def notes(self, path: Path) -> list[str]:
        """Report how many sources and targets were truncated, if any."""
        notes = self.sources.notes(path)
        return notes + [f"{note} (targets)" for note in (self.targets.notes(path) if self.targets else ())]


def _encode(
    settings: Seq2SeqSettings, data: ReadExamples, tokenizer: Tokenizer, max_length: int, *, for_training: bool = False
) -> EncodedTargets:
    examples = data.examples
    if for_training:  # one pair per target
        examples = [replace(example, label=target) for example in examples for target in targets_of(example)]
        if len(examples) > len(data.examples):
            data.report.notes.append(
                f"{len(examples):,} training pairs, one per target, in which truncation is counted"
            )
    sources = encode_examples(examples, tokenizer, max_length=max_length)
    for example, length in () if for_training else zip(examples, sources.lengths.tolist(), strict=True):
        most_tokens(length, settings.min_tokens, name=f"{data.report.path}, line {example.line}")
    texts = [targets_of(example) for example in examples]
    known = None if () in texts else texts
    targets = None
    if known is not None:
        alone = ((text, None) for text, *_ in known)
        first = np.arange(len(known) + 1)
        limit = min(settings.max_target_length, tokenizer.of_targets.max_length)
        targets = EncodedExamples(**encoded_texts(alone, first, tokenizer.of_targets, limit), labels=None)
    marks, start = target_marks(tokenizer.of_targets, settings.decoder_start)
    return EncodedTargets(sources, targets, known, marks, tokenizer.of_targets, start)


def target_marks(tokenizer: Tokenizer, start: int | None) -> tuple[tuple[int, ...], int | None]:
    """Return the marks of targets, and the token with which decoders start, if any.

    `start` is the model's own start token or None; without it, the padding token starts if the tokenizer has no begin
    mark. Raises DataError for a vocabulary without marks.
    """
    marks = tokenizer.encode("").ids
    if start is None and not tokenizer.template.begin and tokenizer.vocabulary.special.pad is not None:
        start = tokenizer.vocabulary.pad_id
    marks = [*([] if start is None else [start]), *marks]
    if len(marks) < 2:
        raise DataError("a target needs a begin and an end token; the vocabulary does not have both")
    return tuple(marks), start


def _texts(encoded: Any, outputs: Outputs) -> list[str]:
    """Decode the tokens of each target, without the end mark."""
    return [readable(encoded.tokenizer, rows[:-1, 0].astype(np.int64).tolist()) for rows in outputs]


def readable(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode tokens, without the spaces that a vocabulary of words leaves around punctuation.

    Ids beyond the vocabulary, for which some published models have rows, are left out.
    """
    text = tokenizer.decode([token for token in ids if token < len(tokenizer.vocabulary)])
    return _AFTER.sub(r"\1", _BEFORE.sub(r"\1", _WITHIN.sub(r"\1", text))) if tokenizer.cuts_at_white_space else text
