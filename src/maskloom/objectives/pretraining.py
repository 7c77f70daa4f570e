"""The table of pre-training objectives: one row for each."""

from __future__ import annotations

from dataclasses import dataclass

from maskloom.data.pretraining_loader import MASKING, NEXT_TOKENS, Corruption
from maskloom.objectives.masked_lm import MaskedLanguageModeling


@dataclass(frozen=True)
class Pretraining:
    """What is known of a pre-training objective.

    `part` is the name of its loss and metrics, of which PART_loss decides which checkpoint is best. `corruption` makes
    inputs and targets from sequences.
    """

    part: str
    corruption: Corruption

    def objective(self, pair_task: str | None) -> MaskedLanguageModeling:
        """Return the objective, with what is told of pairs of texts: "nsp", "sop", or None."""
        return MaskedLanguageModeling(self.part, pair_task)


PRETRAINING = {
    "masked_lm": Pretraining("mlm", MASKING),
    "causal_lm": Pretraining("lm", NEXT_TOKENS),
}
"""The pre-training objectives by the names of recipes."""
