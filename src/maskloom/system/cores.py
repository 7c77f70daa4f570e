"""How many cores this process may use, and as many threads for torch, told before torch is loaded."""

from __future__ import annotations

import math
import os

TYPE_CHECKING = False  # what this module imports is imported before a command can answer Ctrl-C
if TYPE_CHECKING:
    from pathlib import Path

# Turns that a thread of libgomp waits for the others in a loop before it sleeps. Its own default is 300,000: beside
# other programs, the loops keep the cores from the very threads that are waited for. Costs: benchmarks/busy.md.
_SPINS = 1000
_SAY_HOW_TO_WAIT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def usable_cores() -> int:
    """Return the cores that affinity and the quota of a container leave to this process; at least 1."""
    quota = _quota()
    return _cores() if quota is None else max(1, min(_cores(), math.ceil(quota)))


def follow_quota() -> None:
    """Let torch start no more threads than the quota of a container allows, unless OMP_NUM_THREADS says otherwise."""
    cores = usable_cores()
    if cores < _cores():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))


def wait_briefly() -> None:
    """Let threads that wait for each other sleep soon, unless GOMP_SPINCOUNT or OMP_WAIT_POLICY says otherwise."""
    if not any(name in os.environ for name in _SAY_HOW_TO_WAIT):
        os.environ["GOMP_SPINCOUNT"] = str(_SPINS)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota(root: Path | str = "/sys/fs/cgroup") -> float | None:
    """Return the cores' worth of time that a control group of either version allows, or None without a limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = " ".join(_first_line(f"{root}/{name}") for name in names).split()
            allowed, period = float(words[0]), float(words[1])
        except (OSError, ValueError, IndexError):
            continue  # another version, or "max": no limit
        if allowed > 0 and period > 0:
            return allowed / period
    return None


def _first_line(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.readline()
