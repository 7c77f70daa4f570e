"""Memory of this machine: what is left of it, and giving back what the C library keeps for itself."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from maskloom.files import write_json
from maskloom.foreign_files import read_json_object
from maskloom.machine_memory import available_memory as available_memory

# oneDNN has no room for its code and buffers.
_NO_ROOM_FOR_KERNEL = "could not create a primitive"
# How torch's allocators and the C++ library word it.
_RAN_OUT = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    _NO_ROOM_FOR_KERNEL,
)
_NOTE = "micro_batch_size.json"


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


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out, on a processor or on an accelerator.

    torch has a class of its own for accelerators alone; its allocator for processors raises a RuntimeError.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _RAN_OUT)


def release_cached_memory() -> None:
    """Give back all that was freed, on the processor and on the accelerator, before something is tried again."""
    gc.collect()
    release_free_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def give_up_kernels(why: str) -> bool:
    """Let this process do without oneDNN from here on, where `why` is that it had no room for a kernel.

    oneDNN keeps kernels for every shape that it has met, and torch has no means to drop them; torch's other libraries
    make none. Returns False where that is not the trouble, or was done before.
    """
    if _NO_ROOM_FOR_KERNEL not in why or not torch.backends.mkldnn.enabled:
        return False
    torch.backends.mkldnn.set_flags(False)
    return True


def note_micro_batch_size(folder: Path, size: int | None) -> None:
    """Write into a run's folder the size that it is to go on with when it is started again; None is nothing to note."""
    if size is not None:
        write_json(folder / _NOTE, {"micro_batch_size": size})


def noted_micro_batch_size(folder: Path) -> int | None:
    """Return the size that was noted in a run's folder, or None."""
    path = folder / _NOTE
    return read_json_object(path)["micro_batch_size"] if path.exists() else None
