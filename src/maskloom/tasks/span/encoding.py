"""Encodes questions and their contexts as token ids: each context once, and each window as a few numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from maskloom.data.batch import ClassificationBatch, ranges
from maskloom.errors import ConfigError, amount
from maskloom.tasks.settings import SpanSection
from maskloom.tasks.span.reading import Question
from maskloom.text.tokenizer import Tokenizer

# words end at space, tab, line ends and narrow no-break space; any other blank is part of a word
_WORD = re.compile("[^ \t\r\n\u202f]+")


def answer_pieces(pieces: np.ndarray, first: int, last: int, answer: list[int]) -> tuple[int, int]:
    """Return the first and last piece of an answer: the span within `first` to `last` that has the answer's ids.

    `pieces` are the ids of the context. The first such span wins; without one, the whole range is returned, as for
    "Japan" in "Japanese".
    """
    length = len(answer)
    for start in range(first, last + 2 - length) if length else ():
        if pieces[start] == answer[0] and pieces[start : start + length].tolist() == answer:
            return start, start + length - 1
    return first, last


_WORDS_AT_ONCE = 200_000
_SHOWN_IDS = 5


@dataclass(frozen=True)
class EncodedContext:
    """One context: its words, the ids of its pieces (pieces,) int32, and the word of each piece (pieces,) int32.

    Word i is `text[starts[i]:ends[i]]`; both are (words,) int64 and ascending.
    """

    text: str
    starts: np.ndarray
    ends: np.ndarray
    pieces: np.ndarray
    piece_words: np.ndarray

    def word_at(self, place: int) -> int:
        """Return the word at a character position; for a blank between words, the word before it."""
        return max(int(np.searchsorted(self.starts, place, side="right")) - 1, 0)

    def words(self, first: int, last: int) -> list[str]:
        """Return the words from `first` to `last`."""
        return [self.text[self.starts[i] : self.ends[i]] for i in range(first, last + 1)]

    def place_in_context(self, first_word: int, place: int) -> int:
        """Map a position in the words from `first_word` on, joined by spaces, to a position in the context."""
        word = first_word
        while place >= (length := int(self.ends[word] - self.starts[word])):
            place -= length + 1
            word += 1
        return int(self.starts[word]) + place


@dataclass(frozen=True)
class EncodedQuestions:
    """Questions split into windows; a unit is a window, and the windows of a question are consecutive and in order.

    Question i is about `contexts[i]`, which questions may share, and has the ids `question_ids[i]`, truncated to the
    maximum length. `windows` are as returned by `plan_windows`; `first_window` (questions + 1,) gives the first window
    of each question. `labels` (windows, 2) are the positions of the answer's first and last token in the window, or
    twice the window's null position if the answer is not entirely inside; None if the answers of any question are
    unknown.
    `unaligned` are the ids of questions whose answer cannot be found among the words: left out for training, else
    given null positions.
    """

    questions: list[Question]
    contexts: list[EncodedContext]
    question_ids: list[np.ndarray]
    windows: np.ndarray
    first_window: np.ndarray
    labels: np.ndarray | None
    max_length: int
    stride: int
    tokenizer: Tokenizer
    unaligned: list[str] = field(default_factory=list)
    is_for_training: bool = False
    num_cut_questions: int = 0

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each window, special tokens included."""
        return self.context_places + self.windows[:, 2] + len(self.tokenizer.template.end)

    @property
    def null_places(self) -> np.ndarray:
        """Position in each window, (windows,), of the token that stands for a missing answer."""
        return self.tokenizer.template.whole_places(self.lengths)

    @property
    def context_places(self) -> np.ndarray:
        """Position in each window, (windows,), where its part of the context begins."""
        return self.tokenizer.template.second_places(self.question_lengths[self.windows[:, 0]])

    @property
    def num_examples(self) -> int:
        """Number of questions."""
        return len(self.questions)

    def __len__(self) -> int:
        return len(self.windows)

    @cached_property
    def question_lengths(self) -> np.ndarray:
        """Number of pieces of each question, (questions,)."""
        return np.fromiter(map(len, self.question_ids), np.int64, len(self.question_ids))

    def parts(self, max_windows: int) -> Iterator[EncodedQuestions]:
        """Yield the questions in order, in parts with at most `max_windows` windows or a single question."""
        first = 0
        while first < self.num_examples:
            limit = int(self.first_window[first]) + max_windows
            last = max(int(np.searchsorted(self.first_window, limit, side="right")) - 1, first + 1)
            within = slice(int(self.first_window[first]), int(self.first_window[last]))
            yield replace(
                self,
                questions=self.questions[first:last],
                contexts=self.contexts[first:last],
                question_ids=self.question_ids[first:last],
                windows=self.windows[within] - [first, 0, 0],
                first_window=self.first_window[first : last + 1] - self.first_window[first],
                labels=None if self.labels is None else self.labels[within],
            )
            first = last

    def batch(self, indices: np.ndarray) -> ClassificationBatch:
        """Return the windows at these indices, packed in this order; their ids are assembled here."""
        numbers, starts, sizes = self.windows[indices].T
        frames = self.tokenizer.template.frames(self.question_lengths[numbers], sizes)
        rows = (column.tolist() for column in (numbers, starts, sizes, frames.first, frames.second))
        for number, start, size, first, second in zip(*rows, strict=True):
            question, context = self.question_ids[number], self.contexts[number]
            frames.token_ids[first : first + len(question)] = question
            frames.token_ids[second : second + size] = context.pieces[start : start + size]
        return ClassificationBatch(
            token_ids=frames.token_ids,
            segment_ids=frames.segment_ids,
            lengths=frames.lengths,
            labels=None if self.labels is None else self.labels[indices],
            indices=np.asarray(indices, dtype=np.int64),
        )

    def account(self) -> dict[str, Any]:
        """Return counts of windows, contexts and truncated questions, and the questions whose answer is not aligned."""
        account = {
            "max_length": self.max_length,
            "num_windows": len(self),
            "num_contexts": len({context.text for context in self.contexts}),
            "num_cut_questions": self.num_cut_questions,
            "num_unaligned": len(self.unaligned),
            "unaligned": list(self.unaligned),
        }
        if self.labels is not None:
            account["num_windows_without_answer"] = int((self.labels == self.null_places[:, None]).all(axis=1).sum())
        return account

    def notes(self, path: Path) -> list[str]:
        """Report answers not found among the words of their context, and the number of truncated questions."""
        notes = []
        if self.unaligned:
            total = self.num_examples + (len(self.unaligned) if self.is_for_training else 0)
            shown = ", ".join(self.unaligned[:_SHOWN_IDS]) + (" …" if len(self.unaligned) > _SHOWN_IDS else "")
            fate = "left out of training" if self.is_for_training else "still scored by their text"
            notes.append(
                f"{path}: the answers of {len(self.unaligned):,} of {total:,} questions cannot be found among the "
                f"words of their context; {fate}: {shown}"
            )
        if self.num_cut_questions:
            notes.append(f"{path}: {amount(self.num_cut_questions, 'question')} truncated (span.max_question_length)")
        return notes


