"""The table of pre-training objectives, one row for each, and the baseline that their losses are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
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
from maskloom.data.streams.sentence_pairs import Passages, SentencePairs, pair_task_of
from maskloom.rows import Rows, later
from maskloom.sections import Section
from maskloom.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from maskloom.objectives.objective import SummedObjective


_CHUNK = 1 << 22  # tokens counted at a time


class TokenFrequencies:
    """Predicts tokens by their frequencies in the training documents, and pairs by the most common answer.

    As in an objective's evaluation, sums are added over batches and then turned into metrics; a subclass may compute
    others. With `tells_text` every token of a text is predicted: the loss is also reported in bits per character. In
    running text (with `is_running`, or if the tokenizer has no segments) so are the marks of documents.
    """

    def __init__(
        self, part: str, corpus: Corpus, documents: np.ndarray, *, tells_text: bool = False, is_running: bool = False
    ) -> None:
        """Count the tokens of `documents`; `part` names the loss."""
        self._part, self._tells_text = part, tells_text
        self._num_characters = corpus.vocabulary.num_characters
        counts = np.ones(len(corpus.vocabulary))
        if is_running or (tells_text and not corpus.tokenizer.has_segments):
            marks = corpus.tokenizer.running_text
            counts[[*marks.begin, *marks.end]] += len(documents)
        starts = corpus.sentence_offsets[corpus.document_offsets]
        is_counted = np.zeros(corpus.num_documents, dtype=bool)
        is_counted[documents] = True
        # whole documents, so many at a time that the size of the vocabulary does not matter
        edges = np.searchsorted(starts, [*range(0, corpus.num_tokens, _CHUNK), corpus.num_tokens])
        for first, last in pairwise(edges.tolist()):
            tokens = corpus.sentences(*corpus.document_offsets[[first, last]].tolist())
            is_read = np.repeat(is_counted[first:last], np.diff(starts[first : last + 1]))
            counts += np.bincount(tokens[is_read], minlength=len(counts))
        self._log_frequencies = np.log(counts / counts.sum())

    def sums(self, batch: Any) -> dict[str, float]:
        """Return the summed loss on a batch, and the numbers of targets, characters, random pairs and pairs."""
        pairs = np.empty(0) if batch.nsp_labels is None else batch.nsp_labels
        return {
            "nats": -float(self._log_frequencies[batch.mlm_labels].sum()),
            "targets": len(batch.mlm_labels),
            "characters": int(self._num_characters[batch.mlm_labels].sum()),
            "random_pairs": int(pairs.sum()),
            "pairs": len(pairs),
        }

    def metrics(self, sums: Mapping[str, float], found: Mapping[str, float]) -> dict[str, float]:
        """Return the cross-entropy in nats, the number of predictions, and the majority fraction of pairs."""
        targets, metrics = max(sums["targets"], 1), {}
        if self._tells_text:  # characters of the predicted text as the tokenizer normalises it
            nats = found[f"{self._part}_loss"] * targets
            metrics[f"{self._part}_bits_per_character"] = nats / max(sums["characters"], 1) / math.log(2)
        metrics |= {"unigram_cross_entropy": sums["nats"] / targets, "num_predictions": sums["targets"]}
        if sums["pairs"] and (pair_task := pair_task_of(found)):
            fraction = sums["random_pairs"] / sums["pairs"]
            metrics[f"{pair_task}_majority_fraction"] = max(fraction, 1.0 - fraction)
        return metrics


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


def _loss(name: str, module: str = "masked_lm") -> Callable[[str, Any], SummedObjective]:
    """Return a function that creates a loss without a pair task."""
    return lambda part, _: later(f"maskloom.objectives.{module}", name)(part, None)


def _masked_lm(part: str, data: PretrainingData) -> SummedObjective:
    return later("maskloom.objectives.masked_lm", "MaskedLanguageModeling")(part, data.pair_task)


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
    objective: Callable[[str, Any], SummedObjective] = _masked_lm
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
_CAUSAL_LM = Pretraining(
    "lm",
    NextTokens,
    left_to_right,
    is_causal=True,
    reference=partial(TokenFrequencies, tells_text=True),
    defaults={"next_sentence": False},
    unread=(*_UNMASKED, "whole_word_masking"),
    names=("language-model", "Next tokens"),
)
_CARRIED_LM = replace(
    _CAUSAL_LM,
    stream=contiguous,
    has_state=True,
    objective=_loss("CarriedLanguageModeling"),
    reference=partial(TokenFrequencies, tells_text=True, is_running=True),
)
_BIDIRECTIONAL_LM = Pretraining(
    "bilm",
    BothWays,
    both_ways,
    reads_spelling=True,
    objective=_loss("BidirectionalLanguageModeling"),
    reference=None,
    defaults={"next_sentence": False, "max_length": 20},
    unread=(*_UNMASKED, "whole_word_masking"),
    names=("bidirectional-LM", "Words"),
)
_DENOISING = Pretraining(
    "denoising",
    Denoising,
    passages,
    has_decoder=True,
    section=DenoisingSection,
    data=DenoisingData,
    objective=_loss("Restoration", "sequence_to_sequence"),
    heads=lambda vocabulary_head, data: ("decoder",),
    reference=None,
    defaults={"next_sentence": False, "short_seq_prob": 0.0},
    unread=_UNMASKED,
    needs=("mask",),
    names=("denoising", "Tokens"),
)
_SPAN_CORRUPTION = replace(
    _DENOISING,
    part="spans",
    corruption=SpanCorruption,
    section=SpanCorruptionSection,
    data=SpanCorruptionData,
    unread=(*_UNMASKED, "whole_word_masking"),
    needs=(),
    names=("missing-span", "Tokens of spans"),
)
PRETRAINING = Rows(
    "objective",
    {
        "masked_lm": Pretraining("mlm", Masking, needs=("mask",), names=("masked-LM", "Masked tokens")),
        "causal_lm": _CAUSAL_LM,
        "carried_lm": _CARRIED_LM,
        "bidirectional_lm": _BIDIRECTIONAL_LM,
        "denoising": _DENOISING,
        "span_corruption": _SPAN_CORRUPTION,
    },
)
"""The pre-training objectives by their names in recipes."""


def row_of(metrics: Mapping[str, float]) -> Pretraining | None:
    """Return the row whose loss is among the metrics, or None."""
    return next((row for row in PRETRAINING.values() if f"{row.part}_loss" in metrics), None)


def unigram_of(metrics: Mapping[str, float]) -> float | None:
    """Return the unigram cross-entropy in metrics, which early runs called `unigram_entropy`; None if absent."""
    return metrics.get("unigram_cross_entropy", metrics.get("unigram_entropy"))
