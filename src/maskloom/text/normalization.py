"""Splitting text into words by the rules of Google's basic tokenizer, character by character.

The steps, in order: drop control characters, isolate Chinese characters, split on white space, lower-case and strip
accents (uncased only), isolate punctuation. These rules define words for both training and encoding.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from itertools import compress

_CHINESE = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df"
    "\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_KEEP, _DROP, _SPACE, _APART = range(4)

# str.split also splits at these control characters, which the rules delete so that their neighbours join
_DELETED_SEPARATORS = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
_ASCII_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ASCII_WORD = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")


class _CharacterClasses(dict[str, int]):
    """Maps a character to its treatment in cleaning; filled lazily, with at most one entry per code point."""

    def __missing__(self, char: str) -> int:
        category = unicodedata.category(char)
        if char in " \t\n\r":
            kind = _SPACE
        elif char == "\ufffd" or category in ("Cc", "Cf"):
            kind = _DROP
        elif category == "Zs" or char.isspace():
            # cleaning keeps U+2028 and U+2029, but the split on white space that follows removes them
            kind = _SPACE
        else:
            kind = _APART if _CHINESE.match(char) else _KEEP
        self[char] = kind
        return kind


class _Punctuation(dict[str, bool]):
    """Maps a character to whether it is punctuation: an ASCII symbol or in a Unicode category that starts with P."""

    def __missing__(self, char: str) -> bool:
        self[char] = char in string.punctuation or unicodedata.category(char).startswith("P")
        return self[char]


_CLASSES = _CharacterClasses()
_PUNCTUATION = _Punctuation()


def split_chunks(text: str) -> list[str]:
    """Split raw text at white space as the rules define it; the chunks' words, in order, are the words of the text."""
    return _DELETED_SEPARATORS.sub("", text).split()


def has_words(text: str) -> bool:
    """Return whether any character of the text survives cleaning, so that a cased model would see a word in it."""
    return any(_CLASSES[char] in (_KEEP, _APART) for char in text)


def words(text: str, *, lowercase: bool) -> list[str]:
    """Split text into words; `lowercase` also strips accents, as in the uncased models (paper's released code).

    Without `lowercase`, no character is changed and no Unicode normalisation is applied.
    """
    if text.isascii():
        # fast path for the common case: regular expressions only
        text = _ASCII_CONTROL.sub("", text)
        return _ASCII_WORD.findall(text.lower() if lowercase else text)
    return [word for word, _, _ in words_with_offsets(text, lowercase=lowercase)]


def whole_word(word: str, *, lowercase: bool) -> str:
    """Return a word as `words` finds it, or unchanged where that finds several words or none."""
    found = words(word, lowercase=lowercase)
    return found[0] if len(found) == 1 else word


def words_with_offsets(text: str, *, lowercase: bool) -> list[tuple[str, int, int]]:
    """Split text into (word, start, end), where `text[start:end]` is the source of the word.

    The span runs from the source of the word's first character to the end of the source of its last.
    """
    return [(word, sources[0], sources[-1] + 1) for word, sources in words_with_sources(text, lowercase=lowercase)]


def words_with_sources(text: str, *, lowercase: bool) -> list[tuple[str, Sequence[int]]]:
    """Split text into (word, sources), where `sources` holds the index in `text` of each character of the word."""
    found: list[tuple[str, Sequence[int]]] = []
    start = 0
    dropped: set[int] = set()

    def finish(end: int) -> None:
        if start < end:
            positions = [place for place in range(start, end) if place not in dropped] if dropped else range(start, end)
            chunk = "".join([text[place] for place in positions]) if dropped else text[start:end]
            found.extend(_words_of_chunk(chunk, positions, lowercase))

    for index, char in enumerate(text):
        kind = _CLASSES[char]
        if kind == _KEEP:
            continue
        if kind == _DROP:
            dropped.add(index)
            continue
        finish(index)
        start, dropped = index + 1, set()
        if kind == _APART:
            found.extend(_words_of_chunk(char, range(index, index + 1), lowercase))
    finish(len(text))
    return found


def _words_of_chunk(chunk: str, sources: Sequence[int], lowercase: bool) -> list[tuple[str, Sequence[int]]]:
    if lowercase:
        chunk, sources = _lower_without_accents(chunk, sources)
    found: list[tuple[str, Sequence[int]]] = []
    start = 0
    for index, char in enumerate(chunk):
        if _PUNCTUATION[char]:
            if start < index:
                found.append((chunk[start:index], sources[start:index]))
            found.append((char, sources[index : index + 1]))
            start = index + 1
    if start < len(chunk):
        found.append((chunk[start:], sources[start:]))
    return found


