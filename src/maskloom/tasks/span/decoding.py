"""Start and end logits to answers, for many windows at a time (BERT paper 4.2 and 4.3, by the published code)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from maskloom.tasks.span.encoding import EncodedQuestions
from maskloom.tasks.span.final_text import TextFinder
from maskloom.tasks.span.windows import is_max_context

_WINDOWS_AT_ONCE = 512
# The published code answers so where no span qualifies.
_NO_SPAN = "empty"


@dataclass(frozen=True)
class Candidate:
    """An answer text with its probability among the candidates kept, its logits, and where it stands in the context.

    `context[start:end]` is the text, but for blanks between words, which are single spaces in it. Both are None for the
    null answer and where no span qualified.
    """

    text: str
    probability: float
    start_logit: float
    end_logit: float
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True)
class DecodedAnswer:
    """The answer to a question: `text`, the candidates by falling score, and the best of them that is not empty.

    `null_odds` says how far the null answer scores above that; None where every question has an answer.
    """

    text: str
    best: Candidate
    candidates: tuple[Candidate, ...]
    null_odds: float | None = None

    @property
    def chosen(self) -> Candidate:
        """The candidate that is the answer."""
        return next(candidate for candidate in self.candidates if candidate.text == self.text)


@dataclass(frozen=True)
class DecodingOptions:
    """How many starts, ends and candidates are kept, how long an answer may be in pieces, and when it is empty."""

    num_best: int = 20
    max_answer_length: int = 30
    has_unanswerable: bool = False
    null_threshold: float = 0.0


def decode_answers(
    encoded: EncodedQuestions,
    outputs: Sequence[np.ndarray],
    options: DecodingOptions | None = None,
    *,
    only_best: bool = False,
) -> Iterator[DecodedAnswer]:
    """Yield the answer to each question in order; `outputs` holds start and end logits (tokens, 2) of every window.

    Of the best starts and ends of each window those spans count that lie in the context, start where the window gives
    their first piece most context, and are not too long; best sums of logits first, each text once. Differs from the
    published code where there is a choice of it: windows are not padded, so no padding is among the best starts.
    With `only_best` the search ends at the best answer: answer and null odds are the same, candidates are fewer.
    Raises ValueError when outputs and windows do not agree.
    """
    options = options or DecodingOptions()
    if len(outputs) != len(encoded):
        raise ValueError(f"{len(outputs)} outputs for {len(encoded)} windows; they must agree")
    finder = TextFinder(encoded.tokenizer.lowercase)
    first = 0
    while first < encoded.num_examples:
        end_window = int(encoded.first_window[first]) + _WINDOWS_AT_ONCE
        last = max(int(np.searchsorted(encoded.first_window, end_window, side="right")) - 1, first + 1)
        yield from _decode_some(encoded, outputs, (first, last), options, finder, only_best)
        first = last


# Logits of start and end, and where the text starts and ends in the context.
_Entry = tuple[float, float, int | None, int | None]


@dataclass(frozen=True)
class _Spans:
    """Spans of several questions, sorted by question and falling score: all (spans,)."""

    question: np.ndarray
    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray


def _decode_some(
    encoded: EncodedQuestions,
    outputs: Sequence[np.ndarray],
    questions: tuple[int, int],
    options: DecodingOptions,
    finder: TextFinder,
    only_best: bool,
) -> Iterator[DecodedAnswer]:
    first, last = questions
    windows = np.arange(encoded.first_window[first], encoded.first_window[last])
    logits = _padded(encoded, outputs, windows)
    spans = _spans(encoded, windows, logits, options)
    bounds = np.searchsorted(spans.question, np.arange(first, last + 1))
    for question in range(first, last):
        chosen = slice(bounds[question - first], bounds[question - first + 1])
        null = None
        if options.has_unanswerable:
            own = encoded.first_window[question : question + 2] - encoded.first_window[first]
            nulls = logits[own[0] : own[1], 0]
            null = nulls[int(nulls.sum(axis=1).argmin())]
        yield _answer(encoded, question, spans, chosen, null, options, finder, only_best)


def _padded(encoded: EncodedQuestions, outputs: Sequence[np.ndarray], windows: np.ndarray) -> np.ndarray:
    """Return the logits of windows as one array (windows, tokens of the longest, 2); -inf where there is no token."""
    lengths = encoded.lengths[windows]
    logits = np.full((len(windows), int(lengths.max()), 2), -np.inf)
    for row, window, length in zip(logits, windows.tolist(), lengths.tolist(), strict=True):
        if len(outputs[window]) != length:
            raise ValueError(f"window {window} has {length} tokens and {len(outputs[window])} rows of output")
        row[:length] = outputs[window]
    return logits


def _spans(encoded: EncodedQuestions, windows: np.ndarray, logits: np.ndarray, options: DecodingOptions) -> _Spans:
    """Return the spans that qualify; of equal scores in a question the one of the earlier window, start, end first."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, : options.num_best]
    starts, ends = order[:, :, 0], order[:, :, 1]
    questions = encoded.window_question[windows]
    offsets = encoded.question_lengths[questions] + 2
    context_ends = offsets + encoded.window_length[windows]
    starts_count = (starts >= offsets[:, None]) & (starts < context_ends[:, None])
    row, column = np.nonzero(starts_count)
    own = windows[row]
    starts_count[row, column] = is_max_context(
        encoded.window_start[own] + starts[row, column] - offsets[row],
        own - encoded.first_window[questions[row]],
        np.diff(encoded.first_window)[questions[row]],
        encoded.context_lengths[questions[row]],
        encoded.max_length - offsets[row] - 1,
        encoded.stride,
    )
    sizes = ends[:, None, :] - starts[:, :, None]
    counts = starts_count[:, :, None] & (ends < context_ends[:, None])[:, None, :]
    counts &= (sizes >= 0) & (sizes < options.max_answer_length)
    row, by_start, by_end = np.nonzero(counts)
    start, end = starts[row, by_start], ends[row, by_end]
    start_logit, end_logit = logits[row, start, 0], logits[row, end, 1]
    by_score = np.lexsort((-(start_logit + end_logit), questions[row]))
    found = (questions[row], windows[row], start, end, start_logit, end_logit)
    return _Spans(*(values[by_score] for values in found))


