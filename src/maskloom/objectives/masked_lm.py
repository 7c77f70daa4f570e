"""Language modelling, masked or causal, with next-sentence prediction (BERT paper 3.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import PretrainingBatch
from maskloom.layers.copies import to_device
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.heads import MaskedLMHead
from maskloom.objectives.objective import encode_batch


@dataclass(frozen=True)
class MaskedLanguageModeling:
    """Sum of the masked-LM loss over predictions and of the next-sentence loss over sequences (paper 3.3.1, 3.3.2).

    The training loss is mean MLM + mean NSP; `next_sentence=False` leaves the second term out. `part` and `pair_part`
    name the terms and their metrics: the first is the loss of a causal language model where batches have the next token
    to predict, the second that of sentence order where pairs are swapped.
    """

    next_sentence: bool = True
    part: str = "mlm"
    pair_part: str = "nsp"

    def target_counts(self, batch: PretrainingBatch) -> dict[str, float]:
        """Return the number of masked positions and, with next-sentence prediction, of sequences."""
        counts = {self.part: float(len(batch.mlm_labels))}
        if self.next_sentence:
            counts[self.pair_part] = float(batch.num_sequences)
        return counts

    def loss_sums(self, model: EncoderWithHeads, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Return the summed losses in nats: `mlm` over masked positions, `nsp` over sequences."""
        vectors = self._vectors(model, batch)
        sums = {self.part: cast(MaskedLMHead, model.heads["mlm"]).loss_sum(*vectors["mlm"])}
        if self.next_sentence:
            pooled, labels = vectors["nsp"]
            sums[self.pair_part] = _cross_entropy_sum(model.heads["nsp"](pooled), labels)
        return sums

    def evaluation_sums(self, model: EncoderWithHeads, batch: PretrainingBatch) -> dict[str, float]:
        """Return loss sums, correct predictions and counts of both parts."""
        sums: dict[str, float] = {}
        for head, (vectors, labels) in self._vectors(model, batch).items():
            name, logits = {"mlm": self.part, "nsp": self.pair_part}[head], model.heads[head](vectors)
            sums[f"{name}_loss"] = float(_cross_entropy_sum(logits, labels))
            sums[f"{name}_correct"] = float((logits.argmax(-1) == labels).sum())
            sums[f"{name}_count"] = float(len(labels))
        return sums

    def evaluation_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Return loss (nats), accuracy and perplexity; every prediction of the evaluation weighs the same."""
        metrics: dict[str, float] = {"loss": 0.0}
        for name in (self.part, self.pair_part) if self.next_sentence else (self.part,):
            count = max(sums.get(f"{name}_count", 0.0), 1.0)
            metrics[f"{name}_loss"] = sums.get(f"{name}_loss", 0.0) / count
            metrics[f"{name}_accuracy"] = sums.get(f"{name}_correct", 0.0) / count
            metrics["loss"] += metrics[f"{name}_loss"]
        metrics[f"{self.part}_perplexity"] = math.exp(min(metrics[f"{self.part}_loss"], 700.0))
        return metrics

    def _vectors(self, model: EncoderWithHeads, batch: PretrainingBatch) -> dict[str, tuple[Tensor, Tensor]]:
        """Return what each head sees and its labels: (predictions, hidden) for MLM, (sequences, hidden) for NSP."""
        if self.next_sentence and batch.nsp_labels is None:
            raise ValueError("next_sentence=True needs a batch with next-sentence labels; this batch has none")
        output = encode_batch(model, batch)
        device = output.last_hidden_state.device
        positions = to_device(batch.mlm_positions, device)
        hidden = output.last_hidden_state.index_select(0, positions)
        vectors = {"mlm": (hidden, to_device(batch.mlm_labels, device))}
        if self.next_sentence:
            vectors["nsp"] = (output.pooled, to_device(cast(np.ndarray, batch.nsp_labels), device))
        return vectors


def _cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed loss in nats; half precision is widened to single, double stays double."""
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="sum")
