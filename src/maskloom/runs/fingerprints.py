"""Sums of files that decide whether two runs read the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

from maskloom.errors import DataError
from maskloom.foreign_files import check_regular
from maskloom.tasks.choice.reading import race_files


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that decide what is trained: configuration, weights in any form, tokens."""
    patterns = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.npz")
    patterns += ("vocab.txt", "tokenizer.json", "vocab.json", "merges.txt")
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def saved_sum(folder: Path) -> str:
    """Return the SHA-256 over configuration and weights of a folder that was saved here; raises as `fingerprint`."""
    return fingerprint(folder / "config.json", folder / "model.safetensors")


def fingerprint(*paths: Path) -> str:
    """Return the SHA-256 over the contents of files; names do not count, so a moved file is the same.

    A folder of examples counts by its files in order. Raises DataError for what cannot be read.
    """
    digest = hashlib.sha256()
    for path in (file for given in paths for file in (race_files(given) if given.is_dir() else [given])):
        check_regular(path)
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()
