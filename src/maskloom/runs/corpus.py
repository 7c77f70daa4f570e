"""Building, measuring and checking a corpus folder."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from maskloom.data.corpus import Corpus
from maskloom.data.corpus_building import build_corpus
from maskloom.data.corpus_estimate import estimated_corpus
from maskloom.data.corpus_lint import lint_corpus
from maskloom.data.corpus_statistics import corpus_statistics
from maskloom.data.documents import SourceFile, check_rule
from maskloom.data.sentence_encoding import SentenceEncoder
from maskloom.errors import ConfigError, DataError
from maskloom.foreign_files import check_name
from maskloom.runs.ray_tasks import chosen_engine
from maskloom.runs.run_folder import environment
from maskloom.text.tokenizer import TOKEN_FILES, Tokenizer

_SHOWN = (
    "num_documents",
    "num_sentences",
    "num_tokens",
    "num_duplicate_documents",
    "num_empty_documents",
    "num_empty_sentences",
    "num_skipped_documents",
    "skipped_documents",
    "empty_files",
    "num_ignored_files",
    "ignored_files",
)


def build_corpus_from_files(
    texts: str | Path | Iterable[str | Path],
    *,
    vocab: str | Path,
    out: str | Path,
    num_workers: int = 1,
    sentences: Literal["split", "lines"] = "split",
    documents: Literal["blank-line", "file"] = "blank-line",
    language: str | None = None,
    on_bad_text: Literal["error", "skip"] = "error",
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Build a corpus folder with the tokenizer of folder `vocab`; return its folder, counts and what was left out.

    `vocab` is a tokenizer's folder, or that of a model, a corpus or a run. The rules of `language` find sentences; None
    takes those of English. `say` receives, before anything is written, what the corpus will take, from samples of the
    text. `already_built` says that the finished corpus was there, `num_kept_shards` how many shards an earlier build
    that was interrupted had finished. `build.json` in the folder tells command, versions, hardware and where the texts
    lie, for `rerun`. Raises ConfigError for a language or a rule of documents that would change nothing, and as
    `build_corpus`, `Tokenizer.load` and `chosen_engine` do.
    """
    texts = [texts] if isinstance(texts, str | Path) else list(texts)
    for path in (vocab, out):
        check_name(Path(path))
    paths = {"texts": [os.path.abspath(path) for path in texts], "vocab": os.path.abspath(vocab)}
    tokenizer = Tokenizer.load(tokenizer_folder(Path(vocab)))
    if sentences == "lines" and language is not None:
        raise ConfigError(f"--language {language}: with --sentences lines no sentences are looked for; leave it out")
    rules: Any = {"sentences": sentences, "language": "en" if language is None else language}
    manifest = build_corpus(
        texts,
        tokenizer=tokenizer,
        out=out,
        **rules,
        num_workers=num_workers,
        documents=documents,
        on_bad_text=on_bad_text,
        engine=chosen_engine(engine, ray_address),
        origin={"paths": paths, **environment(trains=False)},
        before_reading=lambda files: _look_at(files, documents, Path(out), SentenceEncoder(tokenizer, **rules), say),
        progress=progress,
    )
    return {
        "folder": str(out),
        "already_built": manifest.get("already_built", False),
        **{name: manifest[name] for name in _SHOWN},
        "num_bytes": sum(entry["num_bytes"] for entry in manifest["files"].values()),
        "num_shards": len(manifest["shards"]),
        "num_kept_shards": manifest["num_kept_shards"],
    }


def tokenizer_folder(folder: Path) -> Path:
    """Return the folder with the vocabulary: the one named, or `model/` of a run; raises DataError where none is."""
    for candidate in (folder, folder / "model"):
        if any((candidate / name).exists() for name in TOKEN_FILES):
            return candidate
    if not folder.is_dir():
        problem = "not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {problem}; a vocabulary, model, corpus or run folder is expected")
    if (folder / "recipe.toml").exists():
        raise DataError(f"{folder}: this run has no model/ yet; finish it with --resume, or name its first vocabulary")
    held = sorted(entry.name for entry in folder.iterdir())[:8]
    raise DataError(
        f"{folder}: none of {', '.join(TOKEN_FILES)} in it or in {folder / 'model'}; it holds: "
        f"{', '.join(held) or 'nothing'}"
    )


def _look_at(
    files: list[SourceFile], documents: Any, out: Path, encoder: SentenceEncoder, say: Callable[[str], None] | None
) -> None:
    """Refuse a rule of documents that would change nothing; say what the files hold and what the corpus will take.

    It warns when the disk has less room.
    """
    check_rule(files, documents)
    found = None if say is None else estimated_corpus(files, encoder)
    if found is None or say is None:
        return
    others = " (.parquet not counted)" if found.num_files < len(files) else ""
    num_files = f"{found.num_files:,} file{'' if found.num_files == 1 else 's'}"
    say(f"text: {num_files}, {_size(found.num_file_bytes)}, about {_size(found.num_text_bytes)} of text{others}")
    say(
        f"corpus: about {found.num_tokens:,} tokens in {found.num_sentences:,} sentences, {_size(found.num_bytes)} at "
        f"{found.token_bytes} bytes per token, 12 per sentence and 8 per document"
    )
    place = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(place).free
    if free < found.num_bytes:
        say(f"WARNING: the disk of {place} has room for {_size(free)} only")


def _size(num_bytes: float) -> str:
    power = min(4, int(math.log10(max(1.0, num_bytes))) // 3)
    return f"{num_bytes / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def stats(folder: str | Path) -> dict[str, Any]:
    """Return a corpus in figures; raises DataError for a damaged or missing corpus."""
    return corpus_statistics(Corpus.open(folder))


def lint(folder: str | Path) -> list[dict[str, str]]:
    """Return what would ruin a run on a corpus, as plain values; raises DataError for a damaged or missing corpus."""
    return [finding.as_dict() for finding in lint_corpus(Corpus.open(folder))]
