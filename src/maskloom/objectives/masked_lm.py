"""Language modelling: masked or causal, with next sentences (BERT paper 3.3), carried state, both ways, or a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import PackedBatch, PretrainingBatch
from maskloom.errors import ConfigError
from maskloom.layers.attention import LayerState
from maskloom.layers.copies import to_device
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import CarriedLayer
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.encoder import EncoderOutput
from maskloom.models.heads import VocabularyHead
from maskloom.objectives.carrying import Carry
from maskloom.objectives.objective import TaskObjective, check_ids, encode_batch, model_device

if TYPE_CHECKING:
    from maskloom.models.elmo import Elmo

_ROWS = 1024  # rows whose logits an evaluation holds at once
_WAYS = ("forward", "backward")


@dataclass(frozen=True)
class MaskedLanguageModeling:
    """The masked-LM loss over predictions plus the next-sentence loss over sequences (paper 3.3.1, 3.3.2).

    The training loss is mean MLM + mean NSP; without a `pair_part` the second term is left out. `part` and `pair_part`
    name the terms and their metrics. Batches determine what they measure: with next tokens as labels, the first is a
    causal language-model loss; with swapped pairs, the second is a sentence-order loss.
    """

    part: str = "mlm"
    pair_part: str | None = "nsp"

    def target_counts(self, batch: PretrainingBatch) -> dict[str, float]:
        """Return the number of masked positions and, with next-sentence prediction, the number of sequences."""
        pairs = {self.pair_part: float(batch.num_sequences)} if self.pair_part else {}
        return {self.part: float(len(batch.mlm_labels)), **pairs}

    def loss_sums(self, model: EncoderWithHeads, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Return the summed losses in nats: `mlm` over masked positions, `nsp` over sequences."""
        hidden, pooled = self._vectors(model, batch)
        head = required_vocabulary_head(model)
        check_ids("label", batch.mlm_labels, len(head.decoder))
        sums = {self.part: head.loss_sum(hidden, to_device(batch.mlm_labels, hidden.device))}
        if self.pair_part:
            sums[self.pair_part] = _cross_entropy_sum(model.heads["nsp"](pooled), _pair_labels(batch, pooled.device))
        return sums

    def evaluation_sums(self, model: EncoderWithHeads, batch: PretrainingBatch) -> dict[str, float]:
        """Return loss sums, correct predictions and counts of both parts."""
        hidden, pooled = self._vectors(model, batch)
        head, labels = required_vocabulary_head(model), to_device(batch.mlm_labels, hidden.device)
        sums = scores_of(head, hidden, labels, self.part)
        if self.pair_part:
            sums |= scores_of(model.heads["nsp"], pooled, _pair_labels(batch, pooled.device), self.pair_part)
        return sums

    def evaluation_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Return loss (nats), accuracy and perplexity; all predictions of the evaluation have equal weight."""
        metrics: dict[str, float] = {"loss": 0.0}
        for name in filter(None, (self.part, self.pair_part)):
            count = max(sums.get(f"{name}_count", 0.0), 1.0)
            metrics[f"{name}_loss"] = sums.get(f"{name}_loss", 0.0) / count
            metrics[f"{name}_accuracy"] = sums.get(f"{name}_correct", 0.0) / count
            metrics["loss"] += metrics[f"{name}_loss"]
        metrics[f"{self.part}_perplexity"] = math.exp(min(metrics[f"{self.part}_loss"], 700.0))
        return metrics

    def _vectors(self, model: EncoderWithHeads, batch: PretrainingBatch) -> tuple[Tensor, Tensor]:
        """Return the vectors at the predictions, (predictions, hidden), and of the sequences, (sequences, hidden)."""
        if self.pair_part and batch.nsp_labels is None:
            raise ValueError(f"{self.pair_part} needs a batch with pair labels; this batch has none")
        return vectors_at(batch.mlm_positions, encode_batch(model, batch))


@dataclass(frozen=True)
class CarriedLanguageModeling(MaskedLanguageModeling):
    """Cross-entropy of every next token; a row starts from the final state of the same row of the previous batch.

    Gradients stop at the start of a row (Williams and Peng 1990; Mikolov et al. 2010). The encoder's layers are
    `CarriedLayer`s.
    """

    def first_carry(self, model: EncoderWithHeads, num_sequences: int) -> Carry:
        """Return the initial states, one per layer."""
        word, layers = model.encoder.word_embeddings, cast("Iterable[CarriedLayer]", model.encoder.layers)
        shapes = [(num_sequences, *layer.state_shape) for layer in layers]
        return tuple(torch.zeros(shape, dtype=word.dtype, device=word.device) for shape in shapes)

    def _vectors(self, model: EncoderWithHeads, batch: Any) -> tuple[Tensor, Tensor]:
        past = [LayerState(state) for state in batch.carry]
        output = encode_batch(model, batch, past=past)
        batch.after = tuple(state.tensor.detach() for state in past)
        return vectors_at(batch.mlm_positions, output)


@dataclass(frozen=True)
class BidirectionalLanguageModeling(CarriedLanguageModeling):
    """ELMo's objective: the mean of the cross-entropies of the next and the previous word (Peters et al. 2018, 3.1).

    Both directions share characters and softmax. The softmax is exact, over the whole vocabulary in blocks, so that
    training and evaluation compute the same loss.
    Differs from the paper, whose code samples 8,192 of 793,471 words, which our smaller vocabularies do not need.
    """

    def target_counts(self, batch: Any) -> dict[str, float]:
        """Return the number of predictions in both directions."""
        return {self.part: 2.0 * len(batch.mlm_labels)}

    def loss_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, Tensor]:
        """Return the summed loss of both directions in nats."""
        hidden, labels = self._predictions(model, batch)
        return {self.part: required_vocabulary_head(model).loss_sum(torch.cat(hidden), torch.cat(labels))}

    def evaluation_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, float]:
        """Return the loss sum of each direction, the number of correct predictions and the number of words."""
        sums: dict[str, float] = {"count": len(batch.mlm_labels)}
        for way, hidden, labels in zip(_WAYS, *self._predictions(model, batch), strict=True):
            sums |= scores_of(required_vocabulary_head(model), hidden, labels, way)
        return sums

    def evaluation_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Return loss (nats), accuracy, and the perplexity of the mean of both losses and of each direction."""
        count = max(sums.get("count", 0.0), 1.0)
        ways = {way: sums.get(f"{way}_loss", 0.0) / count for way in _WAYS}
        loss, correct = sum(ways.values()) / 2, sum(sums.get(f"{way}_correct", 0.0) for way in _WAYS)
        found = {f"{self.part}_loss": loss, f"{self.part}_accuracy": correct / (2 * count)}
        perplexities = {f"{self.part}_perplexity": loss} | {f"{way}_perplexity": ways[way] for way in _WAYS}
        return {"loss": loss, **found, **{name: math.exp(min(value, 700.0)) for name, value in perplexities.items()}}

    def _predictions(self, model: EncoderWithHeads, batch: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Return the states of each direction, (words, size), and the words to predict from them."""
        encoder, device = cast("Elmo", model.encoder), model_device(model)
        distinct, places = np.unique(np.concatenate([batch.token_ids, batch.backward_ids]), return_inverse=True)
        spelled = batch.spelling.take(distinct)
        characters, _, _ = encoder.spelled(spelled.flat, np.diff(spelled.edges))
        vectors = encoder.embeddings.characters(to_device(characters, device))  # pyright: ignore[reportCallIssue]
        read = vectors.index_select(0, to_device(places, device)).chunk(2)
        past = [LayerState(state) for state in batch.carry]
        layout = SequenceLayout.from_lengths(batch.lengths, device)
        states = encoder.encode_words(torch.cat(read, 1), layout, past, is_reversed=True)
        batch.after = tuple(state.tensor.detach() for state in past)
        hidden = encoder.final_norm(states[-1]).chunk(2, 1)
        return [*hidden], [to_device(labels, device) for labels in (batch.mlm_labels, batch.backward_labels)]


def vectors_at(positions: np.ndarray, output: EncoderOutput) -> tuple[Tensor, Tensor]:
    """Return the vectors of the tokens at some positions, (positions, hidden), and of the sequences."""
    hidden = output.last_hidden_state
    return hidden.index_select(0, to_device(positions, hidden.device)), output.pooled


def required_vocabulary_head(model: EncoderWithHeads) -> VocabularyHead:
    """Return the head that returns logits over the vocabulary; raises ConfigError for a model without one."""
    if (head := model.vocabulary_head) is None:
        raise ConfigError(f"a language model needs a head over the vocabulary; this one has {', '.join(model.heads)}")
    return head


def scores_of(logits_of: Callable[[Tensor], Tensor], vectors: Tensor, labels: Tensor, name: str) -> dict[str, float]:
    """Return the loss sum in nats, the number of correct predictions and their count, from blocks of logits."""
    loss = correct = 0.0
    for rows, targets in zip(vectors.split(_ROWS), labels.split(_ROWS), strict=True):
        logits = logits_of(rows)
        loss += float(_cross_entropy_sum(logits, targets))
        correct += float((logits.argmax(-1) == targets).sum())
    return {f"{name}_loss": loss, f"{name}_correct": correct, f"{name}_count": float(len(labels))}


def _pair_labels(batch: PretrainingBatch, device: torch.device) -> Tensor:
    return to_device(cast(np.ndarray, batch.nsp_labels), device)


def _cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed loss in nats; half precision is widened to single, double stays double."""
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="sum")


