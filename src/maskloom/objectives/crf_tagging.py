"""Loss of whole tag sequences: a conditional random field on a tagger's scores (a row of the paper's Table 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.data.batch import TokenBatch
from maskloom.layers.crf import LinearChainCRF, Penalties
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.tagging import NOT_SCORED
from maskloom.objectives.task_objective import BatchOutputs, TaskObjective, encode_batch, label_tensor, labels_of

_OFF_PATH = -30.0
_FORBIDDEN = -1e4


@dataclass(frozen=True)
class CrfTagging(TaskObjective):
    """Negative log likelihood of the tags of each chain: the words of a sentence, on their first pieces.

    The weight of a batch is its number of tags, so that losses compare with those of `Tagging`. What is scored and
    decoded are rows of twice the number of tags: log probabilities of each tag with all else summed out, then 0 for the
    tag on the best path and -30 for the others, so that rows of several models can be averaged like any logits. Tokens
    outside chains have zeros. `forbidden` are pairs of tags that the best path never takes one after the other; -1
    stands for the start as the first and for the end as the second. Training and probabilities do not know of it.
    """

    forbidden: tuple[tuple[int, int], ...] = ()

    name: ClassVar[str] = "tagging"

    def target_counts(self, batch: TokenBatch) -> dict[str, float]:
        """Return the number of labelled tokens."""
        return {self.name: float((labels_of(batch) != NOT_SCORED).sum())}

    def row_counts(self, batch: TokenBatch) -> np.ndarray:
        """Return the number of tokens of each sequence."""
        return batch.lengths

    def logits(self, model: EncoderWithHeads, batch: TokenBatch) -> Tensor:
        """Return the scores of tags before the field, (tokens, tags)."""
        return model.heads["tagger"](encode_batch(model, batch).last_hidden_state).float()

    def loss_sums(self, model: EncoderWithHeads, batch: TokenBatch) -> dict[str, Tensor]:
        """Return the summed negative log likelihood of all chains, in nats."""
        return {self.name: self._loss_sum(model, self.logits(model, batch), batch)}

    def loss_sum_of(self, logits: Tensor, batch: TokenBatch) -> Tensor:
        """Return the summed negative log probability of each tag by itself: all that rows of `outputs` tell.

        The loss of a chain needs the model; `loss_sums` and `outputs` have that one.
        """
        alone = logits[:, : logits.shape[1] // 2]
        return F.cross_entropy(alone, label_tensor(batch, logits), ignore_index=NOT_SCORED, reduction="sum")

    def outputs(self, model: EncoderWithHeads, batch: TokenBatch) -> BatchOutputs:
        """Return log probabilities and best paths, with the loss where there are labels."""
        crf, logits, chains = _crf(model), self.logits(model, batch), _chains(batch)
        places = np.flatnonzero(chains >= 0)
        lengths = _chain_lengths(chains[places])
        where = torch.from_numpy(places).to(logits.device)
        emissions = logits[where]
        best = _OFF_PATH * (
            1 - F.one_hot(crf.best_tags(emissions, lengths, self._penalties(crf)), crf.num_tags).to(logits.dtype)
        )
        rows = logits.new_zeros((len(logits), 2 * crf.num_tags))
        rows[where] = torch.cat([crf.log_marginals(emissions, lengths), best], dim=1)
        return BatchOutputs(rows, None if batch.labels is None else self._loss_sum(model, logits, batch))

    def _penalties(self, crf: LinearChainCRF) -> Penalties | None:
        if not self.forbidden:
            return None
        scores = np.zeros((crf.num_tags + 1, crf.num_tags + 1), dtype=np.float32)
        first, second = np.array(self.forbidden).T
        scores[first, second] = _FORBIDDEN
        found = torch.from_numpy(scores)
        return Penalties(found[-1, :-1], found[:-1, :-1], found[:-1, -1]).to(crf.start.device)

    def _loss_sum(self, model: EncoderWithHeads, logits: Tensor, batch: TokenBatch) -> Tensor:
        labels, chains = labels_of(batch), _chains(batch)
        places = np.flatnonzero(labels != NOT_SCORED)
        tags = torch.from_numpy(labels[places]).to(logits.device)
        where = torch.from_numpy(places).to(logits.device)
        return _crf(model).loss_sum(logits[where], tags, _chain_lengths(chains[places]))


def _crf(model: EncoderWithHeads) -> LinearChainCRF:
    return cast(LinearChainCRF, model.heads["crf"])


def _chains(batch: TokenBatch) -> np.ndarray:
    if batch.chains is None:
        raise ValueError("the batch does not say which tokens form a chain; a conditional random field needs that")
    return batch.chains


def _chain_lengths(numbers: np.ndarray) -> np.ndarray:
    """Return how often each of some ascending numbers stands there."""
    return np.unique(numbers, return_counts=True)[1]
