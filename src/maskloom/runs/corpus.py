"""Building, measuring and checking a corpus folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

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
    on_bad_text: Literal["error", "skip"] = "error",
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Build a corpus folder with the tokenizer of folder `vocab`; return its folder, counts and what was left out.

    `already_built` says that the finished corpus was there, `num_kept_shards` how many shards an earlier build that was
    interrupted had finished. `build.json` in the folder tells command, versions, hardware and where the texts lie, for
    `rerun`. Raises as `build_corpus`, `Tokenizer.load` and `chosen_engine` do.
    """
    from maskloom.data.corpus_building import build_corpus
    from maskloom.runs.ray_tasks import chosen_engine
    from maskloom.runs.run_folder import environment
    from maskloom.text.tokenizer import Tokenizer

    texts = [texts] if isinstance(texts, str | Path) else list(texts)
    paths = {"texts": [os.path.abspath(path) for path in texts], "vocab": os.path.abspath(vocab)}
    manifest = build_corpus(
        texts,
        tokenizer=Tokenizer.load(vocab),
        out=out,
        num_workers=num_workers,
        sentences=sentences,
        documents=documents,
        on_bad_text=on_bad_text,
        engine=chosen_engine(engine, ray_address),
        origin={"paths": paths, **environment(trains=False)},
        progress=progress,
    )
    return {
        "folder": str(out),
        "already_built": manifest.get("already_built", False),
        **{name: manifest[name] for name in _SHOWN},
        "num_shards": len(manifest["shards"]),
        "num_kept_shards": manifest["num_kept_shards"],
    }


def stats(folder: str | Path) -> dict[str, Any]:
    """Return a corpus in figures; raises DataError for a damaged or missing corpus."""
    from maskloom.data.corpus import Corpus
    from maskloom.data.corpus_statistics import corpus_statistics

    return corpus_statistics(Corpus.open(folder))


def lint(folder: str | Path) -> list[dict[str, str]]:
    """Return what would ruin a run on a corpus, as plain values; raises DataError for a damaged or missing corpus."""
    from maskloom.data.corpus import Corpus
    from maskloom.data.corpus_lint import lint_corpus

    return [finding.as_dict() for finding in lint_corpus(Corpus.open(folder))]
