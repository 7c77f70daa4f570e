"""Sums of files that decide whether two runs read the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

from maskloom.foreign_files import check_regular


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that decide what is trained: configuration, weights in any form, tokens."""
    patterns = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.npz", "vocab.txt", "tokenizer.json")
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def fingerprint(*paths: Path) -> str:
    """Return the SHA-256 over the contents of files; names do not count, so a moved file is the same."""
    digest = hashlib.sha256()
    for path in paths:
        check_regular(path)
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
