"""Detecting whether the process waits for a disk."""

import threading
import time
from pathlib import Path

import pytest

from maskloom.training.ranks.rank_watch import waits_for_disk


def _thread(folder: Path, state: str, place: str) -> None:
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"17 (a name) of) {state} 1 17", encoding="utf-8")
    (folder / "wchan").write_text(place, encoding="utf-8")


@pytest.mark.parametrize(
    ("state", "place", "expected"),
    [
        ("R", "0", False),
        ("S", "futex_wait_queue", False),
        ("S", "hrtimer_nanosleep", False),
        ("S", "ep_poll", False),
        ("S", "sk_wait_data", False),
        ("D", "folio_wait_bit_common", True),
        ("S", "request_wait_answer", True),
        ("S", "0", False),
    ],
)
def test_the_place_in_the_kernel_decides(tmp_path: Path, state: str, place: str, expected: bool) -> None:
    _thread(tmp_path / "1", "S", "futex_do_wait")
    _thread(tmp_path / "2", state, place)
    (tmp_path / "3").mkdir()  # a thread that has ended in the meantime
    assert waits_for_disk(tmp_path) is expected


def test_where_the_system_does_not_tell_a_disk_may_be_slow(tmp_path: Path) -> None:
    for name in "123":
        _thread(tmp_path / name, "S", "0")
    assert waits_for_disk(tmp_path)
    assert waits_for_disk(tmp_path / "absent")


@pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="the system has no /proc")
def test_a_process_whose_threads_sleep_waits_for_no_disk() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        # pages of the interpreter may occasionally be read from a disk
        assert any(not waits_for_disk() or time.sleep(0.05) for _ in range(100))
    finally:
        ended.set()
        thread.join()
