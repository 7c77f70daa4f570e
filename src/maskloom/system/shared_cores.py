"""How threads of a computation wait for each other: awake while the cores are theirs, asleep beside other programs.

A thread of libgomp that waits for its team turns in a loop 300,000 times before it sleeps. Alone that is the fastest.
Beside other programs the loops keep the cores from the very threads that are waited for. libgomp gives up after 100
turns once the teams of a process have more threads than there are cores. So a process whose threads have to wait for a
core gets teams that do nothing, until they no longer wait. What that is worth: benchmarks/busy.md.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from glob import glob

import torch

from maskloom.system.resources import says_how_to_wait, system_text, usable_cores

_SECONDS = 0.25
# Seconds a second that all threads together wait for a core: above the first others run, below the second none does.
_BUSY, _ALONE = 0.1, 0.02


@cache
def share_cores() -> None:
    """Watch, from now on, whether threads wait for cores, unless the user has said how they wait."""
    if not says_how_to_wait():
        threading.Thread(target=_watch, name="shared cores", daemon=True).start()


def _watch() -> None:
    teams = IdleTeams()
    while True:
        before, started = seconds_waited(), time.monotonic()
        time.sleep(_SECONDS)
        teams.follow((seconds_waited() - before) / (time.monotonic() - started))


class IdleTeams:
    """Teams of threads that do nothing but count."""

    def __init__(self) -> None:
        self._ends: list[threading.Event] = []

    def __len__(self) -> int:
        return len(self._ends)

    def follow(self, waiting: float) -> None:
        """Add a team where threads wait for a core, in seconds a second, and more would count; else end all of them."""
        others = torch.get_num_threads() - 1
        if waiting > _BUSY and others > 0 and 1 + (1 + len(self)) * others <= usable_cores():
            self._ends.append(threading.Event())
            threading.Thread(target=_hold_a_team, args=(self._ends[-1],), daemon=True).start()
        elif waiting < _ALONE:
            while self._ends:
                self._ends.pop().set()


def _hold_a_team(end: threading.Event) -> None:
    torch.ones(1 << 20)  # computed by a team of this thread's own, which libgomp keeps for it as long as it lives
    end.wait()


def seconds_waited() -> float:
    """Return how long the threads of this process have waited for a core, ready to run; 0 where nothing tells."""
    told = (system_text(path).split() for path in glob("/proc/self/task/*/schedstat"))
    return sum(int(words[1]) for words in told if len(words) > 1) / 1e9  # nothing of a thread that has just ended