def _answer(
    encoded: EncodedQuestions,
    question: int,
    spans: _Spans,
    chosen: slice,
    null: np.ndarray | None,
    options: DecodingOptions,
    finder: TextFinder,
    only_best: bool,
) -> DecodedAnswer:
    """Return the answer to a question from its spans and the logits (2,) of its null answer, None in v1.1."""
    null_score = np.inf if null is None else float(null.sum())
    null_entry = None if null is None else (float(null[0]), float(null[1]), None, None)
    kept: dict[str, _Entry] = {}
    for place in range(chosen.start, chosen.stop):
        start_logit, end_logit = float(spans.start_logit[place]), float(spans.end_logit[place])
        if null_entry is not None and len(kept) < options.num_best and null_score > start_logit + end_logit:
            kept.setdefault("", null_entry)
        if len(kept) >= options.num_best or (only_best and any(kept)):
            break
        text, start, end = _text(encoded, question, spans, place, finder)
        kept.setdefault(text, (start_logit, end_logit, start, end))
    if null_entry is not None:
        kept.setdefault("", null_entry)
    if not any(kept):
        kept = {_NO_SPAN: (0.0, 0.0, None, None), **kept}
    candidates = _with_probabilities(kept)
    best = next(candidate for candidate in candidates if candidate.text)
    if null is None:
        return DecodedAnswer(best.text, best, candidates)
    odds = null_score - best.start_logit - best.end_logit
    return DecodedAnswer("" if odds > options.null_threshold else best.text, best, candidates, odds)


def _text(
    encoded: EncodedQuestions, question: int, spans: _Spans, place: int, finder: TextFinder
) -> tuple[str, int, int]:
    """Return the text of a span, and where it starts and ends in its context."""
    context = encoded.context(question)
    shift = int(encoded.window_start[spans.window[place]]) - encoded.first_place(question)
    start, end = int(spans.start[place]) + shift, int(spans.end[place]) + shift
    tokens = encoded.tokenizer.vocabulary.tokens
    first_word = int(context.piece_words[start])
    words = context.words_between(first_word, int(context.piece_words[end]))
    text, first, last = finder.find([tokens[index] for index in context.pieces[start : end + 1].tolist()], words)
    place_in = context.words.place_in_context
    return text, place_in(first_word, first), place_in(first_word, last) + 1


def _with_probabilities(kept: dict[str, _Entry]) -> tuple[Candidate, ...]:
    """Return the candidates with the softmax over their scores."""
    scores = np.array([start + end for start, end, _, _ in kept.values()])
    exponents = np.exp(scores - scores.max())
    probabilities = (exponents / exponents.sum()).tolist()
    return tuple(
        Candidate(text, probability, *entry)
        for (text, entry), probability in zip(kept.items(), probabilities, strict=True)
    )
