"""A few processes that do tasks for this one; none outlives it, however it ends.

A task is a pure function of its input, so a task lost with a process that died or hung is repeated, once, by a new
process. `Patience` defines when a process counts as hung.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any

from maskloom.errors import ConfigError
from maskloom.system.resources import process_fields

# a message that breaks off in the middle raises a plain OSError
_GONE = (EOFError, OSError)
_SECONDS_TO_END = 2
_SECONDS_BETWEEN_LOOKS = 1.0
_TIMES_AS_LONG = 3

_log = logging.getLogger(__name__)

Start = Callable[..., Callable[[Any], Any]]
# Anything that does tasks, such as the processes of this module or a cluster; called like `results_of_processes`.
Engine = Callable[..., Generator[Any, None, None]]


@dataclass(frozen=True)
class Work:
    """How many processes work: new ones, only this one for 1, or those of an engine."""

    num_workers: int = 1
    engine: Engine | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for fewer than one worker."""
        if self.num_workers < 1:
            raise ConfigError(f"num_workers = {self.num_workers}: it must be at least 1")


ONE_PROCESS = Work()


def results(
    start: Start, arguments: tuple[Any, ...], tasks: Iterator[Any], work: Work, *, name: Callable[[Any], str] = str
) -> Generator[Any, None, None]:
    """Yield the results of `start(*arguments)(task)`; `name` describes a task in messages."""
    if work == ONE_PROCESS:
        yield from map(start(*arguments), tasks)
    else:
        how = work.engine or results_of_processes
        yield from how(start, arguments, tasks, work.num_workers, name=name)


@dataclass(frozen=True)
class Patience:
    """How long a process may take for one task, in seconds that count only while the main process is watching.

    After `named_after` seconds the log names it if it used no CPU time or takes three times as long as any task before.
    After `ended_after` seconds without CPU time, and after `limit` in any case, it counts as hung and is ended.
    """

    named_after: float = 20.0
    ended_after: float = 60.0
    limit: float = 1800.0