def _lower_without_accents(chunk: str, sources: Sequence[int]) -> tuple[str, Sequence[int]]:
    # lower() depends on neighbours only for a final sigma, which never changes the length
    lowered = chunk.lower()
    if len(lowered) > len(chunk):
        sources = [source for source, char in zip(sources, chunk, strict=True) for _ in char.lower()]
    if lowered.isascii():
        return lowered, sources
    parts = lowered
    if not unicodedata.is_normalized("NFD", lowered):
        pairs = [
            (part, source)
            for char, source in zip(lowered, sources, strict=True)
            for part in unicodedata.normalize("NFD", char)
        ]
        _order_marks(pairs)
        parts, sources = "".join([part for part, _ in pairs]), [source for _, source in pairs]
    is_kept = [unicodedata.category(part) != "Mn" for part in parts]
    if all(is_kept):
        return parts, sources
    return "".join(compress(parts, is_kept)), list(compress(sources, is_kept))


def _order_marks(characters: list[tuple[str, int]]) -> None:
    """Put runs of combining characters into Unicode's canonical order, in place, as NFD of the whole chunk would."""
    start = 0
    while start < len(characters):
        end = start
        while end < len(characters) and unicodedata.combining(characters[end][0]):
            end += 1
        if end - start > 1:
            characters[start:end] = sorted(characters[start:end], key=lambda pair: unicodedata.combining(pair[0]))
        start = end + 1


# Characters on which the `tokenizers` library and Google's rules agree in any context.
#
# Their Unicode tables differ in age, so they disagree on recent punctuation and marks, unassigned and private-use code
# points, part of one Chinese block, and capital sigma, whose lower case in Python depends on its neighbours. Only text
# made of the characters below goes to the library; all other text takes the slower rules above.
#
# The list is hard-coded rather than computed, so that results do not depend on Python's Unicode version: the ranges
# were assigned long ago and their categories no longer change. A test compares both implementations on each character.
_AGREED_RANGES = """
0000-0377 037A-037F 0384-038A 038C 038E-03A1 03A4-0527 0531-0556 0559-058A 0591-05C7 05D0-05EA 05F0-05F4
0606-061B 061E-06FF 0900-097F 0993-09A8 09E6-09FB 0A13-0A28 0A66-0A75 0A93-0AA8 0ABC-0AC5 0AE6-0AF1
0B13-0B28 0B66-0B77 0BAE-0BB9 0BE6-0BFA 0C12-0C28 0C2A-0C39 0C66-0C6F 0C92-0CA8 0CAA-0CB3 0CE6-0CEF
0D02-0D0C 0D12-0D3A 0D54-0D63 0D66-0D7F 0D85-0D96 0D9A-0DB1 0DE6-0DEF 0E01-0E3A 0E3F-0E5B 0E8C-0EA3
0EA7-0EB9 0ED0-0ED9 1000-10C5 10D0-10FC 1100-1248 1260-1288 1290-12B0 12C8-12D6 12D8-1310 1318-135A
135D-137C 1780-17DD 17E0-17E9 17F0-17F9 1E00-1F15 1F20-1F45 1F5F-1F7D 1F80-1FB4 1FB6-1FC4 1FC6-1FD3
1FDD-1FEF 2000-2064 2074-208E 2090-209C 20A0-20B9 2100-218B 2190-23F3 2400-2426 2460-2AFF 2E80-2E99
2E9B-2EF3 2F00-2FD5 3000-302D 3030-303F 3041-3096 3099-30FF 3105-312D 3131-318E 3190-31BA 31F0-321E
3220-32FE 3300-4DB5 4E00-9FCB A000-A48C AC00-D7A3 F900-FA6D FB00-FB06 FB1D-FB36 FB46-FBB1 FE00-FE0F
FE30-FE52 FE54-FE66 FE76-FEFC FEFF FF01-FFBE 1D400-1D454 1D456-1D49C 1D4AE-1D4B9 1D4C5-1D505 1D51E-1D539
1D552-1D6A5 1D6A8-1D7CB 1D7CE-1D7FF 1F300-1F64F 1F680-1F6C5 20000-2A6D6
"""


def agreed_ranges() -> list[tuple[int, int]]:
    """Return the first and last code point of every range, in ascending order."""
    pairs = [text.split("-") for text in _AGREED_RANGES.split()]
    return [(int(pair[0], 16), int(pair[-1], 16)) for pair in pairs]


_DISAGREED = re.compile("[^" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in agreed_ranges()) + "]")


def is_agreed(text: str) -> bool:
    """Return whether the library and Google's rules are known to split this text the same way."""
    return text.isascii() or _DISAGREED.search(text) is None
