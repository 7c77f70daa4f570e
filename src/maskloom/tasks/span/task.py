"""The span-answer task: SQuAD v1.1 and v2.0, decoded as in the published code (BERT paper 4.2; v2 4.3)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import Any

import numpy as np

from maskloom.errors import DataError
from maskloom.metrics.answers import AnswerMetric
from maskloom.objectives.classification import SpanPrediction
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.settings import SpanSettings
from maskloom.tasks.span.encoding import EncodedQuestions, encode_questions, is_max_context
from maskloom.tasks.span.reading import Question
from maskloom.tasks.task import Outputs, Task
from maskloom.text import normalization
from maskloom.text.tokenizer import Tokenizer

_WINDOWS_AT_ONCE = 512
_KEPT_WORDS = 200_000
# The published code's answer if no span qualifies.
_NO_SPAN = "empty"


@dataclass(frozen=True)
class DecodedAnswer:
    """The answer to a question: `text`, and the `candidates` by descending score, as predictions show them.

    A candidate's `text` is `context[start:end]` with single spaces between words, its `probability` that among the
    candidates kept; `start` and `end` are None for the null answer and if no span qualified. `null_odds` is the margin
    by which the null answer scores above `best`; None if every question has an answer.
    """

    text: str
    candidates: list[dict[str, Any]]
    null_odds: float | None = None

    @property
    def best(self) -> dict[str, Any]:
        """The best candidate that is not empty."""
        return next(candidate for candidate in self.candidates if candidate["text"])

    def as_row(self) -> dict[str, Any]:
        """Return the answer as plain values: text, probability, position in the context, null odds, candidates."""
        chosen = next(candidate for candidate in self.candidates if candidate["text"] == self.text)
        odds = {} if self.null_odds is None else {"null_odds": self.null_odds}
        place = {name: chosen[name] for name in ("probability", "start", "end")}
        return {"answer": self.text, **place, **odds, "candidates": self.candidates}


def decode_answers(
    encoded: EncodedQuestions,
    outputs: Sequence[np.ndarray],
    settings: SpanSettings | None = None,
    *,
    only_best: bool = False,
) -> Iterator[DecodedAnswer]:
    """Yield the answer to each question in order; `outputs` holds the start and end logits (tokens, 2) of every window.

    A span of one of the best starts and one of the best ends of a window qualifies if it lies in the context, is not
    too long, and begins with a piece that has the most context in this window. Spans are ranked by the sum of their
    logits, and each text counts once. Differs from the published code in that windows are not padded, so padding is
    never among the best starts. With `only_best`, the search stops at the best answer: answer and null odds are the
    same, but there are fewer candidates. Raises ValueError if outputs and windows do not match.
    """
    if len(outputs) != len(encoded):
        raise ValueError(f"{len(outputs)} outputs for {len(encoded)} windows; they must agree")
    finder, rows = TextFinder(encoded.tokenizer), iter(outputs)
    for part in encoded.parts(_WINDOWS_AT_ONCE):
        yield from _Decoder(part, settings or SpanSettings(), only_best, finder).answers(islice(rows, len(part)))


_KEYS = ("text", "probability", "start_logit", "end_logit", "start", "end")
# Start and end logits, and the start and end of the text in the context.
_Entry = tuple[float, float, int | None, int | None]


@dataclass(frozen=True)
class _Decoder:
    """State shared by all decoding steps; `encoded` are a part of the questions."""

    encoded: EncodedQuestions
    settings: SpanSettings
    only_best: bool
    finder: TextFinder

    def answers(self, outputs: Iterable[np.ndarray]) -> Iterator[DecodedAnswer]:
        """Yield the answers to the questions, given the outputs of their windows."""
        encoded = self.encoded
        logits = self._padded(outputs)
        nulls = logits[np.arange(len(encoded)), encoded.null_places]
        questions, *spans = self._spans(logits)
        bounds = np.searchsorted(questions, np.arange(encoded.num_examples + 1)).tolist()
        for question, bound in enumerate(pairwise(bounds)):
            null = None
            if self.settings.has_unanswerable:
                own = slice(*encoded.first_window[question : question + 2].tolist())
                null = nulls[own][int(nulls[own].sum(axis=1).argmin())]
            yield self._answer(question, zip(*(column[slice(*bound)] for column in spans), strict=True), null)

    def _padded(self, outputs: Iterable[np.ndarray]) -> np.ndarray:
        """Return the logits of all windows, (windows, tokens of the longest, 2), padded with -inf."""
        lengths = self.encoded.lengths
        logits = np.full((len(lengths), int(lengths.max()), 2), -np.inf)
        for row, found, length in zip(logits, outputs, lengths.tolist(), strict=True):
            if len(found) != length:
                raise ValueError(f"a window has {length} tokens but {len(found)} rows of output")
            row[:length] = found
        return logits

    def _spans(self, logits: np.ndarray) -> list[np.ndarray]:
        """Return questions, first and last pieces, start and end logits of the qualifying spans, all (spans,).

        They are sorted by question and descending score; ties go to the earlier window, then to the better start and
        end logits.
        """
        encoded = self.encoded
        order = np.argsort(-logits, axis=1, kind="stable")[:, : self.settings.num_best]
        starts, ends = order[:, :, 0], order[:, :, 1]
        (questions, places, lengths), offsets = encoded.windows.T, encoded.context_places
        shifts, context_ends = places - offsets, offsets + lengths
        starts_count = (starts >= offsets[:, None]) & (starts < context_ends[:, None])
        row, column = np.nonzero(starts_count)
        num_pieces = np.array([len(context.pieces) for context in encoded.contexts])
        starts_count[row, column] = is_max_context(
            starts[row, column] + shifts[row],
            row - encoded.first_window[questions[row]],
            np.diff(encoded.first_window)[questions[row]],
            num_pieces[questions[row]],
            encoded.max_length - offsets[row] - len(encoded.tokenizer.template.end),
            encoded.stride,
        )
        sizes = ends[:, None, :] - starts[:, :, None]
        counts = starts_count[:, :, None] & (ends < context_ends[:, None])[:, None, :]
        counts &= (sizes >= 0) & (sizes < self.settings.max_answer_length)
        row, by_start, by_end = np.nonzero(counts)
        start, end = starts[row, by_start], ends[row, by_end]
        start_logit, end_logit = logits[row, start, 0], logits[row, end, 1]
        by_score = np.lexsort((-(start_logit + end_logit), questions[row]))
        found = (questions[row], start + shifts[row], end + shifts[row], start_logit, end_logit)
        return [values[by_score] for values in found]

    def _answer(self, question: int, spans: Iterable[Sequence[Any]], null: np.ndarray | None) -> DecodedAnswer:
        """Return the answer to a question from its spans and the null answer's logits (2,), which are None in v1.1."""
        num_best = self.settings.num_best
        null_score = np.inf if null is None else float(null.sum())
        null_entry = None if null is None else (float(null[0]), float(null[1]), None, None)
        kept: dict[str, _Entry] = {}
        for first, last, start_logit, end_logit in spans:
            if null_entry is not None and len(kept) < num_best and null_score > start_logit + end_logit:
                kept.setdefault("", null_entry)
            if len(kept) >= num_best or (self.only_best and any(kept)):
                break
            text, start, end = self._text(question, first, last)
            kept.setdefault(text, (float(start_logit), float(end_logit), start, end))
        if null_entry is not None:
            kept.setdefault("", null_entry)
        if not any(kept):
            kept = {_NO_SPAN: (0.0, 0.0, None, None), **kept}
        scores = np.array([start + end for start, end, _, _ in kept.values()])
        exponents = np.exp(scores - scores.max())
        probabilities = (exponents / exponents.sum()).tolist()
        rows = zip(kept.items(), probabilities, strict=True)
        candidates = [dict[str, Any](zip(_KEYS, (text, each, *entry), strict=True)) for (text, entry), each in rows]
        best = DecodedAnswer("", candidates).best
        if null is None:
            return DecodedAnswer(best["text"], candidates)
        odds = null_score - best["start_logit"] - best["end_logit"]
        return DecodedAnswer("" if odds > self.settings.null_threshold else best["text"], candidates, odds)

    def _text(self, question: int, start: int, end: int) -> tuple[str, int, int]:
        """Return the text from piece `start` to piece `end`, and its start and end in the context."""
        context = self.encoded.contexts[question]
        first_word, last_word = int(context.piece_words[start]), int(context.piece_words[end])
        words = context.words(first_word, last_word)
        text, first, last = self.finder.find(context.pieces[start : end + 1].tolist(), words)
        return text, context.place_in_context(first_word, first), context.place_in_context(first_word, last) + 1


