"""Training a vocabulary from files, and looking at one."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from maskloom.data.corpus_manifest import describe_file
from maskloom.data.documents import Document, ReadingReport, read_documents, refuse_output_inside, source_files
from maskloom.errors import ConfigError, DataError
from maskloom.fault_points import fault_point
from maskloom.files import sync, write_json
from maskloom.folder_lock import alone_in_folder
from maskloom.foreign_files import read_json_object
from maskloom.runs.corpus import tokenizer_folder
from maskloom.runs.ray_tasks import chosen_engine
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.pair_merging import Score
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.tokenizer_files import holds_capitals
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.vocabulary_training import Model, longest_token, measure_coverage, num_forms, train_vocabulary
from maskloom.text.word_counting import count_words
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

REPORT = "vocabulary_report.json"
_TOKENIZER_FILES = frozenset({*WordPieceTokenizer.files, *BytePairTokenizer.files})
_FILES_OF_TOKENS = ("vocab.txt", "vocab.json", "merges.txt")
_MAX_DISTINCT_WORDS = 2_000_000


@alone_in_folder(beside=True)
def train_vocabulary_from_files(
    paths: Iterable[str | Path],
    *,
    size: int,
    out: str | Path,
    model: Model = "wordpiece",
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
    """Train a vocabulary on text files and write its tokenizer folder; return the report.

    The folder holds the tokenizer in Hugging Face layout and `vocabulary_report.json`, and appears whole or not at all.
    A vocabulary at `out` of the same text and settings is left as it is, and `already_trained` says so. A training that
    was killed starts anew when it is run again, and what it left behind is removed. Settings: see `train_vocabulary`
    and `chosen_engine`.
    Raises ConfigError for impossible settings, an `out` that holds something else, or a vocabulary of other text or
    settings; FolderInUseError for one that another process trains; DataError for bad text.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    out, does = Path(out), chosen_engine(engine, ray_address)
    _check_is_free(out)
    refuse_output_inside(paths, out)
    files = source_files(paths)
    settings: dict[str, Any] = {
        "size": size,
        "lowercase": not cased,
        "score": score,
        "min_frequency": min_frequency,
        "alphabet_limit": alphabet_limit,
        "max_distinct_words": max_distinct_words,
        **({} if model == "wordpiece" else {"model": model}),
    }
    made_from = {**settings, "max_length": max_length, "on_bad_text": on_bad_text}
    if (out / REPORT).exists():
        return _finished(out, {**made_from, "text": _digest(describe_file(file.path)["sha256"] for file in files)})
    reading, place = ReadingReport(), ["the start"]
    texts = _texts(read_documents(paths, on_bad_text=on_bad_text, report=reading), reading, place)
    with _staging(out) as staging:
        count = partial(count_words, engine=does, scratch=staging, place=lambda: place[0])
        trained = train_vocabulary(texts, **settings, num_workers=num_workers, progress=progress, count=count)
        tokenizer = replace(trained.tokenizer, max_length=max_length)
        made_from["text"] = _digest(reading.sums[file.path] for file in files)
        report = {**trained.report.as_dict(), "reading": reading.as_dict(), "made_from": made_from}
        return {"folder": str(out), **_put_in_place(tokenizer, report, out, staging / "new")}


def _put_in_place(tokenizer: Tokenizer, report: dict[str, Any], out: Path, folder: Path) -> dict[str, Any]:
    """Write tokenizer and report to a folder and rename it to `out`, where an empty one may be; return the report."""
    tokenizer.save(folder)
    report["sha256"] = _sum_of_tokens(folder)
    write_json(folder / REPORT, report)
    fault_point("vocabulary.new")
    folder.rename(out)
    sync(out.parent)
    return report


def _digest(sums: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


def _sum_of_tokens(folder: Path) -> str:
    """Return the SHA-256 over the files that hold tokens and merges."""
    paths = (folder / name for name in _FILES_OF_TOKENS)
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.exists())).hexdigest()


