"""Losses of one tag per word, on its first token: independent, as a chain, on frozen vectors (BERT paper 4.3, 5.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import FeatureBatch, PackedBatch, TokenBatch
from maskloom.layers.copies import to_device
from maskloom.layers.crf import LinearChainCRF
from maskloom.layers.layer_mix import LayerCombination
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.heads import BiLSTMTagger
from maskloom.objectives.classification import SingleLabelClassification
from maskloom.objectives.objective import (
    NOT_SCORED,
    BatchOutputs,
    TaskObjective,
    encode_batch,
    label_tensor,
    labels_of,
    model_device,
)

_OFF_PATH = -30.0
_FORBIDDEN = -1e4


@dataclass(frozen=True)
class Tagging(SingleLabelClassification):
    """Cross-entropy over tags at the tokens that have a label; the others, labelled -100, are ignored."""

    name: ClassVar[str] = "tagging"
    head: ClassVar[str] = "tagger"
    reads_tokens: ClassVar[bool] = True


@dataclass(frozen=True)
class CrfTagging(TaskObjective):
    """Negative log likelihood of the tags of each chain: a conditional random field (a row of the paper's Table 3).

    A chain is the words of a sentence, at their first pieces. The weight of a batch is its number of tags, so that
    losses are comparable with those of `Tagging`. The outputs to score and decode are rows of twice the number of tags:
    the marginal log probability of each tag, then 0 for the tag on the best path and -30 for the others, so that rows
    of several models can be averaged like any logits. Tokens outside chains have zeros. `forbidden` are pairs of
    consecutive tags that the best path must not contain; -1 is the start as the first tag and the end as the second.
    Training and probabilities ignore `forbidden`.
    """

    forbidden: tuple[tuple[int, int], ...] = ()

    name: ClassVar[str] = "tagging"
    head: ClassVar[str] = "tagger"
    reads_tokens: ClassVar[bool] = True

    def num_targets(self, labels: np.ndarray) -> float:
        """Return the number of labelled tokens."""
        return (labels != NOT_SCORED).sum()

    def loss_sums(self, model: EncoderWithHeads, batch: TokenBatch) -> dict[str, Tensor]:
        """Return the summed negative log likelihood of all chains, in nats."""
        return {self.name: self._loss_sum(model, self.logits(model, batch), batch)}

    def loss_sum_of(self, logits: Tensor, batch: TokenBatch) -> Tensor:
        """Return the summed negative marginal log probability of the tags; that of a chain needs the model."""
        alone = logits[:, : logits.shape[1] // 2]
        return F.cross_entropy(alone, label_tensor(batch, logits), ignore_index=NOT_SCORED, reduction="sum")

    def outputs(self, model: EncoderWithHeads, batch: TokenBatch) -> BatchOutputs:
        """Return log probabilities and best paths, with the loss if there are labels."""
        crf, logits, (where, lengths) = _crf(model), self.logits(model, batch), _chains(batch)
        places, chains = to_device(where, logits.device), SequenceLayout.from_lengths(lengths, logits.device)
        emissions = logits[places]
        best = F.one_hot(crf.best_tags(emissions, chains, self._penalties(crf)), crf.num_tags)
        rows = logits.new_zeros((len(logits), 2 * crf.num_tags))
        rows[places] = torch.cat([crf.log_marginals(emissions, chains), _OFF_PATH * (1 - best.to(logits.dtype))], dim=1)
        return BatchOutputs(rows, None if batch.labels is None else self._loss_sum(model, logits, batch))

    def _penalties(self, crf: LinearChainCRF) -> Tensor | None:
        if not self.forbidden:
            return None
        penalties = np.zeros((crf.num_tags + 1, crf.num_tags + 1), dtype=np.float32)
        penalties[tuple(np.transpose(self.forbidden))] = _FORBIDDEN
        return to_device(penalties, crf.start.device)

    def _loss_sum(self, model: EncoderWithHeads, logits: Tensor, batch: TokenBatch) -> Tensor:
        labels, device = labels_of(batch), logits.device
        where, lengths = _chains(batch, labels != NOT_SCORED)
        places, tags = to_device(where, device), to_device(labels[where], device)
        return _crf(model).loss_sum(logits[places], tags, SequenceLayout.from_lengths(lengths, device))


class _OnFrozenVectors(TaskObjective):
    """The head "bilstm_tagger" on words of chains (Table 7); frozen vectors are in the batch or from the encoder."""

    def logits(self, model: EncoderWithHeads, batch: TokenBatch) -> Tensor:
        """Return a score per tag for every token, (tokens, tags); zeros outside chains."""
        head, (where, lengths) = cast(BiLSTMTagger, model.heads["bilstm_tagger"]), _chains(batch)
        device = model_device(model)
        if isinstance(batch, FeatureBatch):
            vectors = to_device(batch.features, device)
        else:
            vectors = frozen_vectors(model, batch, where, head.combination)
        words = None if batch.word_vectors is None else to_device(batch.word_vectors[where], device)
        scores = head(vectors, SequenceLayout.from_lengths(lengths, device), words).float()
        return scores.new_zeros((len(batch.token_ids), head.num_labels)).index_copy(0, to_device(where, device), scores)


@dataclass(frozen=True)
class FeatureTagging(_OnFrozenVectors, Tagging):
    """`Tagging` on the vectors of a frozen encoder."""


@dataclass(frozen=True)
class FeatureCrfTagging(_OnFrozenVectors, CrfTagging):
    """`CrfTagging` on the vectors of a frozen encoder."""


@torch.no_grad()
def frozen_vectors(
    model: EncoderWithHeads, batch: PackedBatch, positions: np.ndarray, combination: LayerCombination
) -> Tensor:
    """Return the vectors of the tokens at `positions` of a batch, (positions, vectors, width), without dropout."""
    model.encoder.eval()
    states = encode_batch(model, batch, keep_hidden_states=True).hidden_states
    assert states is not None
    return combination.select(states, to_device(positions, model_device(model))).float()


def _crf(model: EncoderWithHeads) -> LinearChainCRF:
    return cast(LinearChainCRF, model.heads["crf"])


def _chains(batch: TokenBatch, chosen: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the tokens of chains (or of the `chosen` tokens), and their number in each chain."""
    where = np.flatnonzero(batch.chains >= 0 if chosen is None else chosen)
    return where, np.unique(batch.chains[where], return_counts=True)[1]
