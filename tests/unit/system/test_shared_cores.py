"""Threads that wait for each other sleep when other programs compete for the cores, and only then."""

import os
import threading
import time
import warnings

import pytest
import torch

from maskloom.system import shared_cores
from maskloom.system.devices import chosen_device
from maskloom.system.shared_cores import IdleTeams, seconds_waited


@pytest.fixture
def teams():
    found = IdleTeams()
    yield found
    found.follow(0.0)


@pytest.mark.parametrize(("threads", "cores", "most"), [(2, 2, 1), (4, 4, 1), (2, 8, 7), (3, 8, 3), (1, 4, 0)])
def test_teams_are_added_until_they_have_more_threads_than_there_are_cores(monkeypatch, teams, threads, cores, most):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(shared_cores, "usable_cores", lambda: cores)
    for _ in range(20):
        teams.follow(0.5)
    assert len(teams) == most
    if most:
        assert 1 + (threads - 1) * (1 + len(teams)) > cores


def test_they_end_when_no_thread_waits_any_longer(monkeypatch, teams):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(shared_cores, "usable_cores", lambda: 4)
    teams.follow(0.5)
    teams.follow(0.05)  # between the two thresholds
    assert len(teams) == 1
    teams.follow(0.01)
    assert len(teams) == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="threads are counted in /proc")
def test_a_team_is_threads_that_end_with_it(monkeypatch):
    """The teams belong to a thread of the test, whose own team ends with it."""

    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    def number_of_new(wanted: int) -> int:
        end = time.monotonic() + 30
        while len(threads() - before) != wanted and time.monotonic() < end:
            time.sleep(0.01)
        return len(threads() - before)

    monkeypatch.setattr(shared_cores, "usable_cores", lambda: 2)
    before_all, ours = torch.get_num_threads(), IdleTeams()
    torch.set_num_threads(2)
    try:
        before = threads()
        ours.follow(1.0)
        assert number_of_new(2) == 2
        ours.follow(0.0)
        assert number_of_new(0) == 0
    finally:
        torch.set_num_threads(before_all)


@pytest.mark.skipif(seconds_waited() == 0, reason="the system keeps no times of threads")
def test_waiting_for_a_core_is_seen():
    """With several busy processes on one core, each waits most of the time; all three are forks of the test."""
    core = min(os.sched_getaffinity(0))
    read, write = os.pipe()
    started = []
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child only reads clocks; it waits for no thread
            process = os.fork()
        if process == 0:
            os.sched_setaffinity(0, {core})
            before, end = seconds_waited(), time.monotonic() + 0.5
            while time.monotonic() < end:
                pass
            os.write(write, b"%f\n" % (seconds_waited() - before))
            os._exit(0)
        started.append(process)
    os.close(write)
    with open(read, encoding="utf-8") as told:
        waited = [float(line) for line in told]
    assert [os.waitpid(process, 0)[1] for process in started] == [0, 0, 0]
    assert len(waited) == 3
    assert sum(waited) > 0.5


def test_a_process_that_sleeps_waits_for_no_core():
    waited = []
    for _ in range(20):  # other programs may briefly occupy the cores
        before = seconds_waited()
        time.sleep(0.05)
        waited.append(seconds_waited() - before)
    assert min(waited) < 0.01


@pytest.mark.parametrize(("given", "starts"), [({}, True), ({"OMP_WAIT_POLICY": "ACTIVE"}, False)])
def test_the_watch_starts_where_the_processor_computes_unless_the_user_says_otherwise(monkeypatch, given, starts):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    end, before = threading.Event(), threading.enumerate()
    monkeypatch.setattr(shared_cores, "_watch", end.wait)  # in place of a watch that never ends
    shared_cores.share_cores.cache_clear()
    chosen_device("cpu")
    chosen_device("cpu")
    names = [thread.name for thread in threading.enumerate() if thread not in before]
    end.set()
    assert names.count("shared cores") == starts
