"""Baselines that need no model, on the same targets as an evaluation, to compare a loss with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from maskloom.data.corpus.opening import Corpus
from maskloom.data.streams.sentence_pairs import pair_task_of

_CHUNK = 1 << 22  # tokens counted at a time


class TokenFrequencies:
    """Predicts tokens by their frequencies in the training documents, and pairs by the most common answer.

    As in an objective's evaluation, sums are added over batches and then turned into metrics; a subclass may compute
    others. With `tells_text` every token of a text is predicted: the loss is also reported in bits per character. In
    running text (with `is_running`, or if the tokenizer has no segments) so are the marks of documents.
    """

    def __init__(
        self, part: str, corpus: Corpus, documents: np.ndarray, *, tells_text: bool = False, is_running: bool = False
    ) -> None:
        """Count the tokens of `documents`; `part` names the loss."""
        self._part, self._tells_text = part, tells_text
        self._num_characters = corpus.vocabulary.num_characters
        counts = np.ones(len(corpus.vocabulary))
        if is_running or (tells_text and not corpus.tokenizer.has_segments):
            marks = corpus.tokenizer.running_text
            counts[[*marks.begin, *marks.end]] += len(documents)
        starts = corpus.sentence_offsets[corpus.document_offsets]
        is_counted = np.zeros(corpus.num_documents, dtype=bool)
        is_counted[documents] = True
        # whole documents, so many at a time that the size of the vocabulary does not matter
        edges = np.searchsorted(starts, [*range(0, corpus.num_tokens, _CHUNK), corpus.num_tokens])
        for first, last in pairwise(edges.tolist()):
            tokens = corpus.sentences(*corpus.document_offsets[[first, last]].tolist())
            is_read = np.repeat(is_counted[first:last], np.diff(starts[first : last + 1]))
            counts += np.bincount(tokens[is_read], minlength=len(counts))
        self._log_frequencies = np.log(counts / counts.sum())

    def sums(self, batch: Any) -> dict[str, float]:
        """Return the summed loss on a batch, and the numbers of targets, characters, random pairs and pairs."""
        pairs = np.empty(0) if batch.nsp_labels is None else batch.nsp_labels
        return {
            "nats": -float(self._log_frequencies[batch.mlm_labels].sum()),
            "targets": len(batch.mlm_labels),
            "characters": int(self._num_characters[batch.mlm_labels].sum()),
            "random_pairs": int(pairs.sum()),
            "pairs": len(pairs),
        }

    def metrics(self, sums: Mapping[str, float], found: Mapping[str, float]) -> dict[str, float]:
        """Return the cross-entropy in nats, the number of predictions, and the majority fraction of pairs."""
        targets, metrics = max(sums["targets"], 1), {}
        if self._tells_text:  # characters of the predicted text as the tokenizer normalises it
            nats = found[f"{self._part}_loss"] * targets
            metrics[f"{self._part}_bits_per_character"] = nats / max(sums["characters"], 1) / math.log(2)
        metrics |= {"unigram_cross_entropy": sums["nats"] / targets, "num_predictions": sums["targets"]}
        if sums["pairs"] and (pair_task := pair_task_of(found)):
            fraction = sums["random_pairs"] / sums["pairs"]
            metrics[f"{pair_task}_majority_fraction"] = max(fraction, 1.0 - fraction)
        return metrics
