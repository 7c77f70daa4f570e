"""A corpus on disk: memory-mapped documents of sentences of token ids, some of them held out for evaluation."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from maskloom.data.corpus.manifest import (
    DOCUMENT_OFFSETS,
    SENTENCE_LENGTHS,
    SENTENCE_OFFSETS,
    check_files,
    read_manifest,
)
from maskloom.data.corpus.shards import TokenShards
from maskloom.data.counter_random import Permutation
from maskloom.errors import DataError
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary

_SPLIT = 301  # identifies this kind of random draw


class Corpus:
    """An open corpus folder; its arrays are memory-mapped, so it may be larger than memory.

    `document_offsets` (documents + 1,) int64 holds the index of each document's first sentence, `sentence_lengths`
    (sentences,) int32 the number of tokens in each sentence, and `sentence_offsets` (sentences + 1,) int64 its offset
    in the sequence of all tokens. The folder is also a tokenizer folder.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Map the files of a folder that `Corpus.open` has checked."""
        self.folder = folder
        self.manifest = manifest
        self.num_documents: int = manifest["num_documents"]
        self.num_sentences: int = manifest["num_sentences"]
        self.num_tokens: int = manifest["num_tokens"]
        self.document_offsets = self._map(DOCUMENT_OFFSETS, "<i8", self.num_documents + 1)
        self.sentence_lengths = self._map(SENTENCE_LENGTHS, "<i4", self.num_sentences)
        self.sentence_offsets = self._map(SENTENCE_OFFSETS, "<i8", self.num_sentences + 1)
        paths = [folder / shard["file"] for shard in manifest["shards"]]
        num_tokens = [shard["num_tokens"] for shard in manifest["shards"]]
        self.shards = TokenShards(paths, num_tokens, np.dtype(manifest["token_type"]))

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> Corpus:
        """Open a corpus folder after comparing its files with the manifest; `verify=False` compares sizes only.

        Raises DataError, naming the files that are missing, truncated or changed, and for an unfinished corpus, a newer
        format or a tokenizer other than the one that made the ids.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        check_files(folder, manifest, sums=verify)
        corpus = cls(folder, manifest)
        settings = manifest["settings"]  # of an earlier version, perhaps without some rules of the tokenizer
        if any(settings.get(key, value) != value for key, value in corpus.tokenizer.identity().items()):
            raise DataError(f"{folder}: the ids are not those of the tokenizer in this folder; build the corpus again")
        return corpus

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that the ids belong to."""
        return self.tokenizer.vocabulary

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that produced the ids."""
        return Tokenizer.load(self.folder)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the checksums of all files in the manifest: equal for equal corpora, in any location."""
        lines = (f"{name} {entry['sha256']}\n" for name, entry in sorted(self.manifest["files"].items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def sentence(self, index: int) -> np.ndarray:
        """Return the ids (tokens,) of one sentence, read-only and in the type on disk (uint16 or uint32)."""
        return self.sentences(index, index + 1)

    def sentences(self, first: int, last: int) -> np.ndarray:
        """Return the ids (tokens,) of sentences `first` to `last` (exclusive); raises IndexError if out of range."""
        if not 0 <= first <= last <= self.num_sentences:
            raise IndexError(f"sentences {first} to {last}: the corpus has {self.num_sentences}")
        return self.shards.slice(int(self.sentence_offsets[first]), int(self.sentence_offsets[last]))

    def _map(self, name: str, dtype: str, size: int) -> np.ndarray:
        array = np.memmap(self.folder / name, dtype=dtype, mode="r").view(np.ndarray)
        if len(array) != size:
            raise DataError(f"{self.folder / name}: {len(array)} values, but the manifest promises {size}")
        return array


def split_documents(corpus: Corpus, held_out_fraction: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the training documents and the held-out documents, both as ascending int64.

    The split depends only on the fraction, the seed and the number of documents, never on their content. A fraction
    above 0 holds out at least one document and leaves at least one, but a single document is never held out.
    """
    num_documents = corpus.num_documents
    num_held_out = 0
    if held_out_fraction > 0 and num_documents > 1:
        num_held_out = min(max(round(held_out_fraction * num_documents), 1), num_documents - 1)
    order = Permutation(num_documents, seed, _SPLIT)[np.arange(num_documents)]
    return np.sort(order[num_held_out:]), np.sort(order[:num_held_out])
