"""The table of pre-training objectives: one row for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maskloom.data.corpus.opening import Corpus
from maskloom.data.corruption import MASKING, NEXT_TOKENS, Corruption
from maskloom.data.pretraining_loader import PretrainingLoader
from maskloom.data.running_text import RunningTextLoader
from maskloom.rows import Rows

if TYPE_CHECKING:
    from maskloom.config import PretrainingData
    from maskloom.objectives.masked_lm import MaskedLanguageModeling


@dataclass(frozen=True)
class Pretraining:
    """What is known of a pre-training objective.

    `part` is the name of its loss and metrics, of which PART_loss decides which checkpoint is best. `corruption` makes
    inputs and targets from sequences. One that `is_causal` trains left-to-right models, and reads running text where
    the tokenizer has no marks of BERT's.
    """

    part: str
    corruption: Corruption
    is_causal: bool = False

    def objective(self, pair_task: str | None) -> MaskedLanguageModeling:
        """Return the objective, with what is told of pairs of texts: "nsp", "sop", or None."""
        from maskloom.objectives.masked_lm import MaskedLanguageModeling  # torch

        return MaskedLanguageModeling(self.part, pair_task)

    def loader(
        self,
        corpus: Corpus,
        documents: np.ndarray,
        data: PretrainingData,
        *,
        batch_size: int,
        seed: int,
        rows: slice = slice(None),
    ) -> PretrainingLoader | RunningTextLoader:
        """Return the batches of a corpus."""
        if self.is_causal and not corpus.tokenizer.has_segments:
            return RunningTextLoader(corpus, documents, data, batch_size=batch_size, seed=seed, rows=rows)
        return PretrainingLoader(
            corpus, documents, data, batch_size=batch_size, seed=seed, rows=rows, corruption=self.corruption
        )


PRETRAINING = Rows(
    "objective", {"masked_lm": Pretraining("mlm", MASKING), "causal_lm": Pretraining("lm", NEXT_TOKENS, is_causal=True)}
)
"""The pre-training objectives by the names of recipes."""
