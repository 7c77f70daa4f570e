"""Words of a context as the published code splits it: at five characters only, with the characters they span."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

# space, tab, line ends and the narrow no-break space; every other blank stays inside a word
_WORD = re.compile("[^ \t\r\n\u202f]+")


@dataclass(frozen=True)
class ContextWords:
    """Words of a context: word i is `context[starts[i]:ends[i]]`; both (words,) int64, ascending."""

    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self.starts)

    def word_at(self, place: int) -> int:
        """Return the word that holds the character at a place; for a blank between words, the word before it."""
        return max(int(np.searchsorted(self.starts, place, side="right")) - 1, 0)

    def place_in_context(self, first_word: int, place: int) -> int:
        """Return where a character stands in the context that is at a place of the words from `first_word`, joined."""
        word = first_word
        while place >= (length := int(self.ends[word] - self.starts[word])):
            place -= length + 1
            word += 1
        return int(self.starts[word]) + place


def split_words(context: str) -> tuple[ContextWords, list[str]]:
    """Return where the words of a context stand, and the words."""
    words = _WORD.findall(context)
    starts = np.fromiter((match.start() for match in _WORD.finditer(context)), np.int64, len(words))
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    return ContextWords(starts, starts + lengths), words


def answer_words(context: str, words: ContextWords, text: str, start: int) -> tuple[int, int] | None:
    """Return the first and last word of an answer, or None where those words do not hold its text.

    That happens where blanks of the answer are no blanks for the splitting of words, a no-break space for one.
    """
    first, last = words.word_at(start), words.word_at(start + len(text) - 1)
    joined = " ".join(context[words.starts[i] : words.ends[i]] for i in range(first, last + 1))
    return (first, last) if " ".join(text.split()) in joined else None


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
