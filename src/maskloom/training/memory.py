"""Memory of this machine: what is left of it, and giving back what the C library keeps for itself."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path


@cache
def _trim() -> Callable[[int], int] | None:
    """Return glibc's `malloc_trim`, or None where the C library has none."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def release_free_memory() -> bool:
    """Hand free pages back to the system; returns whether that is possible here.

    Batches of packed sequences differ in size, so blocks that were freed often do not fit the next request, and the
    resident memory of a long training grows to several times what it uses. A call costs milliseconds.
    """
    trim = _trim()
    if trim is None:
        return False
    trim(0)
    return True


def available_memory() -> int | None:
    """Return the bytes that the machine can still give without swapping; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    _, found, rest = text.partition("MemAvailable:")
    return int(rest.split()[0]) * 1024 if found else None
