"""The text of an answer: from pieces back to the characters of the context, as the published code finds them."""

from __future__ import annotations

from collections.abc import Sequence

from maskloom.text import normalization

_KEPT_WORDS = 200_000


class TextFinder:
    """Finds the characters of a context that pieces were made from, for a tokenizer that lower-cases or does not.

    The basic tokens of words are kept, because candidates for one question share most of theirs.
    """

    def __init__(self, lowercase: bool) -> None:
        self._lowercase = lowercase
        self._known: dict[str, list[str]] = {}

    def find(self, pieces: Sequence[str], words: Sequence[str]) -> tuple[str, int, int]:
        """Return the part of `words`, joined by spaces, that tokens were made from, with its first and last place.

        The pieces are looked up in the words' basic tokens and mapped by counting characters that are no spaces. Where
        that fails (a token that is unknown, or words whose length changes by stripping accents or control characters)
        it is all of the words.
        """
        predicted = " ".join(" ".join(pieces).replace(" ##", "").replace("##", "").split())
        tokens = [token for word in words for token in self._basic_tokens(word)]
        joined, whole = " ".join(tokens), " ".join(words)
        start = joined.find(predicted)
        if start < 0 or not predicted or sum(map(len, tokens)) != sum(map(len, words)):
            return whole, 0, len(whole) - 1
        end = start + len(predicted) - 1
        first = _place(start - joined.count(" ", 0, start), words)
        last = _place(end - joined.count(" ", 0, end), words)
        return whole[first : last + 1], first, last

    def _basic_tokens(self, word: str) -> list[str]:
        found = self._known.get(word)
        if found is None:
            if len(self._known) >= _KEPT_WORDS:
                self._known.clear()
            found = self._known[word] = normalization.words(word, lowercase=self._lowercase)
        return found


def _place(number: int, words: Sequence[str]) -> int:
    """Return where a character, counted without spaces, stands in the words joined by spaces."""
    place = number
    for word in words:
        if number < len(word):
            break
        number -= len(word)
        place += 1
    return place
