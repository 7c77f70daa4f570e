"""Threads that wait for each other sleep when other programs compete for the cores, and only then."""

import os
import subprocess
import sys
import threading
import time

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
def test_a_team_is_threads_that_end_with_it():
    """Runs in a separate process, whose threads are counted."""
    code = """if True:
        import os, time, torch
        from maskloom.system import shared_cores
        torch.set_num_threads(2)
        shared_cores.usable_cores = lambda: 2
        torch.ones(1 << 20)
        count = lambda: len(os.listdir("/proc/self/task"))
        def becomes(number):
            end = time.monotonic() + 30
            while count() != number and time.monotonic() < end:
                time.sleep(0.01)
            return count() - number
        before, teams = count(), shared_cores.IdleTeams()
        teams.follow(1.0)
        print(becomes(before + 2))
        teams.follow(0.0)
        print(becomes(before))
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]


@pytest.mark.skipif(seconds_waited() == 0, reason="the system keeps no times of threads")
def test_waiting_for_a_core_is_seen():
    """With several busy processes on one core, each waits most of the time; two are forks of the third."""
    code = """if True:
        import os, time
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
        from maskloom.system.shared_cores import seconds_waited
        is_first = all(os.fork() for _ in range(2))
        before, end = seconds_waited(), time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
        os.write(1, b"%f\\n" % (seconds_waited() - before))
        if is_first:
            os.wait(), os.wait()
        """
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    waited = [float(line) for line in done.stdout.splitlines()]
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
