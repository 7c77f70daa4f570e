"""The cores and the memory that the machine and the control groups of this process leave to it."""

from __future__ import annotations

import math
import os

# Iterations for which a libgomp thread spins before it sleeps, where `shared_cores` cannot help.
_SPINS = 1000
_SAY_HOW_TO_WAIT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_ROOT = "/sys/fs/cgroup"
# For each version of control groups: the files with limit and usage, and how keys in memory.stat begin.
_MEMORY_FILES = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def usable_cores() -> int:
    """Return the number of cores that affinity and quotas of control groups leave to this process; at least 1."""
    quota = _quota()
    return _cores() if quota is None else max(1, min(_cores(), math.ceil(quota)))


def follow_quota() -> None:
    """Limit torch's threads to the quota of a control group, unless OMP_NUM_THREADS is set."""
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


def _quota() -> float | None:
    """Return the smallest CPU quota of the control groups that hold this process, in cores, or None without a limit."""
    found = []
    for folder in _groups("cpu"):
        both = (f"{folder}/cpu.cfs_{name}_us" for name in ("quota", "period"))
        words = (system_text(f"{folder}/cpu.max") or " ".join(map(system_text, both))).split()
        try:
            allowed, period = float(words[0]), float(words[1])
        except (ValueError, IndexError):
            continue  # "max" is no limit
        if allowed > 0 and period > 0:
            found.append(allowed / period)
    return min(found, default=None)


def _groups(controller: str) -> list[str]:
    """Return the folders of the control groups that hold this process, of either version, up to the root.

    In a container, the root is usually its own group. A batch system or systemd gives a process a group further down.
    """
    found = [_ROOT, f"{_ROOT}/{controller}"]
    for line in system_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = found[bool(controllers)]
            while path.strip("/"):
                found.append(top + path)
                path = os.path.dirname(path)
    return found


def available_memory() -> int | None:
    """Return the bytes available without swapping, or None if the system does not say.

    The page cache counts as free, since the system reclaims it on demand, except files in memory (tmpfs).
    """
    left = (_left_in(folder, *names) for folder in _groups("memory") for names in _MEMORY_FILES)
    found = [size for size in left if size is not None]
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


def _left_in(folder: str, limit: str, use: str, start: str) -> int | None:
    texts = [system_text(f"{folder}/{name}").strip() for name in (limit, use)]
    if not all(text.isdecimal() for text in texts):
        return None
    keys = (f"{start}active_file", f"{start}inactive_file")
    lines = (line.split() for line in system_text(f"{folder}/memory.stat").splitlines())
    reclaimable = sum(int(line[1]) for line in lines if line and line[0] in keys)
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
