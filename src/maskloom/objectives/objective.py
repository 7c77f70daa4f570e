"""What every objective offers: sums and counts, so that accumulation and data parallelism equal one big batch."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from maskloom.layers.copies import to_device
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.outputs import EncoderOutput


class Objective(Protocol):
    """A stateless loss of a model on a batch, split into named sums and the counts that divide them."""

    def target_counts(self, batch: Any) -> dict[str, float]:
        """Return the number (or weight) of targets in a batch by name; known before any arithmetic."""
        ...

    def loss_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, Tensor]:
        """Return scalar sums of the loss over the targets of a batch, with the names of `target_counts`."""
        ...


class SummedObjective(Objective, Protocol):
    """An objective whose evaluation is a sum over batches too."""

    def evaluation_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, float]:
        """Return sums that add over batches to whatever `evaluation_metrics` needs."""
        ...

    def evaluation_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Turn the added sums of a whole evaluation into metrics."""
        ...


def model_device(model: torch.nn.Module) -> torch.device:
    """Return the device that holds a model's parameters."""
    return next(model.parameters()).device


def encode_batch(model: EncoderWithHeads, batch: Any, *, keep_hidden_states: bool = False) -> EncoderOutput:
    """Run the encoder over the packed tokens of a batch."""
    device = model_device(model)
    return model.encoder.encode_packed(
        to_device(batch.token_ids, device),
        to_device(batch.segment_ids, device),
        SequenceLayout.from_lengths(batch.lengths, device),
        keep_hidden_states=keep_hidden_states,
    )
