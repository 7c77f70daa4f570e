"""Encode documents into token ids, sentence by sentence, encoding each distinct word once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from maskloom.data.corpus import words
from maskloom.data.corpus.words import RaggedIds, WordSpans, WordTable
from maskloom.text.sentences import sentences_of_long_text
from maskloom.text.tokenizer import Tokenizer

SentenceRule = Literal["split", "lines"]
MAX_CACHED_WORDS = 1 << 17
"""Words whose ids are cached, about 8 MB, before the cache is cleared at the next block of text."""

_BLOCK_BYTES = 1 << 18
_LONGEST_RUN = 1 << 18
_LINE_END = 10
# White space, and characters that are separate words in any context: Chinese ones, and ASCII symbols except brackets,
# which can be part of a special token, and those that Python skips when it lower-cases a final sigma.
_BETWEEN_WORDS = re.compile(rb"[ \t\n!-&(-\-/;-@\\_{-~]|[\xe5-\xe9][\x80-\xbf]{2}")
_BLANK = re.compile(rb"[ \t\n]")


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents as token ids.

    `tokens` holds the concatenated ids of all sentences as little-endian bytes, `sentence_lengths` (sentences,) the
    number of tokens in each sentence, `document_lengths` (documents,) the number of sentences in each document.
    Sentences without tokens, and documents without sentences, are dropped and counted.
    """

    tokens: bytes
    sentence_lengths: np.ndarray
    document_lengths: np.ndarray
    num_empty_sentences: int
    num_empty_documents: int


def token_type(vocabulary_size: int) -> np.dtype:
    """Return the smallest unsigned type that holds every id: two bytes for up to 65,536 tokens, else four."""
    return np.dtype("<u2") if vocabulary_size <= 1 << 16 else np.dtype("<u4")


