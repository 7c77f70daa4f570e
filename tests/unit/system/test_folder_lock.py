"""Only one run works in a folder, and a lock does not outlive its holder."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from maskloom.errors import DataError
from maskloom.system import folder_lock as module
from maskloom.system.folder_lock import LOCK, FolderInUseError, alone_in_folder, folder_lock, refuse_if_in_use

HOLD = """
import os, sys
from maskloom.system.folder_lock import FolderInUseError, folder_lock
{before}
sys.stdin.readline()
try:
    with folder_lock(sys.argv[1]):
        print("held", os.getpid(), flush=True)
        sys.stdin.readline()
except FolderInUseError as error:
    print("refused", error, flush=True)
"""


def _start(folder: Path, before: str = "") -> subprocess.Popen:
    command = [sys.executable, "-c", HOLD.format(before=before), str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _go(process: subprocess.Popen) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _said(process: subprocess.Popen) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _end(*processes: subprocess.Popen) -> None:
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def _without_flock() -> str:
    return "import errno, fcntl\ndef flock(*_): raise OSError(errno.ENOLCK, 'no locks')\nfcntl.flock = flock"


@pytest.mark.parametrize("before", ["", _without_flock()], ids=["flock", "content"])
def test_of_several_that_start_at_once_exactly_one_holds(tmp_path, before: str) -> None:
    folder = tmp_path / "run"
    processes = [_start(folder, before) for _ in range(4)]
    try:
        for process in processes:
            _go(process)
        said = [_said(process) for process in processes]
        held = [text.split()[1] for text in said if text.startswith("held")]
        refused = [text for text in said if text.startswith("refused")]
        assert len(held) == 1, said
        assert len(refused) == 3
        assert all(f"is in use by PID {held[0]} on {socket.gethostname()}, since 20" in text for text in refused)
        with pytest.raises(FolderInUseError, match=f"PID {held[0]} on"):
            refuse_if_in_use(folder)
        winner = next(process for process, text in zip(processes, said, strict=True) if text.startswith("held"))
        winner.send_signal(signal.SIGKILL)
        winner.wait()
        taken: list[str] = []
        with folder_lock(folder, say=taken.append):
            assert len(taken) == 1
            assert f"taking over from PID {held[0]} on" in taken[0]
            assert "which did not finish: that process no longer exists" in taken[0]
    finally:
        _end(*processes)
    assert list(folder.iterdir()) == []


def test_a_pipe_in_place_of_the_lock_is_named(tmp_path) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / LOCK)
    with pytest.raises(DataError, match=r"\.run\.lock: is a pipe"), folder_lock(tmp_path / "run"):
        pass


def _lock_of(folder: Path, **changed) -> None:
    folder.mkdir()
    holder = {**vars(module._Holder.this_process()), **changed}
    (folder / LOCK).write_text(json.dumps(holder), encoding="utf-8")


STALE = {
    "dead": ({"pid": 2**22 + 1}, "that process no longer exists"),
    "reused": ({"start": "1"}, "another process has its PID now"),
    "restarted": ({"boot": "another"}, "this machine has been restarted since"),
    "elsewhere": ({"host": "elsewhere"}, "there is no heartbeat from its machine"),
}


@pytest.mark.parametrize("case", STALE)
@pytest.mark.parametrize("has_flock", [True, False])
def test_a_stale_lock_is_taken_over_and_said(tmp_path, monkeypatch, case: str, has_flock: bool) -> None:
    changed, reason = STALE[case]
    monkeypatch.setattr(module, "_HEARTBEAT", 0.05)
    if not has_flock:
        _disable_flock(monkeypatch)
    folder, said = tmp_path / "run", []
    _lock_of(folder, **changed)
    refuse_if_in_use(folder)
    with folder_lock(folder, say=said.append):
        assert f"which did not finish: {reason}" in said[-1]
        assert json.loads((folder / LOCK).read_text())["pid"] == os.getpid()
    assert not (folder / LOCK).exists()


def _disable_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("clock", [0, -3600, 3600])
def test_a_holder_on_another_machine_that_gives_signs_keeps_its_lock(tmp_path, monkeypatch, clock: int) -> None:
    monkeypatch.setattr(module, "_HEARTBEAT", 30.0)
    folder, now = tmp_path / "run", time.time() + clock  # by the other machine's clock
    _lock_of(folder, host="elsewhere", pid=77)
    os.utime(folder / LOCK, (now, now))
    heartbeat = (now + 30, now + 30)
    monkeypatch.setattr(module.time, "sleep", lambda _: os.utime(folder / LOCK, heartbeat))
    started = time.monotonic()
    with pytest.raises(FolderInUseError, match="PID 77 on elsewhere"), folder_lock(folder):
        pass
    assert time.monotonic() - started < 20
    assert json.loads((folder / LOCK).read_text())["pid"] == 77


def test_a_holder_on_another_machine_that_ends_meanwhile_is_named(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "run"
    _lock_of(folder, host="elsewhere", pid=77)
    monkeypatch.setattr(module.time, "sleep", lambda _: (folder / LOCK).unlink(missing_ok=True))
    with pytest.raises(FolderInUseError, match="PID 77 on elsewhere"), folder_lock(folder):
        pass


SUSPENDED = """
import os, signal, socket, sys, time
from pathlib import Path
from maskloom.system import folder_lock as module
from maskloom.system.files import write_text
from maskloom.training.events import EventLog
socket.gethostname = lambda: "elsewhere"
module._HEARTBEAT = 0.2
out = Path(sys.argv[1])
try:
    with module.folder_lock(out), EventLog(out / "events.jsonl") as log:
        write_text(out / "before", "")
        print("held", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        for write in (lambda: write_text(out / "after", ""), lambda: log.write("step")):
            try:
                write()
            except module.FolderLostError:
                print("not written", flush=True)
        time.sleep(1)  # five heartbeats that are not given
        write_text(out / "after", "")
except module.FolderLostError as error:
    print(error, flush=True)
"""


@pytest.mark.parametrize("beside", [False, True])
def test_a_holder_that_was_suspended_learns_that_its_lock_was_taken_over(tmp_path, monkeypatch, beside: bool) -> None:
    monkeypatch.setattr(module, "_HEARTBEAT", 0.2)
    folder, script = tmp_path / "run", SUSPENDED.replace("lock(out)", f"lock(out, beside={beside})")
    before = f"{_without_flock()}\n"  # as on a network disk whose locks end at each machine
    process = subprocess.Popen([sys.executable, "-c", before + script, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert _said(process) == "held"
        os.waitpid(process.pid, os.WUNTRACED)
        with folder_lock(folder, beside=beside, say=lambda _: None):
            path = module._lock_path(folder, beside=beside)
            os.kill(process.pid, signal.SIGCONT)
            said = [_said(process) for _ in range(3)]
            assert said[:2] == ["not written"] * 2
            assert said[2].startswith(f"{folder}: this process was suspended, and PID {os.getpid()} on ")
            assert "has taken over; this one ends" in said[2]
            process.wait()
            assert json.loads(path.read_text())["pid"] == os.getpid()
            assert sorted(path.name for path in folder.iterdir() if path.name != LOCK) == ["before", "events.jsonl"]
            assert (folder / "events.jsonl").read_text() == ""
        assert not path.exists()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_former_holder_gives_no_signs_for_the_other_and_leaves_its_lock(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_HEARTBEAT", 0.01)
    taken = json.dumps({**vars(module._Holder.this_process()), "host": "elsewhere"})
    with folder_lock(tmp_path):
        (tmp_path / LOCK).write_text(taken, encoding="utf-8")
        time.sleep(0.1)
        os.utime(tmp_path / LOCK, (1, 1))
        time.sleep(0.2)
        assert (tmp_path / LOCK).stat().st_mtime == 1
    assert (tmp_path / LOCK).read_text() == taken


def test_the_holder_gives_signs(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_HEARTBEAT", 0.01)
    with folder_lock(tmp_path):
        os.utime(tmp_path / LOCK, (1, 1))
        deadline = time.monotonic() + 60
        while (tmp_path / LOCK).stat().st_mtime < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / LOCK).stat().st_mtime > 2


def test_a_lock_leaves_nothing_behind_and_makes_no_folder_that_stays_empty(tmp_path) -> None:
    with pytest.raises(KeyError), folder_lock(tmp_path / "new"):
        raise KeyError
    with folder_lock(tmp_path / "full"):
        (tmp_path / "full" / "a").write_text("")
    with folder_lock(tmp_path / "folder", beside=True):
        assert not (tmp_path / "folder").exists()
        with pytest.raises(FolderInUseError), folder_lock(tmp_path / "folder", beside=True):
            pass
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["full", "full/a"]


def test_a_decorated_run_is_alone_and_other_ranks_share_it_only_where_ranks_train_together(
    tmp_path, monkeypatch
) -> None:
    def run(depth: int, *, out: Path | str = tmp_path / "run") -> int:
        assert (Path(out) / LOCK).exists()
        return alone(depth - 1) if depth else 7

    alone, shared = alone_in_folder()(run), alone_in_folder(ranks_share=True)(run)
    assert alone(0) == shared(0) == 7
    with pytest.raises(FolderInUseError, match="wait until it ends or choose another --out"):
        alone(1)
    with folder_lock(tmp_path / "run"):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        refuse_if_in_use(tmp_path / "run")
        assert shared(0) == 7
        with pytest.raises(FolderInUseError, match="is in use by PID"):
            alone(0)
