"""The table of pre-training objectives: one row for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from maskloom.data.pretraining_loader import MASKING, NEXT_TOKENS, Corruption
from maskloom.objectives.masked_lm import MaskedLanguageModeling


@dataclass(frozen=True)
class Pretraining:
    """What is known of a pre-training objective.

    `title` is what a person calls it and `part` the name of its loss and metrics, of which PART_loss decides which
    checkpoint is best. `corruption` makes inputs and targets from sequences; `objective` takes whether the next
    sentence is predicted as well.
    """

    title: str
    part: str
    corruption: Corruption
    objective: Callable[[bool], MaskedLanguageModeling]


PRETRAINING = {
    "masked_lm": Pretraining("masked-LM", "mlm", MASKING, MaskedLanguageModeling),
    "causal_lm": Pretraining(
        "causal-LM", "lm", NEXT_TOKENS, lambda next_sentence: MaskedLanguageModeling(next_sentence, part="lm")
    ),
}
"""The pre-training objectives by the names of recipes."""
