"""The table of pre-training objectives: one row for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from maskloom.data.corpus.opening import Corpus
from maskloom.data.corruption import Corruption, Masking, NextTokens
from maskloom.data.loader import Loader, Stream
from maskloom.data.restoring import Denoising, SpanCorruption
from maskloom.data.settings import (
    DenoisingData,
    DenoisingSection,
    PretrainingData,
    SpanCorruptionData,
    SpanCorruptionSection,
)
from maskloom.data.spelling import BothWays, SentencesBothWays
from maskloom.data.streams.running_text import Contiguous, RunningText
from maskloom.data.streams.sentence_pairs import Passages, SentencePairs
from maskloom.objectives.reference import TokenFrequencies
from maskloom.rows import Rows, later
from maskloom.sections import Section
from maskloom.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from maskloom.objectives.objective import SummedObjective


def _stream(kind: type[SentencePairs | RunningText]) -> Callable[..., Stream]:
    """Return a function that creates a stream, which has as many tracks as a batch has rows if it continues them."""
    more = issubclass(kind, Contiguous)
    return lambda corpus, documents, data, seed, size: kind(
        corpus, documents, data, seed=seed, **({"batch_size": size} if more else {})
    )


sentences, passages, contiguous, both_ways = map(_stream, (SentencePairs, Passages, Contiguous, SentencesBothWays))


def left_to_right(corpus: Corpus, documents: np.ndarray | None, data: PretrainingData, seed: int, _: int) -> Stream:
    """Return sentences if the tokenizer has BERT's marks, otherwise running text."""
    return (SentencePairs if corpus.tokenizer.has_segments else RunningText)(corpus, documents, data, seed=seed)


def _loss(module: str, name: str, *, pairs: bool = False) -> Callable[[str, Any], SummedObjective]:
    """Return a function that creates a loss, with that of the pair task if there are `pairs` and the data has one."""
    return lambda part, data: later(f"maskloom.objectives.{module}", name)(part, data.pair_task if pairs else None)


_LANGUAGE_MODELING = _loss("masked_lm", "MaskedLanguageModeling", pairs=True)


@dataclass(frozen=True)
class Pretraining:
    """The description of a pre-training objective.

    `part` is the prefix of its loss and metrics; PART_loss decides which checkpoint is best. `stream` creates the
    stream of rows from a corpus, its documents (None for all), the settings, a seed and the batch size. `corruption`
    creates, from a vocabulary, the settings and a seed, the function that turns rows into batches. `objective` creates
    the loss on these batches from `part` and the settings. `heads` names the heads that the loss calls, given the
    architecture's vocabulary head and the settings. `reference` creates a baseline without a model from `part`, a
    corpus and the training documents; it is None if there is no such baseline.

    The settings are an instance of `data`, which has the keys of the recipe's section [data] and of `section`, the
    recipe's section with the name of the objective. `defaults` override defaults of [data]. The keys `unread` have no
    effect here, and a recipe that sets one is refused. `needs` are the roles of special tokens that the vocabulary must
    have. With `is_causal` it trains left-to-right models; with `has_decoder`, encoders and their decoders, on single
    texts; with `has_state`, recurrent networks, whose state is carried from batch to batch; with `reads_spelling`,
    encoders that read words as characters. `names` are display names of its loss and of the tokens predicted.
    """

    part: str
    corruption: Callable[[Vocabulary, Any, int], Corruption]
    stream: Callable[[Corpus, np.ndarray | None, PretrainingData, int, int], Stream] = sentences
    is_causal: bool = False
    has_decoder: bool = False
    has_state: bool = False
    reads_spelling: bool = False
    section: type[Section] | None = None
    data: type[PretrainingData] = PretrainingData
    objective: Callable[[str, Any], SummedObjective] = _LANGUAGE_MODELING
    heads: Callable[[str, Any], tuple[str, ...]] = lambda head, data: (head, "nsp") if data.pair_task else (head,)
    reference: Callable[[str, Corpus, np.ndarray], TokenFrequencies] | None = TokenFrequencies
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    names: tuple[str, str] = ("language-model", "Tokens")

    def reads_running_text(self, corpus: Corpus) -> bool:
        """Return whether rows of a corpus are running text, not aligned with sentences."""
        return self.stream in (contiguous, both_ways) or (
            self.stream is left_to_right and not corpus.tokenizer.has_segments
        )

    def loader(
        self,
        corpus: Corpus,
        documents: np.ndarray | None,
        data: PretrainingData,
        *,
        batch_size: int,
        seed: int,
        rows: slice = slice(None),
    ) -> Loader:
        """Return the loader of a corpus's batches, which creates only the sequences `rows` of each."""
        stream = self.stream(corpus, documents, data, seed, batch_size)
        return Loader(stream, self.corruption(corpus.vocabulary, data, seed), batch_size=batch_size, rows=rows)


