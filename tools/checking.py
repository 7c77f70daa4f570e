"""Verification of a checkpoint, for tests and the soak."""

from __future__ import annotations

from pathlib import Path

from maskloom.errors import DataError
from maskloom.training.checkpointing.checkpoints import check_checkpoint


def verify_checkpoint(folder: Path) -> str | None:
    """Return the problem of a checkpoint folder, or None when every file matches its manifest."""
    try:
        check_checkpoint(folder)
    except DataError as problem:
        return str(problem)
    return None
