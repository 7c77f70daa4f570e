"""A few processes that do tasks for this one; none outlives it, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

# a message that breaks off in its middle is a plain OSError
_GONE = (EOFError, OSError)
_SECONDS_TO_END = 2


def results_of_processes(
    start: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...], tasks: Iterator[Any], num_workers: int
) -> Iterator[Any]:
    """Do `start(*arguments)(task)` for every task in `num_workers` new processes; yield results in the order they come.

    Each process calls `start` once, before its first task. At most two tasks per process are drawn ahead of the
    results. An exception of a task, or of the iterator of tasks, is raised here and ends all processes; so does closing
    this generator. Raises ChildProcessError when a process dies.
    """
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, Any] = {}
    try:
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, start, arguments), daemon=True)
            with _interrupts_held():
                process.start()
            # only the process itself holds its end now, so its death is an end of file here, and ours is one there
            theirs.close()
            workers[ours] = process  # pyright: ignore[reportArgumentType]
        yield from _exchange(workers, tasks)
    finally:
        for connection in workers:
            connection.close()
        for process in workers.values():
            process.join(_SECONDS_TO_END)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back from a process that is started within, and from this one until the end.

    Ctrl-C reaches every process of a terminal. The first one decides; closing its end of the pipe ends the others. They
    inherit what is held, so that not even their imports are interrupted.
    """
    # its first start would lift the block
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exchange(workers: dict[Connection, Any], tasks: Iterator[Any]) -> Iterator[Any]:
    """Keep every process busy with one task, and one more ready for it, until tasks and results are at an end."""
    idle, busy = list(workers), set[Connection]()
    ready: list[Any] = []
    more = True
    while True:
        # reading a task takes time too, so it is done while the processes work, unless one waits for us
        while more and len(ready) < len(workers) and not (ready and idle) and not (busy and wait(busy, timeout=0)):
            try:
                ready.append(next(tasks))
            except StopIteration:
                more = False
        while ready and idle:
            connection = idle.pop()
            _send(workers, connection, ready.pop(0))
            busy.add(connection)
        if not busy and not more:
            return
        # with a process idle and tasks left, there is a task to fetch rather than a result to wait for
        for connection in wait(busy, timeout=0 if idle and more else None):
            assert isinstance(connection, Connection)
            busy.discard(connection)
            idle.append(connection)
            yield _receive(workers, connection)


def _send(workers: dict[Connection, Any], connection: Connection, task: Any) -> None:
    try:
        connection.send(task)
    except _GONE:
        raise _died(workers[connection]) from None


def _receive(workers: dict[Connection, Any], connection: Connection) -> Any:
    try:
        result, error = connection.recv()
    except _GONE:
        raise _died(workers[connection]) from None
    if error is not None:
        raise error
    return result


def _died(process: Any) -> ChildProcessError:
    process.join(_SECONDS_TO_END)
    return ChildProcessError(
        f"worker process {process.pid} died with exit code {process.exitcode}; code -9 often means that memory ran "
        "out: use fewer workers and run it again"
    )


def _work(connection: Connection, start: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    # there is a process for each processor already; the threads of a library would only stand in line
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    do = None
    try:
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
