"""Tagging on vectors of a frozen encoder, which are computed once and read from disk (BERT paper 5.4, Table 7)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from maskloom.data.batch import FeatureBatch, PackedBatch, TokenBatch, ranges
from maskloom.data.feature_files import FeatureFile
from maskloom.objectives.tagging import CrfTagging, FeatureCrfTagging, FeatureTagging
from maskloom.tasks.encoding import EncodedData, EncodedExamples
from maskloom.tasks.settings import FeaturesSection
from maskloom.tasks.tagging.encoding import EncodedSentences
from maskloom.tasks.task import Task
from maskloom.text.word_vectors import WordVectors, read_vectors

HEAD = "bilstm_tagger"
_UNITS_AT_ONCE = 512


@dataclass(frozen=True)
class FeatureUnits:
    """Encoded text in units, with the positions of the tokens whose vectors are stored.

    `lengths` (units,) are in tokens; `positions(indices)` returns the units packed in that order, the ascending
    positions of the selected tokens, and their number in each unit.
    """

    lengths: np.ndarray
    positions: Callable[[np.ndarray], tuple[PackedBatch, np.ndarray, np.ndarray]]


def _of_tokens(encoded: EncodedData, is_taken: Callable[[Any], np.ndarray]) -> FeatureUnits:
    """Return units with the tokens that `is_taken` selects, as a mask (tokens,) of their batch."""

    def positions(indices: np.ndarray) -> tuple[PackedBatch, np.ndarray, np.ndarray]:
        batch = encoded.batch(indices)
        taken, starts = is_taken(batch), np.cumsum(batch.lengths) - batch.lengths
        return batch, np.flatnonzero(taken), np.add.reduceat(taken, starts, dtype=np.int64)

    return FeatureUnits(encoded.lengths, positions)


def chain_words(encoded: EncodedSentences) -> FeatureUnits:
    """Return windows of sentences as units, with the first pieces of the words in their chains, as a tagger reads."""
    return _of_tokens(encoded, lambda batch: batch.chains >= 0)


def all_tokens(encoded: EncodedExamples, is_kept: np.ndarray | None = None) -> FeatureUnits:
    """Return texts or pairs as units, with all of their tokens, special ones included, or only the selected ones.

    `is_kept` (vocabulary,) selects ids; they must include the first token of every text.
    """
    return _of_tokens(encoded, lambda batch: batch.token_ids >= 0 if is_kept is None else is_kept[batch.token_ids])


def sentence_words(encoded: EncodedSentences) -> FeatureUnits:
    """Return separately encoded sentences as units, with each word's first piece in the window that scores it."""
    # the first window of each sentence and, at the end, the number of windows
    starts = np.searchsorted(encoded.windows[:, 2], encoded.sentence_starts)

    def positions(indices: np.ndarray) -> tuple[PackedBatch, np.ndarray, np.ndarray]:
        windows = ranges(starts[indices], starts[indices + 1] - starts[indices])
        batch = encoded.batch(windows)
        starts_of = zip(windows.tolist(), (np.cumsum(batch.lengths) - batch.lengths).tolist(), strict=True)
        found = [start + encoded.word_places(window) for window, start in starts_of]
        return batch, np.concatenate(found), np.diff(encoded.sentence_starts)[indices]

    lengths = np.add.reduceat(encoded.lengths, starts[:-1]) if len(starts) > 1 else np.empty(0, np.int64)
    return FeatureUnits(lengths, positions)


def row_counts(units: FeatureUnits) -> tuple[np.ndarray, str]:
    """Return the row count of each unit, (units,), and a SHA-256 over tokens, segments and positions of all units."""
    digest, counts = hashlib.sha256(), [np.empty(0, dtype=np.int64)]
    for first in range(0, len(units.lengths), _UNITS_AT_ONCE):
        batch, positions, count = units.positions(np.arange(first, min(first + _UNITS_AT_ONCE, len(units.lengths))))
        for array in (batch.token_ids, batch.segment_ids, batch.lengths, positions, count):
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        counts.append(count)
    return np.concatenate(counts), digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class FeatureSentences(EncodedSentences):
    """Encoded sentences whose batches include the vectors that `features` has for the words of `chain_words`."""

    features: FeatureFile

    def batch(self, indices: np.ndarray) -> TokenBatch:
        """Return the windows at these indices, packed, with the vectors of the words in their chains."""
        return FeatureBatch(**vars(super().batch(indices)), features=self.features.rows(indices))


@lru_cache(maxsize=2)
def _opened(path: Path, _changed: int) -> WordVectors:
    return read_vectors(path)


def _encode_with_vectors(encode: Callable[..., Any], vectors: WordVectors, *given: Any, **named: Any) -> Any:
    """Return encoded sentences with the vector row of each word, looked up as written, then in lower case."""
    encoded = cast(EncodedSentences, encode(*given, **named))
    words = [word for sentence in encoded.sentences for word in sentence.words]
    places = vectors.places
    rows = [places.get(word, places.get(word.lower(), -1)) for word in words]
    return replace(encoded, vectors=(vectors.matrix, np.array(rows, dtype=np.int64)))


def on_features(task: Task, features: FeaturesSection, mix_layer_norm: bool) -> Task:
    """Return a tagging task that trains a BiLSTM on vectors of a frozen encoder."""
    options = features.model_dump(exclude={"precision", "word_vectors"})
    if mix_layer_norm:
        options["mix_layer_norm"] = True
    encode, has_crf = task.encode, isinstance(task.objective, CrfTagging)
    if features.word_vectors is not None:
        path = Path(features.word_vectors)
        vectors = _opened(path, path.stat().st_mtime_ns if path.exists() else 0)
        options["word_size"] = vectors.matrix.shape[1]
        encode = partial(_encode_with_vectors, encode, vectors)
    return replace(
        task,
        encode=encode,
        heads=(HEAD, "crf") if has_crf else (HEAD,),
        objective=(FeatureCrfTagging if has_crf else FeatureTagging)(**vars(task.objective)),
        head_options={HEAD: options},
        published_config={**task.published_config, "maskloom_heads": {HEAD: options}},
        freezes_encoder=True,
    )
