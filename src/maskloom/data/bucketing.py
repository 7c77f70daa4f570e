"""Batches of examples of similar length, so that attention meets few different lengths at a time."""

from __future__ import annotations

import numpy as np


def sorted_batches(lengths: np.ndarray, max_tokens: int, max_examples: int | None = None) -> list[np.ndarray]:
    """Return batches as int64 arrays of indices into `lengths` (examples,), longest examples first, for inference.

    A batch has at most `max_tokens` tokens, or one longer example, and at most `max_examples` examples. The largest
    comes first, so that a lack of memory shows at once. Raises ValueError for a limit below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}, it must be at least 1")
    if max_examples is not None and max_examples < 1:
        raise ValueError(f"max_examples is {max_examples}, it must be at least 1")
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    ends = np.concatenate([[0], np.cumsum(lengths[order])])
    batches, first = [], 0
    while first < len(order):
        last = int(np.searchsorted(ends, ends[first] + max_tokens, side="right")) - 1
        last = max(last if max_examples is None else min(last, first + max_examples), first + 1)
        batches.append(order[first:last])
        first = last
    return batches
