"""Splitting long texts: a tokenizer needs hundreds of bytes per character and slows down on long input."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST_PART = 16_384
"""The longest text, in characters, that stays whole; parts are not much longer where common characters are near."""
# White space, punctuation and Chinese characters, which end a word, so that a text may be cut before them.
_COMMON_STARTS = re.compile("[ \t\n\r!-/:-@\\[-`{-~\u4e00-\u9fff]")


def parts_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the parts of a text with their positions; each but the first begins where a common character ends a word."""
    start = 0
    while start < len(text):
        cut = _COMMON_STARTS.search(text, start + LONGEST_PART)
        end = cut.start() if cut else len(text)
        yield start, text[start:end]
        start = end
