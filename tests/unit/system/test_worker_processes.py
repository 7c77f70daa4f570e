"""Worker processes run their tasks, report failures, and never outlive the process that started them."""

import contextlib
import functools
import itertools
import multiprocessing
import operator
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.started_processes import children

from maskloom.system import worker_processes
from maskloom.system.worker_processes import Patience, _work, results_of_processes


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = set(children())  # processes that other tests use too, such as a server
    yield
    assert set(children()) <= before


@pytest.mark.parametrize("error", [FileNotFoundError, ProcessLookupError])
def test_listing_processes_endures_a_thread_that_ends(error: type[OSError], monkeypatch: pytest.MonkeyPatch) -> None:
    read, asked = Path.read_text, []

    def read_text(path: Path) -> str:
        asked.append(path)
        if len(asked) == 1:
            raise error(path)
        return read(path)

    with ThreadPoolExecutor() as pool, subprocess.Popen(["sleep", "9"]) as process:
        pool.submit(int).result()
        monkeypatch.setattr(Path, "read_text", read_text)
        found = {*children(), *children()}
        monkeypatch.undo()
        process.kill()
    assert len(asked) >= 4
    assert process.pid in found


@pytest.fixture
def _frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "_SECONDS_BETWEEN_LOOKS", 0.25)


def results(function: Callable[..., Any], tasks: Iterator[Any], num_workers: int = 2, **options: Any) -> Iterator[Any]:
    return results_of_processes(functools.partial, (function,), tasks, num_workers, **options)


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("num_tasks", [0, 1, 2, 50])
def test_every_task_is_done_once(num_workers: int, num_tasks: int) -> None:
    tasks = range(num_tasks)
    assert sorted(results(operator.neg, iter(tasks), num_workers)) == sorted(-task for task in tasks)


def test_few_tasks_are_drawn_ahead() -> None:
    drawn = itertools.count()
    found = results(operator.neg, drawn)
    for number in range(1, 30):
        next(found)
        assert next(drawn) <= number - 1 + 2 * 2 + number
    found.close()  # pyright: ignore[reportAttributeAccessIssue]


def test_what_a_task_raises_is_raised_with_its_place() -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        list(results(int, iter(["1", "x", "3"])))
    assert "in a worker process" in caught.value.__notes__[0]


def test_what_the_tasks_raise_is_raised() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(results(operator.neg, broken()))


def test_a_task_that_kills_its_process_twice_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        ChildProcessError, match=r"worker process \d+, the second one for task 9, died with exit code -9.*fewer workers"
    ):
        list(results(signal.raise_signal, iter([signal.SIGKILL]), name=lambda task: f"task {task}"))
    assert len(caplog.messages) == 1
    assert "which was working on task 9, died with exit code -9" in caplog.messages[0]


def _once(task: tuple[int, str, str]) -> int:
    """Return the number, but die or hang in the first call for a file, when it does not exist yet."""
    number, path, trouble = task
    if path and not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), getattr(signal, trouble))
    return number


def test_every_task_that_lost_its_process_is_done_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tasks = [(number, str(tmp_path / str(number)) if number % 3 == 0 else "", "SIGKILL") for number in range(6)]
    assert sorted(results(_once, iter(tasks))) == list(range(6))
    assert [message.count("a new one will redo it") for message in caplog.messages] == [1, 1]


def test_processes_killed_while_they_wait_or_read_are_replaced() -> None:
    before = set(children())

    def tasks() -> Iterator[bytes]:
        yield b""
        for process in set(children()) - before:
            os.kill(process, signal.SIGKILL)
        yield from itertools.repeat(bytes(1 << 22), 20)

    assert sorted(results(len, tasks())) == [0, *[1 << 22] * 20]


