"""Detection of ranks that have died or hang, so that the others end and name the culprit.

Every rank has a thread that writes a heartbeat to the store shared by all ranks and reads those of the others: a
counter, the number of collective calls made so far, and the line of code at which the main thread is.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from maskloom.system.files import DISK_CALLS

_SECONDS_BETWEEN_SIGNS = 1.0
_SECONDS_TO_BE_READ = 5 * _SECONDS_BETWEEN_SIGNS
# A rank that ends tells the others immediately; their main threads then have this long to end on their own.
_SECONDS_TO_END = 20.0
# After a failed call: how long a rank looks for the culprit, and the age of a heartbeat that marks one.
_SECONDS_TO_EXPLAIN, _SECONDS_TO_MISS, _SECONDS_BETWEEN_LOOKS = 12.0, 4.0, 0.1
# Multiple of the limit for waiting for a disk, and for a standstill that is no single rank's fault.
_LONGER = 10
# A process that uses a larger fraction of a CPU than this is working, whatever its main thread has called.
_BUSY_SHARE = 0.05

Work = Literal["step", "own", "save"]
"""What a rank is doing: a step, which all ranks take together; work of its own, such as an evaluation; or a save."""


def torchrun_keeps_store() -> bool:
    """Tell whether torchrun hosts the store of all ranks; otherwise rank 0 does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def store_is_gone(error: Exception) -> str:
    """Return what an error of the store means."""
    keeper = "torchrun's store" if torchrun_keeps_store() else "rank 0 was lost: its store"
    return f"{keeper} is no longer available ({str(error).splitlines()[0]})"


@dataclass
class RankView:
    """What a rank knows of another: its last heartbeat, and when signs and activity last changed (seconds).

    The first `sign` is 0. `calls` counts the calls that all ranks make in the same order, so the others wait for the
    rank with the fewest; `activity` counts anything, `processor` is CPU time in seconds, and `place` is the innermost
    line of the main thread.
    """

    sign: int = -1
    calls: int = 0
    activity: int = 0
    processor: float = 0.0
    place: str = "start"
    heard_at: float = 0.0
    active_at: float = 0.0
    ended: str | None = None
    has_left: bool = False

    def update(self, values: dict[str, Any], now: float) -> None:
        """Record a heartbeat that was read at the time `now`."""
        is_busy = values["processor"] - self.processor > _BUSY_SHARE * (now - self.heard_at)
        if values["activity"] != self.activity or values["waits_for_disk"] or (is_busy and values["work"] != "step"):
            self.active_at = now
        if values["sign"] != self.sign:
            self.heard_at, self.processor = now, values["processor"]
        self.sign, self.calls = values["sign"], values["calls"]
        self.activity, self.place = values["activity"], values["place"]


def culprit(views: dict[int, RankView], now: float, limit: float) -> str | None:
    """Return which rank is at fault and how, or None: stuck, or silent for a third of the limit and three heartbeats.

    A rank hangs if others have made more calls and it was idle for the whole limit. If no rank is behind, all may be
    idle for ten times the limit. Idle means no activity in a step, and also hardly any CPU time in other work. A save
    is not idle during a call that has waited for a disk for less than ten times the limit.
    """
    present = {rank: view for rank, view in views.items() if not view.has_left}
    for rank, view in present.items():
        if now - view.heard_at > max(limit / 3, 3 * _SECONDS_BETWEEN_SIGNS):
            return f"rank {rank} was lost: no heartbeat for {now - view.heard_at:.0f} s (killed, stopped or cut off)"
    if not present:
        return None
    rank, slowest = min(present.items(), key=lambda item: item[1].calls)
    idle = now - slowest.active_at
    is_behind = any(view.calls > slowest.calls for view in present.values())
    if idle <= limit * (1 if is_behind else _LONGER):
        return None
    if is_behind:
        return f"rank {rank} hangs: no progress for {idle:.0f} s at {slowest.place}; the others wait for it"
    places = "; ".join(f"rank {rank} at {view.place}" for rank, view in present.items())
    return f"no rank has made progress for {idle:.0f} s: {places}"


