"""A few processes that do tasks and send back small results; they end when the process that started them does."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any


def results_of_processes(
    start: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...], tasks: Iterator[Any], num_workers: int
) -> Iterator[Any]:
    """Do `start(*arguments)(task)` for every task in `num_workers` new processes; yield results as they come.

    Each process calls `start` once. Tasks are drawn a few ahead, so memory holds at most three per process. What a
    task raises is raised here. Raises ChildProcessError when a process dies, for example for want of memory.
    """
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, Any] = {}
    # started on its own, since it lets interrupts through again when it comes with a process
    resource_tracker.ensure_running()
    try:
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, start, arguments), daemon=True)
            with _interrupts_held():
                process.start()
            # with our copy of their end closed, a dead process is an end of file here
            theirs.close()
            workers[ours] = process  # pyright: ignore[reportArgumentType]
        yield from _exchange(workers, tasks)
    finally:
        for connection in workers:
            connection.close()
        for process in workers.values():
            process.join(timeout=2)
            if process.is_alive():
                process.terminate()
                process.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep interrupts waiting, here for a moment and in a process that is started now for good.

    An interrupt from the keyboard reaches the whole group; this process decides and closes the connections.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exchange(workers: dict[Connection, Any], tasks: Iterator[Any]) -> Iterator[Any]:
    waiting: list[Any] = []
    idle = list(workers)
    busy: set[Connection] = set()
    is_exhausted = False
    while True:
        while idle:
            if not waiting and (task := next(tasks, None)) is not None:
                waiting.append(task)
            if not waiting:
                is_exhausted = True
                break
            connection = idle.pop()
            _send(workers, connection, waiting.pop(0))
            busy.add(connection)
        if not busy:
            return
        # tasks are made ready while the processes work, unless a result is there already
        while not is_exhausted and len(waiting) < len(workers) and not wait(list(busy), timeout=0):
            task = next(tasks, None)
            is_exhausted = task is None
            if task is not None:
                waiting.append(task)
        for connection in wait(list(busy)):
            assert isinstance(connection, Connection)
            busy.discard(connection)
            idle.append(connection)
            yield _receive(workers, connection)


def _send(workers: dict[Connection, Any], connection: Connection, task: Any) -> None:
    try:
        connection.send(task)
    except OSError:
        raise _died(workers[connection]) from None


def _receive(workers: dict[Connection, Any], connection: Connection) -> Any:
    try:
        result, error = connection.recv()
    except (EOFError, OSError):
        raise _died(workers[connection]) from None
    if error is not None:
        raise error
    return result


def _died(process: Any) -> ChildProcessError:
    process.join(timeout=2)
    return ChildProcessError(
        f"worker process {process.pid} died with exit code {process.exitcode}; code -9 often means too little memory: "
        "use fewer workers; running again continues"
    )


def _work(connection: Connection, start: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    # there is a process for each processor already; the threads of a library would only stand in line
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        do = None
        while True:
            task = connection.recv()
            try:
                do = do or start(*arguments)
                answer = (do(task), None)
            except Exception as error:
                answer = (None, error)
            connection.send(answer)
    except (EOFError, OSError):
        # the other side has ended, perhaps in the middle of a message; errors of a task are caught above
        return
