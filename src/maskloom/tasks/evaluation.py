"""The outputs of a model on encoded data, and its score: one pass, each unit once, sums and metric together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from maskloom.fault_points import fault_point
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.objective import model_device
from maskloom.objectives.task_objective import TaskObjective
from maskloom.tasks.encoding import EncodedData, batches_by_length
from maskloom.tasks.task import Task

# On a processor, the arrays of a larger batch leave its caches, and from 32 MiB on the C library maps fresh pages for
# every one of them: 8,192 tokens of a hidden size of 384 took 1.3 times as long as four times 2,048.
PROCESSOR_TOKENS = 2048
_ACCELERATOR_TOKENS = 8192


@dataclass(frozen=True)
class ModelOutputs:
    """The rows of every unit in order, with the loss sum and the weight that divides it where there are labels."""

    rows: list[np.ndarray]
    loss_sum: float = 0.0
    weight: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """Scores with the mean loss, what the score of no learning would be, and whether the outputs are degenerate.

    `reference` is the primary score of always giving the commonest answer, and None where there is no such thing.
    """

    scores: dict[str, float]
    reference: float | None
    degenerate: str | None


OutputsOf = Callable[[EncodedData], ModelOutputs]


@torch.inference_mode()
def model_outputs(
    model: EncoderWithHeads,
    objective: TaskObjective,
    data: EncodedData,
    *,
    max_tokens: int | None = None,
    max_units: int | None = None,
) -> ModelOutputs:
    """Run a model over encoded data in batches of like length, of `max_tokens` tokens or of what suits its device.

    `max_units` bounds the units of a batch. Raises ValueError when an output is not a finite number.
    """
    model.eval()
    rows: list[np.ndarray] = [np.empty(0)] * len(data)
    loss_sum = weight = 0.0
    for batch in batches_by_length(data, max_tokens=max_tokens or tokens_at_once(model), max_units=max_units):
        fault_point("evaluation.batch")
        outputs = objective.outputs(model, batch)
        values = outputs.rows.cpu().numpy()
        if not np.isfinite(values).all():
            raise ValueError("the model's outputs are not finite numbers; its weights are broken")
        if outputs.loss_sum is not None:
            loss_sum += float(outputs.loss_sum)
            weight += sum(objective.target_counts(batch).values())
        ends = np.cumsum(objective.row_counts(batch))
        for index, part in zip(batch.indices, np.split(values, ends[:-1]), strict=True):
            rows[index] = part
    return ModelOutputs(rows, loss_sum, weight)


def tokens_at_once(model: EncoderWithHeads) -> int:
    """Return how many tokens a batch without gradients best has on the device of a model."""
    return PROCESSOR_TOKENS if model_device(model).type == "cpu" else _ACCELERATOR_TOKENS


def evaluate_task(
    model: EncoderWithHeads, task: Task, data: EncodedData | Iterable[EncodedData], *, max_tokens: int | None = None
) -> Evaluation:
    """Score a model on encoded examples, whole or in pieces.

    Raises ValueError when there are no examples, when they have no labels, or when an output is not finite.
    """
    pieces = data if isinstance(data, Iterable) else [data]
    return score_outputs(task, pieces, lambda piece: model_outputs(model, task.objective, piece, max_tokens=max_tokens))


def score_outputs(task: Task, pieces: Iterable[EncodedData], outputs_of: OutputsOf) -> Evaluation:
    """Score the outputs for pieces of data; of each piece only what the metric needs is kept."""
    metric, loss, weight = task.metric(), 0.0, 0.0
    for piece in pieces:
        targets = task.targets(piece)
        if targets is None:
            raise ValueError("the data has no labels; an evaluation needs them")
        outputs = outputs_of(piece)
        loss, weight = loss + outputs.loss_sum, weight + outputs.weight
        metric.update(task.decide(piece, outputs.rows), targets)
    scores = {**metric.compute(), "loss": loss / max(weight, 1e-12)}
    reference = metric.reference()
    degenerate = metric.degeneracy()
    if degenerate is None and reference is not None and scores[task.primary] <= reference:
        degenerate = (
            f"{task.primary} {scores[task.primary]:.4f} is not above {reference:.4f}, the score of a constant answer"
        )
    return Evaluation(scores, reference, degenerate)