@pytest.mark.usefixtures("_frequent_looks")
def test_a_process_that_hangs_is_named_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    patience = Patience(named_after=0.5, ended_after=1)
    tasks = [(number, str(tmp_path / str(number)) if number == 1 else "", "SIGSTOP") for number in range(4)]
    found = results(_once, iter(tasks), patience=patience, name=lambda task: f"task {task[0]}")
    assert sorted(found) == list(range(4))
    # on a busy machine, other tasks may be late too
    told = [message for message in caplog.messages if "on task 1" in message]
    assert "has been working on task 1 for" in told[0]
    assert "which was working on task 1, hung: no processor time for" in told[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("_frequent_looks")
def test_a_process_that_hangs_at_the_same_task_again_ends_the_work() -> None:
    with pytest.raises(ChildProcessError, match="second one for 600, hung: no processor time"):
        list(results(time.sleep, iter([0, 600]), patience=Patience(named_after=0.5, ended_after=1)))


def _count_for(seconds: float) -> float:
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass
    return seconds


@pytest.mark.slow
def test_a_slow_process_is_named_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    patience = Patience(named_after=1, ended_after=2)
    assert sorted(results(_count_for, iter([0, 2.5]), patience=patience)) == [0, 2.5]
    assert len([message for message in caplog.messages if "has been working on 2.5 for" in message]) == 1
    assert not any("hung" in message for message in caplog.messages)


@pytest.mark.usefixtures("_frequent_looks")
def test_a_process_that_never_comes_to_an_end_is_ended() -> None:
    with pytest.raises(ChildProcessError, match="hung: no result for"):
        list(results(_count_for, iter([600]), num_workers=1, patience=Patience(limit=0.5)))


class _Unreadable:
    """Can be pickled but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


def _unreadable(_: object) -> _Unreadable:
    return _Unreadable()


def test_a_result_that_cannot_be_read_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(ValueError, match="not a number"):
        list(results(_unreadable, iter([None])))


def test_a_task_that_breaks_off_in_its_middle_ends_the_process_quietly() -> None:
    """Ctrl-C may stop the first process between the length of a message and its body."""
    ours, theirs = multiprocessing.Pipe()
    ours.send((functools.partial, (operator.neg,)))
    os.write(ours.fileno(), struct.pack("!i", 100) + b"only a few of a hundred bytes")
    ours.close()
    _work(theirs)


def _break_off(_: object) -> None:
    """Send the first bytes of an answer through every socket of this process, and die."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, struct.pack("!i", 100) + b"only a few of a hundred bytes")
    os._exit(9)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs a list of the open files of a process")
def test_a_process_that_dies_in_the_middle_of_its_answer_is_an_error() -> None:
    with pytest.raises(ChildProcessError, match="the second one for None, died with exit code 9"):
        list(results(_break_off, iter([None])))


def test_a_busy_process_is_ended_when_results_are_no_longer_wanted() -> None:
    found = results(time.sleep, iter([0, 600]))
    next(found)
    begin = time.monotonic()
    found.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert time.monotonic() - begin < 30


PROGRAM = """
import functools, itertools, time
from maskloom.system.worker_processes import results_of_processes
if __name__ == "__main__":
    for _ in results_of_processes(functools.partial, (time.sleep,), itertools.repeat(0.03), 2):
        print("one", flush=True)
"""


def members_of_session(leader: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_is_left_when_the_first_one_ends(tmp_path: Path, number: signal.Signals) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as first:
        assert first.stdout is not None
        assert first.stderr is not None
        # long enough for both processes to be at work
        assert [first.stdout.readline() for _ in range(30)] == ["one\n"] * 30
        assert len(members_of_session(first.pid)) >= 3
        # a terminal's Ctrl-C reaches all processes, the other signals only the first
        (os.killpg if number == signal.SIGINT else os.kill)(first.pid, number)
        errors = first.stderr.read()
        assert first.wait(30) == -number
        for _ in range(300):
            if not members_of_session(first.pid):
                break
            time.sleep(0.1)
        assert members_of_session(first.pid) == []
        # the traceback of an interrupt is printed once
        assert errors.count("Traceback") == (number == signal.SIGINT)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_process_within_a_long_task_ends_when_the_first_one_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("itertools.repeat(0.03)", "iter([0, 0, 600, 600])"), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        assert first.stdout is not None
        assert [first.stdout.readline() for _ in range(2)] == ["one\n"] * 2
        assert len(members_of_session(first.pid)) == 3
        first.kill()
        end = time.monotonic() + 30
        while members_of_session(first.pid) and time.monotonic() < end:
            time.sleep(0.1)
        assert members_of_session(first.pid) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_processes_whose_first_one_is_killed_while_they_start_say_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Before they start working, they import modules and read the first task."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    for milliseconds in (0, 80, 160):
        with subprocess.Popen(
            [sys.executable, str(program)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        ) as first:
            while len(members_of_session(first.pid)) < 2 and first.poll() is None:
                time.sleep(0.002)
            time.sleep(milliseconds / 1000)
            first.send_signal(number)
            assert first.stderr is not None
            # the pipe reaches its end when the last process has exited
            assert first.stderr.read() == b""
