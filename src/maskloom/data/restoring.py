"""Corrupt texts to restore: BART's noise (Lewis et al. 2019, 2.2), T5's missing spans (Raffel et al. 2020, 3.1.4)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np

from maskloom.data.batch import SourceTargetBatch, Texts, ranges, read_and_predicted
from maskloom.data.corruption import Corruption, Packed, drawn, ranks
from maskloom.data.counter_random import integers, uniform, words
from maskloom.data.settings import DenoisingData, RestoringData, SpanCorruptionData
from maskloom.errors import ConfigError
from maskloom.text.templates import SequenceTemplate
from maskloom.text.vocabulary import sentinel

# One number for each kind of draw, so that no two kinds share random words.
_SENTENCES, _STARTS, _LENGTHS, _RANDOM, _RANDOM_TOKEN, _INSERTED, _OFFSET, _PRESENT, _MISSING = range(501, 510)
_LONGEST_SPAN = 400


@dataclass(frozen=True)
class Restoring(Corruption[Texts, SourceTargetBatch]):
    """The base of corruptions that make source and target, both with the marks of the text, from the same text.

    The decoder predicts the target from its second token on. With a `decoder_start`, it reads that first and predicts
    all of the target, as BART and T5 do; the padding token serves as the start if no mark begins a text.
    """

    data: RestoringData

    def counts(self, lengths: np.ndarray, num_marks: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of target tokens, including the marks that are predicted."""
        numbers = self._num_targets(lengths - num_marks) + (1 if self.data.decoder_start is None else num_marks)
        return numbers, numbers

    @abstractmethod
    def _num_targets(self, sizes: np.ndarray) -> np.ndarray:
        """Return the numbers of target tokens, without marks, for texts of these sizes."""

    def _parts(self, texts: Texts) -> tuple[Packed, Packed, SequenceTemplate]:
        """Return texts without their marks, the lengths of their sentences, and the marks."""
        starts, lengths = cast(np.ndarray, texts.sentence_starts), cast(np.ndarray, texts.sentence_lengths)
        whole = Packed(texts.token_ids, texts.lengths)
        sentences = Packed(lengths, np.diff(np.append(np.searchsorted(starts, whole.starts), len(starts))))
        sizes, num_begin = np.add.reduceat(lengths, sentences.starts), int(starts[0])
        is_text = (whole.places >= num_begin) & (whole.places < (num_begin + sizes)[whole.owners])
        first = texts.token_ids[: texts.lengths[0]].tolist()
        frame = SequenceTemplate(tuple(first[:num_begin]), (), tuple(first[num_begin + int(sizes[0]) :]))
        return whole.kept(is_text), sentences, frame

    def _states(self, kind: int, texts: Texts) -> np.ndarray:
        return words(self.seed, kind, texts.epochs, texts.keys)

    def _batch(self, source: Packed, target: Packed, frame: SequenceTemplate) -> SourceTargetBatch:
        """Return the batch for sources and targets given without their marks."""
        source, target, own = _framed(source, frame), _framed(target, frame), self.data.decoder_start
        start = self.vocabulary.pad_id if own is None and not frame.begin else own
        ids, sizes, labels = read_and_predicted(target.ids, target.sizes, start)
        marks = [ids[0], *(() if own is None else frame.begin), frame.end[-1]]
        return SourceTargetBatch(
            token_ids=source.ids,
            segment_ids=np.zeros_like(source.ids),
            lengths=source.sizes,
            target_ids=ids,
            target_lengths=sizes,
            labels=labels,
            indices=np.arange(len(sizes)),
            marks=np.tile(np.array(marks, dtype=np.int64), (len(sizes), 1)),
        )


