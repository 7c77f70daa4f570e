"""What the C library does with freed memory: it is given back on request, and kept within a context."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from maskloom.system import freed_memory
from maskloom.system.devices import inference_in
from maskloom.system.freed_memory import kept_memory, release_free_memory


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_freed_pages_between_blocks_in_use_are_given_back() -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("the C library has no malloc_trim")
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    size = 100_000  # below the size that malloc maps separately
    blocks = [libc.malloc(size) for _ in range(2000)]
    for block in blocks:
        libc.memset(block, 1, size)
    for block in blocks[:-1]:
        libc.free(block)  # the last one keeps the heap from shrinking on its own
    before = resident_mib()
    release_free_memory()
    assert before - resident_mib() > 150
    libc.free(blocks[-1])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_freed_memory_is_kept_within():
    """The system counts newly mapped pages, in a separate process."""
    code = """if True:
        import ctypes, resource
        from maskloom.system.freed_memory import kept_memory
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.free.argtypes = [ctypes.c_void_p]
        libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        def new_pages():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            blocks = [libc.malloc(48 << 20) for _ in range(4)]
            for block in blocks:
                libc.memset(block, 1, 48 << 20)
            for block in blocks:
                libc.free(block)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        new_pages()
        outside = new_pages()
        with kept_memory():
            within = [new_pages() for _ in range(8)][-1]
        print(outside, within)
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    outside, within = map(int, done.stdout.split())
    assert within * 20 < outside


@pytest.fixture
def set_to(monkeypatch):
    """The sizes that the C library was told, without its being told."""
    sizes = []
    monkeypatch.setattr(freed_memory, "_MALLOPT", lambda threshold, size: sizes.append(size))
    return sizes


def test_memory_is_kept_until_the_last_of_nested_contexts_ends(set_to):
    with kept_memory():
        with kept_memory():
            pass
        assert set(set_to) == {2**31 - 1}
    assert set_to[-2:] == [*freed_memory._THRESHOLDS.values()]


def test_a_context_that_fails_ends(set_to):
    with pytest.raises(KeyError), kept_memory():
        raise KeyError
    assert set_to[-2:] == [*freed_memory._THRESHOLDS.values()]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_inference_keeps_the_memory_of_a_batch_for_the_next(set_to, precision):
    with inference_in(precision, torch.device("cpu")):
        assert set(set_to) == {2**31 - 1}
    assert set_to[-2:] == [*freed_memory._THRESHOLDS.values()]
