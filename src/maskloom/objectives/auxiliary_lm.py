"""A task's loss with that of a language model beside it (Radford et al. 2018, equation 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from maskloom.data.batch import PackedBatch
from maskloom.layers.copies import to_device
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.masked_lm import required_vocabulary_head
from maskloom.objectives.objective import encode_batch
from maskloom.objectives.task_objective import TaskObjective


@dataclass(frozen=True)
class WithLanguageModel:
    """The loss of a task plus `weight` (the paper's lambda) times that of predicting every next token, in nats.

    The second is a mean over sequences of the mean over a sequence's tokens, the first one left out, as the published
    code has it. It is for training alone, on tasks that read the pooled vectors of sequences.
    """

    objective: TaskObjective
    weight: float

    def target_counts(self, batch: Any) -> dict[str, float]:
        """Return the counts of the task, and the number of sequences."""
        return {**self.objective.target_counts(batch), "lm": float(max(1, np.count_nonzero(batch.lengths > 1)))}

    def loss_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, Tensor]:
        """Return the summed losses by name; `lm` is weighted."""
        output = encode_batch(model, batch)
        loss = self.objective.loss_sum_of(self.objective.head_logits(model, output, batch), batch)
        places, labels, weights = _next_tokens(batch)
        device = output.last_hidden_state.device
        hidden = output.last_hidden_state.index_select(0, to_device(places, device))
        head = required_vocabulary_head(model)
        lm = head.loss_sum(hidden, to_device(labels, device), to_device(weights * self.weight, device))
        return {self.objective.name: loss, "lm": lm}


def _next_tokens(batch: PackedBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return every place that has a next token, that token, and 1 over their number in its sequence."""
    ends = np.cumsum(batch.lengths)
    has_next = np.ones(batch.num_tokens, dtype=bool)
    has_next[ends[batch.lengths > 0] - 1] = False
    places = np.flatnonzero(has_next)
    counts = np.maximum(batch.lengths - 1, 0)
    weights = np.repeat(1.0 / np.maximum(counts, 1), counts).astype(np.float32)
    return places, batch.token_ids[places + 1], weights