@dataclass(frozen=True)
class Denoising(Restoring):
    """Makes a noised text the source and the original text the target (Lewis et al. 2019, 2.2).

    Sentences are permuted. Some tokens, or words with `whole_word_masking`, are masked, others are deleted, and spans
    of Poisson length, which may overlap, are infilled: each span becomes one [MASK], and a span of length 0 inserts
    one. More [MASK] tokens are inserted, and the text is rotated. Insertions are limited so that a source has at most
    `max_length` tokens.
    """

    data: DenoisingData

    def __call__(self, texts: Texts) -> SourceTargetBatch:
        """Return the batch of noised texts with the originals as targets."""
        text, sentences, frame = self._parts(texts)
        noised, is_head = self._permuted(text, sentences, self._states(_SENTENCES, texts))
        noised, num_empty = self._thinned(noised, is_head, texts)
        noised = self._inserted(noised, num_empty, len(frame.begin) + len(frame.end), texts)
        return self._batch(self._rotated(noised, self._states(_OFFSET, texts)), text, frame)

    def _num_targets(self, sizes: np.ndarray) -> np.ndarray:
        return sizes

    def _permuted(self, text: Packed, sentences: Packed, states: np.ndarray) -> tuple[Packed, np.ndarray]:
        """Return texts with permuted sentences, and a mask of the tokens that begin words."""
        count = _share(self.data.permute_sentences, sentences.sizes)
        order = np.arange(len(sentences.ids))
        picked = drawn(order, sentences, states, count)
        order[np.sort(picked)] = picked
        lengths, starts = sentences.ids[order], (np.cumsum(sentences.ids) - sentences.ids)[order]
        ids = text.ids[ranges(starts, lengths)]
        is_head = np.ones(len(ids), dtype=bool)
        if self.data.whole_word_masking:
            is_head = self.vocabulary.begins_words(ids)
            is_head[np.cumsum(lengths) - lengths] = True
        return Packed(ids, text.sizes), is_head

    def _thinned(self, text: Packed, is_head: np.ndarray, texts: Texts) -> tuple[Packed, np.ndarray]:
        """Return texts with words masked, deleted and infilled, and the number of spans of length 0 in each."""
        (heads,) = np.nonzero(is_head)
        heads = Packed(heads, np.bincount(text.owners[heads], minlength=len(text.sizes)))
        masked, deleted, budget = (
            _share(rate, heads.sizes) for rate in (self.data.mask_rate, self.data.delete_rate, self.data.infill_rate)
        )
        single = np.minimum(masked + deleted, heads.sizes)
        spans = self._spans(np.minimum(budget, heads.sizes - single), self._states(_LENGTHS, texts))
        filled = spans.kept(spans.ids > 0)
        states, every = self._states(_STARTS, texts), np.arange(len(heads.ids))
        picked = drawn(every, heads, states, single + filled.sizes)
        owners = heads.owners[picked]
        numbers, sizes = ranks(owners), np.ones_like(picked)
        sizes[numbers >= single[owners]] = filled.ids
        is_masked = (numbers < masked[owners]) | (numbers >= single[owners])
        last = np.minimum(picked + sizes, (heads.starts + heads.sizes)[owners])
        first, end = heads.ids[picked], np.append(heads.ids, len(text.ids))[last]
        # a span removes all its tokens, except the first if that becomes [MASK]
        begins, ends = (np.bincount(places, minlength=len(is_head) + 1) for places in (first + is_masked, end))
        ids, places = text.ids.copy(), first[is_masked]
        ids[places] = self._masks(text.owners[places], 2 * text.places[places], texts)
        thinned = Packed(ids, text.sizes).kept(np.cumsum(begins - ends)[:-1] == 0)
        return thinned, spans.sizes - filled.sizes

    def _spans(self, budgets: np.ndarray, states: np.ndarray) -> Packed:
        """Return span lengths, packed by text, that add up to each text's budget; the last is cut to fit."""
        numbers = budgets
        while True:
            owners = np.repeat(np.arange(len(budgets)), numbers)
            spans = Packed(owners, numbers)
            draws = uniform(_LENGTHS, states[owners], spans.places)
            lengths = np.searchsorted(_poisson(self.data.span_length), draws, side="right")
            totals = np.bincount(owners, lengths, minlength=len(budgets)).astype(np.int64)
            if (totals >= budgets).all():
                break
            numbers = np.where(totals < budgets, 2 * numbers, numbers)
        before = np.cumsum(lengths) - lengths - (np.cumsum(totals) - totals)[owners]
        left = budgets[owners] - before
        return Packed(np.minimum(lengths, left), numbers).kept(left > 0)

    def _inserted(self, text: Packed, numbers: np.ndarray, num_marks: int, texts: Texts) -> Packed:
        """Return texts with `numbers` more [MASK] tokens, and those of `insert_rate`, at random positions."""
        numbers = numbers + _share(self.data.insert_rate, text.sizes)
        numbers = np.clip(numbers, 0, np.maximum(self.data.max_length - num_marks - text.sizes, 0))
        sizes = text.sizes + numbers
        wide = Packed(np.arange(sizes.sum()), sizes)
        chosen = np.sort(drawn(wide.ids, wide, self._states(_INSERTED, texts), numbers))
        masks = self._masks(wide.owners[chosen], 2 * wide.places[chosen] + 1, texts)
        return Packed(np.insert(text.ids, chosen - np.arange(len(chosen)), masks), sizes)

    def _masks(self, owners: np.ndarray, counters: np.ndarray, texts: Texts) -> np.ndarray:
        """Return [MASK] for each position, or with probability `random_rate` a random token."""
        keys = self._states(_RANDOM, texts)[owners]
        random_ids = integers(len(self.vocabulary), _RANDOM_TOKEN, keys, counters)
        return np.where(uniform(_RANDOM, keys, counters) < self.data.random_rate, random_ids, self.vocabulary.mask_id)

    def _rotated(self, text: Packed, states: np.ndarray) -> Packed:
        """Return the texts, some of them rotated to begin at a random other token."""
        is_rotated = (uniform(_RANDOM, states) < self.data.rotate_rate) & (text.sizes > 1)
        offsets = np.where(is_rotated, 1 + integers(np.maximum(text.sizes - 1, 1), _OFFSET, states), 0)
        shifted = (text.places + offsets[text.owners]) % text.sizes[text.owners]
        return Packed(text.ids[text.starts[text.owners] + shifted], text.sizes)


