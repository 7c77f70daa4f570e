"""Batches of examples of similar length, so that attention meets few different lengths at a time."""

from __future__ import annotations

import numpy as np


def sorted_batches(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Return batches as int64 arrays of indices into `lengths` (examples,), longest examples first, for inference.

    A batch has at most `max_tokens` tokens, or one longer example. The largest comes first, so that a lack of memory
    shows at once. Raises ValueError for `max_tokens` below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}, it must be at least 1")
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    ends = np.concatenate([[0], np.cumsum(lengths[order])])
    batches, first = [], 0
    while first < len(order):
        last = int(np.searchsorted(ends, ends[first] + max_tokens, side="right")) - 1
        last = max(last, first + 1)
        batches.append(order[first:last])
        first = last
    return batches
