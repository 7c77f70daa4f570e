"""Text into words by the rules of Google's basic tokenizer, character by character.

The steps, in order: drop control characters, set Chinese characters apart, split on white space, lower-case and strip
accents (uncased only), set punctuation apart. These rules define what a word is for training and for encoding alike.
"""

from __future__ import annotations

import re
import unicodedata

_CHINESE_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_KEEP, _DROP, _SPACE, _APART = range(4)

# str.split also splits at these control characters, which the rules delete so that their neighbours join
_DELETED_SEPARATORS = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
_ASCII_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ASCII_WORD = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")


class _CharacterClasses(dict[str, int]):
    """What cleaning does with a character; filled as characters are met, so at most one entry a code point."""

    def __missing__(self, char: str) -> int:
        code = ord(char)
        if char in " \t\n\r":
            kind = _SPACE
        elif code in (0, 0xFFFD):
            kind = _DROP
        else:
            category = unicodedata.category(char)
            if category in ("Cc", "Cf"):
                kind = _DROP
            elif category == "Zs" or char.isspace():
                # U+2028 and U+2029 are kept by cleaning, but the split on white space that follows takes them
                kind = _SPACE
            elif any(first <= code <= last for first, last in _CHINESE_RANGES):
                kind = _APART
            else:
                kind = _KEEP
        self[char] = kind
        return kind


class _Punctuation(dict[str, bool]):
    """Whether a character is punctuation: every ASCII symbol, and each Unicode category that starts with P."""

    def __missing__(self, char: str) -> bool:
        code = ord(char)
        is_ascii_symbol = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
        self[char] = is_ascii_symbol or unicodedata.category(char).startswith("P")
        return self[char]


_CLASSES = _CharacterClasses()
_PUNCTUATION = _Punctuation()


def split_chunks(text: str) -> list[str]:
    """Split raw text where the rules see white space; the words of the text are those of its chunks in order."""
    if _DELETED_SEPARATORS.search(text):
        text = _DELETED_SEPARATORS.sub("", text)
    return text.split()


def has_words(text: str) -> bool:
    """Return whether any character of the text survives cleaning, so that a cased model would see a word in it."""
    return any(_CLASSES[char] in (_KEEP, _APART) for char in text)


def words(text: str, *, lowercase: bool) -> list[str]:
    """Split text into words; `lowercase` also strips accents, as in the uncased models (paper's released code).

    Without `lowercase` no character is changed, and no Unicode normalisation takes place.
    """
    if text.isascii():
        # the common case at the speed of the regular expression engine
        text = _ASCII_CONTROL.sub("", text)
        return _ASCII_WORD.findall(text.lower() if lowercase else text)
    return [word for word, _, _ in words_with_offsets(text, lowercase=lowercase)]


def words_with_offsets(text: str, *, lowercase: bool) -> list[tuple[str, int, int]]:
    """Split text into (word, start, end), where `text[start:end]` is what the word was made from.

    The span runs from the source of the word's first character to the end of the source of its last.
    """
    return [(word, sources[0], sources[-1] + 1) for word, sources in words_with_sources(text, lowercase=lowercase)]


def words_with_sources(text: str, *, lowercase: bool) -> list[tuple[str, list[int]]]:
    """Split text into (word, sources): for each character of the word, the index in `text` that it came from."""
    found: list[tuple[str, list[int]]] = []
    chunk: list[str] = []
    sources: list[int] = []

    def finish() -> None:
        if chunk:
            found.extend(_words_of_chunk(chunk, sources, lowercase))
            chunk.clear()
            sources.clear()

    for index, char in enumerate(text):
        kind = _CLASSES[char]
        if kind == _KEEP:
            chunk.append(char)
            sources.append(index)
        elif kind != _DROP:
            finish()
            if kind == _APART:
                chunk.append(char)
                sources.append(index)
                finish()
    finish()
    return found


def _words_of_chunk(chunk: list[str], sources: list[int], lowercase: bool) -> list[tuple[str, list[int]]]:
    if lowercase:
        chunk, sources = _lower_without_accents(chunk, sources)
    found: list[tuple[str, list[int]]] = []
    start = 0
    for index, char in enumerate(chunk):
        if _PUNCTUATION[char]:
            if start < index:
                found.append(("".join(chunk[start:index]), sources[start:index]))
            found.append((char, sources[index : index + 1]))
            start = index + 1
    if start < len(chunk):
        found.append(("".join(chunk[start:]), sources[start:]))
    return found


def _lower_without_accents(chunk: list[str], sources: list[int]) -> tuple[list[str], list[int]]:
    text = "".join(chunk)
    # lower() looks at neighbours for a final sigma only, and that never changes a length
    lengths = [len(char.lower()) for char in chunk]
    lowered = text.lower()
    origins = [source for source, length in zip(sources, lengths, strict=True) for _ in range(length)]
    if lowered.isascii():
        return list(lowered), origins
    decomposed = [
        (part, origin)
        for char, origin in zip(lowered, origins, strict=True)
        for part in unicodedata.normalize("NFD", char)
    ]
    _order_marks(decomposed)
    kept = [(part, origin) for part, origin in decomposed if unicodedata.category(part) != "Mn"]
    return [part for part, _ in kept], [origin for _, origin in kept]


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
