"""Build a corpus folder from text files: parallel, resumable, and byte-identical for any number of processes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maskloom.data.corpus.documents import (
    Document,
    DocumentRule,
    ReadingReport,
    SourceFile,
    read_documents,
    refuse_output_inside,
    source_files,
)
from maskloom.data.corpus.manifest import (
    DOCUMENT_OFFSETS,
    MANIFEST,
    SENTENCE_LENGTHS,
    SENTENCE_OFFSETS,
    SHARD_FOLDER,
    check_files,
    describe_file,
    read_manifest,
    shard_name,
    write_manifest,
)
from maskloom.data.corpus.sentence_encoding import SentenceEncoder, SentenceRule, token_type
from maskloom.data.corpus.shards import BUILDING_FOLDER, ShardRecord, finished_shard, map_lengths, write_shard
from maskloom.errors import ConfigError, DataError
from maskloom.system.fault_points import fault_point
from maskloom.system.files import naming_disk, sync
from maskloom.system.folder_lock import folder_lock
from maskloom.system.worker_processes import ONE_PROCESS, Work, results
from maskloom.text.sentences import check_language
from maskloom.text.tokenizer import TARGETS, TOKEN_FILES, Tokenizer

SHARD_TOKENS = 1 << 22
MAX_SHARD_BYTES = 1 << 26
"""Maximum bytes of text per shard, unless a single document has more; this bounds the memory of a task."""

_CHARACTERS_PER_TOKEN = 4
_SMALLEST_SHARD = 1 << 17
_SHARE_OF_TEXT = 16
_NUM_NAMED = 20
_LENGTHS_AT_ONCE = 1 << 20
DIGEST_BYTES = 16
_EMPTY = bytes(DIGEST_BYTES)
_SMALLEST_SET = 1 << 12

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CorpusSettings:
    """The settings that, with the text and the tokenizer, determine the bytes of a corpus.

    `sentences` are found by the rules of `language` (English if None), or are the lines; `documents` is the rule that
    ends documents of a .txt file. A shard has about `shard_tokens` tokens.
    """

    sentences: SentenceRule = "split"
    language: str | None = None
    on_bad_text: Literal["error", "skip"] = "error"
    shard_tokens: int = SHARD_TOKENS
    documents: DocumentRule = "blank-line"

    def encoder(self, tokenizer: Tokenizer) -> SentenceEncoder:
        """Return the encoder that finds and encodes sentences."""
        return SentenceEncoder(tokenizer, sentences=self.sentences, language=self.language or "en")

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as stored in the manifest, which omits the default rule for documents."""
        values = {**asdict(self), "language": self.language or "en"}
        if self.documents == "blank-line":
            del values["documents"]
        return values


@dataclass
class _ShardTask:
    """The UTF-8 documents of one shard, a digest of each, and the locations of the first and the last."""

    number: int
    settings: str
    documents: list[bytes] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    num_characters: int = 0
    first: str = ""
    last: str = ""

    def add(self, document: Document, digest: bytes) -> None:
        self.documents.append(document.content)
        self.digests.append(digest)
        self.num_bytes += len(document.content)
        self.num_characters += document.num_characters
        self.last = f"{document.source}, line {document.line}"
        self.first = self.first or self.last

    @property
    def input_digest(self) -> str:
        """The digest of the settings and all documents."""
        return hashlib.blake2b(self.settings.encode() + b"".join(self.digests)).hexdigest()

    def __str__(self) -> str:
        return f"shard {self.number} (documents from {self.first} to {self.last})"


