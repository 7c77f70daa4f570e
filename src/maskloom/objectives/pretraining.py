"""The table of pre-training objectives: one row for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maskloom.data.corpus import Corpus
from maskloom.data.pretraining_loader import MASKING, NEXT_TOKENS, Corruption, PretrainingLoader
from maskloom.data.running_text import RunningTextLoader
from maskloom.objectives.masked_lm import MaskedLanguageModeling

if TYPE_CHECKING:
    from maskloom.config import PretrainingData


@dataclass(frozen=True)
class Pretraining:
    """What is known of a pre-training objective.

    `part` is the name of its loss and metrics, of which PART_loss decides which checkpoint is best. `corruption` makes
    inputs and targets from sequences. One that `reads_running_text` does so where the tokenizer has no marks of BERT's.
    """

    part: str
    corruption: Corruption
    reads_running_text: bool = False

    def objective(self, pair_task: str | None) -> MaskedLanguageModeling:
        """Return the objective, with what is told of pairs of texts: "nsp", "sop", or None."""
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
        if self.reads_running_text and not corpus.tokenizer.has_segments:
            return RunningTextLoader(corpus, documents, data, batch_size=batch_size, seed=seed, rows=rows)
        return PretrainingLoader(
            corpus, documents, data, batch_size=batch_size, seed=seed, rows=rows, corruption=self.corruption
        )


PRETRAINING = {
    "masked_lm": Pretraining("mlm", MASKING),
    "causal_lm": Pretraining("lm", NEXT_TOKENS, reads_running_text=True),
}
"""The pre-training objectives by the names of recipes."""
