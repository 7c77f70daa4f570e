"""What the held-out figures of pre-training are called, by the names that metrics carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LanguageModelNames:
    """What people call the loss over the vocabulary, and the tokens that it is of."""

    loss: str
    targets: str


PARTS = {
    "mlm": LanguageModelNames("masked-LM", "Masked tokens"),
    "lm": LanguageModelNames("language-model", "Next tokens"),
}
"""The losses over the vocabulary: PART_loss in nats, PART_accuracy, PART_perplexity."""

PAIR_TASKS = {"nsp": "next-sentence", "sop": "sentence-order"}
"""What is told of pairs of texts: TASK_loss in nats, TASK_accuracy, TASK_majority_fraction."""


def part_of(metrics: Mapping[str, float]) -> str | None:
    """Return which loss over the vocabulary metrics hold, or None."""
    return next((part for part in PARTS if f"{part}_loss" in metrics), None)


def pair_task_of(metrics: Mapping[str, float]) -> str | None:
    """Return what metrics hold of pairs, or None."""
    return next((task for task in PAIR_TASKS if f"{task}_accuracy" in metrics), None)
