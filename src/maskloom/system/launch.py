"""Facts about processes that torchrun or a scheduler started together, read from environment variables."""

from __future__ import annotations

import os
from pathlib import Path

from maskloom.system.files import write_text

DEVICE_NAMES = r"auto|cpu|mps|cuda(?::(\d{1,3}))?"
"""Valid device names; the device need not exist."""

_LAUNCH = "launch.txt"


def is_one_of_several() -> bool:
    """Tell whether this process was started to train in a group, even if it is the only one."""
    return bool(os.environ.get("WORLD_SIZE"))


def num_processes() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def is_first_process() -> bool:
    """Tell whether this process is the one that writes files and messages."""
    return not is_one_of_several() or os.environ.get("RANK", "0") == "0"


def is_restarted(out: Path) -> bool:
    """Tell whether torchrun restarted, after a failure, the processes of the run in `out`, which then continues.

    A folder that was already in use when these processes first started is not theirs.
    """
    launch = os.environ.get("TORCHELASTIC_RUN_ID")
    if not launch or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return False
    path = out / _LAUNCH
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace") == launch


def claim(out: Path) -> None:
    """Record in a run's folder that this launch works in it and may continue it after a restart."""
    if launch := os.environ.get("TORCHELASTIC_RUN_ID"):
        write_text(out / _LAUNCH, launch)