def build_corpus(
    paths: str | Path | Iterable[str | Path],
    *,
    tokenizer: Tokenizer,
    out: str | Path,
    settings: CorpusSettings = CorpusSettings(),
    work: Work = ONE_PROCESS,
    before_reading: Callable[[list[SourceFile]], None] = lambda files: None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Build a corpus folder from text files and return its manifest (BERT paper 3.3.2: document-level text).

    This process reads and the workers of `work` encode; the workers of an engine must see `out` under the same absolute
    path. The output bytes are the same for any engine and number of workers, and after any interruption: a rerun reuses
    the `num_kept_shards` that are finished, and leaves a finished corpus as it is (`already_built`). Exact duplicates
    are dropped, using 27 to 53 bytes of memory per document; the shards in progress, two per worker plus two, have at
    most `MAX_SHARD_BYTES` of text each. `before_reading` is called with the files, `progress` with ("reading and
    encoding", bytes done, total bytes).

    Raises ConfigError for an invalid setting, and if the folder holds a corpus that was built differently or any other
    files, or lies in a folder of text; FolderInUseError if another process is building in it; DataError if the text has
    no document, and as `read_documents` does; ChildProcessError as `results_of_processes` does; OSError for a full
    disk.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    out = Path(out).absolute()
    _check_settings(out, settings)
    refuse_output_inside(paths, out)
    reading, seen = ReadingReport(), DigestSet()
    files = source_files(paths, reading)
    made_with = {**tokenizer.identity(), "max_length": tokenizer.max_length, **settings.as_dict()}
    if (out / MANIFEST).exists():
        sources = [{"name": source.name, **describe_file(source.path)} for source in files]
        return _finished_corpus(out, {"settings": made_with, "sources": sources})
    before_reading(files)
    with _building(out):
        tokenizer.save(out)
        paths = [source.path for source in files]
        found = read_documents(paths, on_bad_text=settings.on_bad_text, documents=settings.documents, report=reading)
        tasks = _shard_tasks(_unique_documents(found, seen), made_with)
        total = sum(source.path.stat().st_size for source in files)
        kept, made = list[ShardRecord](), list[ShardRecord]()
        unfinished = _unfinished(out, tasks, kept)
        with closing(results(_start_encoding, (str(out), tokenizer, settings), unfinished, work)) as records:
            for record in records:
                made.append(record)
                if progress:
                    progress("reading and encoding", reading.num_bytes_read, total)
        records = sorted([*kept, *made], key=lambda record: record.number)
        if not any(record.num_documents for record in records):
            raise DataError(f"{', '.join(source.name for source in files[:3])}: found no documents with any tokens")
        sources = [{"name": file.name, **describe_file(file.path, reading.sums[file.path])} for file in files]
        recipe = {"settings": made_with, "sources": sources}
        manifest = _finish(out, records, recipe, reading, reading.num_documents - len(seen), tokenizer)
        return {**manifest, "num_kept_shards": len(kept)}


def _check_settings(out: Path, settings: CorpusSettings) -> None:
    check_language(settings.language or "en")
    if settings.sentences not in ("split", "lines"):
        raise ConfigError(f"sentences is {settings.sentences!r}; it must be 'split' or 'lines'")
    if settings.shard_tokens < 1:
        raise ConfigError(f"shard_tokens is {settings.shard_tokens}; it must be positive")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: is a file; a corpus needs a folder")


def _finished_corpus(out: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    manifest = read_manifest(out)
    before, now = manifest["settings"], recipe["settings"]
    changed = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    changed += [] if manifest["sources"] == recipe["sources"] else ["the text files"]
    if changed:
        raise ConfigError(
            f"{out}: already contains a corpus that was built differently ({', '.join(changed)} differ); "
            "choose another folder or remove this one"
        )
    check_files(out, manifest, sums=True)
    shutil.rmtree(out / BUILDING_FOLDER, ignore_errors=True)
    return {"already_built": True, **manifest, "num_kept_shards": len(manifest["shards"])}


@contextmanager
def _building(out: Path) -> Iterator[None]:
    """Create the folders and hold the build lock; raises ConfigError for a folder with other files."""
    if out.is_dir() and not (out / BUILDING_FOLDER).is_dir():
        # a build would overwrite a model's vocabulary, for example
        others = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
        if others:
            raise ConfigError(
                f"{out}: the folder contains other files, such as {others[0]}; choose a new or empty folder"
            )
    (out / BUILDING_FOLDER).mkdir(parents=True, exist_ok=True)
    (out / SHARD_FOLDER).mkdir(exist_ok=True)
    with folder_lock(out):
        # a killed build may have left large temporary files
        for folder in (out, out / SHARD_FOLDER, out / BUILDING_FOLDER):
            for path in folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)
        # an unfinished build may have had another kind of tokenizer
        for name in (*TOKEN_FILES, "merges.txt"):
            (out / name).unlink(missing_ok=True)
        shutil.rmtree(out / TARGETS, ignore_errors=True)
        with naming_disk(out):
            yield


class DigestSet:
    """A set of digests in one flat table: 27 to 53 bytes of memory per document; a Python set takes about 100.

    Zeros mark a free slot, so a digest of zeros counts as present, with a probability of 2**-128.
    """

    def __init__(self) -> None:
        self._size, self._table = 0, bytearray(_SMALLEST_SET * DIGEST_BYTES)

    def __len__(self) -> int:
        return self._size

    def add(self, digest: bytes) -> bool:
        """Add a digest of 16 bytes; return whether it is new."""
        if self._size * DIGEST_BYTES * 5 >= len(self._table) * 3:
            old, self._size, self._table = self._table, 0, bytearray(2 * len(self._table))
            for start in range(0, len(old), DIGEST_BYTES):
                if (stored := bytes(old[start : start + DIGEST_BYTES])) != _EMPTY:
                    self.add(stored)
        start = int.from_bytes(digest[:8], "little") * DIGEST_BYTES % len(self._table)
        while (stored := self._table[start : start + DIGEST_BYTES]) not in (digest, _EMPTY):
            start = (start + DIGEST_BYTES) % len(self._table)
        if stored == digest:
            return False
        self._table[start : start + DIGEST_BYTES] = digest
        self._size += 1
        return True


def _unique_documents(documents: Iterator[Document], seen: DigestSet) -> Iterator[tuple[bytes, Document]]:
    """Yield (digest, document) for each distinct document; two collide with a probability of 2**-128."""
    for document in documents:
        digest = hashlib.blake2b(document.content, digest_size=DIGEST_BYTES).digest()
        if seen.add(digest):
            yield digest, document
        # otherwise it would stay in memory while the next one is read
        del document


def _shard_tasks(documents: Iterator[tuple[bytes, Document]], settings: dict[str, Any]) -> Iterator[_ShardTask]:
    """Group documents by their text only, the first shards small; the caller holds the only reference to a task."""
    max_characters = settings["shard_tokens"] * _CHARACTERS_PER_TOKEN
    recipe, total = json.dumps(settings, sort_keys=True), 0
    task = _ShardTask(0, recipe)
    for own_digest, document in documents:
        smallest = max(_SMALLEST_SHARD * _CHARACTERS_PER_TOKEN, (total + task.num_characters) // _SHARE_OF_TEXT)
        is_full = task.num_characters >= min(max_characters, smallest)
        if task.documents and (is_full or task.num_bytes + len(document.content) > MAX_SHARD_BYTES):
            total += task.num_characters
            full, task = [task], _ShardTask(task.number + 1, recipe)
            yield full.pop()
        task.add(document, own_digest)
        del document
    if task.documents:
        yield task


def _unfinished(out: Path, tasks: Iterator[_ShardTask], kept: list[ShardRecord]) -> Iterator[_ShardTask]:
    """Yield the tasks still to do; append the records of shards that an earlier build finished to `kept`."""
    for task in tasks:
        record = finished_shard(out, task.number, task.input_digest)
        if record is None:
            yield task
        else:
            kept.append(record)
        # otherwise it would stay in memory while the next one is read
        del task


def _start_encoding(out: str, tokenizer: Tokenizer, settings: CorpusSettings) -> Callable[[_ShardTask], ShardRecord]:
    """Return the function that encodes a task and writes its shard; runs in the worker process."""
    encoder = settings.encoder(tokenizer)

    def encode(task: _ShardTask) -> ShardRecord:
        return write_shard(Path(out), task.number, task.input_digest, encoder.parts(task.documents))

    return encode


def _finish(
    out: Path,
    records: list[ShardRecord],
    recipe: dict[str, Any],
    reading: ReadingReport,
    num_duplicates: int,
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """Merge the lengths of all shards, sync everything to disk, and write the manifest last."""
    kept = [record for record in records if record.num_tokens]
    _join_lengths(out, kept)
    files = {shard_name(r.number): {"num_bytes": r.num_bytes, "sha256": r.sha256} for r in kept}
    small = (SENTENCE_LENGTHS, SENTENCE_OFFSETS, DOCUMENT_OFFSETS, *tokenizer.files)
    files |= {name: describe_file(out / name) for name in small}
    # remove shards of other builds and temporary files of a killed build
    for path in (out / SHARD_FOLDER).iterdir():
        if path.relative_to(out).as_posix() not in files:
            path.unlink(missing_ok=True)
    for name in [*files, SHARD_FOLDER]:
        fault_point("corpus.sync")
        sync(out / name)
    sync(out.parent)
    manifest = write_manifest(
        out,
        {
            "num_documents": sum(record.num_documents for record in kept),
            "num_sentences": sum(record.num_sentences for record in kept),
            "num_tokens": sum(record.num_tokens for record in kept),
            "num_duplicate_documents": num_duplicates,
            "num_empty_documents": reading.num_empty_documents + sum(r.num_empty_documents for r in records),
            "num_empty_sentences": sum(record.num_empty_sentences for record in records),
            "num_skipped_documents": reading.num_skipped_documents,
            "skipped_documents": reading.skipped,
            "empty_files": reading.empty_files[:_NUM_NAMED],
            "num_ignored_files": len(reading.ignored_files),
            "ignored_files": reading.ignored_files[:_NUM_NAMED],
            "token_type": token_type(len(tokenizer.vocabulary)).str,
            **recipe,
            "shards": [{"file": shard_name(r.number), "num_tokens": r.num_tokens} for r in kept],
            "files": files,
        },
    )
    # a process left over from a killed build may still put a file there, which no longer matters
    shutil.rmtree(out / BUILDING_FOLDER, ignore_errors=True)
    return manifest


def _join_lengths(out: Path, records: list[ShardRecord]) -> None:
    """Write the three index files of the corpus from the lengths of its shards, in bounded memory."""
    first_sentence, first_token = 0, 0
    with (
        (out / DOCUMENT_OFFSETS).open("wb") as documents,
        (out / SENTENCE_OFFSETS).open("wb") as offsets,
        (out / SENTENCE_LENGTHS).open("wb") as lengths,
    ):
        documents.write(np.zeros(1, "<i8").tobytes())
        offsets.write(np.zeros(1, "<i8").tobytes())
        for record in records:
            fault_point("corpus.lengths")
            of_sentences, of_documents = map_lengths(out, record)
            # a shard of short lines can have tens of millions of sentences
            for part in np.array_split(of_sentences, 1 + len(of_sentences) // _LENGTHS_AT_ONCE):
                lengths.write(part.tobytes())
                offsets.write((first_token + np.cumsum(part, dtype="<i8")).tobytes())
                first_token += int(part.sum(dtype=np.int64))
            for part in np.array_split(of_documents, 1 + len(of_documents) // _LENGTHS_AT_ONCE):
                documents.write((first_sentence + np.cumsum(part, dtype="<i8")).tobytes())
                first_sentence += int(part.sum(dtype=np.int64))
