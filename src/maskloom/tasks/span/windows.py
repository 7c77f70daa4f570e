"""Windows over the pieces of a context (BERT's published code: a stride is the step from one to the next)."""

from __future__ import annotations

import numpy as np


def window_starts(num_pieces: int, capacity: int, stride: int) -> np.ndarray:
    """Return where windows of at most `capacity` pieces start, (windows,) int64.

    Each starts min(capacity, stride) pieces after the one before; the last is the first that reaches the end. A context
    without pieces has one empty window.
    """
    step = min(capacity, stride)
    num_windows = 1 if num_pieces <= capacity else -(-(num_pieces - capacity) // step) + 1
    return np.arange(num_windows, dtype=np.int64) * step


def is_max_context(
    places: np.ndarray, windows: np.ndarray, num_windows: np.ndarray, num_pieces: np.ndarray, capacity: np.ndarray,
    stride: int,
) -> np.ndarray:  # fmt: skip
    """Tell for pieces of contexts, (n,), whether the window in which each is seen is the one where it counts.

    `places` are pieces, `windows` the number of the window within its question, `num_windows` how many the question
    has, `num_pieces` how many its context has and `capacity` how many a window holds, all (n,). A piece counts in the
    window that maximises min(pieces to its left, pieces to its right) + 0.01 times the window's length; of equal ones,
    in the first.
    """
    found = np.ones(len(places), dtype=bool)
    several = np.flatnonzero(num_windows > 1)
    if not len(several):
        return found
    places, windows, num_windows = places[several, None], windows[several, None], num_windows[several, None]
    num_pieces, capacity = num_pieces[several, None], capacity[several, None]
    step = np.minimum(capacity, stride)
    reach = int((-(-capacity // step)).max())
    rivals = windows + np.arange(-reach, reach + 1)
    starts = rivals * step
    lengths = np.minimum(num_pieces - starts, capacity)
    left, right = places - starts, starts + lengths - 1 - places
    is_seen = (rivals >= 0) & (rivals < num_windows) & (left >= 0) & (right >= 0)
    scores = np.where(is_seen, np.minimum(left, right) + 0.01 * lengths, -np.inf)
    found[several] = scores.argmax(axis=1) == reach
    return found
