"""Estimate the size of a corpus from samples of its text, before anything is written."""

from __future__ import annotations

import json
from dataclasses import dataclass

from maskloom.data.corpus.compressed_files import COMPRESSIONS, opened, reading_errors
from maskloom.data.corpus.documents import MAX_DOCUMENT_BYTES, TEXT_FIELD, SourceFile, is_plain_text
from maskloom.data.corpus.sentence_encoding import SentenceEncoder

_NUM_FILES = 8
_BLOCK = 1 << 20
_SAMPLE_BYTES = 1 << 16
# besides its tokens: the length and the offset of a sentence
_BYTES_OF_SENTENCE = 12


@dataclass(frozen=True)
class CorpusEstimate:
    """The size of the input files, and the estimated size of the corpus."""

    num_files: int
    num_file_bytes: int
    num_text_bytes: int
    num_tokens: int
    num_sentences: int
    token_bytes: int

    @property
    def num_bytes(self) -> int:
        """The size of the corpus on disk."""
        return self.num_tokens * self.token_bytes + self.num_sentences * _BYTES_OF_SENTENCE


def estimated_corpus(files: list[SourceFile], encoder: SentenceEncoder) -> CorpusEstimate | None:
    """Estimate a corpus from the beginnings of a few files, evenly spread over all; ignores duplicates.

    .parquet files are left out, because only reading them shows how much text they hold; without any other text,
    returns None. Raises DataError for a file that cannot be read.
    """
    sizes = {source.path: source.path.stat().st_size for source in files if source.path.suffix.lower() != ".parquet"}
    paths = [path for path, size in sizes.items() if size]
    if not paths:
        return None
    num_read = num_text = num_sampled = num_tokens = num_sentences = 0
    for path in paths[:: -(-len(paths) // _NUM_FILES)]:
        with reading_errors(path), opened(path) as (file, raw):
            block = file.read(_BLOCK)
            if not is_plain_text(path):
                block += file.readline(MAX_DOCUMENT_BYTES)  # only whole rows count
            num_read += raw.tell() if path.suffix.lower() in COMPRESSIONS else len(block)
        text = block if is_plain_text(path) else _text_of_rows(block)
        num_text += len(text)
        sample = text[:_SAMPLE_BYTES].decode("utf-8", "ignore").encode("utf-8")
        num_sampled += len(sample)
        for part in encoder.parts([sample]):
            num_tokens += int(part.sentence_lengths.sum())
            num_sentences += len(part.sentence_lengths)
    num_text_bytes = sum(sizes.values()) * num_text / num_read
    fraction = num_text_bytes / max(1, num_sampled)
    return CorpusEstimate(
        num_files=len(sizes),
        num_file_bytes=sum(sizes.values()),
        num_text_bytes=round(num_text_bytes),
        num_tokens=round(num_tokens * fraction),
        num_sentences=round(num_sentences * fraction),
        token_bytes=encoder.type.itemsize,
    )


def _text_of_rows(block: bytes) -> bytes:
    """Return the texts of the complete, valid rows."""
    texts = []
    for line in block.split(b"\n"):
        try:
            texts.append(json.loads(line)[TEXT_FIELD].encode("utf-8"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return b"\n\n".join(texts)
