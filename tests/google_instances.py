"""Static pre-training instances as Google's released generator makes them, from the same random number stream.

Tokens are strings, one `random.Random` makes every draw, and the order of draws is part of the contract. Each instance
equals that of the PyPI package bert-tensorflow 1.0.4; whole-word masking follows the generator's later release. Tests
require the same statistics of `maskloom.data.streams.sentence_pairs`, which draws differently.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from maskloom.errors import ConfigError

Sentence = Sequence[str]

_NUM_DOCUMENT_DRAWS = 10
_MASK_SHARE = 0.8


@dataclass(frozen=True)
class GoogleInstance:
    """One masked instance: tokens and segments, the masked positions in order, and the original tokens there."""

    tokens: list[str]
    segment_ids: list[int]
    is_random_next: bool
    masked_positions: list[int]
    masked_labels: list[str]


@dataclass(frozen=True)
class _Generator:
    """The settings and the random number stream, shared by all steps."""

    documents: list[list[Sentence]]
    vocabulary_tokens: Sequence[str]
    rng: random.Random
    num_text_tokens: int
    short_seq_prob: float
    masked_lm_prob: float
    max_predictions_per_seq: int
    whole_word_masking: bool

    def document_instances(self, place: int) -> Iterator[GoogleInstance]:
        """Yield the instances of one pass over a document; the target length is drawn once per pass."""
        document = self.documents[place]
        target = self.num_text_tokens
        if self.rng.random() < self.short_seq_prob:
            target = self.rng.randint(2, self.num_text_tokens)
        first = 0
        while first < len(document):
            last, num_tokens = first, 0
            while last < len(document) and num_tokens < target:
                num_tokens += len(document[last])
                last += 1
            num_sentences = last - first
            middle = first + (self.rng.randint(1, num_sentences - 1) if num_sentences > 1 else 1)
            text_a = [token for sentence in document[first:middle] for token in sentence]
            # A chunk of one sentence has no next text of its own, so no number is drawn.
            is_random_next = num_sentences == 1 or self.rng.random() < 0.5
            if is_random_next:
                text_b = self._text_of_another(place, target - len(text_a))
                # The sentences after A were not used, so the next chunk starts with them.
                first = middle
            else:
                text_b = [token for sentence in document[middle:last] for token in sentence]
                first = last
            self._truncate(text_a, text_b)
            yield self._masked(text_a, text_b, is_random_next)

    def _text_of_another(self, place: int, goal: int) -> list[str]:
        """Return sentences of another document, at least one, until they have `goal` tokens or it ends.

        If 10 draws all give the same document, its own sentences are used.
        """
        other = place
        for _ in range(_NUM_DOCUMENT_DRAWS):
            other = self.rng.randint(0, len(self.documents) - 1)
            if other != place:
                break
        document = self.documents[other]
        text: list[str] = []
        for sentence in document[self.rng.randint(0, len(document) - 1) :]:
            text += sentence
            if len(text) >= goal:
                break
        return text

    def _truncate(self, text_a: list[str], text_b: list[str]) -> None:
        """Remove tokens from the longer text (B at a tie), each from a random end, until both fit."""
        while len(text_a) + len(text_b) > self.num_text_tokens:
            longer = text_a if len(text_a) > len(text_b) else text_b
            longer.pop(0 if self.rng.random() < 0.5 else -1)

    def _masked(self, text_a: list[str], text_b: list[str], is_random_next: bool) -> GoogleInstance:
        original = ["[CLS]", *text_a, "[SEP]", *text_b, "[SEP]"]
        tokens = list(original)
        num_to_predict = min(self.max_predictions_per_seq, max(1, round(len(original) * self.masked_lm_prob)))
        groups = self._maskable(original)
        self.rng.shuffle(groups)
        masked: list[int] = []
        for group in groups:
            if len(masked) >= num_to_predict:
                break
            if len(masked) + len(group) > num_to_predict:
                continue
            for position in group:
                tokens[position] = self._replacement(original[position])
            masked += group
        masked.sort()
        return GoogleInstance(
            tokens=tokens,
            segment_ids=[0] * (len(text_a) + 2) + [1] * (len(text_b) + 1),
            is_random_next=is_random_next,
            masked_positions=masked,
            masked_labels=[original[position] for position in masked],
        )

    def _maskable(self, tokens: list[str]) -> list[list[int]]:
        """Return groups of positions that are masked together.

        As in the released generator, a `##` piece right after [SEP] joins the word before the [SEP].
        """
        groups: list[list[int]] = []
        for position, token in enumerate(tokens):
            if token in ("[CLS]", "[SEP]"):
                continue
            if self.whole_word_masking and groups and token.startswith("##"):
                groups[-1].append(position)
            else:
                groups.append([position])
        return groups

    def _replacement(self, token: str) -> str:
        if self.rng.random() < _MASK_SHARE:
            return "[MASK]"
        if self.rng.random() < 0.5:
            return token
        return self.vocabulary_tokens[self.rng.randint(0, len(self.vocabulary_tokens) - 1)]


def google_instances(
    documents: Sequence[Sequence[Sentence]],
    vocabulary_tokens: Sequence[str],
    *,
    rng: random.Random,
    max_length: int,
    dupe_factor: int,
    short_seq_prob: float,
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    whole_word_masking: bool = False,
) -> list[GoogleInstance]:
    """Return all instances of `dupe_factor` passes over tokenised documents, in the generator's final order.

    Documents are lists of tokenised sentences, in the order of the files; empty ones are dropped. Random replacements
    are drawn by index into `vocabulary_tokens`, so its order matters. Raises ConfigError if `max_length` is below 5
    or `dupe_factor` below 1.
    """
    if max_length < 5 or dupe_factor < 1:
        raise ConfigError(f"max_length is {max_length} and dupe_factor {dupe_factor}; they must be at least 5 and 1")
    filled = [[sentence for sentence in document if sentence] for document in documents]
    generator = _Generator(
        documents=[document for document in filled if document],
        vocabulary_tokens=vocabulary_tokens,
        rng=rng,
        num_text_tokens=max_length - 3,
        short_seq_prob=short_seq_prob,
        masked_lm_prob=masked_lm_prob,
        max_predictions_per_seq=max_predictions_per_seq,
        whole_word_masking=whole_word_masking,
    )
    rng.shuffle(generator.documents)
    instances: list[GoogleInstance] = []
    for _ in range(dupe_factor):
        for place in range(len(generator.documents)):
            instances += generator.document_instances(place)
    rng.shuffle(instances)
    return instances


_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_MASK_DELTA = 0xA282EAD8
_FLOATS, _INTEGERS = 2, 3
