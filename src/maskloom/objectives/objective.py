"""The interface of objectives: sums and counts, so that accumulation and data parallelism equal one big batch.

Objectives of tasks also return, from the same pass, the outputs that are scored and decoded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from maskloom.data.batch import BothOrdersBatch
from maskloom.errors import DataError
from maskloom.layers.attention import LayerState
from maskloom.layers.copies import all_to_device, to_device
from maskloom.layers.layer_mix import ScalarMix
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.architectures import architecture_of
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.elmo_config import SPELLING_SIZE
from maskloom.models.encoder import EncoderOutput


class Objective(Protocol):
    """A stateless loss of a model on a batch, as named sums and the counts to divide them by."""

    def target_counts(self, batch: Any) -> dict[str, float]:
        """Return the number (or weight) of targets in a batch by name; needs no computation with the model."""
        ...

    def loss_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, Tensor]:
        """Return scalar sums of the loss over the targets of a batch, under the names of `target_counts`."""
        ...


class SummedObjective(Objective, Protocol):
    """An objective whose evaluation is also a sum over batches."""

    def evaluation_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, float]:
        """Return sums that, added over batches, are the input of `evaluation_metrics`."""
        ...

    def evaluation_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Turn the added sums of a whole evaluation into metrics."""
        ...


@dataclass(frozen=True)
class WithMixPenalty:
    """An objective plus `weight` times the sum of squares of layer-mix weights; for training only."""

    objective: Objective
    weight: float

    def target_counts(self, batch: Any) -> dict[str, float]:
        """Return the counts of the objective, and the number of sequences."""
        return {**self.objective.target_counts(batch), "mix": float(len(batch.lengths))}

    def loss_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, Tensor]:
        """Return the sums of the objective, and `mix` once per sequence."""
        weights = [part.weights for part in model.modules() if isinstance(part, ScalarMix)]
        penalty = torch.stack([each.square().sum() for each in weights]).sum()
        return {**self.objective.loss_sums(model, batch), "mix": self.weight * len(batch.lengths) * penalty}


def model_device(model: torch.nn.Module) -> torch.device:
    """Return the device that holds a model's parameters."""
    return next(model.parameters()).device


def check_ids(name: str, ids: np.ndarray, number: int) -> None:
    """Raise DataError for an id outside the model's 0 to `number` - 1, which a GPU would not detect."""
    if len(ids) and ((least := int(ids.min())) < 0 or int(ids.max()) >= number):
        raise DataError(f"{name} id {least if least < 0 else int(ids.max())}: the model has ids 0 to {number - 1:,}")


def encode_batch(
    model: EncoderWithHeads, batch: Any, *, keep_hidden_states: bool = False, past: Sequence[LayerState] | None = None
) -> EncoderOutput:
    """Run the encoder over a batch; `past` holds its layers' state of earlier tokens. Raises like `packed_inputs`."""
    return model.encoder.encode_packed(*packed_inputs(model, batch), keep_hidden_states=keep_hidden_states, past=past)


def packed_inputs(model: EncoderWithHeads, batch: Any) -> tuple[Tensor, Tensor, SequenceLayout]:
    """Return the token ids and segments of a batch, (tokens,) each, and its layout, on the model's device.

    Raises DataError for a token or segment that has no embedding, whatever the architecture.
    """
    config, device = model.config, model_device(model)
    own = getattr(config, "source_vocab_size", None) or config.vocab_size
    check_ids("token", batch.token_ids, SPELLING_SIZE if architecture_of(config).reads_spelling else own)
    if hasattr(config, "type_vocab_size"):  # others ignore segments
        check_ids("segment", batch.segment_ids, config.num_segments)
    token_ids, segment_ids = all_to_device([batch.token_ids, batch.segment_ids], device)
    return token_ids, segment_ids, SequenceLayout.from_lengths(batch.lengths, device)


NOT_SCORED = -100
"""The label of unlabelled tokens; torch's cross-entropy ignores it."""


@dataclass(frozen=True)
class BatchOutputs:
    """The outputs of a head for a batch: `rows` (rows, width) in order, and the summed loss if the batch has labels.

    `counts` (units,) are the numbers of rows of the units if they depend on the outputs; otherwise, see `row_counts`.
    """

    rows: Tensor
    loss_sum: Tensor | None
    counts: np.ndarray | None = None


class TaskObjective(ABC):
    """A loss that is a function of a head's logits, so that scoring and loss share one pass.

    A batch consists of units; each owns `row_counts` consecutive rows of the logits: one row for a sequence to
    classify, one per token for spans and tags, one per choice for multiple choice. `name` is the loss's name in
    reports, `head` the name of the head, which reads every token (`reads_tokens`) or the pooled vectors of sequences.
    """

    name: ClassVar[str]
    head: ClassVar[str]
    reads_tokens: ClassVar[bool] = False

    @abstractmethod
    def loss_sum_of(self, logits: Tensor, batch: Any) -> Tensor:
        """Return the summed loss of logits (rows, width) against the labels of a batch."""

    def num_targets(self, labels: np.ndarray) -> float:
        """Return the number (or weight) of the targets in labels: by default one per label."""
        return len(labels)

    def target_counts(self, batch: Any) -> dict[str, float]:
        """Return the number (or weight) of the targets of a batch. Raises ValueError when it has no labels."""
        return {self.name: float(self.num_targets(labels_of(batch)))}

    def logits(self, model: EncoderWithHeads, batch: Any) -> Tensor:
        """Return the head's outputs, (rows, width) float32."""
        return self.head_logits(model, encode_batch(model, batch), batch)

    def head_logits(self, model: EncoderWithHeads, output: EncoderOutput, batch: Any) -> Tensor:
        """Return the head's outputs for the encoder's output."""
        vectors = output.last_hidden_state if self.reads_tokens else output.pooled
        if isinstance(batch, BothOrdersBatch):
            vectors = vectors.view(-1, 2, vectors.shape[1]).sum(1)
        return model.heads[self.head](vectors).float()

    def row_counts(self, batch: Any) -> np.ndarray:
        """Return how many rows each unit of a batch owns, (units,) int64."""
        return batch.lengths if self.reads_tokens else np.ones(len(batch.indices), dtype=np.int64)

    def loss_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, Tensor]:
        """Return the summed loss by name, as the training loop expects it."""
        return {self.name: self.loss_sum_of(self.logits(model, batch), batch)}

    def outputs(self, model: EncoderWithHeads, batch: Any) -> BatchOutputs:
        """Return the outputs to score and decode, with the loss if there are labels."""
        logits = self.logits(model, batch)
        return BatchOutputs(logits, None if batch.labels is None else self.loss_sum_of(logits, batch))


def labels_of(batch: Any) -> np.ndarray:
    """Return the labels of a batch; raises ValueError when it has none."""
    if batch.labels is None:
        raise ValueError("the batch has no labels; a loss needs them")
    return batch.labels


def label_tensor(batch: Any, logits: Tensor) -> Tensor:
    """Return the labels of a batch on the device of its logits."""
    return to_device(labels_of(batch), logits.device)
