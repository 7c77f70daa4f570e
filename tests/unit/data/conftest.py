"""A corpus in memory, for tests of code that reads corpora."""

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer


class MemoryCorpus:
    """Documents as lists of sentences of token ids, behind the part of the corpus interface that sampling uses."""

    def __init__(self, documents: Sequence[Sequence[Sequence[int]]], vocabulary: Vocabulary) -> None:
        sentences = [np.asarray(sentence, dtype=np.uint16) for document in documents for sentence in document]
        self.vocabulary, self.tokenizer = vocabulary, WordPieceTokenizer(vocabulary)
        self.document_offsets = np.cumsum([0, *map(len, documents)]).astype(np.int64)
        self.sentence_lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int32)
        self.num_documents, self.num_sentences = len(documents), len(sentences)
        self.num_tokens = int(self.sentence_lengths.sum())
        self._ends = self.sentence_offsets = np.concatenate([[0], np.cumsum(self.sentence_lengths)])
        self.folder = "memory"
        self.shards = SimpleNamespace(slice=lambda first, last: self._ids[first:last])
        self._ids = np.concatenate([*sentences, np.array([], dtype=np.uint16)])

    def sentences(self, first: int, last: int) -> np.ndarray:
        return self._ids[self._ends[first] : self._ends[last]]

    def sentence(self, index: int) -> np.ndarray:
        return self.sentences(index, index + 1)


@pytest.fixture(scope="session")
def toy_vocabulary() -> Vocabulary:
    """2,000 tokens; special tokens at unusual positions, and every third ordinary token continues a word."""
    plain = [f"##t{i}" if i % 3 == 0 else f"t{i}" for i in range(1995)]
    return Vocabulary(["[UNK]", *plain[:500], "[SEP]", "[MASK]", *plain[500:1200], "[CLS]", *plain[1200:], "[PAD]"])


@pytest.fixture(scope="session")
def memory_corpus(toy_vocabulary: Vocabulary) -> Callable[..., MemoryCorpus]:
    """A function that turns documents, given as lists of sentences of ids, into a corpus in memory."""

    def make(documents: Sequence[Sequence[Sequence[int]]]) -> MemoryCorpus:
        return MemoryCorpus(documents, toy_vocabulary)

    return make


@pytest.fixture(scope="session")
def random_corpus(toy_vocabulary: Vocabulary) -> Callable[..., MemoryCorpus]:
    """A function that creates a corpus of random ordinary tokens from sizes and a seed."""

    @cache
    def drawn(num_documents: int, most_sentences: int, most_tokens: int, seed: int) -> list[list[np.ndarray]]:
        rng = np.random.default_rng(seed)
        ordinary = np.setdiff1d(np.arange(len(toy_vocabulary)), list(toy_vocabulary.special_ids))
        return [
            [rng.choice(ordinary, rng.integers(1, most_tokens + 1)) for _ in range(rng.integers(1, most_sentences + 1))]
            for _ in range(num_documents)
        ]

    def make(num_documents: int, *, most_sentences: int = 30, most_tokens: int = 40, seed: int = 0) -> MemoryCorpus:
        return MemoryCorpus(drawn(num_documents, most_sentences, most_tokens, seed), toy_vocabulary)

    return make
