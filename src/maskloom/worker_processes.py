"""A few processes that do tasks for this one; none outlives it, however it ends.

A task is a pure function of what it is given, so the one that a process took with it when it died or hung is done again
by a new process, once. `Patience` says when a process counts as hanging.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

# a message that breaks off in its middle is a plain OSError
_GONE = (EOFError, OSError)
_SECONDS_TO_END = 2
_SECONDS_BETWEEN_LOOKS = 1.0
_TIMES_AS_LONG = 3

_log = logging.getLogger(__name__)

Start = Callable[..., Callable[[Any], Any]]
_Answer = tuple[Any, Exception | None]


class Engine(Protocol):
    """Whoever does tasks: the processes of this module, or a cluster."""

    def __call__(
        self,
        start: Start,
        arguments: tuple[Any, ...],
        tasks: Iterator[Any],
        num_workers: int,
        *,
        name: Callable[[Any], str] = str,
    ) -> Generator[Any, None, None]:
        """Yield the results of `start(*arguments)(task)` as they come; `name` says a task to a person."""
        ...


@dataclass(frozen=True)
class Patience:
    """How long a process may be at one task, in seconds, of which only those count in which the first one looks on.

    After `named_after` the log names it, if it used no processor time or needs three times as long as any task before.
    After `ended_after` without any processor time, and after `limit` in any case, it is ended: it hangs.
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
    """Do `start(*arguments)(task)` for every task in `num_workers` new processes; yield results in the order they come.

    Each process calls `start` once, before its first task. At most two tasks per process are drawn ahead of the
    results. An exception of a task, or of the iterator of tasks, is raised here and ends all processes; so does closing
    this generator. A process that dies or hangs is replaced and its task done again, which the log tells as a warning;
    raises ChildProcessError with the task's `name` when that happens twice to the same task.
    """
    pool = _Pool(start, arguments, patience)
    try:
        for _ in range(num_workers):
            pool.add()
        yield from _exchange(pool, tasks, name)
    finally:
        pool.end()


@dataclass
class _Job:
    """A task on its way: as it is sent, and what was seen of the process that is at it."""

    payload: bytes | memoryview
    name: str
    num_losses: int = 0
    seconds: float = 0.0
    idle_seconds: float = 0.0
    processor_seconds: float | None = None
    is_named: bool = False

    def begin(self) -> None:
        """Forget what was seen of an earlier process."""
        self.seconds, self.idle_seconds, self.processor_seconds, self.is_named = 0.0, 0.0, None, False

    def watch(self, elapsed: float, processor_seconds: float | None) -> None:
        """Note that time went by, and the processor time of the process until now, None where nobody knows it."""
        is_idle = processor_seconds is not None and processor_seconds == self.processor_seconds
        self.seconds += elapsed
        self.idle_seconds = self.idle_seconds + elapsed if is_idle else 0.0
        self.processor_seconds = processor_seconds


