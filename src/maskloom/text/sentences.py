"""Splitting text into sentences, offline."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import sentencex

from maskloom.errors import ConfigError
from maskloom.text.normalization import has_words, split_chunks

MAX_SENTENCE_LENGTH = 300
"""In characters; longer sentences are split again without quotation marks, which can enclose a speech or a chapter."""

LANGUAGES = (
    "am, ar, bg, bn, ca, da, de, el, en, es, fi, fr, gu, hi, hy, it, ja, kk, kn, ml, mr, my, nl, pa, pl, pt, ru, "
    "sk, ta, te, uk, zh"
)
"""Languages for which the sentencex library has rules; it silently treats most others as English."""

# long text is split at the first empty line after _PIECE_BYTES, or window by window if that is too far away
_PIECE_BYTES, _WINDOW_BYTES = 1 << 18, 1 << 22
# characters at the end of a window where a quotation that continues past it can create false sentence ends
_MARGIN = 1 << 14
_PARAGRAPH_BREAK = re.compile(r"\n[^\S\n]*\n")
# each is replaced with one character that opens neither quotation nor bracket, so that positions stay the same
_WITHOUT_QUOTES = dict.fromkeys(map(ord, "\"'“”„‘’‚«»‹›()[]{}「」『』（）"), "-")

# the library takes a letter, white space and a full stop for an abbreviation, and slices such white space by bytes
_WIDE_SPACES = re.compile(r"[^\S\x00-\x7f]")


def split_sentences(text: str, *, language: str = "en") -> list[str]:
    """Split text into sentences by the rules of the sentencex library for a language code such as "en".

    No word is lost or changed: the words of the sentences, in order, are the words of the text. White space inside a
    sentence becomes one space. An empty line always ends a sentence, but a line break does not.
    """
    return list(_sentences(text, _spans(text, language)))


def sentences_of_long_text(content: bytes, *, language: str = "en") -> Iterator[str]:
    """Yield the sentences of UTF-8 text as `split_sentences` finds them, processing one window of the text at a time.

    A window ends at an empty line. In a paragraph of several megabytes, it ends at the start of a sentence well before
    the end of the bytes read, so that only unmatched quotation marks can be paired differently. A window without any
    sentence end is cut at white space.
    """
    start = 0
    while start < len(content):
        end = content.find(b"\n\n", start + _PIECE_BYTES)
        end = len(content) if end < 0 else end
        if end - start <= _WINDOW_BYTES:
            text = content[start:end].decode("utf-8")
            yield from _sentences(text, _spans(text, language))
            start = end
            continue
        window = content[start : start + _WINDOW_BYTES].decode("utf-8", "ignore")
        starts, ends, outer = array("q"), array("q"), array("q")
        for sentence_start, sentence_end in _spans(window, language, outer):
            starts.append(sentence_start)
            ends.append(sentence_end)
        behind_blank = max(window.rfind(" "), window.rfind("\n")) + 1
        cut = _place_to_cut(window, outer) or _place_to_cut(window, starts) or behind_blank or len(window)
        yield from _sentences(window[:cut], zip(starts, ends, strict=True))
        start += len(window[:cut].encode("utf-8"))


def check_language(language: str) -> None:
    """Raise ConfigError for a language that the library has no rules for."""
    if language not in LANGUAGES.split(", "):
        raise ConfigError(
            f"language is {language!r:.80}, which has no sentence rules; there are rules for {LANGUAGES}. "
            "For any other, choose the nearest, or put each sentence on its own line (corpus build --sentences lines)"
        )


def _sentences(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[str]:
    for start, end in spans:
        sentence = " ".join(split_chunks(text[start:end]))
        if has_words(sentence):
            yield sentence


def _place_to_cut(window: str, starts: Sequence[int]) -> int:
    """Return the start of the last sentence that a quotation past the window is unlikely to affect, or 0 for none."""
    last = bisect_right(starts, len(window) - _MARGIN) - 1
    return starts[last] if last >= 0 else 0


def _spans(text: str, language: str, outer: array[int] | None = None) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence; `outer` collects the starts of sentences outside quotations."""
    gaps = [gap.span() for gap in _PARAGRAPH_BREAK.finditer(text)]
    for (_, first), (last, _) in pairwise([(0, 0), *gaps, (len(text), len(text))]):
        paragraph = text[first:last]
        if not paragraph.strip():
            continue
        for start, end in _cut(paragraph, language):
            if outer is not None:
                outer.append(first + start)
            is_long = end - start > MAX_SENTENCE_LENGTH
            parts = _cut(paragraph[start:end].translate(_WITHOUT_QUOTES), language) if is_long else [(0, end - start)]
            for inner_start, inner_end in parts:
                yield first + start + inner_start, first + start + inner_end


def _cut(text: str, language: str) -> Iterator[tuple[int, int]]:
    """Yield the library's sentence spans, which are not empty and together cover the text."""
    plain = _WIDE_SPACES.sub(" ", text)
    lengths = list(map(len, sentencex.segment(language, plain)))  # pyright: ignore[reportAttributeAccessIssue]
    start = 0
    for length in lengths[:-1]:
        yield start, start + length
        start += length
    yield start, len(text)
