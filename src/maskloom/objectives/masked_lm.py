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
from maskloom.errors import ConfigError
from maskloom.layers.copies import to_device
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.heads import LanguageModelHead, MaskedLMHead
from maskloom.objectives.objective import encode_batch


@dataclass(frozen=True)
class MaskedLanguageModeling:
    """Sum of the masked-LM loss over predictions and of the next-sentence loss over sequences (paper 3.3.1, 3.3.2).

    The training loss is mean MLM + mean NSP; without a `pair_part` the second term is left out. `part` and `pair_part`
    name the terms and their metrics: the first is the loss of a causal language model where batches have the next token
    to predict, the second that of sentence order where pairs are swapped.
    """

    part: str = "mlm"
    pair_part: str | None = "nsp"

    def target_counts(self, batch: PretrainingBatch) -> dict[str, float]:
        """Return the number of masked positions and, with next-sentence prediction, of sequences."""
        counts = {self.part: float(len(batch.mlm_labels))}
        if self.pair_part:
            counts[self.pair_part] = float(batch.num_sequences)
        return counts

    def loss_sums(self, model: EncoderWithHeads, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Return the summed losses in nats: `mlm` over masked positions, `nsp` over sequences."""
        hidden, pooled = self._vectors(model, batch)
        labels = to_device(batch.mlm_labels, hidden.device)
        sums = {self.part: required_vocabulary_head(model).loss_sum(hidden, labels)}
        if self.pair_part:
            sums[self.pair_part] = _cross_entropy_sum(model.heads["nsp"](pooled), _pair_labels(batch, pooled.device))
        return sums

    def evaluation_sums(self, model: EncoderWithHeads, batch: PretrainingBatch) -> dict[str, float]:
        """Return loss sums, correct predictions and counts of both parts."""
        hidden, pooled = self._vectors(model, batch)
        found = {self.part: (required_vocabulary_head(model)(hidden), to_device(batch.mlm_labels, hidden.device))}
        if self.pair_part:
            found[self.pair_part] = (model.heads["nsp"](pooled), _pair_labels(batch, pooled.device))
        sums: dict[str, float] = {}
        for name, (logits, labels) in found.items():
            sums[f"{name}_loss"] = float(_cross_entropy_sum(logits, labels))
            sums[f"{name}_correct"] = float((logits.argmax(-1) == labels).sum())
            sums[f"{name}_count"] = float(len(labels))
        return sums

    def evaluation_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Return loss (nats), accuracy and perplexity; every prediction of the evaluation weighs the same."""
        metrics: dict[str, float] = {"loss": 0.0}
        for name in filter(None, (self.part, self.pair_part)):
            count = max(sums.get(f"{name}_count", 0.0), 1.0)
            metrics[f"{name}_loss"] = sums.get(f"{name}_loss", 0.0) / count
            metrics[f"{name}_accuracy"] = sums.get(f"{name}_correct", 0.0) / count
            metrics["loss"] += metrics[f"{name}_loss"]
        metrics[f"{self.part}_perplexity"] = math.exp(min(metrics[f"{self.part}_loss"], 700.0))
        return metrics

    def _vectors(self, model: EncoderWithHeads, batch: PretrainingBatch) -> tuple[Tensor, Tensor]:
        """Return the vectors at the predictions, (predictions, hidden), and those of sequences, (sequences, hidden)."""
        if self.pair_part and batch.nsp_labels is None:
            raise ValueError(f"{self.pair_part} needs a batch with labels of pairs; this batch has none")
        output = encode_batch(model, batch)
        positions = to_device(batch.mlm_positions, output.last_hidden_state.device)
        return output.last_hidden_state.index_select(0, positions), output.pooled


def required_vocabulary_head(model: EncoderWithHeads) -> MaskedLMHead | LanguageModelHead:
    """Return the head whose logits are over the vocabulary; raises ConfigError for a model without one."""
    if (head := model.vocabulary_head) is None:
        raise ConfigError(f"a language model needs a head over the vocabulary; this one has {', '.join(model.heads)}")
    return head


def _pair_labels(batch: PretrainingBatch, device: torch.device) -> Tensor:
    return to_device(cast(np.ndarray, batch.nsp_labels), device)


def _cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed loss in nats; half precision is widened to single, double stays double."""
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="sum")
