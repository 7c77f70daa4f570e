"""How many sentences of a corpus repeat an earlier one, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskloom.data.corpus import Corpus
from maskloom.data.corpus_statistics import sentence_blocks

_MAX_KEPT = 1 << 22
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_LENGTH_FACTOR = np.uint64(0xC2B2AE3D27D4EB4F)
_LAST_POSITION = 1 << 16


@dataclass(frozen=True)
class RepeatedSentences:
    """`share` of the sentences that an earlier one equals; the most frequent, by index, and how often it occurs."""

    share: float
    example: int
    num_example: int


def repeated_sentences(corpus: Corpus) -> RepeatedSentences:
    """Compare sentences by a 64-bit hash of their ids.

    Of more than four million sentences those with some values of the hash stand for all: equal sentences are kept or
    left out together, so the share of repetitions is estimated without bias.
    """
    powers = _powers()
    stride = np.uint64(-(-corpus.num_sentences // _MAX_KEPT))
    hashes, places = [], []
    for block in sentence_blocks(corpus):
        found = _hashes(corpus, block, powers)
        kept = np.flatnonzero(found % stride == 0)
        hashes.append(found[kept])
        places.append(kept + block.start)
    values, first, counts = np.unique(np.concatenate(hashes), return_index=True, return_counts=True)
    if not len(values):
        return RepeatedSentences(0.0, 0, 1)
    most = int(counts.argmax())
    share = 1.0 - len(values) / int(counts.sum())
    return RepeatedSentences(share, int(np.concatenate(places)[first[most]]), int(counts[most]))


def _powers() -> np.ndarray:
    """Return powers of an odd number modulo 2**64, one for each position; later positions share the last."""
    factors = np.full(_LAST_POSITION, _MULTIPLIER, dtype=np.uint64)
    return np.multiply.accumulate(factors)


def _hashes(corpus: Corpus, block: slice, powers: np.ndarray) -> np.ndarray:
    """Return (sentences,) uint64: sums of mixed ids times powers of their position, computed with wrap-around."""
    lengths = corpus.sentence_lengths[block].astype(np.int64)
    hashes = np.empty(len(lengths), dtype=np.uint64)
    # sentences are taken in runs of bounded numbers of tokens, whatever their lengths
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + (1 << 20))))
        tokens = corpus.sentences(block.start + first, block.start + last).astype(np.uint64)
        starts = np.cumsum(lengths[first:last]) - lengths[first:last]
        positions = np.arange(len(tokens)) - np.repeat(starts, lengths[first:last])
        mixed = _mix(tokens + np.uint64(1)) * powers[np.minimum(positions, _LAST_POSITION - 1)]
        hashes[first:last] = _mix(
            np.add.reduceat(mixed, starts) + lengths[first:last].astype(np.uint64) * _LENGTH_FACTOR
        )
        first = last
    return hashes


def _mix(values: np.ndarray) -> np.ndarray:
    """Spread every bit of 64-bit integers over all others (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
