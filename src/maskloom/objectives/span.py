"""Loss of the start and the end of an answer among the tokens of a window (BERT paper 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import ClassificationBatch
from maskloom.layers.copies import to_device
from maskloom.objectives.task_objective import TaskObjective, label_tensor


@dataclass(frozen=True)
class SpanPrediction(TaskObjective):
    """Mean of the cross-entropies of start and end over all tokens of the window, the question's included.

    Labels are (windows, 2) places of the first and last token of the answer in their window; 0, the [CLS] token,
    stands for an answer that is not in it. Differs from the published code: its softmax also runs over padding, of
    which there is none here.
    """

    name: ClassVar[str] = "span"
    head: ClassVar[str] = "span"
    reads_tokens: ClassVar[bool] = True

    def loss_sum_of(self, logits: Tensor, batch: ClassificationBatch) -> Tensor:
        """Return the sum over windows of (start loss + end loss) / 2, in nats; logits (tokens, 2)."""
        lengths = to_device(batch.lengths, logits.device)
        is_token = torch.arange(int(batch.lengths.max()), device=logits.device)[None, :] < lengths[:, None]
        padded = logits.new_full((*is_token.shape, 2), float("-inf"))
        padded[is_token] = logits
        targets = label_tensor(batch, logits)
        start = F.cross_entropy(padded[..., 0], targets[:, 0], reduction="sum")
        return (start + F.cross_entropy(padded[..., 1], targets[:, 1], reduction="sum")) / 2