def _finished(out: Path, made_from: dict[str, Any]) -> dict[str, Any]:
    """Return the report of the vocabulary that is there; raises ConfigError where this one would be another."""
    report = read_json_object(out / REPORT)
    before = report.get("made_from")
    before = before if isinstance(before, dict) else {}
    changed = ", ".join(name for name in {**made_from, **before} if before.get(name) != made_from.get(name))
    if not changed and _sum_of_tokens(out) != report["sha256"]:
        changed = " or ".join(name for name in _FILES_OF_TOKENS if (out / name).exists())
    if changed:
        raise ConfigError(
            f"{out}: already holds a vocabulary that was made otherwise ({changed} differ), and corpora may need it; "
            "choose another --out or remove this one"
        )
    return {"folder": str(out), "already_trained": True, **report}


def _texts(documents: Iterable[Document], reading: ReadingReport, place: list[str]) -> Iterator[str]:
    """Yield the texts of documents with the `place` of each; when there is none, the error says what was left out."""
    for document in documents:
        place[:] = [f"{document.source}, line {document.line}"]
        yield document.text
    if not reading.num_documents:
        left_out = f"{reading.num_empty_documents} documents were empty, {reading.num_skipped_documents} were skipped"
        names = ", ".join(map(str, [*reading.sums][:3]))
        raise DataError(f"{names}: no text ({left_out}); a vocabulary needs some")


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Make the folder `.NAME.building` beside `out`, without what an earlier one left; remove it."""
    staging = out.parent / f".{out.name}.building"
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        yield staging
    except OSError as error:
        if error.errno is not None and error.filename is None:
            # a full disk does not say which one it is
            error.filename = str(out)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def inspect_vocabulary(folder: str | Path, texts_paths: Iterable[str | Path] | None = None) -> dict[str, Any]:
    """Return what a vocabulary holds and, given text files, how well it covers them.

    `folder` is a vocabulary, model, corpus or run, or a single vocab.txt. Rates are fractions of words; an unknown word
    is one piece.
    Raises DataError for a damaged vocabulary or bad text.
    """
    folder = Path(folder)
    if folder.is_dir() or not folder.exists():
        tokenizer = Tokenizer.load(tokenizer_folder(folder))
    else:
        vocabulary = Vocabulary.load(folder)
        tokenizer = WordPieceTokenizer(vocabulary, lowercase=not holds_capitals(vocabulary))
    vocabulary = tokenizer.vocabulary
    specials = vocabulary.special.tokens
    ordinary = [vocabulary.bare(token) for token in vocabulary.tokens if token not in specials]
    alphabet = sorted({token for token in ordinary if len(token) == 1})
    found: dict[str, Any] = {
        "folder": str(folder),
        "size": len(vocabulary),
        "lowercase": tokenizer.lowercase,
        "max_length": tokenizer.max_length,
        "special_ids": {token: vocabulary.ids[token] for token in specials},
        "num_unused": sum(token.startswith("[unused") for token in vocabulary.tokens),
        **{name: number for name, number in num_forms(vocabulary).items() if number is not None},
        "longest_token": longest_token(vocabulary),
        "alphabet_size": len(alphabet),
        "alphabet": "".join(alphabet),
    }
    if texts_paths:
        found["coverage"] = _coverage_of_files(texts_paths, tokenizer)
    return found


def _coverage_of_files(paths: Iterable[str | Path], tokenizer: Tokenizer) -> dict[str, Any]:
    texts = (document.text for document in read_documents(paths))
    counted = count_words(texts, lowercase=tokenizer.lowercase, max_distinct_words=_MAX_DISTINCT_WORDS)
    return {
        "num_documents": counted.num_texts,
        "num_words": counted.num_words,
        "num_distinct_words": counted.num_distinct_words,
        "num_pruned_words": counted.num_pruned_words,
        **measure_coverage(tokenizer, counted.counts),
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
