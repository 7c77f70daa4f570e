"""Training a vocabulary from files, and looking at one."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from maskloom.build_lock import held_alone
from maskloom.errors import ConfigError, DataError
from maskloom.fault_points import fault_point
from maskloom.files import sync, write_json
from maskloom.runs.run_lock import alone_in_folder

if TYPE_CHECKING:
    from maskloom.data.documents import Document, ReadingReport
    from maskloom.text.pair_merging import Score

REPORT = "vocabulary_report.json"
_TOKENIZER_FILES = frozenset({"vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"})
_MAX_DISTINCT_WORDS = 2_000_000


@alone_in_folder(beside=True)
def train_vocabulary_from_files(
    paths: Iterable[str | Path],
    *,
    size: int,
    out: str | Path,
    cased: bool = False,
    score: Score = "frequency",
    min_frequency: int = 2,
    alphabet_limit: int = 1000,
    max_distinct_words: int = _MAX_DISTINCT_WORDS,
    num_workers: int = 1,
    max_length: int = 512,
    on_bad_text: Literal["error", "skip"] = "error",
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Train a WordPiece vocabulary on text files and write its tokenizer folder; return the report.

    The folder holds the tokenizer in Hugging Face layout and `vocabulary_report.json`, and appears whole or not at all.
    An earlier vocabulary at `out` is replaced; anything else there is left alone. A training that was killed starts
    anew when it is run again, and what it left behind is removed. Settings: see `train_vocabulary`, `chosen_engine`.
    Raises ConfigError for impossible settings, an `out` that holds something else and one that another process trains,
    DataError for bad text.
    """
    from maskloom.data.documents import ReadingReport, read_documents, refuse_output_inside
    from maskloom.runs.ray_tasks import chosen_engine
    from maskloom.text.tokenizer import Tokenizer
    from maskloom.text.vocabulary_training import train_vocabulary
    from maskloom.text.word_counting import count_words

    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    out, does = Path(out), chosen_engine(engine, ray_address)
    _check_is_free(out)
    refuse_output_inside(paths, out)
    reading = ReadingReport()
    texts = _Texts(read_documents(paths, on_bad_text=on_bad_text, report=reading), reading)
    with _staging(out) as staging:
        trained = train_vocabulary(
            texts,
            size=size,
            lowercase=not cased,
            score=score,
            min_frequency=min_frequency,
            alphabet_limit=alphabet_limit,
            max_distinct_words=max_distinct_words,
            num_workers=num_workers,
            progress=progress,
            count=partial(count_words, engine=does, scratch=staging, place=texts.place),
        )
        folder = staging / "new"
        Tokenizer(trained.vocabulary, lowercase=not cased, max_length=max_length).save(folder)
        digest = hashlib.sha256((folder / "vocab.txt").read_bytes()).hexdigest()
        report = {**trained.report.as_dict(), "sha256": digest, "reading": reading.as_dict()}
        write_json(folder / REPORT, report)
        _put_in_place(folder, out, staging)
    return {"folder": str(out), **report}


