"""Sentences for a bidirectional language model that reads words character by character (Peters et al. 2018, 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from maskloom.data.batch import PretrainingBatch, Texts, ranges
from maskloom.data.corpus.opening import Corpus
from maskloom.data.corpus.words import RaggedIds
from maskloom.data.corruption import Corruption, NextTokens
from maskloom.data.streams.running_text import Contiguous, Stretches
from maskloom.errors import ConfigError
from maskloom.text.spelled_tokenizer import BEGIN_SENTENCE, END_SENTENCE, SpelledTokenizer
from maskloom.text.vocabulary import Vocabulary


class SentencesBothWays(Contiguous):
    """`Contiguous` text of sentences in random order, each with its marks, and a copy with each sentence reversed.

    Both are cut at the same positions, so each continues where its previous row ended.
    """

    @staticmethod
    def _bounds(corpus: Corpus, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, last = corpus.document_offsets[documents], corpus.document_offsets[documents + 1]
        sentences = ranges(first, last - first)
        return corpus.sentence_offsets[sentences], corpus.sentence_offsets[sentences + 1]

    def gather(self, rows: Stretches) -> tuple[Texts, Texts]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return rows with their tokens, and with the tokens of the reversed sentences at the same positions."""
        return super().gather(rows), self._gathered(rows, self._reversed_parts)

    def _reversed_parts(self, epoch: int, first: int, last: int) -> Iterator[np.ndarray]:
        order, starts = self._order(epoch)
        place = int(np.searchsorted(starts, first, side="right")) - 1
        while first < last:
            start = int(starts[place])
            finish = start + int(self._sizes[order[place]])
            end = min(last, finish)
            yield np.concatenate([*self._parts(epoch, start + finish - end, start + finish - first)])[::-1]
            first, place = end, place + 1


def spelled_words(vocabulary: Vocabulary) -> RaggedIds:
    """Return the spelled ids of all words of a vocabulary; the marks of texts are spelled as the marks of sentences."""
    special, words = vocabulary.special, list(SpelledTokenizer.of().word_ids(vocabulary.tokens))
    marks = {special.begin or special.classify: BEGIN_SENTENCE, special.end or special.separator: END_SENTENCE}
    for token, mark in marks.items():
        if token is not None:
            words[vocabulary.ids[token]] = [mark]
    return RaggedIds.of_lists(words, np.dtype(np.int64))


@dataclass(frozen=True)
class BothWaysBatch(PretrainingBatch):
    """Words for both directions: inputs and labels of the backward one, (words,), and the `spelling` of words."""

    backward_ids: np.ndarray | None = None
    backward_labels: np.ndarray | None = None
    spelling: RaggedIds | None = None

    _shared = ("spelling",)

    def _edges(self) -> dict[str, np.ndarray]:
        edges = super()._edges()
        return {**edges, "backward_ids": edges["token_ids"], "backward_labels": edges["token_ids"]}


@dataclass(frozen=True)
class BothWays(Corruption[tuple[Texts, Texts], BothWaysBatch]):
    """Predicts every next word of sentences and reversed sentences. Raises ConfigError for a vocabulary of pieces."""

    def __post_init__(self) -> None:
        if self.vocabulary.suffix or not self.vocabulary.prefix or self.vocabulary.is_continuation.any():
            raise ConfigError(
                "objective = 'bidirectional_lm' predicts whole words, but this vocabulary has pieces of words; "
                "make one with: maskloom vocab train TEXT... --model words --cased"
            )

    def __call__(self, texts: tuple[Texts, Texts]) -> BothWaysBatch:
        """Return the batch."""
        forwards, backwards = (NextTokens.__call__(self, part) for part in texts)  # pyright: ignore[reportArgumentType]
        ids, labels = backwards.token_ids, backwards.mlm_labels
        return BothWaysBatch(**vars(forwards), backward_ids=ids, backward_labels=labels, spelling=self._spelling)

    def counts(self, lengths: np.ndarray, num_marks: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of predictions, doubled: each word is predicted in both directions."""
        predicted, wanted = super().counts(lengths, num_marks)
        return 2 * predicted, 2 * wanted

    @cached_property
    def _spelling(self) -> RaggedIds:
        return spelled_words(self.vocabulary)
