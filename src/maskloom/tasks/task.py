"""A task: how its data is encoded, which heads and loss it uses, and how outputs are decoded and scored.

One pass of a model over encoded data gives both the loss and the metric, and processes each unit once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskloom.errors import DataError
from maskloom.layers.copies import to_host
from maskloom.metrics.metric import Metric
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.objective import TaskObjective, model_device
from maskloom.system.devices import inference_in
from maskloom.system.fault_points import fault_point
from maskloom.tasks.catalog import Kind
from maskloom.tasks.encoding import EncodedData, batches_by_length
from maskloom.tasks.settings import KindSettings

# One array (rows, width) per unit: the rows that the objective returns for it.
Outputs = Sequence[np.ndarray]


@dataclass(frozen=True)
class Task:
    """A kind of task with its labels, as plain functions.

    `heads` names the heads of its models. `encode(data, tokenizer, max_length, for_training=)` converts examples to
    token ids; for training, examples that cannot be learned from are left out, counted and listed.
    `decide(encoded, outputs)` returns the predictions that the metric compares with `targets(encoded)`, which is None
    if the data has no labels; `decode(encoded, outputs)` returns one dictionary per example, in order. `settings` are
    the kind's own, stored with the model; `published_config` are the keys of config.json that describe its outputs.

    `tune(encoded, outputs)` returns settings fitted to labelled data, as plain values by name; it is None for a kind
    with nothing to fit. `scored_logits(encoded, outputs)` returns the logits of the targets, before any temperature:
    (examples, classes) for a softmax if targets are (examples,) ids, (examples, labels) for a sigmoid if they are 0/1;
    it is None for a kind without calibration.

    `learned(encoded)` returns settings derived from the training targets, in the form of `tune`; None if there are
    none.

    `forms` are additional formats of prediction files: by suffix, a function that returns the lines for an example and
    its decoded output. `frames` are the texts before, between and after the examples, for formats that need them.

    `example_of` replaces the kind's own where settings change how an example is created in Python.

    `head_options` are the arguments of heads other than sizes and labels, by head name. With `freezes_encoder`, only
    the heads are trained, on vectors that the encoder computes once.
    """

    kind: Kind
    labels: tuple[str, ...]
    primary: str
    heads: tuple[str, ...]
    objective: TaskObjective
    encode: Callable[..., EncodedData]
    decide: Callable[[EncodedData, Outputs], Any]
    decode: Callable[[EncodedData, Outputs], list[dict[str, Any]]]
    metric: Callable[[], Metric]
    targets: Callable[[EncodedData], Any] = attrgetter("labels")
    published_config: dict[str, Any] = field(default_factory=dict)
    settings: KindSettings = field(default_factory=KindSettings)
    tune: Callable[..., dict[str, Any]] | None = None
    scored_logits: Callable[[EncodedData, Outputs], np.ndarray] | None = None
    learned: Callable[[EncodedData], dict[str, Any]] | None = None
    forms: Mapping[str, Callable[[Any, dict[str, Any]], list[str]]] = field(default_factory=dict)
    frames: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    example_of: Callable[[Any, int], Any] | None = None
    head_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    freezes_encoder: bool = False

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the head: one per label, or one for a score."""
        return max(len(self.labels), 1)


# On a CPU, the arrays of a larger batch do not fit in the caches, and from 32 MiB on the C library maps fresh pages for
# each of them: with hidden size 384, 8,192 tokens took 1.3 times as long as four batches of 2,048.
PROCESSOR_TOKENS = 2048
_ACCELERATOR_TOKENS = 8192


@dataclass(frozen=True)
class ModelOutputs:
    """The rows of every unit in order and, if there are labels, the loss sum and the weight that divides it."""

    rows: list[np.ndarray]
    loss_sum: float = 0.0
    weight: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """Scores with the mean loss, the reference score of a constant answer, and in what way outputs are degenerate.

    `reference` is the primary score of always giving the most common answer, or None if that is undefined. `signatures`
    are a library's own descriptions of how it computed its scores.
    """

    scores: dict[str, float]
    reference: float | None
    degenerate: str | None
    signatures: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the scores as plain values; signatures only if there are any."""
        told = {"reference": self.reference, "degenerate": self.degenerate}
        return {**told, "signatures": self.signatures} if self.signatures else told


OutputsOf = Callable[[EncodedData], ModelOutputs]


@torch.inference_mode()
def model_outputs(
    model: EncoderWithHeads,
    objective: TaskObjective,
    data: EncodedData,
    *,
    max_units: int | None = None,
    precision: str = "auto",
) -> ModelOutputs:
    """Run a model over encoded data in batches of similar lengths and of a size that suits the device.

    `max_units` limits the units of a batch; `precision` applies on CUDA. Raises DataError if an output is not finite.
    """
    model.eval()
    rows: list[np.ndarray] = [np.empty(0)] * len(data)
    losses: list[Tensor] = []
    weight = 0.0

    def launched() -> Iterator[tuple[tuple[Any, np.ndarray | None], Tensor]]:
        nonlocal weight
        for batch in batches_by_length(data, max_tokens=tokens_at_once(model), max_units=max_units):
            fault_point("evaluation.batch")
            outputs = objective.outputs(model, batch)
            if outputs.loss_sum is not None:
                losses.append(outputs.loss_sum)
                weight += sum(objective.target_counts(batch).values())
            yield (batch, outputs.counts), outputs.rows

    with inference_in(precision, model_device(model)):  # entered once, so that weights are rounded once
        for (batch, counts), values in to_host(launched()):
            ends = np.cumsum(objective.row_counts(batch) if counts is None else counts)
            for index, part in zip(batch.indices, np.split(finite(values), ends[:-1]), strict=True):
                rows[index] = part
    return ModelOutputs(rows, sum(map(float, losses), 0.0), weight)


def finite(outputs: np.ndarray) -> np.ndarray:
    """Return a model's outputs; raises DataError if one of them is not a finite number."""
    if not np.isfinite(outputs).all():
        raise DataError("the model's outputs are not finite numbers; its weights are corrupt")
    return outputs


def tokens_at_once(model: EncoderWithHeads) -> int:
    """Return the best number of tokens per inference batch on a model's device."""
    return PROCESSOR_TOKENS if model_device(model).type == "cpu" else _ACCELERATOR_TOKENS


def evaluate_task(model: EncoderWithHeads, task: Task, data: EncodedData, precision: str = "auto") -> Evaluation:
    """Score a model on encoded examples; raises ValueError for no examples or no labels."""
    return score_outputs(task, [data], lambda piece: model_outputs(model, task.objective, piece, precision=precision))


def score_outputs(task: Task, pieces: Iterable[EncodedData], outputs_of: OutputsOf) -> Evaluation:
    """Score the outputs for pieces of data, keeping only what the metric needs of each piece."""
    metric, loss, weight = task.metric(), 0.0, 0.0
    for piece in pieces:
        if (targets := task.targets(piece)) is None:
            raise ValueError("the data has no labels; an evaluation needs them")
        outputs = outputs_of(piece)
        loss, weight = loss + outputs.loss_sum, weight + outputs.weight
        metric.update(task.decide(piece, outputs.rows), targets)
    scores = {**metric.compute(), "loss": loss / max(weight, 1e-12)}
    reference, degenerate = metric.reference(), metric.degeneracy()
    if degenerate is None and reference is not None and scores[task.primary] <= reference:
        degenerate = (
            f"{task.primary} {scores[task.primary]:.4f} is not above {reference:.4f}, the score of a constant answer"
        )
    return Evaluation(scores, reference, degenerate, getattr(metric, "signatures", dict)())
