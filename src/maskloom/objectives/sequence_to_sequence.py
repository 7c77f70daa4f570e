"""The loss of a target given its source (Vaswani et al. 2017, 3.1, 5.4), decoding (6.1), and the loss of denoising."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from maskloom.data.batch import SourceTargetBatch
from maskloom.generation.search import Continuation, DecodingStep, Generation
from maskloom.generation.sources import decode_sources
from maskloom.layers.copies import to_device
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.transformer import TransformerDecoder
from maskloom.objectives.masked_lm import MaskedLanguageModeling, scores_of
from maskloom.objectives.objective import BatchOutputs, TaskObjective, check_ids, label_tensor, labels_of, packed_inputs

# The encoder's packed output vectors and their layout.
_Memory = tuple[Tensor, SequenceLayout]


@dataclass(frozen=True)
class SequenceToSequence(TaskObjective):
    """Label-smoothed cross-entropy of each target token given the earlier ones and the source, in nats.

    The outputs to score and decode are generated texts: one row per token, including a target's end token. The `loss`
    of an evaluation has no label smoothing.
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
        """Return the summed loss by name, as the training loop expects it."""
        return {self.name: self._loss(model, batch, _encoded(model, batch), self.label_smoothing)}

    @torch.no_grad()
    def outputs(self, model: EncoderWithHeads, batch: SourceTargetBatch) -> BatchOutputs:
        """Return the generated tokens, (tokens, 1), and the loss if there are labels."""
        memory = _encoded(model, batch)
        loss = None if batch.labels is None else self._loss(model, batch, memory, 0.0)
        texts, end = self.found(model, batch, memory=memory), int(batch.marks[0, -1])
        ids = [[*text.token_ids, end] for text in texts]
        rows = torch.tensor([token for text in ids for token in text], dtype=torch.float64).unsqueeze(1)
        return BatchOutputs(rows, loss, np.array([len(text) for text in ids], dtype=np.int64))

    @torch.inference_mode()
    def found(
        self,
        model: EncoderWithHeads,
        batch: SourceTargetBatch,
        steps: list[DecodingStep] | None = None,
        memory: _Memory | None = None,
    ) -> list[Continuation]:
        """Return the text for each source, with draws keyed by `batch.indices`; `steps` is for a single source."""
        memory, (*begin, end) = memory or _encoded(model, batch), batch.marks[0].tolist()
        numbers = batch.indices.tolist()
        return decode_sources(model, *memory, self.generation, begin=begin, end=end, numbers=numbers, steps=steps)

    def _loss(self, model: EncoderWithHeads, batch: SourceTargetBatch, memory: _Memory, smoothing: float) -> Tensor:
        head, vectors = _decoded(model, batch, memory)
        return head.loss_sum(vectors, label_tensor(batch, vectors), smoothing)


@dataclass(frozen=True)
class Restoration(MaskedLanguageModeling):
    """Cross-entropy of each token of a text given the earlier ones and its noised form (Lewis et al. 2019, 2.2)."""

    def target_counts(self, batch: SourceTargetBatch) -> dict[str, float]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the number of target tokens."""
        return {self.part: float(len(labels_of(batch)))}

    def loss_sums(self, model: EncoderWithHeads, batch: SourceTargetBatch) -> dict[str, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the summed loss in nats."""
        head, vectors = _decoded(model, batch, _encoded(model, batch))
        return {self.part: head.loss_sum(vectors, label_tensor(batch, vectors))}

    def evaluation_sums(self, model: EncoderWithHeads, batch: SourceTargetBatch) -> dict[str, float]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the loss sum, the number of correct predictions and the number of labels."""
        head, vectors = _decoded(model, batch, _encoded(model, batch))
        return scores_of(head.logits, vectors, label_tensor(batch, vectors), self.part)


def _encoded(model: EncoderWithHeads, batch: SourceTargetBatch) -> _Memory:
    ids, segments, layout = packed_inputs(model, batch)
    return model.encoder.encode_packed(ids, segments, layout).last_hidden_state, layout


def _decoded(model: EncoderWithHeads, batch: SourceTargetBatch, memory: _Memory) -> tuple[TransformerDecoder, Tensor]:
    """Return the decoder and its vectors at the tokens of the targets."""
    head, (hidden, source) = cast(TransformerDecoder, model.heads["decoder"]), memory
    check_ids("target", batch.target_ids, model.config.vocab_size)
    check_ids("label", labels_of(batch), model.config.vocab_size)
    layout = SequenceLayout.from_lengths(batch.target_lengths, hidden.device)
    return head, head(to_device(batch.target_ids, hidden.device), layout, hidden, source)