@dataclass(frozen=True)
class SpanCorruption(Restoring):
    """Replaces spans of the source by sentinels; the target is each sentinel with its span (Raffel et al., 3.1.4).

    Of n tokens, round(n `noise_density`) are missing, in round(that / `mean_span_length`) spans, at least one of each.
    The missing and the remaining tokens are partitioned uniformly; a text begins with remaining tokens. Differs from
    the paper: figure 2 has a sentinel after the last span, the published code has none. Raises ConfigError if the
    vocabulary has fewer sentinels than a text of `max_length` tokens needs.
    """

    data: SpanCorruptionData

    def __post_init__(self) -> None:
        needed = int(self._numbers(np.array([self.data.max_length]))[1][0])
        if (known := len(self.vocabulary.sentinel_ids)) < needed:
            raise ConfigError(
                f"objective = 'span_corruption' with data.max_length = {self.data.max_length} needs {needed} sentinels"
                f", {sentinel(0)} to {sentinel(needed - 1)}; the vocabulary has {known or 'none'}: train one with "
                f"maskloom vocab train --sentinels {max(needed, 100)}"
            )

    def __call__(self, texts: Texts) -> SourceTargetBatch:
        """Return the batch of texts with sentinels, with the replaced spans as targets."""
        text, _, frame = self._parts(texts)
        num_missing, num_spans = self._numbers(text.sizes)
        missing = _partition(num_missing, num_spans, self._states(_MISSING, texts))
        present = _partition(text.sizes - num_missing, num_spans, self._states(_PRESENT, texts))
        is_missing = np.repeat(np.tile([False, True], len(missing)), np.stack([present, missing], axis=1).reshape(-1))
        is_first = is_missing & ~np.append(False, is_missing[:-1])
        (first,) = np.nonzero(is_first)
        sentinels = self.vocabulary.sentinel_ids[ranks(text.owners[first])]
        ids = text.ids.copy()
        ids[first] = sentinels
        source = Packed(ids, text.sizes).kept(~is_missing | is_first)
        target = text.kept(is_missing)
        behind = np.flatnonzero(is_first[is_missing])
        target = Packed(np.insert(target.ids, behind, sentinels), target.sizes + num_spans)
        return self._batch(source, target, frame)

    def _num_targets(self, sizes: np.ndarray) -> np.ndarray:
        return np.sum(self._numbers(sizes), axis=0)  # the missing tokens, and one sentinel per span

    def _numbers(self, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many tokens are missing from texts, and in how many spans; none for a text of one token."""
        num_missing = np.minimum(np.maximum(np.rint(sizes * self.data.noise_density), 1), sizes - 1)
        num_spans = np.minimum(np.maximum(np.rint(num_missing / self.data.mean_span_length), 1), num_missing)
        return num_missing.astype(np.int64), np.minimum(num_spans, sizes - num_missing).astype(np.int64)


def _framed(texts: Packed, template: SequenceTemplate) -> Packed:
    frames = template.frames(texts.sizes)
    frames.token_ids[ranges(frames.first, texts.sizes)] = texts.ids
    return Packed(frames.token_ids, frames.lengths)


def _partition(sizes: np.ndarray, numbers: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return the part lengths of a uniformly random partition of each size into `numbers` non-empty parts, or one."""
    items = Packed(np.arange(sizes.sum()), sizes)
    cuts = drawn(items.ids[items.places > 0], items, states, np.maximum(numbers - 1, 0))
    starts = np.sort(np.append(items.starts, cuts))
    return np.diff(np.append(starts, len(items.ids)))


def _share(rate: float, sizes: np.ndarray) -> np.ndarray:
    """Return rate times sizes, rounded up, ignoring the floating-point error of the product."""
    return np.ceil(rate * sizes - 1e-9).astype(np.int64)


@lru_cache(maxsize=8)
def _poisson(mean: float) -> np.ndarray:
    """Return the probabilities that a Poisson variable is at most 0, 1, 2, and so on."""
    numbers = np.arange(1, _LONGEST_SPAN)
    return np.cumsum(math.exp(-mean) * np.cumprod(np.append(1.0, mean / numbers)))