def encode_questions(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    settings: SpanSection,
    *,
    max_length: int,
    for_training: bool = False,
) -> EncodedQuestions:
    """Encode questions in windows of at most `max_length` tokens that start `settings.stride` pieces apart.

    Questions are truncated to `settings.max_question_length` pieces. Each distinct context is tokenised once. Labels
    are for the first answer; for training, questions whose answer cannot be aligned are left out and listed. Raises
    ConfigError if a question leaves no room for its context.
    """
    most = settings.max_question_length
    known: dict[str, np.ndarray] = {}
    texts = dict.fromkeys(question.context for question in questions)
    contexts = {text: _encode_context(text, tokenizer, known) for text in texts}
    spans = [_answer_span(question, contexts[question.context], tokenizer) for question in questions]
    unaligned = [question.id for question, span in zip(questions, spans, strict=True) if span == _UNALIGNED]
    kept = [number for number, span in enumerate(spans) if not (for_training and span == _UNALIGNED)]
    all_ids = tokenizer.token_ids_batch([questions[number].question for number in kept])
    question_ids = [np.asarray(ids[:most], dtype=np.int32) for ids in all_ids]
    num_marks, own = tokenizer.template.num_marks(2), [contexts[questions[number].context] for number in kept]
    longest = max(map(len, question_ids), default=0)
    if longest + num_marks >= max_length:
        raise ConfigError(
            f"max_length {max_length}: a question of {longest} pieces and {num_marks} special tokens leave no room "
            "for the context; raise data.max_length or lower span.max_question_length"
        )
    capacities = np.array([max_length - num_marks - len(ids) for ids in question_ids], dtype=np.int64)
    num_pieces = np.array([len(context.pieces) for context in own], dtype=np.int64)
    windows = plan_windows(num_pieces, capacities, settings.stride)
    encoded = EncodedQuestions(
        questions=[questions[number] for number in kept],
        contexts=own,
        question_ids=question_ids,
        windows=windows,
        first_window=np.searchsorted(windows[:, 0], np.arange(len(kept) + 1)),
        labels=None,
        max_length=max_length,
        stride=settings.stride,
        tokenizer=tokenizer,
        unaligned=unaligned,
        is_for_training=for_training,
        num_cut_questions=sum(len(ids) > most for ids in all_ids),
    )
    if any(span is None for span in spans):
        return encoded
    return replace(encoded, labels=_labels(encoded, np.array(spans, dtype=np.int64).reshape(-1, 2)[kept]))


