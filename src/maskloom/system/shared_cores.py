"""How computing threads wait for each other: spinning while the cores are theirs, asleep next to other programs.

A libgomp thread that waits for its team spins 300,000 times before it sleeps, which is fastest without other programs.
Next to other programs, spinning threads keep the cores from the very threads that they wait for. libgomp gives up after
100 iterations once the teams of a process have more threads than there are cores. So a process whose threads have to
wait for a core gets idle teams until they no longer wait. Measurements: benchmarks/busy.md.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from glob import glob

import torch

from maskloom.system.resources import says_how_to_wait, system_text, usable_cores

_SECONDS = 0.25
# Total seconds per second spent waiting for a core: above the first other programs run, below the second none does.
_BUSY, _ALONE = 0.1, 0.02


@cache
def share_cores() -> None:
    """From now on, watch whether threads wait for cores, unless the user has set how they wait."""
    if not says_how_to_wait():
        threading.Thread(target=_watch, name="shared cores", daemon=True).start()


def _watch() -> None:
    teams = IdleTeams()
    while True:
        before, started = seconds_waited(), time.monotonic()
        time.sleep(_SECONDS)
        teams.follow((seconds_waited() - before) / (time.monotonic() - started))


class IdleTeams:
    """Teams of threads that do nothing but raise libgomp's thread count."""

    def __init__(self) -> None:
        self._ends: list[threading.Event] = []

    def __len__(self) -> int:
        return len(self._ends)

    def follow(self, waiting: float) -> None:
        """Add a team if threads wait for a core (seconds per second) and one more helps; end all once none waits."""
        others = torch.get_num_threads() - 1
        if waiting > _BUSY and others > 0 and 1 + (1 + len(self)) * others <= usable_cores():
            self._ends.append(threading.Event())
            threading.Thread(target=_hold_a_team, args=(self._ends[-1],), daemon=True).start()
        elif waiting < _ALONE:
            while self._ends:
                self._ends.pop().set()


def _hold_a_team(end: threading.Event) -> None:
    torch.ones(1 << 20)  # computed by this thread's own team, which libgomp keeps while the thread lives
    end.wait()


def seconds_waited() -> float:
    """Return how long the threads of this process have waited, ready to run, for a core; 0 if unknown."""
    told = (system_text(path).split() for path in glob("/proc/self/task/*/schedstat"))
    return sum(int(words[1]) for words in told if len(words) > 1) / 1e9  # empty for a thread that has just ended
