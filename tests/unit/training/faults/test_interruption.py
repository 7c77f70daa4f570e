"""Signals that ask a run to stop: immediately, or at the end of a deferred section."""

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import ExitStack, suppress

import pytest

from maskloom.training.faults.interruption import Interrupted, StopRequests, stop_requests


def _send(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_a_signal_raises_at_once_unless_it_is_to_wait(name: str) -> None:
    before, reached = signal.getsignal(getattr(signal, name)), []

    def wait() -> None:
        with StopRequests() as stop, stop.deferred():
            _send(name)
            reached.append(stop.received)

    with pytest.raises(Interrupted, match=name), StopRequests():
        _send(name)
    with pytest.raises(Interrupted, match=name):
        wait()
    assert reached == [getattr(signal, name)]
    assert signal.getsignal(getattr(signal, name)) == before
    assert "second-interrupt" not in [thread.name for thread in threading.enumerate()]


def test_work_that_may_be_broken_off_is_and_the_rest_is_not() -> None:
    reached = []

    def work() -> None:
        with StopRequests() as stop, stop.deferred():
            with suppress(Interrupted), stop.at_once():
                _send("SIGTERM")
                reached.append("in the middle")
            reached.append("after it")
            with suppress(Interrupted), stop.at_once():
                reached.append("work that begins after the signal")

    with pytest.raises(Interrupted):
        work()
    assert reached == ["after it"]


def test_an_inner_listener_is_the_outer_one() -> None:
    reached = []

    def work() -> None:
        with StopRequests() as outer:
            with stop_requests() as inner, inner.deferred():
                assert inner is outer
                _send("SIGUSR1")
            reached.append("the signal was forgotten")

    with pytest.raises(Interrupted):
        work()
    assert reached == []


def test_a_request_that_was_swallowed_is_met_again() -> None:
    with StopRequests():
        with suppress(Interrupted):
            _send("SIGTERM")
        with pytest.raises(Interrupted), stop_requests():
            pass


def test_a_stop_that_is_lost_in_a_callback_is_raised_again(capfd) -> None:
    """Regression: SIGTERM within a callback of an import printed a traceback, and the command went on."""
    stop, owners = StopRequests(), [type("Owner", (), {})()]
    _ref = weakref.ref(owners[0], lambda _: _send("SIGTERM"))

    def work() -> None:
        with stop:
            owners.clear()
            time.sleep(60)

    with pytest.raises(Interrupted, match="SIGTERM"):
        work()
    assert capfd.readouterr().err == ""
    assert sys.unraisablehook != stop._raise_again


def test_nothing_is_taken_over_outside_the_main_thread() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with stop_requests() as stop, stop.deferred():
            seen.append((signal.getsignal(signal.SIGTERM), stop.received))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, None)]


def test_what_nohup_has_turned_off_stays_off() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequests() as stop:
            _send("SIGHUP")
            assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


BUSY = """
import ctypes, sys
from maskloom.training.faults.interruption import StopRequests
with StopRequests() as stop, stop.deferred():
    print("busy", flush=True)
    ctypes.CDLL(None).sleep(600)
    while True:
        ctypes.CDLL(None).sleep(600)
"""


def test_a_second_ctrl_c_ends_a_process_that_is_inside_a_call() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            # equal pending signals count once, so the second waits until the first has been delivered
            while int(_field(process.pid, "ShdPnd"), 16) & 1 << (signal.SIGINT - 1) and process.poll() is None:
                pass
        assert process.wait(60) == 130
        assert b"stopped immediately" in process.stderr.read()


def _field(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return next((line.split()[1] for line in file if line.startswith(f"{name}:")), "0")
    except OSError:
        return "0"


@pytest.fixture
def is_one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")


def _fail_while_a_signal_comes() -> None:
    """Raise RuntimeError; the signal comes while it leaves a context, and an outer context names the cause."""
    with ExitStack() as stack:
        stack.callback(_send, "SIGTERM")
        raise RuntimeError("a call failed")


@pytest.mark.usefixtures("is_one_of_two")
def test_the_error_of_a_lost_process_is_reported_though_a_signal_comes_on_its_way() -> None:
    """Regression: torchrun's SIGTERM replaced the error of a failed call before the lost rank was named."""
    with pytest.raises(RuntimeError, match="a call failed"), StopRequests():
        _fail_while_a_signal_comes()


@pytest.mark.usefixtures("is_one_of_two")
def test_a_signal_that_waited_for_an_error_is_raised_when_that_is_over() -> None:
    def work() -> None:
        with StopRequests():
            with suppress(RuntimeError):
                _fail_while_a_signal_comes()
            time.sleep(10.0)

    with pytest.raises(Interrupted, match="SIGTERM"):
        work()


def test_alone_a_signal_does_not_wait_for_an_error() -> None:
    with pytest.raises(Interrupted, match="SIGTERM"), StopRequests():
        _fail_while_a_signal_comes()
