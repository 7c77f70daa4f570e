"""Losses of a sequence classifier on the pooled first token (BERT paper 3.5, 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import ClassificationBatch
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.objective import model_device


class SequenceObjective(Protocol):
    """An objective whose loss is a function of the classifier's logits, so that scoring and loss share one pass."""

    def target_counts(self, batch: ClassificationBatch) -> dict[str, float]:
        """Return the weight of the targets of a batch."""
        ...

    def loss_sums(self, model: EncoderWithHeads, batch: ClassificationBatch) -> dict[str, Tensor]:
        """Return the summed loss of a batch."""
        ...

    def loss_sum_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the summed loss in nats (squared units for regression) of logits (sequences, outputs)."""
        ...

    def evaluation_sums(self, model: EncoderWithHeads, batch: ClassificationBatch) -> dict[str, float]:
        """Return the summed loss and the weight that divides it."""
        ...

    def evaluation_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the mean loss."""
        ...


def classifier_logits(model: EncoderWithHeads, batch: ClassificationBatch) -> Tensor:
    """Return the classifier's outputs (sequences, outputs) for the pooled first token of each packed sequence."""
    device = model_device(model)
    layout = SequenceLayout.from_lengths(batch.lengths, device)
    output = model.encoder.encode_packed(
        torch.from_numpy(batch.token_ids).to(device), torch.from_numpy(batch.segment_ids).to(device), layout
    )
    return model.heads["classifier"](output.pooled).float()


@dataclass(frozen=True)
class SingleLabelClassification:
    """Cross-entropy over classes, weighted by class where weights are given.

    The mean divides by the sum of the weights of the targets, so weights change what a class counts, not the scale.
    """

    class_weights: tuple[float, ...] | None = None

    def target_counts(self, batch: ClassificationBatch) -> dict[str, float]:
        """Return the number of sequences, or the sum of their class weights."""
        labels = _labels(batch)
        if self.class_weights is None:
            return {"classification": float(len(labels))}
        return {"classification": float(np.asarray(self.class_weights)[labels].sum())}

    def loss_sums(self, model: EncoderWithHeads, batch: ClassificationBatch) -> dict[str, Tensor]:
        """Return the sum over sequences of weight times negative log probability of the class, in nats."""
        logits = classifier_logits(model, batch)
        return {"classification": self.loss_sum_of(logits, torch.from_numpy(_labels(batch)).to(logits.device))}

    def loss_sum_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted sum of negative log probabilities; logits (sequences, classes), labels (sequences)."""
        weights = None if self.class_weights is None else logits.new_tensor(self.class_weights)
        return F.cross_entropy(logits, labels, weight=weights, reduction="sum")

    def evaluation_sums(self, model: EncoderWithHeads, batch: ClassificationBatch) -> dict[str, float]:
        """Return the loss sum, its weight and the number of sequences classified right."""
        logits = classifier_logits(model, batch)
        labels = torch.from_numpy(_labels(batch)).to(logits.device)
        return {
            "loss": float(self.loss_sum_of(logits, labels)),
            "weight": self.target_counts(batch)["classification"],
            "correct": float((logits.argmax(-1) == labels).sum()),
            "count": float(len(labels)),
        }

    def evaluation_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Return mean loss and accuracy."""
        return {**_mean_loss(sums), "accuracy": sums.get("correct", 0.0) / max(sums.get("count", 0.0), 1.0)}


@dataclass(frozen=True)
class Regression:
    """Squared error of one output against the label on its own scale (GLUE STS-B: raw scores 0 to 5)."""

    def target_counts(self, batch: ClassificationBatch) -> dict[str, float]:
        """Return the number of sequences."""
        return {"regression": float(len(_labels(batch)))}

    def loss_sums(self, model: EncoderWithHeads, batch: ClassificationBatch) -> dict[str, Tensor]:
        """Return the sum of squared errors."""
        logits = classifier_logits(model, batch)
        return {"regression": self.loss_sum_of(logits, torch.from_numpy(_labels(batch)).to(logits.device))}

    def loss_sum_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of squared errors; logits (sequences, 1), labels (sequences)."""
        return F.mse_loss(logits.squeeze(-1), labels, reduction="sum")

    def evaluation_sums(self, model: EncoderWithHeads, batch: ClassificationBatch) -> dict[str, float]:
        """Return the loss sum and its count."""
        return {"loss": float(self.loss_sums(model, batch)["regression"]), "weight": float(len(_labels(batch)))}

    def evaluation_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the mean squared error as `loss`."""
        return _mean_loss(sums)


@dataclass(frozen=True)
class MultiLabelClassification:
    """Binary cross-entropy of independent labels, averaged over sequences and labels alike."""

    def target_counts(self, batch: ClassificationBatch) -> dict[str, float]:
        """Return the number of decisions: sequences times labels."""
        return {"multi_label": float(_labels(batch).size)}

    def loss_sums(self, model: EncoderWithHeads, batch: ClassificationBatch) -> dict[str, Tensor]:
        """Return the summed binary cross-entropy, in nats."""
        logits = classifier_logits(model, batch)
        return {"multi_label": self.loss_sum_of(logits, torch.from_numpy(_labels(batch)).to(logits.device))}

    def loss_sum_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the summed binary cross-entropy; logits and labels (sequences, labels)."""
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")

    def evaluation_sums(self, model: EncoderWithHeads, batch: ClassificationBatch) -> dict[str, float]:
        """Return the loss sum and its count."""
        return {"loss": float(self.loss_sums(model, batch)["multi_label"]), "weight": float(_labels(batch).size)}

    def evaluation_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the mean binary cross-entropy as `loss`."""
        return _mean_loss(sums)


def _labels(batch: ClassificationBatch) -> np.ndarray:
    if batch.labels is None:
        raise ValueError("the batch has no labels; a loss needs them")
    return batch.labels


def _mean_loss(sums: dict[str, float]) -> dict[str, float]:
    return {"loss": sums.get("loss", 0.0) / max(sums.get("weight", 0.0), 1e-12)}
