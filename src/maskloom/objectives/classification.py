"""Losses of tasks: classes and scores of texts, choices, and answer spans (BERT paper 3.5, 4.1, 4.2, 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import ChoiceBatch, ClassificationBatch, TokenBatch
from maskloom.layers.copies import to_device
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.encoder import EncoderOutput
from maskloom.models.heads import DocumentHead
from maskloom.objectives.objective import NOT_SCORED, TaskObjective, label_tensor


@dataclass(frozen=True)
class SingleLabelClassification(TaskObjective):
    """Cross-entropy over classes, in nats, weighted by class if weights are given.

    The mean divides by the total weight of the targets, so class weights change relative importance, not the scale.
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
        weights = None if self.class_weights is None else _weights(self.class_weights, logits)
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
    """Binary cross-entropy of independent labels, in nats, averaged over sequences and labels.

    `positive_weights`, one per label, weigh present labels relative to absent ones; the mean still divides by the
    number of decisions.
    """

    name: ClassVar[str] = "multi_label"
    head: ClassVar[str] = "classifier"
    positive_weights: tuple[float, ...] | None = None

    def num_targets(self, labels: np.ndarray) -> float:
        """Return the number of decisions: sequences times labels."""
        return labels.size

    def loss_sum_of(self, logits: Tensor, batch: ClassificationBatch) -> Tensor:
        """Return the summed binary cross-entropy; logits and labels (sequences, labels)."""
        weights = None if self.positive_weights is None else _weights(self.positive_weights, logits)
        return F.binary_cross_entropy_with_logits(
            logits, label_tensor(batch, logits), pos_weight=weights, reduction="sum"
        )


@dataclass(frozen=True)
class DocumentClassification(MultiLabelClassification):
    """Labels of documents (a title and sentences), with two regularisers of probabilities s (Dong et al. 2019).

    For each of the `similar` pairs (j, k, Sim), `similarity` weighs Sim (s_j - s_k)^2 in documents with both labels.
    For each of the `implied` pairs (j, k), `implication` weighs s_j (1 - s_k) / 2 in every document: j implies k.
    Differs from the paper, which rounds s in the second regulariser; that would have no gradient.
    """

    head: ClassVar[str] = "document"
    uses: tuple[bool, bool, bool] = (True, True, True)
    similarity: float = 0.0
    implication: float = 0.0
    similar: tuple[tuple[int, int, float], ...] = ()
    implied: tuple[tuple[int, int], ...] = ()

    def head_logits(self, model: EncoderWithHeads, output: EncoderOutput, batch: ChoiceBatch) -> Tensor:
        """Return the head's outputs, (documents, labels), for the encoder's output for titles and sentences."""
        return cast(DocumentHead, model.heads[self.head])(output.pooled, batch.num_choices, self.uses).float()

    def loss_sum_of(self, logits: Tensor, batch: ClassificationBatch) -> Tensor:
        """Return the summed binary cross-entropy and regularisers; logits and labels (documents, labels)."""
        loss, scores, labels = super().loss_sum_of(logits, batch), logits.sigmoid(), label_tensor(batch, logits)
        if self.similarity and self.similar:
            *pairs, alike = zip(*self.similar, strict=True)
            first, second = to_device(np.array(pairs), logits.device)
            apart = (scores[:, first] - scores[:, second]).square() * labels[:, first] * labels[:, second]
            loss = loss + self.similarity * (apart @ _weights(alike, logits)).sum()
        if self.implication and self.implied:
            child, parent = to_device(np.array(self.implied), logits.device).unbind(1)
            loss = loss + self.implication / 2 * (scores[:, child] * (1 - scores[:, parent])).sum()
        return loss


def _weights(numbers: Sequence[float], logits: Tensor) -> Tensor:
    """Return numbers in the type of the logits and on their device; the host does not wait for a GPU to copy them."""
    return to_device(np.array(numbers, np.float32), logits.device).to(logits.dtype)


@dataclass(frozen=True)
class MultipleChoice(TaskObjective):
    """Cross-entropy over the scores of an example's choices, however many; a score is a product with one vector."""

    name: ClassVar[str] = "choice"
    head: ClassVar[str] = "choice"

    def row_counts(self, batch: ChoiceBatch) -> np.ndarray:
        """Return the number of choices of each example."""
        return batch.num_choices

    def loss_sum_of(self, logits: Tensor, batch: ChoiceBatch) -> Tensor:
        """Return the sum over examples of negative log probabilities, in nats."""
        return F.cross_entropy(_by_unit(logits, batch.num_choices), label_tensor(batch, logits), reduction="sum")


def _by_unit(logits: Tensor, counts: np.ndarray) -> Tensor:
    """Return logits (rows, 1) as (units, most rows), padded with -inf; `counts` is the number of rows of each unit."""
    most = int(counts.max(initial=1))
    if (counts == most).all():
        return logits.reshape(-1, most)
    places = to_device(np.flatnonzero(np.arange(most) < counts[:, None]), logits.device)  # known to the host
    return logits.new_full((len(counts) * most,), -torch.inf).index_copy(0, places, logits.flatten()).view(-1, most)


@dataclass(frozen=True)
class SpanPrediction(TaskObjective):
    """Mean of the cross-entropies of start and end over all tokens of the window, including the question.

    Labels are (windows, 2) positions of the first and last token of the answer in its window; for an answer outside the
    window, both are the position of the token that represents the whole window. Differs from the published code, whose
    softmax also runs over padding; there is no padding here.
    """

    name: ClassVar[str] = "span"
    head: ClassVar[str] = "span"
    reads_tokens: ClassVar[bool] = True

    def loss_sum_of(self, logits: Tensor, batch: ClassificationBatch) -> Tensor:
        """Return the sum over windows of (start loss + end loss) / 2, in nats; logits (tokens, 2)."""
        targets = label_tensor(batch, logits).unbind(1)
        sides = (_by_unit(side, batch.lengths) for side in logits.split(1, dim=1))
        start, end = map(partial(F.cross_entropy, reduction="sum"), sides, targets)
        return (start + end) / 2
