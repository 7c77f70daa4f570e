"""Losses of a sequence classifier on the pooled first token (BERT paper 3.5, 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import ClassificationBatch
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.task_objective import TaskObjective, encode_batch, label_tensor, labels_of


def classifier_logits(model: EncoderWithHeads, batch: ClassificationBatch) -> Tensor:
    """Return the classifier's outputs (sequences, outputs) for the pooled first token of each packed sequence."""
    return model.heads["classifier"](encode_batch(model, batch).pooled).float()


class _Classification(TaskObjective):
    """An objective on the outputs of the "classifier" head."""

    def logits(self, model: EncoderWithHeads, batch: ClassificationBatch) -> Tensor:
        """Return the classifier's outputs, (sequences, outputs)."""
        return classifier_logits(model, batch)


@dataclass(frozen=True)
class SingleLabelClassification(_Classification):
    """Cross-entropy over classes, in nats, weighted by class where weights are given.

    The mean divides by the sum of the weights of the targets, so weights change what a class counts, not the scale.
    """

    name: ClassVar[str] = "classification"
    class_weights: tuple[float, ...] | None = None

    def target_counts(self, batch: ClassificationBatch) -> dict[str, float]:
        """Return the number of sequences, or the sum of their class weights."""
        labels = labels_of(batch)
        if self.class_weights is None:
            return {self.name: float(len(labels))}
        return {self.name: float(np.asarray(self.class_weights)[labels].sum())}

    def loss_sum_of(self, logits: Tensor, batch: ClassificationBatch) -> Tensor:
        """Return the weighted sum of negative log probabilities; logits (sequences, classes), labels (sequences)."""
        weights = None if self.class_weights is None else logits.new_tensor(self.class_weights)
        return F.cross_entropy(logits, label_tensor(batch, logits), weight=weights, reduction="sum")


@dataclass(frozen=True)
class Regression(_Classification):
    """Squared error of one output against the label on its own scale (GLUE STS-B: raw scores 0 to 5)."""

    name: ClassVar[str] = "regression"

    def target_counts(self, batch: ClassificationBatch) -> dict[str, float]:
        """Return the number of sequences."""
        return {self.name: float(len(labels_of(batch)))}

    def loss_sum_of(self, logits: Tensor, batch: ClassificationBatch) -> Tensor:
        """Return the sum of squared errors; logits (sequences, 1), labels (sequences)."""
        return F.mse_loss(logits.squeeze(-1), label_tensor(batch, logits), reduction="sum")


@dataclass(frozen=True)
class MultiLabelClassification(_Classification):
    """Binary cross-entropy of independent labels, in nats, averaged over sequences and labels alike.

    `positive_weights`, one a label, say how much more a label that is there counts than one that is not; the mean still
    divides by the number of decisions.
    """

    name: ClassVar[str] = "multi_label"
    positive_weights: tuple[float, ...] | None = None

    def target_counts(self, batch: ClassificationBatch) -> dict[str, float]:
        """Return the number of decisions: sequences times labels."""
        return {self.name: float(labels_of(batch).size)}

    def loss_sum_of(self, logits: Tensor, batch: ClassificationBatch) -> Tensor:
        """Return the summed binary cross-entropy; logits and labels (sequences, labels)."""
        weights = None if self.positive_weights is None else logits.new_tensor(self.positive_weights)
        return F.binary_cross_entropy_with_logits(
            logits, label_tensor(batch, logits), pos_weight=weights, reduction="sum"
        )
