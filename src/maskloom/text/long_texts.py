"""Long texts in parts, for a tokenizer that takes hundreds of bytes a character and slows down when they are many."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LONGEST_PART = 16_384
"""Texts of up to so many characters stay whole; parts are not much longer."""
# Characters that end a word, and before which a text may be cut: white space, punctuation, Chinese characters. There
# are others, which are looked for where none of these comes.
_COMMON_STARTS = re.compile("[ \t\n\r!-/:-@\\[-`{-~\u4e00-\u9fff]")
# Kinds of characters: those that a word has, those that are left out, and those that end a word.
_IN_WORD, _LEFT_OUT, _ENDS_WORD = "w", "-", " "
_LONG_WORD = re.compile(f"[{_IN_WORD}{_LEFT_OUT}]{{1024,}}")
# More characters than any tokenizer reads of a word before it calls it unknown.
_UNKNOWN_ALREADY = re.compile(f"(?:{_LEFT_OUT}*{_IN_WORD}){{256}}")


@dataclass(frozen=True)
class Part:
    """A part of a text, at a position there, from which the middles of words that are too long to be known are gone.

    `gaps` holds, for every middle, its place in the part and how many characters it had.
    """

    position: int
    text: str
    gaps: tuple[tuple[int, int], ...] = ()

    def place_in_text(self, offset: int) -> int:
        """Return where the whole text has the end of what ends at `offset` in the part, or the start alike."""
        return self.position + offset + sum(length for place, length in self.gaps if place < offset)


def parts_of(text: str, split: Callable[[str], list[str]] | None) -> Iterator[Part]:
    """Yield a text's parts, each cut before a character with which a word begins or ends.

    `split` returns the words of a text, normalized; it tells the kinds of characters where there is nothing common to
    cut at. Part by part, the words are those of the whole, except that those of more than 256 characters are shorter.
    Without it nothing is left out, and a part lasts until the next common place to cut at.
    """
    start = 0
    while start < len(text):
        cut = _COMMON_STARTS.search(text, start + LONGEST_PART)
        end = cut.start() if cut else len(text)
        if split is None or end - start <= 2 * LONGEST_PART:
            yield Part(start, text[start:end])
        else:
            yield from _parts_by_kind(text[start:end], start, split)
        start = end


def _parts_by_kind(text: str, position: int, split: Callable[[str], list[str]]) -> Iterator[Part]:
    kinds = text.translate({ord(character): _kind(character, split) for character in set(text)})
    start = 0
    while start < len(text):
        cut = kinds.find(_ENDS_WORD, start + LONGEST_PART)
        end = cut if cut >= 0 else len(text)
        yield _without_middles(position + start, text[start:end], kinds[start:end])
        start = end


def _kind(character: str, split: Callable[[str], list[str]]) -> str:
    words = split(f"a{character}a")
    if len(words) != 1:
        return _ENDS_WORD
    return _LEFT_OUT if len(words[0]) == 2 else _IN_WORD


def _without_middles(position: int, text: str, kinds: str) -> Part:
    kept: list[str] = []
    gaps: list[tuple[int, int]] = []
    place = done = 0
    for word in _LONG_WORD.finditer(kinds):
        head = _UNKNOWN_ALREADY.match(kinds, word.start(), word.end())
        last = kinds.rfind(_IN_WORD, word.start(), word.end())
        if head and last > head.end():
            kept.append(text[done : head.end()])
            place += head.end() - done
            gaps.append((place, last - head.end()))
            done = last
    return Part(position, "".join([*kept, text[done:]]), tuple(gaps))
