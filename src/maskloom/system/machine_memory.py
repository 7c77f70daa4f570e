"""How much memory is left to this process: of the machine, and of the group that a container puts it in."""

from __future__ import annotations

from pathlib import Path

from maskloom.errors import ConfigError

# Folder of a control group of either version, and its files: limit, use, and the line of memory.stat with file pages.
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
)


def available_memory() -> int | None:
    """Return the bytes that can still be had without swapping; None where the system does not say.

    Pages that only hold copies of files count as free: the system gives them up when they are needed.
    """
    found = [size for group in _GROUPS if (size := _of_group(*group)) is not None]
    _, is_told, rest = _text(Path("/proc/meminfo")).partition("MemAvailable:")
    if is_told:
        found.append(int(rest.split()[0]) * 1024)
    return min(found, default=None)


def require_memory(num_bytes: int, what: str, error: type[ValueError] = ConfigError) -> None:
    """Raise an error that says what needs so many bytes where they are not there; never where nothing is known."""
    available = available_memory()
    if available is not None and num_bytes > available:
        raise error(f"{what} takes {num_bytes:,} bytes of memory, {available:,} are available")


def _of_group(folder: str, limit: str, use: str, cached: str) -> int | None:
    texts = [_text(Path(folder) / name).strip() for name in (limit, use)]
    if not all(text.isdecimal() for text in texts):
        return None
    lines = (line.split() for line in _text(Path(folder) / "memory.stat").splitlines())
    reclaimable = next((int(line[1]) for line in lines if line[:1] == [cached]), 0)
    return max(int(texts[0]) - int(texts[1]) + reclaimable, 0)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
