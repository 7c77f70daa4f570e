"""Documents into token ids, sentence by sentence, encoding each distinct word once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np

from maskloom.text.normalization import split_chunks, words
from maskloom.text.sentences import split_sentences
from maskloom.text.tokenizer import Tokenizer

SentenceRule = Literal["split", "lines"]
MAX_CACHED_WORDS = 1 << 19
"""Words whose ids are kept: about 100 MB. A full cache starts again from nothing, which changes no result."""

_LONGEST_CACHED = 64
_BLOCK_CHARACTERS = 1 << 20


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
        """Start with an empty cache."""
        self._tokenizer = tokenizer
        self._type = token_type(len(tokenizer.vocabulary))
        self._finds_sentences = sentences == "split"
        self._language = language
        self._known: dict[str, bytes] = {}
        self._too_long: list[str] = []

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
        documents = [self._sentences_as_words(text) for text in texts]
        self._learn_words(documents)
        # joining bytes looks each word up in C; nothing in Python happens per token
        encoded = [b"".join(map(self._known.__getitem__, sentence)) for document in documents for sentence in document]
        for word in self._too_long:
            del self._known[word]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)) // self._type.itemsize
        owners = np.repeat(np.arange(len(documents)), np.fromiter(map(len, documents), np.int64, len(documents)))
        counts = np.bincount(owners[lengths > 0], minlength=len(documents))
        return EncodedDocuments(
            tokens=b"".join(encoded),
            sentence_lengths=lengths[lengths > 0].astype("<i4"),
            document_lengths=counts[counts > 0].astype("<i4"),
            num_empty_sentences=int((lengths == 0).sum()),
            num_empty_documents=int((counts == 0).sum()),
        )

    def _sentences_as_words(self, text: str) -> list[list[str]]:
        if self._finds_sentences:
            return [sentence.split() for sentence in split_sentences(text, language=self._language)]
        return [split_chunks(line) for line in text.split("\n")]

    def _learn_words(self, documents: list[list[list[str]]]) -> None:
        """Put the ids of all words of the documents into the cache; what is new is encoded in one batch."""
        missing = set().union(*chain.from_iterable(documents)).difference(self._known)
        self._too_long = []
        if not missing:
            return
        if len(self._known) + len(missing) > MAX_CACHED_WORDS:
            # the words of this block are all encoded again, which a full cache makes rare
            self._known = {}
            missing = set().union(*chain.from_iterable(documents))
        # "(the" and "the," need only their parts, which are few; other rules than these go the whole way
        has_parts = self._tokenizer.compatibility == "google"
        lowercase = self._tokenizer.lowercase
        parts = {word: words(word, lowercase=lowercase) for word in missing if has_parts and word.isascii()}
        simple = missing.difference(parts).union(*parts.values()).difference(self._known)
        self._known.update(self._encode_words(list(simple)))
        for word, own_parts in parts.items():
            self._known[word] = b"".join([self._known[part] for part in own_parts])
        # there is no end of long words, such as addresses and encoded pictures, and they hardly ever come again
        self._too_long = [word for word in simple.union(missing) if len(word) > _LONGEST_CACHED]

    def _encode_words(self, new: list[str]) -> dict[str, bytes]:
        ids = self._tokenizer.word_ids(new)
        ends = np.cumsum(np.fromiter(map(len, ids), np.int64, len(ids))) * self._type.itemsize
        flat = np.fromiter(chain.from_iterable(ids), dtype=self._type).tobytes()
        edges = [0, *ends.tolist()]
        return {word: flat[first:last] for word, first, last in zip(new, edges, edges[1:], strict=False)}
