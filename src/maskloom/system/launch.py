"""What torchrun or a scheduler tells a process of the others that it was started with, by environment variables."""

from __future__ import annotations

import os
from pathlib import Path

from maskloom.system.files import write_text

DEVICE_NAMES = r"auto|cpu|mps|cuda(?::(\d{1,3}))?"
"""What a device may be called; whether it is there is another question."""

_LAUNCH = "launch.txt"


def is_one_of_several() -> bool:
    """Tell whether this process was started as one of those that train together, be it the only one."""
    return bool(os.environ.get("WORLD_SIZE"))


def num_processes() -> int:
    """Return how many processes train together."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def is_first_process() -> bool:
    """Tell whether this process is the one that writes and speaks."""
    return not is_one_of_several() or os.environ.get("RANK", "0") == "0"


def is_restarted(out: Path) -> bool:
    """Tell whether torchrun starts again, after a failure, the processes of the run in `out`, which is then continued.

    A folder that these processes found in use at their first start is not theirs.
    """
    launch = os.environ.get("TORCHELASTIC_RUN_ID")
    if not launch or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return False
    path = out / _LAUNCH
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace") == launch


def claim(out: Path) -> None:
    """Note in a run's folder that the processes of this launch work in it, and may continue it when started again."""
    launch = os.environ.get("TORCHELASTIC_RUN_ID")
    if launch:
        write_text(out / _LAUNCH, launch)
