"""Building, inspecting, measuring and checking vocabularies and corpora from text files."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from maskloom.data.corpus.building import CorpusSettings, build_corpus
from maskloom.data.corpus.documents import (
    Document,
    ReadingReport,
    SourceFile,
    check_rule,
    read_documents,
    refuse_output_inside,
    source_files,
)
from maskloom.data.corpus.estimate import estimated_corpus
from maskloom.data.corpus.manifest import describe_file
from maskloom.errors import ConfigError, DataError
from maskloom.runs.display import three_digits
from maskloom.system.fault_points import fault_point
from maskloom.system.files import naming_disk, replacing_folder, write_json
from maskloom.system.folder_lock import alone_in_folder
from maskloom.system.foreign_files import check_name, read_json_object
from maskloom.system.worker_processes import ONE_PROCESS, Work
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.spelled_tokenizer import SpelledTokenizer
from maskloom.text.tokenizer import TOKEN_FILES, Tokenizer
from maskloom.text.tokenizer_files import holds_capitals
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.vocabulary_training import VocabularySettings, forms_of, measure_coverage, train_vocabulary
from maskloom.text.word_counting import count_words
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

_DEFAULTS = CorpusSettings()
_SHOWN = ("num_", "skipped_", "empty_", "ignored_")  # how names of counts in a manifest begin


def build_corpus_from_files(
    texts: str | Path | Iterable[str | Path],
    *,
    vocab: str | Path,
    out: str | Path,
    settings: CorpusSettings = _DEFAULTS,
    work: Work = ONE_PROCESS,
    progress: Callable[[str, int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Build a corpus folder with the tokenizer of folder `vocab`; return its folder, counts and what was left out.

    `vocab` is the folder of a tokenizer, a model, a corpus or a run. `say` receives an estimate of the corpus's size
    before anything is written. `num_kept_shards` counts the shards that an interrupted earlier build had finished.
    Raises ConfigError for a language or a document rule that would change nothing, and as `build_corpus` and
    `Tokenizer.load` do.
    """
    for path in (vocab, out):
        check_name(Path(path))
    tokenizer = Tokenizer.load(tokenizer_folder(Path(vocab)))
    if isinstance(tokenizer, SpelledTokenizer):
        tokenizer = tokenizer.of_targets  # an ELMo is trained further on the words that it predicts
    if settings.sentences == "lines" and settings.language is not None:
        raise ConfigError(
            f"--language {settings.language}: --sentences lines does not split text into sentences; leave it out"
        )
    manifest = build_corpus(
        texts,
        tokenizer=tokenizer,
        out=out,
        settings=settings,
        work=work,
        before_reading=lambda files: _look_at(files, Path(out), settings, tokenizer, say),
        progress=progress,
    )
    num_kept = manifest.pop("num_kept_shards")
    return {
        "folder": str(out),
        "already_built": manifest.get("already_built", False),
        **{name: value for name, value in manifest.items() if name.startswith(_SHOWN)},
        "num_bytes": sum(entry["num_bytes"] for entry in manifest["files"].values()),
        "num_shards": len(manifest["shards"]),
        "num_kept_shards": num_kept,
    }


def tokenizer_folder(folder: Path) -> Path:
    """Return the folder with the vocabulary: the one named, or `model/` of a run; raises DataError if there is none."""
    for candidate in (folder, folder / "model"):
        if any((candidate / name).exists() for name in TOKEN_FILES):
            return candidate
    if not folder.is_dir():
        problem = "not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {problem}; expected a vocabulary, model, corpus or run folder")
    if (folder / "recipe.toml").exists():
        raise DataError(
            f"{folder}: this run has no model/ yet; finish it with --resume, or name the vocabulary it started with"
        )
    held = sorted(entry.name for entry in folder.iterdir())[:8]
    raise DataError(
        f"{folder}: none of {', '.join(TOKEN_FILES)} here or in {folder / 'model'}; found: "
        f"{', '.join(held) or 'nothing'}"
    )


def _look_at(
    files: list[SourceFile],
    out: Path,
    settings: CorpusSettings,
    tokenizer: Tokenizer,
    say: Callable[[str], None] | None,
) -> None:
    """Refuse a document rule that changes nothing; report the estimated size, and warn if the disk is too small."""
    check_rule(files, settings.documents)
    if say is None or (found := estimated_corpus(files, settings.encoder(tokenizer))) is None:
        return
    others = ", without the .parquet files" if any(file.path.suffix.lower() == ".parquet" for file in files) else ""
    size = f"{found.num_tokens:,} tokens in {found.num_sentences:,} sentences, {_size(found.num_bytes)}"
    say(f"corpus: about {size}{others}")
    place = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(place).free
    if free < found.num_bytes:
        say(f"warning: the disk of {place} has room for only {_size(free)}")


