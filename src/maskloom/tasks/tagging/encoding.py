"""Encodes tagged sentences as token ids: every word has exactly one scored position (BERT paper 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from maskloom.data.batch import TokenBatch, ranges
from maskloom.errors import ConfigError
from maskloom.objectives.objective import NOT_SCORED
from maskloom.tasks.labels import unknown_label
from maskloom.tasks.settings import Context
from maskloom.tasks.tagging.reading import TaggedSentence
from maskloom.text.templates import SequenceTemplate
from maskloom.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class EncodedSentences:
    """Word pieces of all sentences, concatenated once, and the windows over them that form the units.

    `pieces` are flat token ids; word w has `pieces[word_starts[w]:word_starts[w + 1]]`, and sentence s, counting only
    sentences with words, has the words from `sentence_starts[s]` up to `sentence_starts[s + 1]`. `labels` (words,) are
    tag ids, or None. `windows` are as returned by `plan_windows`; a unit is the pieces of a window with the marks of
    `template`. `num_vanished_words` words had no pieces and are encoded as the unknown token. For models that read word
    vectors, `vectors` has their matrix, (vectors, size), and the row for each word, -1 for a word without one.
    """

    sentences: Sequence[TaggedSentence]
    pieces: np.ndarray
    word_starts: np.ndarray
    sentence_starts: np.ndarray
    labels: np.ndarray | None
    windows: np.ndarray
    template: SequenceTemplate
    max_length: int
    num_vanished_words: int
    vectors: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each window, special tokens included."""
        return self.windows[:, 1] - self.windows[:, 0] + self.template.num_marks(1)

    @property
    def num_examples(self) -> int:
        """Number of sentences."""
        return len(self.sentences)

    def __len__(self) -> int:
        return len(self.windows)

    def batch(self, indices: np.ndarray) -> TokenBatch:
        """Return the windows at these indices, packed; labels are at the first pieces of the words scored there.

        Chains are the sentences with scored words in a window, including all of their words that begin in it.
        """
        first, end, first_word, end_word = self.windows[indices].T
        frames = self.template.frames(end - first)
        frames.token_ids[ranges(frames.first, end - first)] = self.pieces[ranges(first, end - first)]
        # the words that begin in each window, of sentences scored there
        bounds = np.searchsorted(self.sentence_starts, [first_word, end_word - 1], side="right")
        seen = np.searchsorted(self.word_starts, [first, end], side="left")
        begin = np.maximum(self.sentence_starts[bounds[0] - 1], seen[0])
        counts = np.minimum(self.sentence_starts[bounds[1]], seen[1]) - begin
        words, owners = ranges(begin, counts), np.repeat(np.arange(len(counts)), counts)
        sentences = np.searchsorted(self.sentence_starts, words, side="right")
        places = self.word_starts[words] + (frames.first - first)[owners]
        chains, rows, labels = np.full((3, len(frames.token_ids)), [[-1], [-1], [NOT_SCORED]], dtype=np.int64)
        chains[places] = np.cumsum((np.diff(owners, prepend=-1) | np.diff(sentences, prepend=0)) != 0) - 1
        if self.labels is not None:
            is_scored = (first_word[owners] <= words) & (words < end_word[owners])
            labels[places[is_scored]] = self.labels[words[is_scored]]
        if self.vectors is not None:
            rows[places] = self.vectors[1][words]
        return TokenBatch(
            token_ids=frames.token_ids,
            segment_ids=frames.segment_ids,
            lengths=frames.lengths,
            labels=None if self.labels is None else labels,
            indices=np.asarray(indices, dtype=np.int64),
            chains=chains,
            word_vectors=None if self.vectors is None else self.vectors[0][rows] * (rows >= 0)[:, None],
        )

    def word_rows(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """Return one row of outputs per word, (words, width), in order: at its first piece where the word is scored."""
        rows = [values[self.word_places(window)] for window, values in zip(range(len(self)), outputs, strict=True)]
        return np.concatenate(rows) if rows else np.empty((0, 1), dtype=np.float32)

    def word_places(self, window: int) -> np.ndarray:
        """Return the positions in a window of the first pieces of the words that are scored there."""
        first, _, first_word, end_word = self.windows[window].tolist()
        return len(self.template.begin) + self.word_starts[first_word:end_word] - first

    def by_sentence(self, values: np.ndarray) -> list[np.ndarray]:
        """Split an array with one entry per word into one array per sentence, empty for blank sentences."""
        parts = iter(np.split(values, self.sentence_starts[1:-1]))
        return [next(parts) if sentence.words else values[:0] for sentence in self.sentences]

    def account(self) -> dict[str, Any]:
        """Return counts of words, windows and split sentences, as plain values; nothing is ever truncated."""
        return {
            "max_length": self.max_length,
            "num_truncated_examples": 0,
            "num_words": len(self.word_starts) - 1,
            "num_vanished_words": self.num_vanished_words,
            "num_windows": len(self),
            "num_split_sentences": self._num_split(),
        }

    def notes(self, path: Path) -> list[str]:
        """Report how many sentences are split into several windows and how many words have no word vector, if any."""
        notes = []
        if num_split := self._num_split():
            notes.append(
                f"{path}: {num_split:,} of {len(self.sentences):,} sentences exceed {self.max_length} tokens and are "
                "split into windows; every word is scored"
            )
        if self.vectors is not None and (num_unknown := int(np.count_nonzero(self.vectors[1] < 0))):
            notes.append(f"{path}: {num_unknown:,} of {len(self.vectors[1]):,} words have no word vector and get zeros")
        return notes

    def _num_split(self) -> int:
        """Return the number of sentences whose words are scored in more than one window."""
        inner = np.setdiff1d(self.windows[1:, 2], self.sentence_starts)
        return len(np.unique(np.searchsorted(self.sentence_starts, inner, side="right")))


def encode_sentences(
    sentences: Sequence[TaggedSentence],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    labels: Sequence[str] | None = None,
    context: Context = "sentence",
    path: str | Path = "input",
) -> EncodedSentences:
    """Encode sentences in order, in windows of at most `max_length` tokens, special tokens included.

    `labels` are the tags in id order; sentences without tags yield no labels. A word without pieces, such as one of
    control characters, is encoded as unknown, so that words and tags stay aligned. Raises ConfigError for a length that
    the tokenizer does not support, UnknownLabelError, with `path` and line, for a tag that is not in `labels`.
    """
    vocabulary, template = tokenizer.vocabulary, tokenizer.template
    least = template.num_marks(1) + 1
    if not least <= max_length <= tokenizer.max_length:
        raise ConfigError(f"max_length = {max_length}: tagging needs {least} to {tokenizer.max_length} tokens")
    filled = [sentence for sentence in sentences if sentence.words]
    words = [word for sentence in filled for word in sentence.words]
    distinct = list(dict.fromkeys(words))
    ids = dict(zip(distinct, tokenizer.chunk_ids_batch(distinct), strict=True))
    pieces = [ids[word] or [vocabulary.unk_id] for word in words]
    word_starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    sentence_starts = np.cumsum([0, *(len(sentence.words) for sentence in filled)], dtype=np.int64)
    documents = np.array([sentence.document for sentence in filled], dtype=np.int64)
    return EncodedSentences(
        sentences=sentences,
        pieces=np.fromiter((piece for part in pieces for piece in part), dtype=np.int32, count=int(word_starts[-1])),
        word_starts=word_starts,
        sentence_starts=sentence_starts,
        labels=None if labels is None else _label_ids(sentences, labels, path),
        windows=plan_windows(word_starts, sentence_starts, documents, max_length - template.num_marks(1), context),
        template=template,
        max_length=max_length,
        num_vanished_words=sum(not ids[word] for word in words),
    )


def _label_ids(sentences: Sequence[TaggedSentence], labels: Sequence[str], path: str | Path) -> np.ndarray | None:
    """Return the ids of all tags, or None if a sentence has no tags."""
    ids = {label: number for number, label in enumerate(labels)}
    found: list[int] = []
    for sentence in sentences:
        if sentence.tags is None:
            return None
        for place, tag in enumerate(sentence.tags):
            if tag not in ids:
                fields = sentence.columns[place] if sentence.columns else ()
                is_written = not fields[1:] or tag in fields
                written = "" if is_written else f", {sentence.separator.join(fields)!r:.80} in the file"
                raise unknown_label(tag, labels, f"{path}: line {sentence.line_of(place)}{written}")
            found.append(ids[tag])
    return np.array(found, dtype=np.int64)


def plan_windows(
    word_starts: np.ndarray, sentence_starts: np.ndarray, documents: np.ndarray, room: int, context: Context
) -> np.ndarray:
    """Return windows (windows, 4): first piece, end piece, first and end of the words that are scored there.

    `word_starts` (words + 1,) are positions of words in the flat pieces, `sentence_starts` (sentences + 1,) positions
    of sentences in the flat words, and `documents` (sentences,) numbers that are equal for consecutive sentences of one
    document; `room` is the number of pieces that fit. Windows are in the order of their scored words, which cover every
    word exactly once. With the context "document", a window scores whole sentences as far as they fit, and is filled
    with the surrounding text of the document, evenly on both sides if possible.
    """
    if context == "document":
        bounds = np.unique(np.concatenate([[0], np.flatnonzero(np.diff(documents)) + 1, [len(documents)]]))
        parts = [
            _document_windows(word_starts, sentence_starts[first : end + 1], room)
            for first, end in pairwise(bounds.tolist())
        ]
        return np.concatenate([np.empty((0, 4), dtype=np.int64), *parts])
    positions = word_starts[sentence_starts]
    plain = np.stack([positions[:-1], positions[1:], sentence_starts[:-1], sentence_starts[1:]], axis=1)
    parts, done = [], 0
    for number in np.flatnonzero(np.diff(positions) > room).tolist():
        first, end, first_word, end_word = plain[number].tolist()
        parts += [plain[done:number], _even_windows(word_starts, first_word, end_word, first, end, room)]
        done = number + 1
    return np.concatenate([*parts, plain[done:]])


def _even_windows(
    word_starts: np.ndarray, first_word: int, end_word: int, first: int, end: int, room: int
) -> np.ndarray:
    """Cover the pieces `first` to `end`, more than `room`, with evenly spaced windows, at most half a window apart.

    A word is scored in the window that maximises the smaller of the numbers of pieces before and after its first piece,
    and in the earlier window at a tie: the border is midway between the centres of two windows.
    """
    num_windows = -(-(end - first - room) // max(room // 2, 1)) + 1
    starts = first + np.arange(num_windows) * (end - first - room) // (num_windows - 1)
    borders = (starts[:-1] + room - 1 + starts[1:]) // 2
    owners = np.searchsorted(borders, word_starts[first_word:end_word], side="left")
    words = first_word + np.searchsorted(owners, np.arange(num_windows + 1), side="left")
    windows = np.stack([starts, starts + room, words[:-1], words[1:]], axis=1)
    # A word with very many pieces can fill a window in which no word begins.
    return windows[words[1:] > words[:-1]]


def _document_windows(word_starts: np.ndarray, sentence_starts: np.ndarray, room: int) -> np.ndarray:
    """Return the windows of one document; `sentence_starts` are the first words of its sentences, and its end."""
    edges = word_starts[sentence_starts]
    low, high = int(edges[0]), int(edges[-1])
    if high - low <= room:
        return np.array([[low, high, sentence_starts[0], sentence_starts[-1]]], dtype=np.int64)
    # Cores of about half a window leave a quarter for context on each side.
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
    """Return, for each target, the index of the nearest of the ascending `edges`."""
    after = np.minimum(np.searchsorted(edges, targets), len(edges) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(targets - edges[before] <= edges[after] - targets, before, after)


def _filled(first: int, end: int, low: int, high: int, room: int) -> tuple[int, int]:
    """Widen `first` to `end` evenly on both sides up to `room`; what one side cannot use goes to the other."""
    free = room - (end - first)
    before = min(free // 2, first - low)
    behind = min(free - before, high - end)
    before = min(free - behind, first - low)
    return first - before, end + behind
