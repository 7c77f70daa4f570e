"""What tests, the soak and the fuzzer share: a fresh folder, and the verification of a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path


def fresh_folder(folder: Path, source: Path | None = None) -> Path:
    """Empty a folder, or make it, and fill it with a copy of `source` if given; return it."""
    shutil.rmtree(folder, ignore_errors=True)
    if source is None:
        folder.mkdir(parents=True)
    else:
        shutil.copytree(source, folder)
    return folder


def verify_checkpoint(folder: Path) -> str | None:
    """Return the problem of a checkpoint folder, or None when every file matches its manifest."""
    from maskloom.errors import DataError
    from maskloom.training.checkpointing.checkpoints import check_checkpoint

    try:
        check_checkpoint(folder)
    except DataError as problem:
        return str(problem)
    return None