def results_of_processes(
    start: Start,
    arguments: tuple[Any, ...],
    tasks: Iterator[Any],
    num_workers: int,
    *,
    name: Callable[[Any], str] = str,
    patience: Patience = Patience(),
) -> Generator[Any, None, None]:
    """Do `start(*arguments)(task)` for every task in `num_workers` new processes; yield results as they arrive.

    Each process calls `start` once. At most two tasks per process are drawn ahead of the results. An exception from a
    task, or from the iterator of tasks, is raised here and ends all processes, as does closing this generator. A
    process that dies or hangs is replaced and its task repeated, with a warning in the log; raises ChildProcessError
    with the task's `name` if that happens twice to the same task.
    """
    workers, idle = [_Worker(_pickled((start, arguments))) for _ in range(num_workers)], SimpleQueue[_Worker]()
    for worker in workers:
        idle.put(worker)

    def do(payload: bytes, called: str) -> Any:
        worker = idle.get()
        try:
            result, error = worker.answer(payload, called)
        finally:
            idle.put(worker)
        if error is not None:
            raise error
        return result

    threads, pending, last_look = ThreadPoolExecutor(num_workers), set[Future[Any]](), time.monotonic()
    try:
        while True:
            # drawing a task takes time too, so do it while the processes work
            while len(pending) < num_workers + (num_workers + 1) // 2 and not any(map(Future.done, pending)):
                if not (drawn := list(islice(tasks, 1))):
                    break
                pending.add(threads.submit(do, _pickled(drawn[0]), name(drawn[0])))
                drawn.clear()
            if not pending:
                return
            if (elapsed := time.monotonic() - last_look) >= _SECONDS_BETWEEN_LOOKS:
                last_look += elapsed
                longest = max(worker.longest for worker in workers)
                for worker in workers:  # this process may itself have been stopped, or have taken long to draw tasks
                    worker.look(min(elapsed, 2 * _SECONDS_BETWEEN_LOOKS), longest, patience)
            done, pending = wait(pending, _SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            while done:
                yield done.pop().result()
    finally:
        for worker in workers:
            worker.kill(for_good=True)
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.end()


def _pickled(value: Any) -> bytes:
    """Return a copy: a view of a pickler's buffer that is alive during garbage collection crashes Python 3.12.1."""
    return bytes(ForkingPickler.dumps(value))


@dataclass
class _Attempt:
    """A process working on a task, and what was observed of it."""

    pid: int
    name: str
    seconds: float = 0.0
    idle_seconds: float = 0.0
    used: list[str] = field(default_factory=list)
    is_named: bool = False
    why_ended: str | None = None


class _Worker:
    """A process that does one task after another; a new one takes its place if it dies, and repeats the task.

    Sending a task and waiting for its answer block if the process hangs, so the main thread looks for that. Processes
    come from `subprocess`: those of `multiprocessing` print a traceback if this process is killed while they start.
    """

    def __init__(self, beginning: bytes) -> None:
        self._beginning = beginning
        self._is_ending = False
        self._attempt: _Attempt | None = None
        self.longest = 0.0
        self._start()

    def answer(self, payload: bytes, name: str, *, is_second: bool = False) -> tuple[Any, Exception | None]:
        """Return the result of a task, or its error; raises ChildProcessError if the second process is lost too."""
        attempt = self._attempt = _Attempt(self._process.pid, name)
        with suppress(*_GONE):
            for message in [*self._unsent, payload]:
                self._connection.send_bytes(message)
            self._unsent.clear()
            while not self._connection.poll(_SECONDS_BETWEEN_LOOKS):
                if attempt.why_ended or self._is_ending:  # a process stuck on a broken disk ends only later
                    raise EOFError
            found = self._connection.recv()
            self.longest, self._attempt = max(self.longest, attempt.seconds), None
            return found
        code = self.end()
        memory = "; code -9 often means that memory ran out: use fewer workers" if code == -signal.SIGKILL else ""
        how = attempt.why_ended or f"died with exit code {code}{memory}"
        if is_second or self._is_ending:
            raise ChildProcessError(f"worker process {attempt.pid}, the second one for {name}, {how}; run it again")
        _log.warning("worker process %s, which was working on %s, %s; a new one will redo it", attempt.pid, name, how)
        self._start()
        return self.answer(payload, name, is_second=True)

    def look(self, elapsed: float, longest: float, patience: Patience) -> None:
        """Log a process that is late, and end one that hangs; `elapsed` is the time in seconds since the last look."""
        seen = self._attempt
        if seen is None or seen.why_ended:
            return
        used = process_fields(seen.pid)[11:13]  # processor time, empty if the system does not say
        seen.seconds += elapsed
        seen.idle_seconds = seen.idle_seconds + elapsed if used and used == seen.used else 0.0
        seen.used = used
        is_late = seen.idle_seconds >= patience.named_after or seen.seconds >= _TIMES_AS_LONG * longest
        if is_late and not seen.is_named and seen.seconds >= patience.named_after:
            seen.is_named = True
            idle = f", the last {seen.idle_seconds:.0f} without processor time" if seen.idle_seconds else ""
            _log.warning(
                "worker process %s has been working on %s for %.0f seconds%s", seen.pid, seen.name, seen.seconds, idle
            )
        if seen.idle_seconds >= patience.ended_after:
            seen.why_ended = f"hung: no processor time for {seen.idle_seconds:.0f} seconds"
        elif seen.seconds >= patience.limit:
            seen.why_ended = f"hung: no result for {seen.seconds:.0f} seconds"
        if seen.why_ended:
            self.kill()

    def kill(self, *, for_good: bool = False) -> None:
        """Kill the process; with `for_good`, no other takes its place."""
        self._is_ending |= for_good
        self._process.kill()

    def end(self) -> int | None:
        """End the process and return its exit code, or None for one stuck on a broken disk, which ends later."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_END)
        self._connection.close()
        return self._process.returncode

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._unsent = [self._beginning]
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import _main; _main({theirs.fileno()})"
        command, ends = [sys.executable, "-c", program], [theirs.fileno()]
        # Ctrl-C reaches all processes of a terminal: only the main thread handles it, and ends the workers
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(command, pass_fds=ends, stdin=subprocess.DEVNULL)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # only the worker holds its end now, so each side sees end of file when the other dies
        theirs.close()
        if self._is_ending:
            self._process.kill()


def _main(descriptor: int) -> None:
    """Do tasks received through a pipe until it closes; this is the whole life of a worker process."""
    threading.Thread(target=_end_with, args=(descriptor,), daemon=True).start()
    # every core already has a process; a library's threads would only queue for cores
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _work(Connection(descriptor))


def _end_with(descriptor: int) -> None:
    """End this process when the other end of its pipe closes, even within a task, when nothing reads from the pipe."""
    poller = select.poll()
    poller.register(descriptor, 0)  # data does not wake it
    poller.poll()
    os._exit(1)


def _work(connection: Connection) -> None:
    do = None
    try:
        start, arguments = connection.recv()
        while True:
            task = connection.recv()
            try:
                do = do or start(*arguments)
                answer = (do(task), None)
            except Exception as error:
                error.add_note(f"in a worker process:\n{traceback.format_exc()}")
                answer = (None, error)
            connection.send(answer)
    except _GONE:
        return