class _Texts:
    """The texts of documents, and the place of the last; when there is none, the error says what was left out."""

    def __init__(self, documents: Iterator[Document], reading: ReadingReport) -> None:
        self._documents, self._reading = documents, reading
        self._place = "the start"

    def __iter__(self) -> Iterator[str]:
        for document in self._documents:
            self._place = f"{document.source}, line {document.line}"
            yield document.text
        found = self._reading
        if not found.num_documents:
            left_out = f"{found.num_empty_documents} documents were empty, {found.num_skipped_documents} were skipped"
            raise DataError(f"the files hold no text ({left_out}); a vocabulary needs some")

    def place(self) -> str:
        """Return the file and line of the document that was drawn last."""
        return self._place


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Make the folder `.NAME.building` beside `out`, for one process, without what an earlier one left; remove it."""
    staging = out.parent / f".{out.name}.building"
    with held_alone(staging / "lock", f"training the vocabulary of {out.name}"):
        try:
            _recover(out, staging)
            yield staging
        except OSError as error:
            if error.errno is not None and error.filename is None:
                # a full disk does not say which one it is
                error.filename = str(out)
            raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _recover(out: Path, staging: Path) -> None:
    """Put an earlier vocabulary back that a killed training had moved away, and remove the rest of that training."""
    if (staging / "old").exists() and not out.exists():
        (staging / "old").rename(out)
    for path in staging.iterdir():
        if path.is_dir():
            shutil.rmtree(path)


def _put_in_place(folder: Path, out: Path, staging: Path) -> None:
    """Rename the finished folder to `out`, after the one that is there."""
    if out.exists():
        # a folder that holds files cannot be renamed over; the old one goes when the staging folder goes
        fault_point("vocabulary.old")
        out.rename(staging / "old")
    fault_point("vocabulary.new")
    folder.rename(out)
    sync(out.parent)


def inspect_vocabulary(folder: str | Path, texts_paths: Iterable[str | Path] | None = None) -> dict[str, Any]:
    """Return what a vocabulary holds and, given text files, how well it covers them.

    `folder` is a tokenizer folder or a single vocab.txt. Rates are shares of words; an unknown word is one piece.
    Raises DataError for a damaged vocabulary or bad text.
    """
    from maskloom.text.tokenizer import Tokenizer
    from maskloom.text.tokenizer_files import holds_capitals
    from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
    from maskloom.text.vocabulary_training import longest_token

    folder = Path(folder)
    if folder.is_dir():
        tokenizer = Tokenizer.load(folder)
    else:
        vocabulary = Vocabulary.load(folder)
        tokenizer = Tokenizer(vocabulary, lowercase=not holds_capitals(vocabulary))
    vocabulary = tokenizer.vocabulary
    ordinary = [token.removeprefix("##") for token in vocabulary.tokens if token not in SPECIAL_TOKENS]
    alphabet = sorted({token for token in ordinary if len(token) == 1})
    found: dict[str, Any] = {
        "folder": str(folder),
        "size": len(vocabulary),
        "lowercase": tokenizer.lowercase,
        "max_length": tokenizer.max_length,
        "special_ids": {token: vocabulary.ids[token] for token in SPECIAL_TOKENS},
        "num_unused": sum(token.startswith("[unused") for token in vocabulary.tokens),
        "num_continuations": int(vocabulary.is_continuation.sum()),
        "longest_token": longest_token(vocabulary),
        "alphabet_size": len(alphabet),
        "alphabet": "".join(alphabet),
    }
    if texts_paths:
        found["coverage"] = _coverage_of_files(texts_paths, vocabulary, lowercase=tokenizer.lowercase)
    return found


def _coverage_of_files(paths: Iterable[str | Path], vocabulary: Any, *, lowercase: bool) -> dict[str, Any]:
    from maskloom.data.documents import read_documents
    from maskloom.text.vocabulary_training import measure_coverage
    from maskloom.text.word_counting import count_words

    texts = (document.text for document in read_documents(paths))
    counted = count_words(texts, lowercase=lowercase, max_distinct_words=_MAX_DISTINCT_WORDS)
    return {
        "num_documents": counted.num_texts,
        "num_words": counted.num_words,
        "num_distinct_words": counted.num_distinct_words,
        "num_pruned_words": counted.num_pruned_words,
        **measure_coverage(vocabulary, counted.counts),
    }


def _check_is_free(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"{out} is a file; --out names a folder")
    names = {path.name for path in out.iterdir()}
    foreign = sorted(names - _TOKENIZER_FILES - {REPORT})
    if foreign or (names and REPORT not in names):
        held = ", ".join((foreign or sorted(names))[:3])
        raise ConfigError(f"{out} holds {held}, which is no vocabulary trained here; choose another --out")
