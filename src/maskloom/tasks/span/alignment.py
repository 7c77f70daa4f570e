"""Where an answer stands among the pieces of its context (BERT paper 4.2, by the published code)."""

from __future__ import annotations

import numpy as np

from maskloom.tasks.span.words import ContextWords, holds_answer


def answer_words(context: str, words: ContextWords, text: str, start: int) -> tuple[int, int] | None:
    """Return the first and last word of an answer, or None where those words do not hold its text.

    That happens where blanks of the answer are no blanks for the splitting of words, a no-break space for one.
    """
    first, last = words.word_at(start), words.word_at(start + len(text) - 1)
    return (first, last) if holds_answer(context, words, first, last, text) else None


def answer_pieces(pieces: np.ndarray, first: int, last: int, answer: list[int]) -> tuple[int, int]:
    """Return the first and last piece of an answer: within `first` to `last`, the span whose ids are the answer's.

    `pieces` are the ids of the context. The first such span wins; without one the whole range stands, as for "Japan" in
    "Japanese".
    """
    length = len(answer)
    for start in range(first, last + 2 - length) if length else ():
        if pieces[start] == answer[0] and pieces[start : start + length].tolist() == answer:
            return start, start + length - 1
    return first, last