class SentenceEncoder:
    """Encodes documents; caches the ids of words, because a few thousand words make up most of a text.

    "split" finds sentences by the rules of a language, "lines" treats each line as one; the ids are those that
    `Tokenizer.token_ids` returns for each. If pieces include the blank before a word, all white space counts as one
    blank, and every sentence of a document but the first begins with one. Differs from the published code of BART,
    which encodes lines without such a blank.
    """

    def __init__(self, tokenizer: Tokenizer, *, sentences: SentenceRule, language: str = "en") -> None:
        self._tokenizer = tokenizer
        self.type = token_type(len(tokenizer.vocabulary))
        self._finds_sentences = sentences == "split"
        self._language = language
        # if text may hold special tokens, a bracket can open one: case-sensitive, and found only by the tokenizer
        reads_brackets = tokenizer.reads_special_tokens
        self._keeps_blanks = not tokenizer.cuts_at_white_space
        self._cuts = _BLANK if tokenizer.reads_whole_chunks else _BETWEEN_WORDS
        whole = bytes(range(33, 127)) if tokenizer.reads_whole_chunks else b"[" * reads_brackets
        self._classes = words.byte_classes(whole)
        self._lowers_first = tokenizer.lowercase and not reads_brackets
        self._known = WordTable(self.type)

    def parts(self, documents: list[bytes]) -> Iterator[EncodedDocuments]:
        """Encode UTF-8 documents in order, several per part or a long one in several parts.

        Each document is removed from the list before it is encoded, so that memory use falls as ids are produced.
        """
        num_tokens = num_sentences = 0  # of the unfinished sentence, and of the unfinished document
        for content, num_lines in self._blocks(documents):
            ids, lengths = self._encode_lines(content)
            lengths[0] += num_tokens
            lengths, unfinished = np.split(lengths, [sum(num_lines)])
            owners = np.repeat(np.arange(len(num_lines)), num_lines)
            counts = np.bincount(owners[lengths > 0], minlength=len(num_lines))
            counts[0] += num_sentences
            num_tokens, num_sentences, counts = int(unfinished.sum()), int(counts[-1]), counts[:-1]
            yield EncodedDocuments(
                tokens=ids.tobytes(),
                sentence_lengths=lengths[lengths > 0].astype("<i4"),
                document_lengths=counts[counts > 0].astype("<i4"),
                num_empty_sentences=int((lengths == 0).sum()),
                num_empty_documents=int((counts == 0).sum()),
            )

    def _blocks(self, documents: list[bytes]) -> Iterator[tuple[bytes, list[int]]]:
        """Yield blocks of lines, with the number of complete lines in each document, the last of which goes on."""
        documents.reverse()
        pieces, size, num_lines = list[bytes](), 0, [0]
        while documents:
            for piece, ends_line in self._pieces_of_document(documents.pop()):
                pieces.append(piece)
                size += len(piece)
                num_lines[-1] += piece.count(b"\n") + ends_line
                if size > _BLOCK_BYTES or not ends_line:
                    yield b"\n".join(pieces), num_lines
                    pieces, size, num_lines = [], 0, [0]
            num_lines.append(0)
        yield b"\n".join(pieces), num_lines

    def _pieces_of_document(self, document: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield the lines of a document, several at a time, with whether the last of them is complete."""
        if not self._finds_sentences:
            yield from _pieces(self._lines_apart(document), self._cuts)
            return
        lines: list[bytes] = []
        size, before = 0, b""
        for sentence in sentences_of_long_text(document, language=self._language):
            lines.append(sentence.encode("utf-8"))
            size += len(lines[-1])
            if size > _BLOCK_BYTES:
                yield from _pieces(before + b"\n ".join(lines), self._cuts)
                lines, size, before = [], 0, b" "
        if lines:
            yield from _pieces(before + b"\n ".join(lines), self._cuts)

    def _encode_lines(self, content: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the (tokens,) ids of some lines, and (lines,) int64, the number of tokens in each."""
        if self._lowers_first:
            # ASCII letters only; the tokenizer handles all others
            content = content.lower()
        spans = words.word_spans(content, self._classes)
        encoded = self._ids_of_words(content, spans)
        line_ends = np.append(np.flatnonzero(np.frombuffer(content, np.uint8) == _LINE_END), len(content))
        return encoded.flat, np.diff(encoded.edges[np.searchsorted(spans.starts, line_ends)], prepend=0)

    def _lines_apart(self, document: bytes) -> bytes:
        """Begin all lines of a document but the first with a blank, for pieces that include it."""
        if not self._keeps_blanks:
            return document
        text = document.lstrip(b" \t\r\n")
        return b"\n" * document.count(b"\n", 0, len(document) - len(text)) + text.replace(b"\n", b"\n ")

    def _ids_of_words(self, content: bytes, spans: WordSpans) -> RaggedIds:
        """Return the ids of each word; words that cannot have a name are encoded here and forgotten."""
        if len(self._known) > MAX_CACHED_WORDS:
            self._known = WordTable(self.type)
        is_named = spans.ends - spans.starts <= words.LONGEST_NAMED
        if spans.is_odd.any() and b"\0" in content:
            is_named &= ~spans.is_odd
        if self._keeps_blanks:
            is_named &= np.frombuffer(b"\n" + content, np.uint8)[spans.starts] != _LINE_END
        named, others = np.flatnonzero(is_named), np.flatnonzero(~is_named)
        numbers = np.empty(len(spans.starts), dtype=np.int64)
        numbers[named] = self._numbers_of_words(content, _some(spans, named))
        ids = self._known.ids
        numbers[others] = len(ids) + np.arange(len(others))
        if len(others):
            ids = ids.joined(self._encode_words(content, _some(spans, others)))
        return ids.take(numbers)

    def _numbers_of_words(self, content: bytes, spans: WordSpans) -> np.ndarray:
        """Return the number of each word in the table, (words,); words that are not in it yet are added."""
        names = words.word_names(content, spans.starts, spans.ends)
        numbers = self._known.find(names)
        is_new = np.flatnonzero(numbers < 0)
        if len(is_new):
            first = _first_of_each(names, is_new)
            self._known.add(names[:, first], self._encode_words(content, _some(spans, first)))
            numbers[is_new] = self._known.find(names[:, is_new])
        return numbers

    def _encode_words(self, content: bytes, spans: WordSpans) -> RaggedIds:
        """Encode words one by one: a plain word needs at most lower-casing, an odd one the full tokenizer."""
        texts = [
            content[start:end].decode("utf-8", "surrogatepass")
            for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
        ]
        if self._keeps_blanks:
            blanks = (" " * bool(content[start - 1 : start].strip(b"\n")) for start in spans.starts.tolist())
            texts = [blank + text for blank, text in zip(blanks, texts, strict=True)]
        is_odd = spans.is_odd.tolist()
        plain, odd = ([text for text, of_odd in zip(texts, is_odd, strict=True) if of_odd == kind] for kind in (0, 1))
        if self._tokenizer.lowercase:
            plain = map(str.lower, plain)
        both = self._tokenizer.word_ids(plain), iter(self._tokenizer.token_ids_batch(odd))
        return RaggedIds.of_lists([next(both[of_odd]) for of_odd in is_odd], self.type)


def _pieces(content: bytes, cuts: re.Pattern[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Split text at line ends, and long lines before a match of `cuts` or after `_LONGEST_RUN` bytes.

    Yields pieces, with whether their last line is complete.
    """
    start = 0
    while len(content) - start > _BLOCK_BYTES:
        end = content.rfind(b"\n", start, start + _BLOCK_BYTES)
        if end >= 0:
            yield content[start:end], True
            start = end + 1
            continue
        found = cuts.search(content, start + _BLOCK_BYTES // 2, start + _LONGEST_RUN)
        if found:
            end = found.start()
        elif len(content) - start <= _LONGEST_RUN:
            break
        else:
            end = start + _LONGEST_RUN
            while content[end] & 0xC0 == 0x80:
                end -= 1
        is_line_end = content[end : end + 1] == b"\n"
        yield content[start:end], is_line_end
        start = end + is_line_end
    yield content[start:] if start else content, True


def _some(spans: WordSpans, chosen: np.ndarray) -> WordSpans:
    return WordSpans(spans.starts[chosen], spans.ends[chosen], spans.is_odd[chosen])


def _first_of_each(names: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return where each distinct name among the chosen ones occurs first, in text order."""
    order = np.lexsort((names[1, chosen], names[0, chosen]))
    ordered = names[:, chosen[order]]
    is_first = np.ones(len(chosen), dtype=bool)
    is_first[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    # the sort is stable, so the first of equal names is the first in the text
    return np.sort(chosen[order[is_first]])
