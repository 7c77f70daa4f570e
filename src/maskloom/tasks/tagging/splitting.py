"""Splits raw text into words to be tagged, with rules learned from the words of the training data."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from maskloom.sections import Section
from maskloom.text.normalization import words_with_offsets

Span = tuple[int, int]
Words = list[Annotated[str, Field(min_length=1)]]

# Typographic quotes are treated like the plain ones that training data mostly has.
_PLAIN = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "“": '"', "”": '"', "„": '"'})
# A line that has one of these as a separate word is already split into words.
_CLOSING = frozenset(".,)")
# Marks that join two words.
_JOINING = frozenset("-'/&")
_CLITIC = re.compile(r"'[^\W\d_]{1,3}|[^\W\d_]{1,3}'|n't", re.IGNORECASE)
_LONGEST_PIECE = 4
# Longer runs without a blank are not words; they are split at every mark, as in BERT's tokenizer.
_LONGEST_WORD = 256
# A mark is split off inside words if it is this many times less frequent there than as a separate word.
_RARELY_INSIDE = 100


class WordSplitter(Section):
    """Rules for splitting text into words as in the training data, small enough to store with a model.

    Text is split at white space, and marks (punctuation and symbols) are split off both ends of each chunk, unless
    `kept` has the chunk or its shape: "A." is the shape of any capital with a full stop. `pieces` are split off whole:
    words of several marks ("...") and clitics ('s, n't, l'). Marks in `whole` are never split off, as they are not
    words in the training data, and marks in `inner` are split off inside words too.
    """

    kept: Words
    pieces: Words
    whole: Words
    inner: Words

    @classmethod
    def learned(cls, sentences: Iterable[Sequence[str]]) -> WordSplitter:
        """Learn the splitting rules from the words of training sentences."""
        words, surplus, inside, shapes = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        for sentence in sentences:
            plain = [word.translate(_PLAIN) for word in sentence]
            words.update(plain)
            surplus.update(plain)
            # letters and marks that are adjacent words count against the word that they would form: it was split there
            surplus.subtract(left + right for left, right in pairwise(plain) if _is_marks(left) != _is_marks(right))
        marks = {char for word in words if _is_marks(word) for char in word}
        pieces = {word for word in words if _CLITIC.fullmatch(word) or (_is_marks(word) and len(word) > 1)}
        attached: set[str] = set()
        for word, count in surplus.items():
            if not word.isalnum() and not _is_marks(word) and word not in pieces:
                inside.update(dict.fromkeys(filter(_is_marks, word[1:-1]), words[word]))
                ends = set(filter(_is_marks, (word[0], word[-1])))
                attached |= ends
                shapes[_shape(word)] += count if ends else 0
        rules = cls(
            kept=sorted(shape for shape, count in shapes.items() if count > 0),
            pieces=sorted({_lower(piece) for piece in pieces if len(piece) <= _LONGEST_PIECE}),
            whole=sorted(attached - marks),
            inner=sorted(mark for mark in marks if inside[mark] * _RARELY_INSIDE < words[mark]),
        )
        kept = (word for word, count in sorted(surplus.items()) if count > 0 and len(rules.cut(word)) > 1)
        return cls(**(rules.model_dump() | {"kept": [*rules.kept, *kept]}))

    def spans(self, text: str) -> list[Span]:
        """Return the spans (start, end) of the words of a line; a line already split is split only at blanks."""
        chunks = blank_spans(text, parts_characters=True)
        if not self._closing.isdisjoint(text[start:end] for start, end in chunks):
            return blank_spans(text)
        found = [(start + first, start + last) for start, end in chunks for first, last in self.cut(text[start:end])]
        if len(found) > 1 and "." not in self.whole and re.search(r"\d\.$", text[slice(*found[-1])]):
            start, end = found.pop()  # a number that ends a sentence, not the number of a list item
            found += [(start, end - 1), (end - 1, end)]
        return found

    def are_cut(self, lines: Iterable[str]) -> bool:
        """Return whether more lines are already split into words than splitting would change."""
        num_cut = num_raw = 0
        for words in map(str.split, lines):
            if not self._closing.isdisjoint(words):
                num_cut += 1
            else:
                num_raw += any(len(self.cut(word)) > 1 for word in words)
        return num_cut > num_raw

    def cut(self, chunk: str) -> list[Span]:
        """Return the spans (start, end) of the words in a chunk of text without blanks."""
        if chunk.isalnum():
            return [(0, len(chunk))]
        if len(chunk) > _LONGEST_WORD:
            return [(start, end) for _, start, end in words_with_offsets(chunk, lowercase=False)]
        plain = chunk.translate(_PLAIN)
        found, rest = list[Span](), [(0, len(chunk))]
        while rest:
            first, last = rest.pop()
            if first < last:
                start, end = self._word_in(plain[first:last])
                found.append((first + start, first + end))
                rest += [(first, first + start), (first + end, last)]
        return sorted(found)

    def differences(self, words: Sequence[str]) -> dict[str, int]:
        """Count the words of a sentence, and those whose marks are treated differently than in training.

        Of the words with marks, `joined` would be split again and `whole` would not; `parted` marks are words of their
        own although training has them within words.
        """
        plain = [word.translate(_PLAIN) for word in words]
        num_cut = [len(self.cut(word)) for word in plain if not word.isalnum() and not _is_marks(word)]
        parted = sum(
            self._is_kept(left + mark) or (mark in _JOINING and mark not in self.inner and right.isalnum())
            for left, mark, right in zip(plain, plain[1:], plain[2:], strict=False)
            if _is_marks(mark) and left.isalnum()
        )
        return {
            "words": len(words),
            "parted": parted,
            "whole": num_cut.count(1),
            "joined": len(num_cut) - num_cut.count(1),
        }

    @cached_property
    def _closing(self) -> frozenset[str]:
        return _CLOSING.difference(self.whole).union(piece for piece in self.pieces if piece[-1].isalpha())

    @cached_property
    def _whole_words(self) -> frozenset[str]:
        return frozenset((*self.kept, *self.pieces))

    def _is_kept(self, text: str) -> bool:
        return not self._whole_words.isdisjoint((text, _shape(text), _lower(text)))

    def _word_in(self, text: str) -> Span:
        """Return the span of one word in a text: all of it, a piece or mark at either end, or a mark inside."""
        if self._is_kept(text):
            return 0, len(text)
        lower = _lower(text)
        for size in range(min(_LONGEST_PIECE, len(text)), 1, -1):
            if lower[:size] in self.pieces and not lower[size - 1].isalpha():
                return 0, size
            if lower[-size:] in self.pieces and (lower[-1] != "'" or _is_marks(lower[-size:])):
                return len(text) - size, len(text)
        for at, char in enumerate(text):
            if _is_marks(char) and char not in self.whole and (at in (0, len(text) - 1) or char in self.inner):
                return at, at + 1
        return 0, len(text)


def blank_spans(text: str, *, parts_characters: bool = False) -> list[Span]:
    """Return the spans between BERT's white space; `parts_characters` splits characters of scripts without blanks."""
    spans: list[Span] = []
    for word, start, end in words_with_offsets(text, lowercase=False):
        is_apart = parts_characters and not _is_marks(word[0]) and not _is_marks(text[start - 1])
        if spans and spans[-1][1] == start and not is_apart:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def _is_marks(text: str) -> bool:
    """Return whether a text consists only of punctuation and symbols."""
    return all(unicodedata.category(char)[0] in "PS" for char in text)


def _lower(text: str) -> str:
    """Return a text in lower case, with its length unchanged: the Turkish İ becomes one character."""
    return "".join(char.lower()[0] for char in text)


def _shape(word: str) -> str:
    """Return a word with its letters and digits replaced by kinds, and runs shortened: "Simmons." is "Aaa."."""
    kinds = "".join(
        "0" if char.isdigit() else "A" if char.isupper() else char if _is_marks(char) else "a" for char in word
    )
    return re.sub(r"(.)\1+", r"\1\1", kinds)


UNKNOWN_TRAINING = WordSplitter(
    kept=[
        *("A.", "A.A.", "A.A.A.", "a.a.", "Co.", "Corp.", "Dr.", "Gen.", "Inc.", "Jr.", "Ltd.", "Mr.", "Mrs.", "Ms."),
        *("Sen.", "Sr.", "St.", "vs."),
    ],
    pieces=["--", "...", "''", "``", "'ll", "'re", "'ve", "n't", "'d", "'m", "'s"],
    whole=[],
    inner=[],
)
"""For a model that does not say how its training data was split: English as in CoNLL-2003."""
