"""Detecting whether the process waits for a disk."""

import os
import threading
from pathlib import Path

import pytest

from maskloom.system import files
from maskloom.system.files import DISK_CALLS, rename, sync, write_hashed


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_thread_is_in_a_disk_call_while_the_system_works(tmp_path: Path, monkeypatch, call: str) -> None:
    seen, original = [], getattr(os, call)

    def watched(*arguments: object) -> None:
        seen.append([*DISK_CALLS])
        original(*arguments)

    monkeypatch.setattr(files.os, call, watched)
    write_hashed(tmp_path / "a", [b"text"])
    sync(tmp_path / "a")
    rename(tmp_path / "a", tmp_path / "b")
    assert seen == [[threading.get_ident()]] * (2 if call == "fsync" else 1)
    assert not DISK_CALLS


def test_a_call_that_fails_is_over(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rename(tmp_path / "absent", tmp_path / "b")
    assert not DISK_CALLS
