"""Text into sentences, offline."""

from __future__ import annotations

import itertools
import re

import sentencex

from maskloom.text.normalization import has_words, split_chunks

MAX_SENTENCE_LENGTH = 300
"""Characters; what is longer is cut again without its quotation marks, which can swallow a speech or a chapter."""

_PARAGRAPH_BREAK = re.compile(r"\n[^\S\n]*\n")
# each becomes one character that opens no quotation and no bracket, so that positions stay as they are
_WITHOUT_QUOTES = dict.fromkeys(map(ord, "\"'“”„‘’‚«»‹›()[]{}「」『』（）"), "-")

# the library takes a letter, a white space and a full stop for an abbreviation, and cuts such a space by its bytes
_WIDE_SPACES = re.compile(r"[^\S\x00-\x7f]")


def split_sentences(text: str, *, language: str = "en") -> list[str]:
    """Split text into sentences by the rules of the sentencex library for a language code such as "en".

    No word is lost or changed: the words of the sentences, in order, are the words of the text. White space inside a
    sentence becomes one space, and an empty line always ends a sentence.
    """
    found: list[str] = []
    for paragraph in _PARAGRAPH_BREAK.split(text):
        if not paragraph.strip():
            continue
        for piece in _cut(paragraph, paragraph, language):
            if len(piece) > MAX_SENTENCE_LENGTH:
                found.extend(_cut(piece, piece.translate(_WITHOUT_QUOTES), language))
            else:
                found.append(piece)
    sentences = (" ".join(split_chunks(piece)) for piece in found)
    return [sentence for sentence in sentences if has_words(sentence)]


def _cut(text: str, searched: str, language: str) -> list[str]:
    """Cut `text` where the library sees sentences start in `searched`, which is as long and gives the boundaries."""
    plain = _WIDE_SPACES.sub(" ", searched)
    boundaries = sentencex.get_sentence_boundaries(language, plain)  # pyright: ignore[reportAttributeAccessIssue]
    starts = [boundary["start_index"] for boundary in boundaries]
    edges = [0, *starts[1:], len(text)]
    return [text[first:last] for first, last in itertools.pairwise(edges)]
