"""Compute statistics of a corpus in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from maskloom.data.batch import ranges
from maskloom.data.corpus.opening import Corpus
from maskloom.data.counter_random import mixed

_PERCENTILES = (5, 25, 50, 75, 95, 99)
_BLOCK = 1 << 20
_NUM_FREQUENT = 20
_MAX_KEPT = 1 << 22


def corpus_statistics(corpus: Corpus) -> dict[str, Any]:
    """Return counts, lengths, unknown-token rate, unigram entropy, frequent tokens and sizes of a corpus.

    Lengths are in tokens unless the name says otherwise; `unigram_entropy` is in nats per token: the loss of a model
    that knows only how frequent each token is. Memory use does not grow with the corpus, except for 8 bytes per
    document.
    """
    counts = token_counts(corpus)
    sentence_lengths = corpus.sentence_lengths
    length_counts = np.zeros(int(sentence_lengths.max()) + 1, dtype=np.int64)
    for block in sentence_blocks(corpus):
        counted = np.bincount(sentence_lengths[block])
        length_counts[: len(counted)] += counted
    order = np.argsort(-counts, kind="stable")[:_NUM_FREQUENT]
    tokens = corpus.vocabulary.tokens
    return {
        "num_documents": corpus.num_documents,
        "num_sentences": corpus.num_sentences,
        "num_tokens": corpus.num_tokens,
        "tokens_per_document": _described(np.bincount(document_lengths(corpus))),
        "sentences_per_document": _described(np.bincount(np.diff(corpus.document_offsets))),
        "tokens_per_sentence": _described(length_counts),
        "unknown_rate": num_unknown(counts, corpus) / corpus.num_tokens,
        "unigram_entropy": unigram_entropy(counts),
        "num_distinct_tokens": int((counts > 0).sum()),
        "vocabulary_size": len(tokens),
        "most_frequent_tokens": {tokens[index]: int(counts[index]) for index in order.tolist() if counts[index]},
        "num_bytes": sum(entry["num_bytes"] for entry in corpus.manifest["files"].values()),
        "num_shards": len(corpus.manifest["shards"]),
        "num_duplicate_documents": corpus.manifest["num_duplicate_documents"],
        "num_empty_documents": corpus.manifest["num_empty_documents"],
        "num_skipped_documents": corpus.manifest["num_skipped_documents"],
    }


def token_counts(corpus: Corpus) -> np.ndarray:
    """Return (vocabulary,) int64: how often each token occurs."""
    counts = np.zeros(len(corpus.vocabulary), dtype=np.int64)
    for number in range(len(corpus.manifest["shards"])):
        shard = corpus.shards.shard(number)
        for start in range(0, len(shard), _BLOCK):
            counts += np.bincount(shard[start : start + _BLOCK], minlength=len(counts))
    return counts


def num_unknown(counts: np.ndarray, corpus: Corpus) -> int:
    """Return the number of unknown tokens: 0 if the vocabulary has no such token, because it covers every byte."""
    return 0 if corpus.vocabulary.special.unknown is None else int(counts[corpus.vocabulary.unk_id])


def unigram_entropy(counts: np.ndarray) -> float:
    """Return the entropy in nats of the token distribution that `counts` define."""
    fractions = counts[counts > 0] / counts.sum()
    return float(-(fractions * np.log(fractions)).sum())


def document_lengths(corpus: Corpus) -> np.ndarray:
    """Return (documents,) int64: the number of tokens in each document."""
    return np.diff(corpus.sentence_offsets[corpus.document_offsets])


def sentence_blocks(corpus: Corpus) -> Iterator[slice]:
    """Yield slices that together cover all sentences of the corpus, of a million tokens or one sentence at most."""
    offsets, first = corpus.sentence_offsets, 0
    while first < corpus.num_sentences:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + _BLOCK, side="right")) - 1)
        yield slice(first, last)
        first = last


def _described(counts: np.ndarray) -> dict[str, float]:
    """Return mean, percentiles, minimum and maximum of lengths, where `counts[length]` is how often each occurs."""
    totals = np.cumsum(counts)
    present = np.flatnonzero(counts)
    described = {"mean": float((counts * np.arange(len(counts))).sum() / totals[-1])}
    for percentile in _PERCENTILES:
        # nearest-rank percentile: a length that does occur
        rank = max(1, int(np.ceil(percentile / 100 * totals[-1])))
        described[f"p{percentile}"] = int(np.searchsorted(totals, rank))
    return described | {"min": int(present[0]), "max": int(present[-1])}


def repeated_sentences(corpus: Corpus) -> tuple[float, int, int]:
    """Return the fraction of sentences that repeat an earlier one, and index and count of the most frequent one.

    Sentences are compared by 64-bit hashes: sums of mixed ids and positions. A corpus of more than four million
    sentences is sampled by hash value: equal sentences are kept or dropped together, so the estimate of the fraction is
    unbiased.
    """
    stride = np.uint64(-(-corpus.num_sentences // _MAX_KEPT))
    hashes, positions = [], []
    for block in sentence_blocks(corpus):
        lengths = corpus.sentence_lengths[block].astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        tokens = corpus.sentences(block.start, block.stop).astype(np.uint64)
        places = ranges(1, lengths)
        found = np.add.reduceat(mixed(tokens | places.astype(np.uint64) << np.uint64(32)), starts)
        kept = np.flatnonzero(found % stride == 0)
        hashes.append(found[kept])
        positions.append(kept + block.start)
    values, first, counts = np.unique(np.concatenate(hashes), return_index=True, return_counts=True)
    if not len(values):
        return 0.0, 0, 1
    most = int(counts.argmax())
    fraction = 1.0 - len(values) / int(counts.sum())
    return fraction, int(np.concatenate(positions)[first[most]]), int(counts[most])
