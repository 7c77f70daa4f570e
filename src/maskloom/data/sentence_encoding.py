"""Documents into token ids, sentence by sentence, encoding each distinct word once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from tokenizers.models import WordPiece

from maskloom.data.word_spans import LONGEST_NAMED, WordSpans, byte_classes, word_names, word_spans
from maskloom.data.word_table import RaggedIds, WordTable
from maskloom.text.sentences import split_sentences
from maskloom.text.tokenizer import MAX_WORD_LENGTHS, Tokenizer

SentenceRule = Literal["split", "lines"]
MAX_CACHED_WORDS = 1 << 19
"""Words whose ids are kept: about 30 MB. A full cache starts again from nothing, which changes no result."""

_BLOCK_CHARACTERS = 1 << 18
_LINE_END = 10


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents as token ids.

    `tokens` holds the ids of all sentences joined, as little-endian bytes; `sentence_lengths` (sentences,) tokens of
    each sentence; `document_lengths` (documents,) sentences of each document. Sentences without tokens, and documents
    without sentences, are left out and counted.
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
    """Encodes documents; keeps the ids of words that it met, because a few thousand words make most of a text.

    "split" finds sentences by the rules of a language, "lines" takes each line for one. The ids are those that
    `Tokenizer.token_ids` gives for each sentence.
    """

    def __init__(self, tokenizer: Tokenizer, *, sentences: SentenceRule, language: str = "en") -> None:
        """Start without any known word."""
        self._tokenizer = tokenizer
        self._type = token_type(len(tokenizer.vocabulary))
        self._finds_sentences = sentences == "split"
        self._language = language
        # with Hugging Face's rules a bracket can open a special token, which has its case and which others can tell
        reads_brackets = tokenizer.compatibility != "google"
        self._classes = byte_classes(b"[" if reads_brackets else b"")
        self._lowers_first = tokenizer.lowercase and not reads_brackets
        self._known = WordTable(self._type)
        self._pieces = WordPiece(
            dict(tokenizer.vocabulary.ids),
            unk_token="[UNK]",
            max_input_chars_per_word=MAX_WORD_LENGTHS[tokenizer.compatibility],
        )

    def encode(self, texts: list[str]) -> EncodedDocuments:
        """Encode documents in their order."""
        blocks: list[list[str]] = [[]]
        size = 0
        for text in texts:
            if size > _BLOCK_CHARACTERS:
                blocks.append([])
                size = 0
            blocks[-1].append(text)
            size += len(text)
        parts = [self._encode_block(block) for block in blocks]
        return EncodedDocuments(
            tokens=b"".join(part.tokens for part in parts),
            sentence_lengths=np.concatenate([part.sentence_lengths for part in parts]),
            document_lengths=np.concatenate([part.document_lengths for part in parts]),
            num_empty_sentences=sum(part.num_empty_sentences for part in parts),
            num_empty_documents=sum(part.num_empty_documents for part in parts),
        )

    def _encode_block(self, texts: list[str]) -> EncodedDocuments:
        lines, num_lines = self._lines(texts)
        content = lines.encode("utf-8", "surrogatepass")
        if self._lowers_first:
            # ASCII letters only; the tokenizer sees to all others
            content = content.lower()
        spans = word_spans(content, self._classes)
        encoded = self._ids_of_words(content, spans)
        line_ends = np.append(np.flatnonzero(np.frombuffer(content, np.uint8) == _LINE_END), len(content))
        token_ends = encoded.edges[np.searchsorted(spans.starts, line_ends)]
        # one line is left over where there is no document at all
        lengths = np.diff(token_ends, prepend=0)[: int(num_lines.sum())]
        owners = np.repeat(np.arange(len(texts)), num_lines)
        counts = np.bincount(owners[lengths > 0], minlength=len(texts))
        return EncodedDocuments(
            tokens=encoded.flat.tobytes(),
            sentence_lengths=lengths[lengths > 0].astype("<i4"),
            document_lengths=counts[counts > 0].astype("<i4"),
            num_empty_sentences=int((lengths == 0).sum()),
            num_empty_documents=int((counts == 0).sum()),
        )

    def _lines(self, texts: list[str]) -> tuple[str, np.ndarray]:
        """Return all sentences, a line each, and (documents,) int64: how many lines each document has."""
        if self._finds_sentences:
            documents = [split_sentences(text, language=self._language) for text in texts]
            lines = "\n".join(sentence for document in documents for sentence in document)
            return lines, np.fromiter(map(len, documents), np.int64, len(texts))
        return "\n".join(texts), np.fromiter((text.count("\n") + 1 for text in texts), np.int64, len(texts))

    def _ids_of_words(self, content: bytes, spans: WordSpans) -> RaggedIds:
        """Return the ids of each word; those of words without a name are worked out here and forgotten."""
        is_named = spans.ends - spans.starts <= LONGEST_NAMED
        if spans.is_odd.any() and b"\0" in content:
            is_named &= ~spans.is_odd
        named, others = np.flatnonzero(is_named), np.flatnonzero(~is_named)
        numbers = np.empty(len(spans.starts), dtype=np.int64)
        numbers[named] = self._numbers_of_words(content, _some(spans, named))
        numbers[others] = len(self._known) + np.arange(len(others))
        ids = self._known.ids
        if len(others):
            ids = ids.joined(self._encode_words(content, _some(spans, others)))
        return ids.take(numbers)

    def _numbers_of_words(self, content: bytes, spans: WordSpans) -> np.ndarray:
        """Return (words,) int64: the place of each word in the table, after the new ones were put there."""
        names = word_names(content, spans.starts, spans.ends)
        numbers = self._known.find(names)
        missing = _first_of_each(names, np.flatnonzero(numbers < 0))
        if not len(missing):
            return numbers
        if len(self._known) + len(missing) > MAX_CACHED_WORDS:
            # the words of this block are all encoded again, which a full table makes rare
            self._known = WordTable(self._type)
            numbers[:] = -1
            missing = _first_of_each(names, np.arange(len(numbers)))
        self._known.add(names[:, missing], self._encode_words(content, _some(spans, missing)))
        is_new = numbers < 0
        numbers[is_new] = self._known.find(names[:, is_new])
        return numbers

    def _encode_words(self, content: bytes, spans: WordSpans) -> RaggedIds:
        """Encode words one by one: a plain word is one for WordPiece, an odd one goes the whole way."""
        texts = [
            content[start:end].decode("utf-8", "surrogatepass")
            for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
        ]
        is_odd = spans.is_odd.tolist()
        odd = iter(self._tokenizer.word_ids([text for text, of_odd in zip(texts, is_odd, strict=True) if of_odd]))
        whole = self._tokenizer.vocabulary.ids
        lowercase = self._tokenizer.lowercase
        lists = []
        for text, of_odd in zip(texts, is_odd, strict=True):
            if of_odd:
                lists.append(next(odd))
                continue
            text = text.lower() if lowercase else text
            if text in whole:
                lists.append([whole[text]])
            else:
                lists.append([piece.id for piece in self._pieces.tokenize(text)])
        return RaggedIds.of_lists(lists, self._type)


def _some(spans: WordSpans, chosen: np.ndarray) -> WordSpans:
    return WordSpans(spans.starts[chosen], spans.ends[chosen], spans.is_odd[chosen])


def _first_of_each(names: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return where each different name among the chosen ones stands first, in the order of the text."""
    order = np.lexsort((names[1, chosen], names[0, chosen]))
    ordered = names[:, chosen[order]]
    is_first = np.ones(len(chosen), dtype=bool)
    is_first[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    # the sort is stable, so the first of equal names is the first in the text
    return np.sort(chosen[order[is_first]])
