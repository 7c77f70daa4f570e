"""Loss of the right one among several choices, each scored by itself (BERT paper 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import ChoiceBatch
from maskloom.layers.copies import to_device
from maskloom.objectives.task_objective import TaskObjective, label_tensor


@dataclass(frozen=True)
class MultipleChoice(TaskObjective):
    """Cross-entropy over the scores of an example's choices; a score is a product with one learned vector.

    Examples may differ in their number of choices.
    """

    name: ClassVar[str] = "choice"
    head: ClassVar[str] = "choice"

    def row_counts(self, batch: ChoiceBatch) -> np.ndarray:
        """Return the number of choices of each example."""
        return batch.num_choices

    def loss_sum_of(self, logits: Tensor, batch: ChoiceBatch) -> Tensor:
        """Return the sum over examples of negative log probabilities, in nats."""
        scores = _by_example(logits, batch.num_choices)
        return F.cross_entropy(scores, label_tensor(batch, logits), reduction="sum")


def _by_example(logits: Tensor, num_choices: np.ndarray) -> Tensor:
    """Return scores (examples, most choices), -inf where an example has fewer; logits are (choices of all, 1)."""
    most = int(num_choices.max(initial=1))
    if (num_choices == most).all():
        return logits.view(-1, most)
    places = to_device(np.arange(most) < num_choices[:, None], logits.device)
    return logits.new_full(places.shape, -torch.inf).masked_scatter(places, logits)