_UNMASKED = ("masked_lm_prob", "max_predictions_per_seq", "mask_prob", "keep_prob")
_RESTORING: dict[str, Any] = {
    "stream": passages,
    "has_decoder": True,
    "objective": _loss("sequence_to_sequence", "Restoration"),
    "heads": lambda vocabulary_head, data: ("decoder",),
    "reference": None,
    "defaults": {"next_sentence": False, "short_seq_prob": 0.0},
}
_LEFT_TO_RIGHT: dict[str, Any] = {
    "is_causal": True,
    "names": ("language-model", "Next tokens"),
    "reference": partial(TokenFrequencies, tells_text=True),
    "defaults": {"next_sentence": False},
    "unread": (*_UNMASKED, "whole_word_masking"),
}
PRETRAINING = Rows(
    "objective",
    {
        "masked_lm": Pretraining("mlm", Masking, needs=("mask",), names=("masked-LM", "Masked tokens")),
        "causal_lm": Pretraining("lm", NextTokens, left_to_right, **_LEFT_TO_RIGHT),
        "carried_lm": Pretraining(
            "lm",
            NextTokens,
            contiguous,
            **{**_LEFT_TO_RIGHT, "reference": partial(TokenFrequencies, tells_text=True, is_running=True)},
            has_state=True,
            objective=_loss("masked_lm", "CarriedLanguageModeling"),
        ),
        "bidirectional_lm": Pretraining(
            "bilm",
            BothWays,
            both_ways,
            reads_spelling=True,
            objective=_loss("bidirectional_lm", "BidirectionalLanguageModeling"),
            reference=None,
            defaults={"next_sentence": False, "max_length": 20},
            unread=(*_UNMASKED, "whole_word_masking"),
            names=("bidirectional-LM", "Words"),
        ),
        "denoising": Pretraining(
            "denoising",
            Denoising,
            **_RESTORING,
            section=DenoisingSection,
            data=DenoisingData,
            unread=_UNMASKED,
            needs=("mask",),
            names=("denoising", "Tokens"),
        ),
        "span_corruption": Pretraining(
            "spans",
            SpanCorruption,
            **_RESTORING,
            section=SpanCorruptionSection,
            data=SpanCorruptionData,
            unread=(*_UNMASKED, "whole_word_masking"),
            names=("missing-span", "Tokens of spans"),
        ),
    },
)
"""The pre-training objectives by their names in recipes."""


def row_of(metrics: Mapping[str, float]) -> Pretraining | None:
    """Return the row whose loss is among the metrics, or None."""
    return next((row for row in PRETRAINING.values() if f"{row.part}_loss" in metrics), None)


def unigram_of(metrics: Mapping[str, float]) -> float | None:
    """Return the unigram cross-entropy in metrics, which early runs called `unigram_entropy`; None if absent."""
    return metrics.get("unigram_cross_entropy", metrics.get("unigram_entropy"))
