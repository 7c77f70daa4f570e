"""Building a corpus again from what its folder says, and comparing the files to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskloom.config import ConfigError, DataError
from maskloom.data.corpus_building import build_corpus, describe_source
from maskloom.data.corpus_manifest import BUILD, MANIFEST, check_files, file_sum, read_manifest
from maskloom.data.documents import source_files
from maskloom.foreign_files import read_json_object
from maskloom.runs.progress import Progress, stage_callback
from maskloom.runs.run_folder import environment
from maskloom.text.tokenizer import Tokenizer


def check_versions(
    run: Path, before: dict[str, str], now: dict[str, str], allow_change: bool, progress: Progress
) -> None:
    """Raise ConfigError when this is not what made the run; only say so with `allow_change`."""
    names = sorted(before.keys() | now.keys())
    changes = [
        f"{name} was {before.get(name)}, is {now.get(name)}" for name in names if before.get(name) != now.get(name)
    ]
    if changes and not allow_change:
        raise ConfigError(f"{run}: {'; '.join(changes)}; --allow-version-change repeats the run anyway")
    if changes:
        progress.say(f"WARNING: {'; '.join(changes)}: the result may differ")


def rerun_corpus(run: Path, *, out: Path, allow_version_change: bool, progress: Progress) -> dict[str, Any]:
    """Build the corpus of folder `run` again in a new folder, and return whether all files have the same bytes.

    Text comes from where it lay, the tokenizer and the settings from `run`. Raises ConfigError for a corpus without
    `build.json`, for other versions and for an `out` that holds a corpus, DataError for a damaged corpus and for text
    that changed or is gone.
    """
    manifest = read_manifest(run)
    check_files(run, manifest, sums=True)
    if not (run / BUILD).exists():
        raise ConfigError(
            f"{run}: an older version built it, which did not record the paths of its text; "
            f"`maskloom corpus build TEXT --vocab {run} --out NEW` builds it again"
        )
    if (out / MANIFEST).exists():
        raise ConfigError(f"{out} already holds a corpus; choose another --out")
    content, settings = read_json_object(run / BUILD), manifest["settings"]
    check_versions(run, content["versions"], environment(trains=False)["versions"], allow_version_change, progress)
    texts = [Path(path) for path in content["paths"]["texts"]]
    _check_texts(run, texts, manifest)
    again = build_corpus(
        texts,
        tokenizer=Tokenizer.load(run),
        out=out,
        sentences=settings["sentences"],
        on_bad_text=settings["on_bad_text"],
        documents=settings.get("documents", "blank-line"),
        shard_tokens=settings["shard_tokens"],
        language=settings["language"],
        origin={"paths": content["paths"], **environment(trains=False)},
        progress=stage_callback(progress),
    )
    before, now = (
        {**found["files"], MANIFEST: file_sum(folder / MANIFEST)} for found, folder in ((manifest, run), (again, out))
    )
    differing = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return {
        "run": str(run),
        "rerun": str(out),
        "identical": not differing,
        "sha256_of_run": before[MANIFEST],
        "sha256_of_rerun": now[MANIFEST],
        "num_files": len(before),
        "num_differing": len(differing),
        "differing": differing[:4],
    }


def _check_texts(run: Path, texts: list[Path], manifest: dict[str, Any]) -> None:
    """Raise DataError that names the first text file that is not what the corpus was built from."""
    gone = next((path for path in texts if not path.exists()), None)
    if gone is not None:
        raise DataError(f"{gone}: a text of {run} no longer exists")
    found = [(source.path, describe_source(source)) for source in source_files(texts)]
    for (path, now), before in zip(found, manifest["sources"], strict=False):
        if now != before:
            raise DataError(
                f"{path}: not what {run} was built from: {before['name']} had the SHA-256 {before['sha256']}, "
                f"{now['name']} has {now['sha256']}"
            )
    if len(found) != len(manifest["sources"]):
        raise DataError(f"{run} was built from {len(manifest['sources'])} text files, there are now {len(found)}")
