"""One build at a time: refused by name, and never stale."""

import errno
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from maskloom.build_lock import held_alone
from maskloom.errors import ConfigError


def _hold(path: Path, told: Connection) -> None:
    with held_alone(path, "building"):
        told.send(os.getpid())
        told.recv()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[multiprocessing.Process]:
    """Another process that holds the lock."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(tmp_path / "build" / "lock", theirs), daemon=True)
    process.start()
    theirs.close()
    ours.recv()
    yield process  # pyright: ignore[reportReturnType]
    process.kill()
    process.join()
    ours.close()


def test_the_second_is_refused_and_a_dead_holder_is_none(tmp_path: Path, holder: multiprocessing.Process) -> None:
    path = tmp_path / "build" / "lock"
    with (
        pytest.raises(ConfigError, match=rf"build: process {holder.pid} on \S+ is building there"),
        held_alone(path, "building"),
    ):
        pass
    holder.kill()
    holder.join()
    with held_alone(path, "building"):
        assert f"process {os.getpid()} on " in path.read_text()


def test_a_lock_that_was_removed_with_its_folder_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "build" / "lock"
    for _ in range(3):
        with held_alone(path, "building"):
            named = f"process {os.getpid()} on .* is counting there"
            with pytest.raises(ConfigError, match=named), held_alone(path, "counting"):
                pass
            shutil.rmtree(path.parent)


def test_a_disk_without_locks_is_built_on_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("maskloom.build_lock.fcntl.flock", refuse)
    number = errno.ENOSYS
    with held_alone(tmp_path / "build" / "lock", "building"):
        assert "no locks on this disk" in caplog.messages[0]
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"), held_alone(tmp_path / "build" / "lock", "building"):
        pass
