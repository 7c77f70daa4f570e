"""Estimate the size of a corpus from samples of its text, before anything is written."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from maskloom.data.corpus.compressed_files import COMPRESSIONS, opened, reading_errors
from maskloom.data.corpus.documents import MAX_DOCUMENT_BYTES, TEXT_FIELD, SourceFile, is_plain_text
from maskloom.data.corpus.sentence_encoding import SentenceEncoder

_NUM_FILES = 8
_BLOCK = 1 << 20
_SAMPLE_BYTES = 1 << 16
# besides its tokens: the length and the offset of a sentence
_BYTES_OF_SENTENCE = 12


class CorpusEstimate(NamedTuple):
    """The estimated size of a corpus, in bytes on disk."""

    num_tokens: int
    num_sentences: int
    num_bytes: int


def estimated_corpus(files: list[SourceFile], encoder: SentenceEncoder) -> CorpusEstimate | None:
    """Estimate a corpus from the beginnings of a few files, evenly spread over all; ignores duplicates.

    .parquet files are left out, because only reading them shows how much text they hold; without any other text,
    returns None. Raises DataError for a file that cannot be read.
    """
    sizes = {source.path: source.path.stat().st_size for source in files if source.path.suffix.lower() != ".parquet"}
    paths = [path for path, size in sizes.items() if size]
    if not paths:
        return None
    num_read, num_text, samples = 0, 0, list[bytes]()
    for path in paths[:: -(-len(paths) // _NUM_FILES)]:
        with reading_errors(path), opened(path) as (file, raw):
            block = file.read(_BLOCK)
            if not is_plain_text(path):
                block += file.readline(MAX_DOCUMENT_BYTES)  # only whole rows count
            num_read += raw.tell() if path.suffix.lower() in COMPRESSIONS else len(block)
        text = block if is_plain_text(path) else _text_of_rows(block)
        num_text += len(text)
        samples.append(text[:_SAMPLE_BYTES].decode("utf-8", "ignore").encode("utf-8"))
    scale = sum(sizes.values()) * num_text / num_read / max(1, sum(map(len, samples)))
    lengths = np.concatenate([part.sentence_lengths for part in encoder.parts(samples)])
    num_tokens, num_sentences = round(int(lengths.sum()) * scale), round(len(lengths) * scale)
    num_bytes = num_tokens * encoder.type.itemsize + num_sentences * _BYTES_OF_SENTENCE
    return CorpusEstimate(num_tokens, num_sentences, num_bytes)


def _text_of_rows(block: bytes) -> bytes:
    """Return the texts of the complete, valid rows."""
    texts = []
    for line in block.split(b"\n"):
        try:
            texts.append(json.loads(line)[TEXT_FIELD].encode("utf-8"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return b"\n\n".join(texts)