def _encode_context(text: str, tokenizer: Tokenizer, known: dict[str, np.ndarray]) -> EncodedContext:
    """Encode a context word by word; `known` caches the ids of words, up to a limit."""
    words = _WORD.findall(text)
    if len(known) > _WORDS_AT_ONCE:
        known.clear()
    new = list(dict.fromkeys(word for word in words if word not in known))
    for word, ids in zip(new, tokenizer.chunk_ids_batch(new), strict=True):
        known[word] = np.asarray(ids, dtype=np.int32)
    pieces = [known[word] for word in words]
    counts = np.fromiter(map(len, pieces), np.int64, len(pieces))
    starts = np.fromiter((match.start() for match in _WORD.finditer(text)), np.int64, len(words))
    return EncodedContext(
        text=text,
        starts=starts,
        ends=starts + np.fromiter(map(len, words), np.int64, len(words)),
        pieces=np.concatenate(pieces) if pieces else np.empty(0, np.int32),
        piece_words=np.repeat(np.arange(len(pieces), dtype=np.int32), counts),
    )


_UNALIGNED, _NO_ANSWER = (-2, -2), (-1, -1)


def _answer_span(question: Question, context: EncodedContext, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Return the piece span of the first answer, `_UNALIGNED`, `_NO_ANSWER`, or None if answers are unknown."""
    if question.answers is None:
        return None
    if not question.answers:
        return _NO_ANSWER
    answer = question.answers[0]
    first, last = context.word_at(answer.start), context.word_at(answer.start + len(answer.text) - 1)
    if " ".join(answer.text.split()) not in " ".join(context.words(first, last)):
        return _UNALIGNED  # blanks in the answer, such as a no-break space, may not separate words
    bounds = np.searchsorted(context.piece_words, [first, last + 1])
    if bounds[0] == bounds[1]:
        return _UNALIGNED  # words of control characters have no pieces
    encode = tokenizer.token_ids_batch if answer.start > context.starts[first] else tokenizer.chunk_ids_batch
    return answer_pieces(context.pieces, int(bounds[0]), int(bounds[1]) - 1, encode([answer.text])[0])


def _labels(encoded: EncodedQuestions, spans: np.ndarray) -> np.ndarray:
    """Return the answer positions in each window, (windows, 2); null positions unless the answer is entirely inside."""
    questions, starts, lengths = encoded.windows.T
    spans = spans[questions]
    is_inside = (spans[:, 0] >= starts) & (spans[:, 1] < starts + lengths)
    places = spans + (encoded.context_places - starts)[:, None]
    return np.where(is_inside[:, None], places, encoded.null_places[:, None])


def plan_windows(num_pieces: np.ndarray, capacities: np.ndarray, stride: int) -> np.ndarray:
    """Return windows (windows, 3) int64: question, start and length; all lengths are in pieces.

    Each window starts min(capacity, stride) pieces after the previous one; the first to reach the end is the last. A
    context without pieces has one empty window.
    """
    steps = np.minimum(capacities, stride)
    counts = 1 + np.maximum(-(-(num_pieces - capacities) // steps), 0)
    questions = np.repeat(np.arange(len(counts)), counts)
    starts = ranges(0, counts) * steps[questions]
    return np.stack([questions, starts, np.minimum(num_pieces[questions] - starts, capacities[questions])], axis=1)


def is_max_context(
    positions: np.ndarray, windows: np.ndarray, num_windows: np.ndarray, num_pieces: np.ndarray, capacity: np.ndarray,
    stride: int,
) -> np.ndarray:  # fmt: skip
    """Return whether each context piece, (n,), is in the window where it counts, which gives it the most context.

    All arguments but `stride` are (n,): `positions` of pieces in their contexts, indices of `windows` in their
    questions, `num_windows` of each question, `num_pieces` of its context, and the `capacity` of a window in pieces. A
    piece counts in the window that maximises min(pieces to its left, pieces to its right) + 0.01 times the window's
    length; the first wins a tie.
    """
    found = np.ones(len(positions), dtype=bool)
    several = np.flatnonzero(num_windows > 1)
    if not len(several):
        return found
    positions, windows, num_windows = positions[several, None], windows[several, None], num_windows[several, None]
    num_pieces, capacity = num_pieces[several, None], capacity[several, None]
    step = np.minimum(capacity, stride)
    reach = int((-(-capacity // step)).max())
    rivals = windows + np.arange(-reach, reach + 1)
    starts = rivals * step
    lengths = np.minimum(num_pieces - starts, capacity)
    left, right = positions - starts, starts + lengths - 1 - positions
    is_seen = (rivals >= 0) & (rivals < num_windows) & (left >= 0) & (right >= 0)
    scores = np.where(is_seen, np.minimum(left, right) + 0.01 * lengths, -np.inf)
    found[several] = scores.argmax(axis=1) == reach
    return found
