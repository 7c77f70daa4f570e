"""What the C library does with freed memory: keep it for the next batch, or return it to the system."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARY = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
_TRIM, _MALLOPT = (getattr(_LIBRARY, name, None) for name in ("malloc_trim", "mallopt"))  # of glibc
# mallopt's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, with the sizes up to which glibc itself raises them.
_THRESHOLDS = {-1: 64 << 20, -3: 32 << 20}
_COUNTING = threading.Lock()
_num_keeping = 0


def release_free_memory() -> None:
    """Return free pages to the system if the C library is glibc, which takes milliseconds."""
    if _TRIM is not None:
        _TRIM(0)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Within, the C library retains freed memory: a page returned to the system is cleared before it is used again."""
    _count_keeping(1)
    try:
        yield
    finally:
        _count_keeping(-1)


def _count_keeping(change: int) -> None:
    """Set the C library's thresholds when the first of nested or concurrent contexts begins, and when the last ends."""
    global _num_keeping
    with _COUNTING:
        _num_keeping += change
        if _MALLOPT is not None and _num_keeping == max(change, 0):
            for threshold, size in _THRESHOLDS.items():
                _MALLOPT(threshold, 2**31 - 1 if change > 0 else size)
