"""The score of a model on labelled data: one pass, each example once, sums and metric together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from maskloom.metrics import Metric, MultiLabelMetric, RegressionMetric, SingleLabelMetric
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.classification import classifier_logits
from maskloom.tasks.encoding import EncodedExamples, batches_by_length
from maskloom.tasks.task import Task


@dataclass(frozen=True)
class Evaluation:
    """Scores with the mean loss, what the score of no learning would be, and whether the outputs are degenerate.

    `reference` is the primary score of always giving the commonest class, and None where there is no such thing.
    """

    scores: dict[str, float]
    reference: float | None
    degenerate: str | None


@torch.inference_mode()
def evaluate_task(
    model: EncoderWithHeads, task: Task, data: EncodedExamples | Iterable[EncodedExamples], *, max_tokens: int = 8192
) -> Evaluation:
    """Score a model on encoded examples, whole or in pieces; only decisions and targets are kept of each piece.

    Raises ValueError when there are no examples, when they have no labels, or when an output is not finite.
    """
    model.eval()
    metric, loss, weight = task.metric(), 0.0, 0.0
    for piece in [data] if isinstance(data, EncodedExamples) else data:
        for batch in batches_by_length(piece, max_tokens=max_tokens):
            if batch.labels is None:
                raise ValueError("the data has no labels; an evaluation needs them")
            logits = classifier_logits(model, batch)
            labels = torch.from_numpy(batch.labels).to(logits.device)
            loss += float(task.objective.loss_sum_of(logits, labels))
            weight += sum(task.objective.target_counts(batch).values())
            outputs = logits.cpu().numpy()
            if not np.isfinite(outputs).all():
                raise ValueError("the model's outputs are not finite numbers; its weights are broken")
            metric.update(task.decide(outputs), batch.labels)
    scores = {**metric.compute(), "loss": loss / max(weight, 1e-12)}
    reference = _reference(metric, task.primary)
    return Evaluation(scores, reference, _degeneracy(metric, scores, task.primary, reference))


def _reference(metric: Metric, primary: str) -> float | None:
    """Return the primary score of the commonest class, where the metric is one that it can be told for."""
    if isinstance(metric, SingleLabelMetric):
        return metric.score_of_majority()[primary]
    return 0.0 if isinstance(metric, RegressionMetric) else None


def _degeneracy(metric: Metric, scores: dict[str, float], primary: str, reference: float | None) -> str | None:
    """Say in what way a model has learnt nothing, or None."""
    if isinstance(metric, SingleLabelMetric) and metric.predicts_one_class():
        return "every prediction is the same class"
    if isinstance(metric, RegressionMetric) and metric.is_constant():
        return "every prediction is the same number"
    if isinstance(metric, MultiLabelMetric) and metric.predicts_nothing():
        return "no label is ever predicted"
    if reference is not None and scores[primary] <= reference:
        return f"{primary} {scores[primary]:.4f} is not above {reference:.4f}, the score of a constant answer"
    return None
