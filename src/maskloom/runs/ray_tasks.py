"""Tasks on the workers of a Ray cluster (https://docs.ray.io; the extra `maskloom[ray]`), or of one started here.

A task is a pure function of what it is given, so Ray does it again when a worker or a machine is lost. The machines of
a cluster need maskloom in their Python and the output folder under the same path.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal

from maskloom.errors import ConfigError
from maskloom.system.worker_processes import Engine, Patience, Start

_NUM_RETRIES = 3
_SECONDS_BETWEEN_LOOKS = 1.0
_TIMES_AS_LONG, _TIMES_TOO_LONG = 3, 10
_PATIENCE = Patience()

_log = logging.getLogger(__name__)
_started: dict[str, Callable[[Any], Any]] = {}


def chosen_engine(name: Literal["local", "ray"], ray_address: str | None = None) -> Engine | None:
    """Return what does the tasks: None for the processes of this machine.

    `ray_address` is that of a running cluster, such as `auto`, `10.0.0.1:6379` or `ray://head:10001`; without it one
    is started here. Raises ConfigError for an address without Ray, and where Ray is not installed.
    """
    if name == "local":
        if ray_address is not None:
            raise ConfigError(f"--ray-address {ray_address} is of use with --engine ray only")
        return None
    _imported_ray()
    return partial(results_of_ray, address=ray_address)


def results_of_ray(
    start: Start,
    arguments: tuple[Any, ...],
    tasks: Iterator[Any],
    num_workers: int,
    *,
    name: Callable[[Any], str] = str,
    address: str | None = None,
    patience: Patience = _PATIENCE,
) -> Generator[Any, None, None]:
    """Do tasks as `results_of_processes` does, on Ray; at most 1.5 times `num_workers` tasks are in the cluster.

    Ray repeats a task that lost its worker up to 3 times. A task that is late is named in the log; one that takes ten
    times as long as any before, and no less than `patience.ended_after`, is given to another worker, once. Raises
    ConfigError when the cluster does not answer, ChildProcessError with the `name` of a task that keeps failing to
    come back, and what a task raises.
    """
    ray = _imported_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, address, num_workers)
    exchange = _Exchange(ray, start, arguments, patience)
    try:
        while True:
            for task in islice(tasks, num_workers + (num_workers + 1) // 2 - len(exchange.pending)):
                exchange.give(task, name(task))
            task = None  # or it would live until the next one comes
            if not exchange.pending:
                return
            yield from exchange.results()
    finally:
        if is_ours:
            ray.shutdown()


@dataclass
class _Job:
    """A task in the cluster: its content in Ray's store, and since when it is there."""

    content: Any
    name: str
    begin: float
    num_losses: int = 0
    is_named: bool = False


class _Exchange:
    """The tasks that are in the cluster, and a watch over them."""

    def __init__(self, ray: Any, start: Start, arguments: tuple[Any, ...], patience: Patience) -> None:
        self._ray, self._patience = ray, patience
        self._key, self._shared = uuid.uuid4().hex, ray.put((start, arguments))
        self._remote = ray.remote(num_cpus=1, max_retries=_NUM_RETRIES)(_do)
        self._longest: float | None = None
        self.pending: dict[Any, _Job] = {}

    def give(self, task: Any, name: str) -> None:
        self._submit(_Job(self._ray.put(task), name, time.monotonic()))

    def results(self) -> Iterator[Any]:
        """Yield what has come within a second."""
        found, _ = self._ray.wait(list(self.pending), num_returns=1, timeout=_SECONDS_BETWEEN_LOOKS)
        for reference in found:
            job, now = self.pending.pop(reference), time.monotonic()
            if self._longest is None:
                # until now they may have waited for the workers to start
                self._longest = 0.0
                for other in self.pending.values():
                    other.begin = now
            else:
                self._longest = max(self._longest, now - job.begin)
            yield self._result(reference, job)
        self._look()

    def _submit(self, job: _Job) -> None:
        # inside a list a reference stays one, so that a worker fetches what it has already only once
        self.pending[self._remote.remote(self._key, [self._shared], job.content)] = job

    def _result(self, reference: Any, job: _Job) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            raise getattr(error, "cause", None) or error from None
        except errors.RayError as error:
            what = str(error).strip().splitlines()[0]
            raise ChildProcessError(
                f"Ray lost its worker at {job.name}, and again in {_NUM_RETRIES} more tries; run it again ({what})"
            ) from None

    def _look(self) -> None:
        """Name the tasks that are late, and give those that hang to another worker."""
        now, patience = time.monotonic(), self._patience
        too_long = patience.limit
        if self._longest is not None:
            too_long = min(too_long, max(patience.ended_after, _TIMES_TOO_LONG * self._longest))
        for reference, job in list(self.pending.items()):
            seconds = now - job.begin
            if not job.is_named and seconds >= max(patience.named_after, _TIMES_AS_LONG * (self._longest or 0.0)):
                job.is_named = True
                free = self._ray.available_resources().get("CPU", 0)
                _log.warning("Ray has had %s for %.0f seconds; %g processors are free", job.name, seconds, free)
            if seconds >= too_long:
                del self.pending[reference]
                self._ray.cancel(reference, force=True)
                job.num_losses += 1
                if job.num_losses > 1:
                    raise ChildProcessError(f"Ray: the second worker at {job.name} hung for {seconds:.0f} seconds")
                _log.warning("Ray: the worker at %s hung for %.0f seconds; another does that again", job.name, seconds)
                job.begin, job.is_named = now, False
                self._submit(job)


def _do(key: str, shared: list[Any], task: Any) -> Any:
    """Do a task in a worker of Ray, which keeps what it has set up for the tasks that follow."""
    # there is a worker for each processor already; the threads of a library would only stand in line
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if key not in _started:
        _started.clear()
        start, arguments = _imported_ray().get(shared[0])
        _started[key] = start(*arguments)
    return _started[key](task)


def _imported_ray() -> Any:
    # it would tell its makers that it was used
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError("--engine ray needs Ray: pip install 'maskloom[ray]'") from None


def _connect(ray: Any, address: str | None, num_workers: int) -> None:
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        here = {"num_cpus": num_workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        ray.init(address="local", **here, **options)
        return
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, OSError) as error:
        raise ConfigError(f"--ray-address {address}: no Ray cluster answers there ({error})") from None
