"""Which pieces a model sees at once, and which words are scored there: every word once, and none left out.

A sentence, or a document, that fits is one window. One that does not is seen in several windows that overlap, and each
word is scored in the window where it has most context on its poorer side.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

Context = Literal["sentence", "document"]


def plan_windows(
    word_starts: np.ndarray, sentence_starts: np.ndarray, documents: np.ndarray, room: int, context: Context
) -> np.ndarray:
    """Return windows (windows, 4): first piece, end piece, first and end of the words that are scored there.

    `word_starts` (words + 1,) are places of words in the flat pieces, `sentence_starts` (sentences + 1,) places of
    sentences in the flat words, `documents` (sentences,) numbers that are equal within a run of sentences of one
    document; `room` is the number of pieces that fit. Windows come in the order of their scored words, which together
    are all words, each once. With the context "document" a window holds whole sentences to be scored, as far as one
    fits, and is filled up with what stands left and right of them in the document, as much on both sides where it can
    be. Raises ValueError for a room below 1.
    """
    if room < 1:
        raise ValueError(f"a window has room for {room} pieces; at least 1 is needed")
    if context == "document":
        edges = np.flatnonzero(np.diff(documents)) + 1
        bounds = np.concatenate([[0], edges, [len(documents)]]) if len(documents) else np.zeros(1, dtype=np.int64)
        parts = [
            _document_windows(word_starts, sentence_starts[first : end + 1], room)
            for first, end in pairwise(bounds.tolist())
        ]
        return np.concatenate(parts) if parts else np.empty((0, 4), dtype=np.int64)
    places = word_starts[sentence_starts]
    plain = np.stack([places[:-1], places[1:], sentence_starts[:-1], sentence_starts[1:]], axis=1)
    is_long = np.diff(places) > room
    if not is_long.any():
        return plain
    parts, done = [], 0
    for number in np.flatnonzero(is_long).tolist():
        first, end, first_word, end_word = plain[number].tolist()
        parts += [plain[done:number], _even_windows(word_starts, first_word, end_word, first, end, room)]
        done = number + 1
    return np.concatenate([*parts, plain[done:]])


def _even_windows(
    word_starts: np.ndarray, first_word: int, end_word: int, first: int, end: int, room: int
) -> np.ndarray:
    """Cover the pieces `first` to `end` with full windows at even distances, at most half a window each.

    A word is scored where the smaller of the numbers of pieces before and behind its first piece is largest, in the
    earlier window at a tie: between the centres of two windows the border lies in the middle.
    """
    if end - first <= room:
        return np.array([[first, end, first_word, end_word]], dtype=np.int64)
    num_windows = -(-(end - first - room) // max(room // 2, 1)) + 1
    starts = first + np.arange(num_windows) * (end - first - room) // (num_windows - 1)
    borders = (starts[:-1] + room - 1 + starts[1:]) // 2
    owners = np.searchsorted(borders, word_starts[first_word:end_word], side="left")
    words = first_word + np.searchsorted(owners, np.arange(num_windows + 1), side="left")
    windows = np.stack([starts, starts + room, words[:-1], words[1:]], axis=1)
    # A word of very many pieces can fill a window in which no word begins.
    return windows[words[1:] > words[:-1]]


def _document_windows(word_starts: np.ndarray, sentence_starts: np.ndarray, room: int) -> np.ndarray:
    """Return the windows of one document whose sentences begin at those words (and end at the last)."""
    edges = word_starts[sentence_starts]
    low, high = int(edges[0]), int(edges[-1])
    if high - low <= room:
        return np.array([[low, high, sentence_starts[0], sentence_starts[-1]]], dtype=np.int64)
    # Cores of about half a window leave a quarter of it for the context on each side.
    num_cores = -(-(high - low) // max(room // 2, 1))
    targets = low + np.arange(1, num_cores) * (high - low) // num_cores
    cuts = np.unique(np.concatenate([[0, len(edges) - 1], _nearest(edges, targets)])).tolist()
    pending = list(pairwise(cuts))[::-1]
    windows = []
    while pending:
        left, right = pending.pop()
        first, end = int(edges[left]), int(edges[right])
        words = int(sentence_starts[left]), int(sentence_starts[right])
        if end - first <= room:
            windows.append(np.array([[*_filled(first, end, low, high, room), *words]], dtype=np.int64))
        elif right - left > 1:
            middle = left + 1 + int(_nearest(edges[left + 1 : right], np.array([(first + end) // 2]))[0])
            pending += [(middle, right), (left, middle)]
        else:
            margin = room // 4
            windows.append(_even_windows(word_starts, *words, max(low, first - margin), min(high, end + margin), room))
    return np.concatenate(windows)


def _nearest(edges: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return, for each target, the index of the nearest of some ascending edges."""
    after = np.clip(np.searchsorted(edges, targets), 1, max(len(edges) - 1, 1))
    if len(edges) == 1:
        return np.zeros(len(targets), dtype=np.int64)
    return np.where(targets - edges[after - 1] <= edges[after] - targets, after - 1, after)


def _filled(first: int, end: int, low: int, high: int, room: int) -> tuple[int, int]:
    """Widen `first` to `end` on both sides alike up to `room`; what one side lacks the other takes."""
    free = room - (end - first)
    before = min(free // 2, first - low)
    behind = min(free - before, high - end)
    before = min(free - behind, first - low)
    return first - before, end + behind
