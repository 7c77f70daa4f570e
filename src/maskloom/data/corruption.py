"""Turn sequences into model inputs and targets: masked tokens (BERT paper 3.3.1), or every next token (GPT)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from maskloom.data.batch import PretrainingBatch, Texts, ranges
from maskloom.data.counter_random import integers, uniform, words
from maskloom.data.settings import PretrainingData
from maskloom.text.vocabulary import Vocabulary

# One number for each kind of draw, so that no two kinds share random words.
_SEQUENCE, _PRIORITY, _REPLACEMENT, _RANDOM_TOKEN = range(201, 205)


Gathered = TypeVar("Gathered")
Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Packed:
    """Concatenated texts: ids (tokens,), sizes (texts,)."""

    ids: np.ndarray
    sizes: np.ndarray

    @cached_property
    def owners(self) -> np.ndarray:
        """The index of each token's text."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each text begins."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def places(self) -> np.ndarray:
        """The position of each token in its text."""
        return np.arange(len(self.ids)) - self.starts[self.owners]

    def kept(self, is_kept: np.ndarray) -> Packed:
        """Return the texts with only the selected tokens."""
        return Packed(self.ids[is_kept], np.bincount(self.owners[is_kept], minlength=len(self.sizes)))


@dataclass(frozen=True)
class Corruption(ABC, Generic[Gathered, Batch]):
    """A pure function from the sequences that a stream gathered to a batch of model inputs and targets.

    Draws depend only on the seed and on each sequence's epoch, key and positions, not on the rest of the batch.
    """

    vocabulary: Vocabulary
    data: PretrainingData
    seed: int

    @abstractmethod
    def __call__(self, texts: Gathered) -> Batch:
        """Return the batch."""

    def counts(self, lengths: np.ndarray, num_marks: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the predictions per sequence, with and without the cap: one for each token that is not a mark."""
        return lengths - num_marks, lengths - num_marks


def num_predictions(lengths: np.ndarray, data: PretrainingData) -> np.ndarray:
    """Return how many tokens to predict per sequence: rate times length, rounded half to even, at least 1, capped."""
    return np.clip(np.rint(lengths * data.masked_lm_prob), 1, data.resolved_max_predictions()).astype(np.int64)


class Masking(Corruption[Texts, PretrainingBatch]):
    """Predicts some of the tokens, most of them replaced by [MASK] (BERT paper 3.3.1).

    `masked_lm_prob` is a fraction of all tokens of a sequence, including special tokens, up to
    `max_predictions_per_seq`. A predicted token becomes [MASK] with probability `mask_prob`, stays unchanged with
    `keep_prob`, and otherwise becomes a random token. [CLS] and [SEP] are never predicted, but may be drawn at random.
    """

    def __call__(self, texts: Texts) -> PretrainingBatch:
        """Return the batch with masked ids, and the original ids as labels."""
        token_ids, vocabulary, data = texts.token_ids, self.vocabulary, self.data
        packed = Packed(token_ids, texts.lengths)
        states = words(self.seed, _SEQUENCE, texts.epochs, texts.keys)
        is_candidate = ~vocabulary.is_mark[token_ids]
        counts = num_predictions(texts.lengths, data)
        if data.whole_word_masking:
            # the rest of a word right after [CLS] or [SEP], left over from truncation at the front, is its own word
            continues = ~vocabulary.begins_words(token_ids) & np.append(False, is_candidate[:-1])
            (heads,) = np.nonzero(is_candidate & ~continues)
            positions = _choose_words(heads, is_candidate, packed, states, counts)
        else:
            (candidates,) = np.nonzero(is_candidate)
            positions = np.sort(drawn(candidates, packed, states, counts))
        labels = token_ids[positions]
        keys, places = states[packed.owners[positions]], packed.places[positions]
        draws = uniform(_REPLACEMENT, keys, places)
        random_ids = integers(len(vocabulary), _RANDOM_TOKEN, keys, places)
        is_kept = draws < data.mask_prob + data.keep_prob
        replacements = np.where(draws < data.mask_prob, vocabulary.mask_id, np.where(is_kept, labels, random_ids))
        masked = token_ids.copy()
        masked[positions] = replacements
        return texts.predicting(masked, positions, labels)

    def counts(self, lengths: np.ndarray, num_marks: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of predictions with the cap and without it."""
        uncut = self.data.model_copy(update={"max_predictions_per_seq": self.data.max_length})
        return num_predictions(lengths, self.data), num_predictions(lengths, uncut)


class NextTokens(Corruption[Texts, PretrainingBatch]):
    """Predicts every token of a text from the tokens before it, but not the marks around texts. Nothing is drawn.

    Running text has no such marks: each row predicts all its tokens but the first, and the token after the row.
    """

    def __call__(self, texts: Texts) -> PretrainingBatch:
        """Return the batch with unchanged ids; the position of a prediction is the one before the predicted token."""
        ends = np.cumsum(texts.lengths)
        if texts.following is not None:
            labels = np.append(texts.token_ids[1:], 0)
            labels[ends - 1] = texts.following
            return texts.predicting(texts.token_ids, np.arange(len(labels)), labels)
        is_text = ~self.vocabulary.is_mark[texts.token_ids]
        is_text[ends - texts.lengths] = False
        (targets,) = np.nonzero(is_text)
        return texts.predicting(texts.token_ids, targets - 1, texts.token_ids[targets])


def _shuffled(tokens: np.ndarray, packed: Packed, states: np.ndarray) -> np.ndarray:
    """Return packed token positions grouped by sequence and, within each, in random order."""
    owners = packed.owners[tokens]
    token_bits = np.uint64(max(1, len(packed.ids).bit_length()))
    owner_bits = np.uint64(max(1, len(states).bit_length()))
    # Sequence, random bits and position in one word: the words are distinct, and sorting them gives the order.
    draws = words(_PRIORITY, states[owners], packed.places[tokens]) >> owner_bits
    draws = (draws >> token_bits << token_bits) | tokens.astype(np.uint64)
    draws |= owners.astype(np.uint64) << (np.uint64(64) - owner_bits)
    draws.sort()
    return (draws & ((np.uint64(1) << token_bits) - np.uint64(1))).astype(np.int64)


def drawn(tokens: np.ndarray, packed: Packed, states: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return packed token positions grouped by sequence: `counts` random ones per sequence, in random order."""
    order = _shuffled(tokens, packed, states)
    owners = packed.owners[order]
    return order[ranks(owners) < counts[owners]]


def ranks(owners: np.ndarray) -> np.ndarray:
    """Return the rank of each entry among the entries of its owner; owners are ascending."""
    return np.arange(len(owners)) - np.searchsorted(owners, owners)


def _choose_words(
    heads: np.ndarray, is_candidate: np.ndarray, packed: Packed, states: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Return the packed positions of randomly chosen words, skipping any word that would exceed the count."""
    if len(heads) == 0:
        return heads
    sizes = np.zeros(len(is_candidate), dtype=np.int64)
    sizes[heads] = np.add.reduceat(is_candidate.astype(np.int64), heads)
    order = _shuffled(heads, packed, states)
    first = np.searchsorted(packed.owners[order], np.arange(len(counts)))
    end = np.searchsorted(packed.owners[order], np.arange(len(counts)), side="right")
    left, chosen = counts.copy(), []
    rank = 0
    (active,) = np.nonzero(first < end)
    while len(active):
        words_now = order[first[active] + rank]
        fits = sizes[words_now] <= left[active]
        chosen.append(words_now[fits])
        left[active[fits]] -= sizes[words_now[fits]]
        rank += 1
        active = active[(left[active] > 0) & (first[active] + rank < end[active])]
    taken = np.concatenate(chosen)
    return np.sort(ranges(taken, sizes[taken]))
