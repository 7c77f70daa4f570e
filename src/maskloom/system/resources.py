"""The cores and the memory that the machine and a container's control group leave to this process."""

from __future__ import annotations

import math
import os

TYPE_CHECKING = False  # imports here run before a command can handle Ctrl-C
if TYPE_CHECKING:
    from pathlib import Path

# Iterations for which a libgomp thread spins before it sleeps, where `shared_cores` cannot help.
_SPINS = 1000
_SAY_HOW_TO_WAIT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def usable_cores() -> int:
    """Return the number of cores that affinity and a container's quota leave to this process; at least 1."""
    quota = _quota()
    return _cores() if quota is None else max(1, min(_cores(), math.ceil(quota)))


def follow_quota() -> None:
    """Limit torch's threads to a container's quota, unless OMP_NUM_THREADS is set."""
    cores = usable_cores()
    if cores < _cores():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))


def says_how_to_wait() -> bool:
    """Tell whether GOMP_SPINCOUNT or OMP_WAIT_POLICY is set."""
    return any(name in os.environ for name in _SAY_HOW_TO_WAIT)


def wait_briefly() -> None:
    """Let waiting threads sleep early if the system cannot tell that other programs need the cores.

    This is so under a quota, and if the system keeps no scheduling times of threads. User settings take precedence.
    """
    _, _, runs = system_text("/proc/self/schedstat").rpartition(" ")
    if not says_how_to_wait() and (_quota() is not None or runs.strip() in ("", "0")):
        os.environ["GOMP_SPINCOUNT"] = str(_SPINS)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota(root: Path | str = "/sys/fs/cgroup") -> float | None:
    """Return the CPU quota of a control group of either version, in cores, or None without a limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        words = " ".join(system_text(f"{root}/{name}") for name in names).split()
        try:
            allowed, period = float(words[0]), float(words[1])
        except (ValueError, IndexError):
            continue  # another version, or "max": no limit
        if allowed > 0 and period > 0:
            return allowed / period
    return None


# For each version of control groups: the folder, the files with limit and usage, and the page-cache key in memory.stat.
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
)


def available_memory() -> int | None:
    """Return the bytes available without swapping, or None if the system does not say.

    The page cache counts as free, since the system reclaims it on demand.
    """
    found = [size for group in _GROUPS if (size := _of_group(*group)) is not None]
    _, is_told, rest = system_text("/proc/meminfo").partition("MemAvailable:")
    if is_told:
        found.append(int(rest.split()[0]) * 1024)
    return min(found, default=None)


def require_memory(num_bytes: int, what: str, error: type[ValueError] | None = None) -> None:
    """Raise an error, by default ConfigError, that names `what` if the bytes are known not to be available."""
    available = available_memory()
    if available is not None and num_bytes > available:
        from maskloom.errors import ConfigError

        told = f"takes {num_bytes:,} bytes of memory, but only {available:,} are available"
        raise (error or ConfigError)(f"{what} {told}")


def _of_group(folder: str, limit: str, use: str, cached: str) -> int | None:
    texts = [system_text(f"{folder}/{name}").strip() for name in (limit, use)]
    if not all(text.isdecimal() for text in texts):
        return None
    lines = (line.split() for line in system_text(f"{folder}/memory.stat").splitlines())
    reclaimable = next((int(line[1]) for line in lines if line[:1] == [cached]), 0)
    return max(int(texts[0]) - int(texts[1]) + reclaimable, 0)


def process_fields(process: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the process name, starting with its state; empty if unavailable."""
    return system_text(f"/proc/{process}/stat").rpartition(")")[2].split()


def system_text(path: str) -> str:
    """Return the content of a system file, or "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
