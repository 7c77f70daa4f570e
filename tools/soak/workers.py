"""R13: worker processes of a build that die, hang or are slow, on this machine and on a Ray cluster."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from maskloom.system.resources import process_fields
from tools.checking import fresh_folder
from tools.soak.corpora import Build, folder_bytes, prepare
from tools.soak.processes import LONGEST_SECONDS, CommandLine, ForkServer
from tools.soak.rows import Budget, Row, Trial

_OUT = "out"
_SECONDS_TO_NAME = 30


def descendants(pid: int) -> list[int]:
    """Return the living descendants of a process."""
    parents = {
        int(path.name): int(fields[1])
        for path in Path("/proc").glob("[0-9]*")
        if (fields := process_fields(int(path.name))) and fields[0] != "Z"
    }
    found, more = [], [pid]
    while more:
        more = [child for child, parent in parents.items() if parent in more]
        found += more
    return found


# A worker with little work left may end, however slow, before it must be named; then another one is chosen.
_ENDED_EARLY, _ATTEMPTS = "nothing was said before the build ended", 5


def workers(pid: int) -> list[int]:
    """Return the processes that work for a build: its own workers, or Ray's workers with a task."""
    found = []
    for child in descendants(pid):
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"maskloom.system.worker_processes" in command or b"ray::_do" in command:
            found.append(child)
    return found


def stop(pid: int, running: CommandLine) -> None:
    """Suspend a process."""
    os.kill(pid, signal.SIGSTOP)


def kill(pid: int, running: CommandLine) -> None:
    """Kill a process without warning."""
    os.kill(pid, signal.SIGKILL)


def slow_down(pid: int, running: CommandLine) -> None:
    """Let a process run only briefly every five seconds until the log names it; then let it continue."""

    def hinder() -> None:
        end = time.monotonic() + 120
        try:
            while time.monotonic() < end and f"worker process {pid} has been" not in _told(running):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(5)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.002)
        except ProcessLookupError:
            pass

    threading.Thread(target=hinder, daemon=True).start()


def _told(running: CommandLine) -> str:
    return running.output.read_text(encoding="utf-8", errors="replace")


def _alive(processes: dict[int, str]) -> list[int]:
    """Return the living processes, identified by pid and start time."""
    return [
        pid
        for pid, begin in processes.items()
        if (fields := process_fields(pid)) and fields[0] != "Z" and fields[19] == begin
    ]


def _all_end(processes: dict[int, str]) -> bool:
    end = time.monotonic() + 20
    while _alive(processes) and time.monotonic() < end:
        time.sleep(0.05)
    return not _alive(processes)


def try_worker(
    build: Build, trouble: Callable[[int, CommandLine], None], told: str, draw: random.Random, folder: Path
) -> Trial:
    """Disturb one worker in the middle of a build, and compare the result with the undisturbed build.

    `told` is the message that the log must contain within half a minute.
    """
    fresh_folder(folder)
    out, records = folder / _OUT, folder / _OUT / "building"
    running = CommandLine(build.arguments, folder, folder.with_suffix(".output"))
    started: dict[int, str] = {}
    try:
        running.wait_until(lambda: any(records.glob("0*.json")), LONGEST_SECONDS)
        started = {child: fields[19] for child in descendants(running.pid) if (fields := process_fields(child))}
        chosen = draw.choice(running.wait_until(lambda: workers(running.pid)))
        trouble(chosen, running)
        begin = time.monotonic()
        running.wait_until(lambda: told in _told(running) or running.has_ended(), LONGEST_SECONDS)
        seconds = time.monotonic() - begin
        code = running.wait()
        has_left_some = not _all_end(started)
    finally:
        running.kill()
        for child in _alive(started):
            os.kill(child, signal.SIGKILL)
    problems = [] if code == 0 else [f"exit code {code}: {_told(running)[-500:]}"]
    problems += [] if told in _told(running) else [_ENDED_EARLY if seconds < _SECONDS_TO_NAME else "nothing was said"]
    problems += [] if seconds < _SECONDS_TO_NAME else [f"said after {seconds:.0f} s"]
    problems += [] if folder_bytes(out) == build.files else ["the files differ"]
    problems += ["processes are left"] if has_left_some else []
    name = f"{build.name}, {trouble.__name__.replace('_', ' ')}"
    return Trial(name, not problems, "; ".join(problems) or f"said after {seconds:.0f} s")


def troubled_workers(budget: Budget) -> Iterator[Trial]:
    """Yield trials with workers that are killed, stopped, and slowed down."""
    with ForkServer() as server:
        build = prepare(server, budget.work / "left-alone", megabytes=30)[2]
    plan = [(kill, "died with exit code -9")] * 6
    plan += [(stop, "without processor time")] * 2 + [(slow_down, "has been working on")] * 2
    for number, (trouble, told) in enumerate(plan):
        trial = None
        for attempt in range(_ATTEMPTS):
            if trial is None or trial.detail == _ENDED_EARLY:
                draw = budget.draw("R13", number, attempt)
                trial = try_worker(build, trouble, told, draw, budget.work / "troubled")
        assert trial is not None
        yield trial


def on_ray(build: Build) -> Build:
    """Return a build with the arguments for a Ray cluster."""
    return Build(f"{build.name} on Ray", (*build.arguments, "--engine", "ray"), build.files, [], build.seconds)


def killed_ray_workers(budget: Budget) -> Iterator[Trial]:
    """Yield trials with workers of a local Ray cluster that are killed in the middle of a build."""
    if find_spec("ray") is None:
        raise RuntimeError("Ray is not installed: pip install 'maskloom[ray]'")
    with ForkServer() as server:
        build = prepare(server, budget.work / "left-alone", megabytes=30)[2]
    for number in range(3):
        # Ray retries the task itself, and says nothing about it here
        yield try_worker(on_ray(build), kill, "", budget.draw("R13r", number), budget.work / "on-ray")


ROWS = (
    Row(
        "R13",
        "a build worker killed (6), stopped (2), slowed down (2)",
        "reported within 30 s; its task redone by a new worker; same bytes; no process left",
        10,
        troubled_workers,
    ),
    Row(
        "R13r",
        "a corpus build on a local Ray cluster of 2, one worker killed",
        "the same bytes as a local build; no process left",
        3,
        killed_ray_workers,
    ),
)
