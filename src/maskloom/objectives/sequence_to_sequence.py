"""The loss of a target given its source, and decoding (Vaswani et al. 2017, 3.1, 5.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from maskloom.data.batch import SourceTargetBatch
from maskloom.generation.search import Generation
from maskloom.generation.sources import decode_sources
from maskloom.layers.copies import to_device
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.transformer import TransformerDecoder
from maskloom.objectives.objective import BatchOutputs, TaskObjective, label_tensor, model_device

# The encoder's packed vectors, with their layout.
_Memory = tuple[Tensor, SequenceLayout]


@dataclass(frozen=True)
class SequenceToSequence(TaskObjective):
    """Cross-entropy of every token of a target given those before it and its source, in nats, labels smoothed.

    What is scored and decoded is what a search finds: a row for each token, which counts a target's end. `loss` of an
    evaluation is without smoothing.
    """

    name: ClassVar[str] = "seq2seq"
    head: ClassVar[str] = "decoder"
    reads_tokens: ClassVar[bool] = True
    label_smoothing: float = 0.0
    generation: Generation = field(default_factory=Generation)

    def loss_sum_of(self, logits: Tensor, batch: SourceTargetBatch) -> Tensor:
        """Return the summed loss of logits (target tokens, vocabulary) against the labels of a batch."""
        labels, smoothing = label_tensor(batch, logits), self.label_smoothing
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)

    def loss_sums(self, model: EncoderWithHeads, batch: SourceTargetBatch) -> dict[str, Tensor]:
        """Return the summed loss by name, as the training loop takes it."""
        return {self.name: self._loss(model, batch, self._memory(model, batch), self.label_smoothing)}

    @torch.no_grad()
    def outputs(self, model: EncoderWithHeads, batch: SourceTargetBatch) -> BatchOutputs:
        """Return the tokens that a search finds, (tokens, 1), and the loss where there are labels."""
        hidden, layout = memory = self._memory(model, batch)
        loss = None if batch.labels is None else self._loss(model, batch, memory, 0.0)
        *begin, end = batch.marks[0].tolist()
        texts = decode_sources(model, hidden, layout, self.generation, begin=begin, end=end)
        ids = [[*text.token_ids, end] for text in texts]
        rows = torch.tensor([token for text in ids for token in text], dtype=torch.float64).unsqueeze(1)
        return BatchOutputs(rows, loss, np.array([len(text) for text in ids], dtype=np.int64))

    def _memory(self, model: EncoderWithHeads, batch: SourceTargetBatch) -> _Memory:
        device = model_device(model)
        layout = SequenceLayout.from_lengths(batch.lengths, device)
        ids, segments = to_device(batch.token_ids, device), to_device(batch.segment_ids, device)
        return model.encoder.encode_packed(ids, segments, layout).last_hidden_state, layout

    def _loss(self, model: EncoderWithHeads, batch: SourceTargetBatch, memory: _Memory, smoothing: float) -> Tensor:
        head, (hidden, source) = cast(TransformerDecoder, model.heads[self.head]), memory
        layout = SequenceLayout.from_lengths(batch.target_lengths, hidden.device)
        vectors = head(to_device(batch.target_ids, hidden.device), layout, hidden, source)
        return head.loss_sum(vectors, label_tensor(batch, vectors), smoothing)