class TextFinder:
    """Maps a tokenizer's pieces back to the characters of the context that they came from.

    Basic tokens of words are cached, because the candidates for one question share most of them. Byte-level tokenizers
    leave words unchanged, so each word is its own only basic token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        cut = partial(normalization.words, lowercase=tokenizer.lowercase)
        self._basic_tokens = lru_cache(_KEPT_WORDS)(cut if tokenizer.cuts_at_white_space else lambda word: [word])

    def find(self, pieces: Sequence[int], words: Sequence[str]) -> tuple[str, int, int]:
        """Return the part of `words`, joined by spaces, that the pieces came from, with its first and last index.

        The pieces' text is looked up in the words' basic tokens and mapped back by counting non-space characters. If
        that fails (for an unknown token, or if stripping accents or control characters changes a length), the part is
        the whole text.
        """
        tokens, prefix = self._tokenizer.vocabulary.tokens, self._tokenizer.vocabulary.prefix
        if prefix:
            predicted = " ".join(tokens[piece] for piece in pieces).replace(f" {prefix}", "").replace(prefix, "")
        else:
            predicted = self._tokenizer.decode(pieces, skip_special_tokens=False)
        predicted = " ".join(predicted.split())
        tokens = [token for word in words for token in self._basic_tokens(word)]
        joined, whole = " ".join(tokens), " ".join(words)
        start = joined.find(predicted)
        if start < 0 or not predicted or sum(map(len, tokens)) != sum(map(len, words)):
            return whole, 0, len(whole) - 1
        end = start + len(predicted) - 1
        places = [place for place, character in enumerate(whole) if character != " "]
        first, last = (places[place - joined.count(" ", 0, place)] for place in (start, end))
        return whole[first : last + 1], first, last


def span_task(labels: tuple[str, ...], primary: str | None, settings: SpanSettings) -> Task:
    """Return the span-answer task, scored by f1 or exact_match; raises ValueError for any other score."""
    threshold = settings.null_threshold if settings.has_unanswerable else None
    metric = partial(AnswerMetric, primary=primary or "f1", null_threshold=threshold)
    return Task(
        kind="span",
        labels=(),
        primary=metric().primary,
        heads=("span",),
        objective=SpanPrediction(),
        encode=partial(_encode, settings),
        decide=partial(_decide, settings),  # pyright: ignore[reportArgumentType]
        targets=_targets,  # pyright: ignore[reportArgumentType]
        decode=lambda encoded, outputs: [found.as_row() for found in decode_answers(encoded, outputs, settings)],  # pyright: ignore[reportArgumentType]
        metric=metric,
        settings=settings,
        tune=partial(_tune, settings, metric().primary) if settings.has_unanswerable else None,  # pyright: ignore[reportArgumentType]
        forms={".json": _official_lines},
        frames={".json": ("{\n", ", ", "}\n")},
    )


def _encode(
    settings: SpanSettings, data: ReadExamples, tokenizer: Tokenizer, max_length: int, *, for_training: bool = False
) -> EncodedQuestions:
    encoded = encode_questions(data.examples, tokenizer, settings, max_length=max_length, for_training=for_training)
    if not encoded.questions:
        raise DataError(f"{data.report.path}: no answer can be aligned with the words of its context")
    return encoded


def _decide(settings: SpanSettings, encoded: EncodedQuestions, outputs: Outputs) -> list[tuple[str, float | None]]:
    """Return the best non-empty answer to each question, with its null odds; the metric applies the threshold."""
    answers = decode_answers(encoded, outputs, settings, only_best=True)
    return [(found.best["text"], found.null_odds) for found in answers]


def _targets(encoded: EncodedQuestions) -> list[tuple[str, ...]] | None:
    """Return the gold answers to every question, or None if those to any question are unknown."""
    if any(question.answers is None for question in encoded.questions):
        return None
    return [tuple(answer.text for answer in question.answers or ()) for question in encoded.questions]


def _official_lines(question: Question, prediction: dict[str, Any]) -> list[str]:
    """Return the line for a question in a prediction file that the official scripts read."""
    name, text = (json.dumps(value, ensure_ascii=False) for value in (question.id, prediction["answer"]))
    return [f"{name}: {text}"]


def _tune(settings: SpanSettings, primary: str, encoded: EncodedQuestions, outputs: Outputs) -> dict[str, Any]:
    """Return the null threshold with the best score, or {} if all questions have an answer, or none."""
    targets = _targets(encoded) or []
    if all(targets) or not any(targets):
        return {}
    metric = AnswerMetric(primary=primary)
    metric.update(_decide(settings, encoded, outputs), targets)
    return {"null_threshold": metric.best_null_threshold()}
