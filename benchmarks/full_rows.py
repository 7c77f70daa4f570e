"""Random batches of full rows, for timing steps regardless of what they learn."""

from __future__ import annotations

import numpy as np

from maskloom.data.batch import PretrainingBatch

VOCABULARY, LENGTH = 30_522, 128
PREDICTED = 0.15625  # the published fraction: 20 of 128 positions


def full_rows(
    num_sequences: int, length: int = LENGTH, *, vocabulary: int = VOCABULARY, seed: int = 0
) -> PretrainingBatch:
    """Return rows of equal length without padding, each with the published fraction of positions to predict."""
    draw = np.random.default_rng(seed)
    num_tokens, num_predictions = num_sequences * length, round(PREDICTED * length)
    positions = np.stack([np.sort(draw.choice(length, num_predictions, replace=False)) for _ in range(num_sequences)])
    return PretrainingBatch(
        token_ids=draw.integers(1000, vocabulary, num_tokens),
        segment_ids=np.zeros(num_tokens, dtype=np.int64),
        lengths=np.full(num_sequences, length),
        mlm_positions=(positions + length * np.arange(num_sequences)[:, None]).reshape(-1),
        mlm_labels=draw.integers(1000, vocabulary, num_sequences * num_predictions),
        nsp_labels=draw.integers(0, 2, num_sequences),
    )
