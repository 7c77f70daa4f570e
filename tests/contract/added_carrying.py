"""An objective with state from batch to batch added from outside the package; docs/ADDING.md shows this file."""

from dataclasses import dataclass

import numpy as np
import torch

from maskloom.data.corruption import NextTokens
from maskloom.objectives.masked_lm import required_vocabulary_head
from maskloom.objectives.objective import encode_batch
from maskloom.objectives.pretraining import Pretraining, contiguous


@dataclass(frozen=True)
class Remembering:
    """Adds each row's memory to its predicted tokens, then carries half of that memory plus the pooled vector."""

    width: int = 8
    part: str = "remembered"

    def first_carry(self, model, num_sequences):
        return (torch.zeros(num_sequences, self.width), torch.zeros(num_sequences, dtype=torch.int64))

    def target_counts(self, batch):
        return {"mlm": float(len(batch.mlm_labels))}

    def loss_sums(self, model, batch):
        memory, age = batch.carry
        output = encode_batch(model, batch)
        rows = np.searchsorted(np.cumsum(batch.lengths), batch.mlm_positions, side="right")
        vectors = output.last_hidden_state[batch.mlm_positions] + memory[rows]
        batch.after = ((0.5 * memory + output.pooled).detach(), age + 1)
        return {"mlm": required_vocabulary_head(model).loss_sum(vectors, torch.from_numpy(batch.mlm_labels))}

    def evaluation_sums(self, model, batch):
        return {"loss": float(self.loss_sums(model, batch)["mlm"]), "age": float(batch.after[1].sum())}

    def evaluation_metrics(self, sums):
        return {f"{self.part}_loss": sums["loss"], "age": sums["age"]}


REMEMBERING = Pretraining(
    "remembered",
    NextTokens,
    contiguous,
    objective=lambda part, data: Remembering(16, part),
    heads=lambda vocabulary_head, data: (vocabulary_head, "span"),  # a second head, although nothing calls it
    reference=None,
    defaults={"next_sentence": False},
    unread=("static_masks",),
)
