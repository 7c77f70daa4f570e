"""Rows of pre-training batches, for comparison in tests."""

import numpy as np


def rows_of(batch):
    """Return the token ids and the targets of each row."""
    ends = np.cumsum(batch.lengths)
    return [
        (batch.token_ids[end - length : end].tolist(), batch.mlm_labels[end - length : end].tolist())
        for end, length in zip(ends, batch.lengths, strict=True)
    ]