@dataclass(frozen=True)
class WithLanguageModel:
    """The loss of a task plus `weight` (the paper's lambda) times the loss of predicting every next token, in nats.

    The latter is the mean over sequences of the mean over a sequence's tokens except the first, as in the published
    code. For training only, on tasks that read the pooled vectors of sequences.
    """

    objective: TaskObjective
    weight: float

    def target_counts(self, batch: Any) -> dict[str, float]:
        """Return the counts of the task, and the number of sequences that have a next token."""
        return {**self.objective.target_counts(batch), "lm": float(max(1, np.count_nonzero(batch.lengths > 1)))}

    def loss_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, Tensor]:
        """Return the summed losses by name; `lm` is weighted."""
        output = encode_batch(model, batch)
        loss = self.objective.loss_sum_of(self.objective.head_logits(model, output, batch), batch)
        positions, labels, weights = _next_tokens(batch)
        hidden, _ = vectors_at(positions, output)
        device = hidden.device
        head = required_vocabulary_head(model)
        lm = head.loss_sum(hidden, to_device(labels, device), to_device(weights * self.weight, device))
        return {self.objective.name: loss, "lm": lm}


def _next_tokens(batch: PackedBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return every position that has a next token, that token, and 1 over the number of them in the sequence."""
    ends = np.cumsum(batch.lengths)
    has_next = np.ones(batch.num_tokens, dtype=bool)
    has_next[ends[batch.lengths > 0] - 1] = False
    positions = np.flatnonzero(has_next)
    counts = np.maximum(batch.lengths - 1, 0)
    weights = np.repeat(1.0 / np.maximum(counts, 1), counts).astype(np.float32)
    return positions, batch.token_ids[positions + 1], weights
