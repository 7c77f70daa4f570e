"""Losses of a classifier on the pooled first token of each sequence (BERT paper 3.5, 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import ClassificationBatch, TokenBatch
from maskloom.objectives.task_objective import NOT_SCORED, TaskObjective, label_tensor


@dataclass(frozen=True)
class SingleLabelClassification(TaskObjective):
    """Cross-entropy over classes, in nats, weighted by class where weights are given.

    The mean divides by the sum of the weights of the targets, so weights change what a class counts, not the scale.
    """

    name: ClassVar[str] = "classification"
    head: ClassVar[str] = "classifier"
    class_weights: tuple[float, ...] | None = None

    def num_targets(self, labels: np.ndarray) -> float:
        """Return the number of labels, or the sum of the weights of their classes."""
        labels = labels[labels != NOT_SCORED]
        return len(labels) if self.class_weights is None else np.asarray(self.class_weights)[labels].sum()

    def loss_sum_of(self, logits: Tensor, batch: ClassificationBatch | TokenBatch) -> Tensor:
        """Return the weighted sum of negative log probabilities; logits (rows, classes), labels (rows)."""
        weights = None if self.class_weights is None else logits.new_tensor(self.class_weights)
        labels = label_tensor(batch, logits)
        return F.cross_entropy(logits, labels, weight=weights, ignore_index=NOT_SCORED, reduction="sum")


@dataclass(frozen=True)
class Regression(TaskObjective):
    """Squared error of one output against the label on its own scale (GLUE STS-B: raw scores 0 to 5)."""

    name: ClassVar[str] = "regression"
    head: ClassVar[str] = "classifier"

    def loss_sum_of(self, logits: Tensor, batch: ClassificationBatch) -> Tensor:
        """Return the sum of squared errors; logits (sequences, 1), labels (sequences)."""
        return F.mse_loss(logits.squeeze(-1), label_tensor(batch, logits), reduction="sum")


@dataclass(frozen=True)
class MultiLabelClassification(TaskObjective):
    """Binary cross-entropy of independent labels, in nats, averaged over sequences and labels alike.

    `positive_weights`, one a label, say how much more a label that is there counts than one that is not; the mean still
    divides by the number of decisions.
    """

    name: ClassVar[str] = "multi_label"
    head: ClassVar[str] = "classifier"
    positive_weights: tuple[float, ...] | None = None

    def num_targets(self, labels: np.ndarray) -> float:
        """Return the number of decisions: sequences times labels."""
        return labels.size

    def loss_sum_of(self, logits: Tensor, batch: ClassificationBatch) -> Tensor:
        """Return the summed binary cross-entropy; logits and labels (sequences, labels)."""
        weights = None if self.positive_weights is None else logits.new_tensor(self.positive_weights)
        return F.binary_cross_entropy_with_logits(
            logits, label_tensor(batch, logits), pos_weight=weights, reduction="sum"
        )
