"""Loss of a tag for each word, on its first token (BERT paper 5.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import TokenBatch
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.task_objective import TaskObjective, encode_batch, label_tensor, labels_of

NOT_SCORED = -100


@dataclass(frozen=True)
class Tagging(TaskObjective):
    """Cross-entropy over tags at the tokens that have a label; the others, labelled -100, take no part.

    `class_weights`, one a tag, are for tags as those of `SingleLabelClassification` are for classes.
    """

    name: ClassVar[str] = "tagging"
    class_weights: tuple[float, ...] | None = None

    def target_counts(self, batch: TokenBatch) -> dict[str, float]:
        """Return the number of labelled tokens, or the sum of the weights of their tags."""
        labels = labels_of(batch)
        scored = labels[labels != NOT_SCORED]
        return {
            self.name: float(
                len(scored) if self.class_weights is None else np.asarray(self.class_weights)[scored].sum()
            )
        }

    def row_counts(self, batch: TokenBatch) -> np.ndarray:
        """Return the number of tokens of each sequence."""
        return batch.lengths

    def logits(self, model: EncoderWithHeads, batch: TokenBatch) -> Tensor:
        """Return one logit a tag for every token, (tokens, tags)."""
        return model.heads["tagger"](encode_batch(model, batch).last_hidden_state).float()

    def loss_sum_of(self, logits: Tensor, batch: TokenBatch) -> Tensor:
        """Return the (weighted) sum of negative log probabilities, in nats; logits (tokens, tags), labels (tokens)."""
        weights = None if self.class_weights is None else logits.new_tensor(self.class_weights)
        labels = label_tensor(batch, logits)
        return F.cross_entropy(logits, labels, weight=weights, ignore_index=NOT_SCORED, reduction="sum")