def _size(num_bytes: float) -> str:
    power = min(4, int(math.log10(max(1.0, num_bytes))) // 3)
    return f"{three_digits(num_bytes / 1000**power)} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


REPORT = "vocabulary_report.json"
_TOKENIZER_FILES = frozenset({*WordPieceTokenizer.files, *BytePairTokenizer.files})
_FILES_OF_TOKENS = ("vocab.txt", "vocab.json", "merges.txt")


@alone_in_folder(beside=True)
def train_vocabulary_from_files(
    paths: Sequence[str | Path],
    settings: VocabularySettings,
    *,
    out: str | Path,
    on_bad_text: Literal["error", "skip"] = "error",
    work: Work = ONE_PROCESS,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Train a vocabulary on text files and write its folder and `vocabulary_report.json`; return the report.

    The folder appears whole or not at all. A vocabulary at `out` from the same text and settings is left unchanged, and
    `already_trained` says so. Raises ConfigError for impossible settings and an `out` that holds anything else;
    FolderInUseError while another process trains there; DataError for bad text.
    """
    out = Path(out)
    _check_is_free(out)
    refuse_output_inside(paths, out)
    files = source_files(paths)
    made_from = {**asdict(settings), "max_length": Tokenizer.max_length, "on_bad_text": on_bad_text}
    if (out / REPORT).exists():
        return _finished(out, {**made_from, "text": _digest(describe_file(file.path)["sha256"] for file in files)})
    reading, place = ReadingReport(), ["the start"]
    texts = _texts(read_documents(paths, on_bad_text=on_bad_text, report=reading), reading, place)
    with naming_disk(out), replacing_folder(out) as folder:
        count = partial(count_words, scratch=folder, place=lambda: place[0])
        tokenizer, about = train_vocabulary(texts, settings, work=work, progress=progress, count=count)
        made_from["text"] = _digest(reading.sums[file.path] for file in files)
        tokenizer.save(folder)
        report = {**about, "reading": reading.as_dict(), "made_from": made_from}
        report["sha256"] = _sum_of_tokens(folder)
        write_json(folder / REPORT, report)
        fault_point("vocabulary.new")
    return {"folder": str(out), **report}


def _digest(sums: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


def _sum_of_tokens(folder: Path) -> str:
    """Return the SHA-256 over the files that hold tokens and merges."""
    paths = (folder / name for name in _FILES_OF_TOKENS)
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.exists())).hexdigest()


def _finished(out: Path, made_from: dict[str, Any]) -> dict[str, Any]:
    """Return the report of the existing vocabulary; raises ConfigError if this training would give another one."""
    report = read_json_object(out / REPORT)
    before = report.get("made_from")
    before = before if isinstance(before, dict) else {}
    changed = ", ".join(name for name in {**made_from, **before} if before.get(name) != made_from.get(name))
    if not changed and _sum_of_tokens(out) != report["sha256"]:
        changed = " or ".join(name for name in _FILES_OF_TOKENS if (out / name).exists())
    if changed:
        raise ConfigError(
            f"{out}: already contains a different vocabulary (differences: {changed}), which corpora may need; "
            "choose another --out or remove it"
        )
    return {"folder": str(out), "already_trained": True, **report}


def _texts(documents: Iterable[Document], reading: ReadingReport, place: list[str]) -> Iterator[str]:
    """Yield the texts of documents, updating `place`; raises DataError that says what was left out if none is left."""
    for document in documents:
        place[:] = [f"{document.source}, line {document.line}"]
        yield document.text
    if not reading.num_documents:
        left_out = f"documents: {reading.num_empty_documents} empty, {reading.num_skipped_documents} skipped"
        names = ", ".join(map(str, [*reading.sums][:3]))
        raise DataError(f"{names}: no text ({left_out}); a vocabulary needs at least one word")


def inspect_vocabulary(folder: Path, texts_paths: Iterable[str | Path] | None = None) -> dict[str, Any]:
    """Return what a vocabulary contains and, given text files, how well it covers them.

    `folder` is a vocabulary, model, corpus or run, or a single vocab.txt. Rates are fractions of words; an unknown word
    counts as one piece. Raises DataError for a damaged vocabulary or bad text.
    """
    if folder.is_dir() or not folder.exists():
        tokenizer = Tokenizer.load(tokenizer_folder(folder))
    else:
        vocabulary = Vocabulary.load(folder)
        tokenizer = WordPieceTokenizer(vocabulary, lowercase=not holds_capitals(vocabulary.tokens))
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
        **forms_of(vocabulary),
        "alphabet_size": len(alphabet),
        "alphabet": "".join(alphabet),
    }
    if texts_paths:
        found["coverage"] = _coverage_of_files(texts_paths, tokenizer)
    return found


def _coverage_of_files(paths: Iterable[str | Path], tokenizer: Tokenizer) -> dict[str, Any]:
    texts = (document.text for document in read_documents(paths))
    is_bytes = isinstance(tokenizer, BytePairTokenizer) and not tokenizer.cuts_at_white_space
    lowercase = None if is_bytes else tokenizer.lowercase
    counted = count_words(texts, lowercase=lowercase, max_distinct_words=VocabularySettings.max_distinct_words)
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
        raise ConfigError(f"{out} is a file; --out must be a folder")
    names = {path.name for path in out.iterdir()}
    foreign = sorted(names - _TOKENIZER_FILES - {REPORT})
    if foreign or (names and REPORT not in names):
        held = ", ".join((foreign or sorted(names))[:3])
        raise ConfigError(f"{out} contains {held}, which is not a vocabulary trained by maskloom; choose another --out")
