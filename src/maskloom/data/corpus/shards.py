"""Token shards on disk: flat little-endian ids, written by the process that encoded them, read through memory maps."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np

from maskloom.data.corpus.manifest import file_sum, shard_name
from maskloom.data.corpus.sentence_encoding import EncodedDocuments
from maskloom.system.fault_points import fault_point
from maskloom.system.foreign_files import MAX_JSON_BYTES, read_bytes

BUILDING_FOLDER = "building"
_LENGTH_TYPE = np.dtype("<i4")
_MAX_OPEN_SHARDS = 256


@dataclass(frozen=True)
class ShardRecord:
    """A finished shard: the digest of its input, its size, and the checksums of its two files."""

    number: int
    input_digest: str
    num_documents: int
    num_sentences: int
    num_tokens: int
    num_empty_sentences: int
    num_empty_documents: int
    num_bytes: int
    sha256: str
    index_sha256: str


def write_shard(folder: Path, number: int, input_digest: str, parts: Iterable[EncodedDocuments]) -> ShardRecord:
    """Write a shard's tokens, its lengths, and last the record that makes it valid, each by an atomic rename.

    Tokens and lengths are written part by part, so memory holds those of only one part, and the number of sentences per
    document. Nothing is synced to disk here: files lost in a power failure are detected by their checksums and rebuilt.
    """
    tokens_sum, index_sum = hashlib.sha256(), hashlib.sha256()
    document_lengths: list[bytes] = []
    totals: Counter[str] = Counter()
    with _replacing(_place(folder, number, "lengths"), "shards.lengths") as index:
        with _replacing(folder / shard_name(number), "shards.tokens") as file:
            for part in parts:
                fault_point("shards.write")
                file.write(part.tokens)
                tokens_sum.update(part.tokens)
                lengths = part.sentence_lengths.tobytes()
                index.write(lengths)
                index_sum.update(lengths)
                document_lengths.append(part.document_lengths.tobytes())
                totals.update(
                    num_sentences=len(part.sentence_lengths),
                    num_tokens=int(part.sentence_lengths.sum(dtype=np.int64)),
                    num_empty_sentences=part.num_empty_sentences,
                    num_empty_documents=part.num_empty_documents,
                )
            num_bytes = file.tell()
        of_documents = b"".join(document_lengths)
        index.write(of_documents)
        index_sum.update(of_documents)
    record = ShardRecord(
        number=number,
        input_digest=input_digest,
        num_documents=len(of_documents) // _LENGTH_TYPE.itemsize,
        **totals,
        num_bytes=num_bytes,
        sha256=tokens_sum.hexdigest(),
        index_sha256=index_sum.hexdigest(),
    )
    content = json.dumps(asdict(record)).encode()
    with _replacing(_place(folder, number, "json"), "shards.record") as file:
        file.write(content + b"\n" + _sum_line(content))
    return record


def finished_shard(folder: Path, number: int, input_digest: str) -> ShardRecord | None:
    """Return the record of a shard that an earlier build finished from the same input, or None if it is not intact."""
    try:
        content, sum_line = read_bytes(_place(folder, number, "json"), limit=MAX_JSON_BYTES).split(b"\n", 1)
        record = ShardRecord(**json.loads(content))
        is_whole = (
            sum_line == _sum_line(content)
            and record.number == number
            and record.input_digest == input_digest
            and file_sum(folder / shard_name(number)) == record.sha256
            and file_sum(_place(folder, number, "lengths")) == record.index_sha256
        )
    except (OSError, ValueError, TypeError):
        return None
    return record if is_whole else None


def map_lengths(folder: Path, record: ShardRecord) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens per sentence and the sentences per document of a shard of an unfinished corpus, mapped."""
    path, number = _place(folder, record.number, "lengths"), record.num_sentences + record.num_documents
    if path.stat().st_size < number * _LENGTH_TYPE.itemsize:
        raise OSError(f"{path}: was truncated; run the same build again")
    lengths = np.memmap(path, dtype=_LENGTH_TYPE, mode="r", shape=number)
    return lengths[: record.num_sentences], lengths[record.num_sentences :]


def _place(folder: Path, number: int, suffix: str) -> Path:
    return folder / BUILDING_FOLDER / f"{number:05d}.{suffix}"


def _sum_line(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n"


@contextmanager
def _replacing(path: Path, place: str) -> Iterator[BinaryIO]:
    """Open a temporary file, randomly named as machines may share a shard; rename it to `path` without a sync."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            fault_point(place)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class TokenShards:
    """The token ids of a corpus as one logical array, read through memory maps, of which a limited number stay open.

    `shard(number)` returns the tokens (tokens,) of one file, read-only.
    """

    def __init__(self, paths: list[Path], num_tokens: list[int], dtype: np.dtype) -> None:
        self._dtype, self._starts = dtype, [0, *accumulate(num_tokens)]

        def mapped(number: int) -> np.ndarray:
            # a plain array over the map: slicing an np.memmap is several times slower
            return np.memmap(paths[number], dtype=dtype, mode="r").view(np.ndarray)

        # each map holds a file descriptor, and a process may have about a thousand of them
        self.shard = lru_cache(maxsize=_MAX_OPEN_SHARDS)(mapped)

    def slice(self, first: int, last: int) -> np.ndarray:
        """Return tokens `first` to `last` (exclusive) of the corpus; copies only if they cross shards."""
        number = bisect_right(self._starts, first) - 1
        if first >= last:
            return np.empty(0, dtype=self._dtype)
        base = self._starts[number]
        if last <= self._starts[number + 1]:
            return self.shard(number)[first - base : last - base]
        parts = []
        while first < last:
            end = min(last, self._starts[number + 1])
            parts.append(self.shard(number)[first - self._starts[number] : end - self._starts[number]])
            first, number = end, number + 1
        return np.concatenate(parts)
