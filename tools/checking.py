"""What is wrong with a checkpoint, as tests and the soak ask it."""

from __future__ import annotations

from pathlib import Path

from maskloom.errors import DataError
from maskloom.training.checkpointing.checkpoints import check_checkpoint


def verify_checkpoint(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint folder, or None when every file is as its manifest says."""
    try:
        check_checkpoint(folder)
    except DataError as problem:
        return str(problem)
    return None