class _Worker:
    """A process, and the thread that sends it one task after the other and waits for each answer.

    Both block when the process does, so they are no matter of the first thread, which has to notice that. The process
    is one of `subprocess`: those of `multiprocessing` print a traceback when the first one is killed while they start.
    """

    def __init__(self, start: Start, arguments: tuple[Any, ...], answers: SimpleQueue[Any]) -> None:
        self._connection, theirs = Pipe()
        self._beginning = ForkingPickler.dumps((start, arguments))
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._answers = answers
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.job: _Job | None = None
        self.has_answered = False
        self.why_ended: str | None = None
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import _main; _main({theirs.fileno()})"
        with _interrupts_held():
            self.process = subprocess.Popen(
                [sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
            # Ctrl-C is for the first thread, which would not wake up when another one took it
            self._thread.start()
        # only the process itself holds its end now, so its death is an end of file here, and ours is one there
        theirs.close()

    def give(self, job: _Job) -> None:
        """Have a task done."""
        job.begin()
        self.job, self.has_answered = job, False
        self._jobs.put(job)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()

    def end(self) -> None:
        """Let an idle process go, end a busy one, and free what they took."""
        if self.job is not None:
            self.kill()
        self._jobs.put(None)
        self._thread.join(_SECONDS_TO_END)
        if not self._thread.is_alive():
            self._connection.close()
        if not self._has_ended():
            self.kill()
            # one that waits for a broken disk ends when that answers
            self._has_ended()

    def _has_ended(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_SECONDS_TO_END)
        return self.process.returncode is not None

    def _serve(self) -> None:
        is_alive = True
        while is_alive and (job := self._jobs.get()) is not None:
            try:
                if self._beginning is not None:
                    self._connection.send_bytes(self._beginning)
                    self._beginning = None
                self._connection.send_bytes(job.payload)
                answer = self._connection.recv()
            except _GONE:
                answer, is_alive = None, False
            except Exception as error:  # of unpickling
                answer = (None, error)
            self.has_answered = True
            self._answers.put((self, answer))
            # or it would live until the next one comes
            del job, answer


class _Pool:
    """The processes, what they answered, and a watch over those at work."""

    def __init__(self, start: Start, arguments: tuple[Any, ...], patience: Patience) -> None:
        self._start, self._arguments, self._patience = start, arguments, patience
        self._answers: SimpleQueue[tuple[_Worker, _Answer | None]] = SimpleQueue()
        self._longest = 0.0
        self._last_look = time.monotonic()
        self.idle: list[_Worker] = []
        self.busy: set[_Worker] = set()

    def add(self) -> None:
        """Start a process."""
        self.idle.append(_Worker(self._start, self._arguments, self._answers))

    def give(self, job: _Job) -> None:
        """Hand a task to a process that has none."""
        worker = self.idle.pop()
        self.busy.add(worker)
        worker.give(job)

    @property
    def has_answer(self) -> bool:
        """Whether a result, or the news of a death, has come."""
        return not self._answers.empty()

    def answer(self, *, wait: bool) -> tuple[_Worker, _Job, _Answer | None] | None:
        """Return a worker, its task and its answer, where None is its death; or None when nothing has come."""
        self._look()
        try:
            worker, answer = self._answers.get(block=wait, timeout=_SECONDS_BETWEEN_LOOKS)
        except Empty:
            return None
        job, worker.job = worker.job, None
        assert job is not None
        self.busy.discard(worker)
        if answer is not None:
            self._longest = max(self._longest, job.seconds)
            self.idle.append(worker)
        return worker, job, answer

    def end(self) -> None:
        """End all processes."""
        for worker in self.busy:
            worker.kill()
        for worker in [*self.busy, *self.idle]:
            worker.end()

    def _look(self) -> None:
        """Name the processes that are late, and end those that hang; their deaths are answers like any other."""
        now = time.monotonic()
        elapsed, patience = now - self._last_look, self._patience
        if elapsed < _SECONDS_BETWEEN_LOOKS:
            return
        self._last_look = now
        # this process may itself have been stopped, or have read for long
        elapsed = min(elapsed, 2 * _SECONDS_BETWEEN_LOOKS)
        for worker in self.busy:
            if worker.has_answered or worker.why_ended or worker.job is None:
                continue
            job, pid = worker.job, worker.process.pid
            job.watch(elapsed, _processor_seconds(pid))
            is_late = job.idle_seconds >= patience.named_after or job.seconds >= _TIMES_AS_LONG * self._longest
            if is_late and not job.is_named and job.seconds >= patience.named_after:
                job.is_named = True
                idle = f", the last {job.idle_seconds:.0f} without processor time" if job.idle_seconds else ""
                _log.warning("worker process %s has been at %s for %.0f seconds%s", pid, job.name, job.seconds, idle)
            if job.idle_seconds >= patience.ended_after:
                worker.why_ended = f"hung: no processor time for {job.idle_seconds:.0f} seconds"
            elif job.seconds >= patience.limit:
                worker.why_ended = f"hung: no result for {job.seconds:.0f} seconds"
            if worker.why_ended:
                worker.kill()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back from a process that is started within, and from this one until the end.

    Ctrl-C reaches every process of a terminal. The first one decides; closing its end of the pipe ends the others. They
    inherit what is held, so that not even their imports are interrupted.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exchange(pool: _Pool, tasks: Iterator[Any], name: Callable[[Any], str]) -> Iterator[Any]:
    """Keep every process busy with one task, and as many ready as half of them, until tasks and results are at an end.

    The task of a busy process is kept, pickled, so that another one can do it; hence no more are drawn ahead.
    """
    ready: deque[_Job] = deque()
    num_ahead = (len(pool.idle) + 1) // 2
    more = True
    while True:
        # reading a task takes time too, so it is done while the processes work, unless one waits for us
        while more and len(ready) < num_ahead and not (ready and pool.idle) and not pool.has_answer:
            try:
                task = next(tasks)
            except StopIteration:
                more = False
            else:
                ready.append(_Job(ForkingPickler.dumps(task), name(task)))
                del task
        while ready and pool.idle:
            pool.give(ready.popleft())
        if not pool.busy and not ready and not more:
            return
        # with a process idle and tasks left, there is a task to fetch rather than a result to wait for
        answer = pool.answer(wait=not (pool.idle and more))
        if answer is None:
            continue
        worker, job, found = answer
        if found is None:
            _replace(pool, worker, job)
            ready.appendleft(job)
        else:
            result, error = found
            del answer, job, found
            if error is not None:
                raise error
            yield result
            del result


def _replace(pool: _Pool, worker: _Worker, job: _Job) -> None:
    """Put a new process in the place of a lost one; raises ChildProcessError when its task was lost before."""
    worker.end()
    code, pid = worker.process.returncode, worker.process.pid
    memory = "; code -9 often means that memory ran out: use fewer workers" if code == -signal.SIGKILL else ""
    how = worker.why_ended or f"died with exit code {code}{memory}"
    job.num_losses += 1
    if job.num_losses > 1:
        raise ChildProcessError(f"worker process {pid}, the second one at {job.name}, {how}; run it again")
    _log.warning("worker process %s, which was at %s, %s; a new one does that again", pid, job.name, how)
    pool.add()


def _processor_seconds(pid: int | None) -> float | None:
    """Return the processor time that a process has used, or None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _main(descriptor: int) -> None:
    """Do tasks that come through a pipe until it ends; the whole life of a worker process."""
    # there is a process for each processor already; the threads of a library would only stand in line
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _work(Connection(descriptor))


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
