"""The table of pre-training objectives: one row for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maskloom.data.corpus.opening import Corpus
from maskloom.data.corruption import Corruption, Masking, NextTokens
from maskloom.data.loader import Loader, Stream
from maskloom.data.settings import PretrainingData
from maskloom.data.streams.running_text import RunningText
from maskloom.data.streams.sentence_pairs import SentencePairs
from maskloom.rows import Rows
from maskloom.sections import Section
from maskloom.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from maskloom.objectives.masked_lm import MaskedLanguageModeling


def sentences(corpus: Corpus, documents: np.ndarray | None, data: PretrainingData, seed: int, _: int) -> Stream:
    """Return pairs of sentences, or segments."""
    return SentencePairs(corpus, documents, data, seed=seed)


def left_to_right(corpus: Corpus, documents: np.ndarray | None, data: PretrainingData, seed: int, _: int) -> Stream:
    """Return sentences where the tokenizer has the marks of BERT, else running text."""
    return (SentencePairs if corpus.tokenizer.has_segments else RunningText)(corpus, documents, data, seed=seed)


@dataclass(frozen=True)
class Pretraining:
    """What is known of a pre-training objective.

    `part` is the name of its loss and metrics, of which PART_loss decides which checkpoint is best. `stream` makes the
    stream of rows from a corpus, documents of it (None for all), settings, a seed and the batch size; `corruption`
    makes, from a vocabulary, settings and a seed, what turns rows into batches. One that `is_causal` trains
    left-to-right models. These settings are an object of `data`, which has the keys of the recipe's section [data] and
    of `section`, the recipe's section under the name of the objective.
    """

    part: str
    corruption: Callable[[Vocabulary, PretrainingData, int], Corruption]
    stream: Callable[[Corpus, np.ndarray | None, PretrainingData, int, int], Stream] = sentences
    is_causal: bool = False
    section: type[Section] | None = None
    data: type[PretrainingData] = PretrainingData

    def reads_running_text(self, corpus: Corpus) -> bool:
        """Tell whether rows of a corpus are running text, in which no sentence begins or ends a row."""
        return self.stream is left_to_right and not corpus.tokenizer.has_segments

    def objective(self, pair_task: str | None) -> MaskedLanguageModeling:
        """Return the objective, given the task on pairs of texts: "nsp", "sop", or None."""
        from maskloom.objectives.masked_lm import MaskedLanguageModeling  # torch

        return MaskedLanguageModeling(self.part, pair_task)

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
        """Return the batches of a corpus, of which the sequences `rows` are made."""
        stream = self.stream(corpus, documents, data, seed, batch_size)
        return Loader(stream, self.corruption(corpus.vocabulary, data, seed), batch_size=batch_size, rows=rows)


PRETRAINING = Rows("objective", {"masked_lm": Pretraining("mlm", Masking)})
"""The pre-training objectives by the names of recipes."""
PRETRAINING["causal_lm"] = Pretraining("lm", NextTokens, left_to_right, is_causal=True)
