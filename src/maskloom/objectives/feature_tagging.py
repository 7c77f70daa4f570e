"""Losses of a tagger on the vectors of an encoder that does not learn (BERT paper 5.3, Table 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from maskloom.data.batch import FeatureBatch, PackedBatch, TokenBatch
from maskloom.layers.layer_mix import LayerCombination
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.bilstm_tagger import BiLSTMTagger
from maskloom.objectives.crf_tagging import CrfTagging
from maskloom.objectives.objective import model_device
from maskloom.objectives.tagging import Tagging
from maskloom.objectives.task_objective import encode_batch


@dataclass(frozen=True)
class FeatureTagging(Tagging):
    """`Tagging` by the head "bilstm_tagger", which reads the words of each chain of a batch.

    The vectors come with the batch, or from the encoder, without dropout or gradients either way.
    """

    def logits(self, model: EncoderWithHeads, batch: TokenBatch) -> Tensor:
        """Return one logit a tag for every token, (tokens, tags); zeros outside chains."""
        return _logits(model, batch)


@dataclass(frozen=True)
class FeatureCrfTagging(CrfTagging):
    """`CrfTagging` on the scores of the head "bilstm_tagger"."""

    def logits(self, model: EncoderWithHeads, batch: TokenBatch) -> Tensor:
        """Return the scores of tags before the field, (tokens, tags); zeros outside chains."""
        return _logits(model, batch)


@torch.no_grad()
def frozen_vectors(
    model: EncoderWithHeads, batch: PackedBatch, places: np.ndarray, combination: LayerCombination
) -> Tensor:
    """Return the vectors of the tokens at those places of a batch, (places, vectors, width), without dropout."""
    model.encoder.eval()
    states = encode_batch(model, batch, keep_hidden_states=True).hidden_states
    assert states is not None
    return combination.select(states, torch.from_numpy(places).to(model_device(model))).float()


def _logits(model: EncoderWithHeads, batch: TokenBatch) -> Tensor:
    if batch.chains is None:
        raise ValueError("the batch does not say which tokens form a chain; a recurrent tagger needs that")
    head = cast(BiLSTMTagger, model.heads["bilstm_tagger"])
    device = model_device(model)
    places = np.flatnonzero(batch.chains >= 0)
    if isinstance(batch, FeatureBatch):
        vectors = torch.from_numpy(batch.features).to(device)
    else:
        vectors = frozen_vectors(model, batch, places, head.combination)
    lengths = np.unique(batch.chains[places], return_counts=True)[1]
    scores = head(vectors, SequenceLayout.from_lengths(lengths, device)).float()
    rows = scores.new_zeros((len(batch.token_ids), head.num_labels))
    return rows.index_copy(0, torch.from_numpy(places).to(device), scores)
