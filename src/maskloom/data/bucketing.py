"""Batches of examples of similar length, so that attention meets few different lengths at a time."""

from __future__ import annotations

import numpy as np

from maskloom.data.counter_random import Permutation

_POOL_BATCHES = 50
_EXAMPLES, _BATCHES = range(401, 403)


def length_batches(
    lengths: np.ndarray,
    *,
    batch_size: int | None = None,
    max_tokens: int | None = None,
    seed: int,
    epoch: int,
    shuffle: bool = True,
) -> list[np.ndarray]:
    """Return batches as int64 arrays of indices into `lengths` (examples,) in tokens; every example comes once.

    Examples are shuffled into pools of about 50 batches, sorted by length within a pool and cut into batches, whose
    order is shuffled; without `shuffle` all examples form one sorted pool, shortest first. A batch holds `batch_size`
    examples (the last one perhaps fewer), or as many as have at most `max_tokens` tokens together; an example that
    is longer than that is a batch of its own. The result depends on lengths, settings, seed and epoch alone.
    Raises ValueError unless exactly one of the two sizes is given and is at least 1.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if (batch_size is None) == (max_tokens is None):
        raise ValueError(f"batch_size is {batch_size} and max_tokens {max_tokens}; exactly one of them must be given")
    for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}, it must be at least 1")
    num_examples = len(lengths)
    if not shuffle:
        return _cut(np.argsort(lengths, kind="stable"), lengths, batch_size, max_tokens)
    per_batch = batch_size or max(1, int((max_tokens or 1) // max(1.0, lengths.mean() if num_examples else 1.0)))
    pool = per_batch * _POOL_BATCHES
    order = Permutation(num_examples, seed, _EXAMPLES, epoch)[np.arange(num_examples)]
    batches: list[np.ndarray] = []
    for first in range(0, num_examples, pool):
        members = order[first : first + pool]
        by_length = members[np.argsort(lengths[members], kind="stable")]
        batches += _cut(by_length, lengths, batch_size, max_tokens)
    places = Permutation(len(batches), seed, _BATCHES, epoch)[np.arange(len(batches))]
    return [batches[place] for place in places]


def sorted_batches(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Return batches as int64 arrays of indices into `lengths` (examples,), longest examples first, for inference.

    A batch has at most `max_tokens` tokens, or one longer example. The largest comes first, so that a lack of memory
    shows at once. Raises ValueError for `max_tokens` below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}, it must be at least 1")
    lengths = np.asarray(lengths, dtype=np.int64)
    return _cut(np.argsort(-lengths, kind="stable"), lengths, None, max_tokens)


def _cut(order: np.ndarray, lengths: np.ndarray, batch_size: int | None, max_tokens: int | None) -> list[np.ndarray]:
    """Cut ordered examples into batches of a number of examples, or of tokens."""
    if batch_size is not None:
        return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    ends = np.concatenate([[0], np.cumsum(lengths[order])])
    batches, first = [], 0
    while first < len(order):
        last = int(np.searchsorted(ends, ends[first] + (max_tokens or 0), side="right")) - 1
        last = max(last, first + 1)
        batches.append(order[first:last])
        first = last
    return batches
