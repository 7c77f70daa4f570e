"""Splitting long texts: a tokenizer needs hundreds of bytes per character and slows down on long input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LONGEST_PART = 16_384
"""The longest text, in characters, that stays whole; parts are not much longer."""
# Common characters that end a word, so that a text may be cut before them: white space, punctuation and Chinese
# characters. Other such characters are looked for only where none of these is near.
_COMMON_STARTS = re.compile("[ \t\n\r!-/:-@\\[-`{-~\u4e00-\u9fff]")
# Kinds of characters: part of a word, dropped by the normalizer, and ending a word.
_IN_WORD, _LEFT_OUT, _ENDS_WORD = "w", "-", " "
_LONG_WORD = re.compile(f"[{_IN_WORD}{_LEFT_OUT}]{{1024,}}")
# More characters than any tokenizer reads before it treats a word as unknown.
_UNKNOWN_ALREADY = re.compile(f"(?:{_LEFT_OUT}*{_IN_WORD}){{256}}")


@dataclass(frozen=True)
class Part:
    """A part of a text that starts at `position`, without the middles of words too long to be known.

    `gaps` holds the place in the part and the number of characters of each removed middle.
    """

    position: int
    text: str
    gaps: tuple[tuple[int, int], ...] = ()

    def place_in_text(self, offset: int) -> int:
        """Return the offset in the whole text of a token start or end at `offset` in the part."""
        return self.position + offset + sum(length for place, length in self.gaps if place < offset)


def parts_of(text: str, split: Callable[[str], list[str]] | None) -> Iterator[Part]:
    """Yield the parts of a text, each cut before a character that begins or ends a word.

    `split` returns the normalized words of a text; it classifies characters where no common cutting point is near. The
    parts have the same words as the whole text, except that words of 1,024 characters or more may be shortened, though
    not below 256 characters. Without `split` nothing is removed, and a part extends to the next common cutting point.
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
