"""Bidirectional language modelling on characters, with state carried from batch to batch (Peters et al. 2018, 3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from maskloom.layers.attention import Kept
from maskloom.layers.copies import to_device
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.elmo import Elmo
from maskloom.models.heads import BidirectionalLMHead
from maskloom.objectives.masked_lm import CarriedLanguageModeling, scores_of
from maskloom.objectives.objective import model_device

_WAYS = ("forward", "backward")


@dataclass(frozen=True)
class BidirectionalLanguageModeling(CarriedLanguageModeling):
    """Mean of the cross-entropies of the next and the previous word; both directions share characters and softmax.

    The softmax is exact, over the whole vocabulary in blocks, so that training and evaluation compute the same loss.
    Differs from the paper, whose code samples 8,192 of 793,471 words, which our smaller vocabularies do not need.
    """

    def target_counts(self, batch: Any) -> dict[str, float]:
        """Return the number of predictions in both directions."""
        return {self.part: 2.0 * len(batch.mlm_labels)}

    def loss_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, Tensor]:
        """Return the summed loss of both directions in nats."""
        hidden, labels = self._predictions(model, batch)
        return {self.part: _head(model).loss_sum(torch.cat(hidden), torch.cat(labels))}

    def evaluation_sums(self, model: EncoderWithHeads, batch: Any) -> dict[str, float]:
        """Return the loss sum of each direction, the number of correct predictions and the number of words."""
        sums: dict[str, float] = {"count": len(batch.mlm_labels)}
        for way, hidden, labels in zip(_WAYS, *self._predictions(model, batch), strict=True):
            sums |= scores_of(_head(model), hidden, labels, way)
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
        encoder, device = cast(Elmo, model.encoder), model_device(model)
        distinct, places = np.unique(np.concatenate([batch.token_ids, batch.backward_ids]), return_inverse=True)
        spelled = batch.spelling.take(distinct)
        characters, _, _ = encoder.spelled(spelled.flat, np.diff(spelled.edges))
        vectors = encoder.embeddings.characters(to_device(characters, device))  # pyright: ignore[reportCallIssue]
        read = vectors.index_select(0, to_device(places, device)).chunk(2)
        past = [Kept(state) for state in batch.carry]
        layout = SequenceLayout.from_lengths(batch.lengths, device)
        states = encoder.encode_words(torch.cat(read, 1), layout, past, is_reversed=True)
        batch.after = tuple(kept.kept.detach() for kept in past)
        hidden = encoder.final_norm(states[-1]).chunk(2, 1)
        return [*hidden], [to_device(labels, device) for labels in (batch.mlm_labels, batch.backward_labels)]


def _head(model: EncoderWithHeads) -> BidirectionalLMHead:
    return cast(BidirectionalLMHead, model.heads["bilm"])