@dataclass
class RankWatch:
    """The thread that writes signs of life and checks those of the others, from `start` to `stop`.

    It ends this process, with exit code 1 and a message that names the culprit, if a rank is lost, hangs or has failed
    and the main thread does not end on its own. `store` is one of torch.distributed.
    """

    store: Any
    rank: int
    world_size: int
    limit: float
    calls: int = 0
    activity: int = 0
    _work: Work = "own"
    _views: dict[int, RankView] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread = field(init=False)
    _main: int = 0
    _troubled_at: float | None = None

    def start(self) -> None:
        """Write the first heartbeat and start the thread; call this in the main thread."""
        now = time.monotonic()
        self._views = {rank: RankView(heard_at=now, active_at=now) for rank in range(self.world_size)}
        self._main = threading.get_ident()
        self.store.set(f"sign/{self.rank}", self._sign(0))
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; from then on this rank learns nothing of the others."""
        self._is_over.set()
        self._thread.join()

    def call(self) -> None:
        """Count a call that every rank makes, in training or in the thread that saves."""
        with self._lock:
            self.calls += 1
            self.activity += 1

    def beat(self) -> None:
        """Record that the main thread is working."""
        self.activity += 1

    @contextmanager
    def at(self, work: Work) -> Iterator[None]:
        """Declare what this rank does within; at first it does work of its own."""
        before, self._work = self._work, work
        self.activity += 1
        try:
            yield
        finally:
            self._work = before
            self.activity += 1

    def leave(self, reason: str | None) -> None:
        """Tell the others that this rank ends: normally if `reason` is None, or for a reason that ends them too."""
        self.store.set(f"ended/{self.rank}", json.dumps({"reason": reason}))

    def explanation(self) -> str | None:
        """Return which rank made a call fail, once that can be known, or None if all others are well."""
        reason = self.loss(_SECONDS_TO_EXPLAIN)
        left = [str(rank) for rank, view in self._views.items() if view.has_left]
        return reason or (f"rank {', '.join(left)} has left before the others" if left else None)

    def loss(self, seconds: float) -> str | None:
        """Return which rank was lost or has failed, checking for `seconds` while other ranks are present.

        Checks are counted, not seconds: in a process that was stopped for a while, time passes without a check.
        """
        for _ in range(round(seconds / _SECONDS_BETWEEN_LOOKS)):
            if (reason := self._told()) is not None:
                return reason
            present = {rank: view for rank, view in self._views.items() if rank != self.rank and not view.has_left}
            if not present:
                return None
            rank, oldest = min(present.items(), key=lambda item: item[1].heard_at)
            if time.monotonic() - oldest.heard_at > _SECONDS_TO_MISS:
                return f"rank {rank} was lost: its process was killed or cut off"
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return None

    def _told(self) -> str | None:
        return next((view.ended for rank, view in self._views.items() if view.ended and rank != self.rank), None)

    def _is_in_trouble_for(self, seconds: float) -> bool:
        """Tell whether more than `seconds` have passed since this was first asked."""
        now = time.monotonic()
        self._troubled_at = now if self._troubled_at is None else self._troubled_at
        return now - self._troubled_at > seconds

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(_SECONDS_BETWEEN_SIGNS):
            number += 1
            try:
                problem = self._look(number)
            except Exception as error:  # the store is gone, with the process or machine that hosted it
                problem = None
                if self._is_in_trouble_for(_SECONDS_TO_END / 2):
                    problem = self._told() or store_is_gone(error)
            if problem is not None and not self._is_over.is_set():
                self._end(problem)
                return

    def _look(self, number: int) -> str | None:
        """Write a heartbeat, read the others', and return a problem that should end this process, if any."""
        self.store.set(f"sign/{self.rank}", self._sign(number))
        now = time.monotonic()
        for rank, view in self._views.items():
            if self.store.check([f"sign/{rank}"]):
                view.update(json.loads(self.store.get(f"sign/{rank}")), now)
            if not view.has_left and view.ended is None and self.store.check([f"ended/{rank}"]):
                view.ended, view.has_left = json.loads(self.store.get(f"ended/{rank}"))["reason"], True
        if (reason := self._told()) is not None:
            return reason if self._is_in_trouble_for(_SECONDS_TO_END) else None
        return culprit(self._views, now, self.limit)

    def _sign(self, number: int) -> str:
        frame, place, since = sys._current_frames().get(self._main), "?", time.monotonic() - _LONGER * self.limit
        if frame is not None:
            place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
        return json.dumps(
            {
                "sign": number,
                "calls": self.calls,
                "activity": self.activity,
                "place": place,
                "processor": time.process_time(),
                "work": self._work,
                "waits_for_disk": self._work == "save" and any(began > since for began in [*DISK_CALLS.values()]),
            }
        )

    def _end(self, problem: str) -> None:
        with suppress(Exception):  # the store may be gone
            self.leave(problem)
        with suppress(OSError):  # and so may the terminal
            print(f"error: rank {self.rank} ends: {problem}", file=sys.stderr, flush=True)
        if problem.startswith(f"rank {self.rank} hangs"):
            faulthandler.dump_traceback()
        if self.rank == 0:  # it hosts the store in which the others read the reason
            time.sleep(_SECONDS_TO_BE_READ)
        os._exit(1)
