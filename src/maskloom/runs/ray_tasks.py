"""Tasks on the workers of a Ray cluster (https://docs.ray.io; the extra `maskloom[ray]`), or of one started here.

A task is a pure function of its input, so Ray repeats it when a worker or a machine is lost. The machines of a cluster
need maskloom in their Python environment and the output folder at the same path.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import Any, Literal

from maskloom.errors import ConfigError
from maskloom.system.worker_processes import Engine, Start

_NUM_RETRIES = 3
_started: dict[Any, Callable[[Any], Any]] = {}


def chosen_engine(name: Literal["local", "ray"], ray_address: str | None = None) -> Engine | None:
    """Return the engine that runs the tasks; None means processes on this machine.

    `ray_address` is the address of a running cluster, such as `auto`, `10.0.0.1:6379` or `ray://head:10001`; without
    it, one is started here. Raises ConfigError for an address with the local engine, and if Ray is not installed.
    """
    if name == "local":
        if ray_address is not None:
            raise ConfigError(f"--ray-address {ray_address} needs --engine ray")
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
) -> Generator[Any, None, None]:
    """Run tasks as `results_of_processes` does, but on Ray; at most 1.5 times `num_workers` tasks are in flight.

    Ray retries a task that lost its worker up to 3 times. Raises ConfigError if the cluster does not answer,
    ChildProcessError with the `name` of a task that loses its worker every time, and any exception that a task raises.
    """
    ray = _imported_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, address, num_workers)
    try:
        remote, shared = ray.remote(num_cpus=1, max_retries=_NUM_RETRIES)(_do), ray.put((start, arguments))
        pending = dict[Any, str]()
        while True:
            for task in islice(tasks, num_workers + (num_workers + 1) // 2 - len(pending)):
                # Ray does not resolve a reference inside a list, so a worker fetches the shared data only once
                pending[remote.remote([shared], task)] = name(task)
            task = None  # do not keep it alive until the next one comes
            if not pending:
                return
            (reference,), _ = ray.wait(list(pending))
            yield _result(ray, reference, pending.pop(reference))
    finally:
        if is_ours:
            ray.shutdown()


def _result(ray: Any, reference: Any, name: str) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise getattr(error, "cause", None) or error from None
    except ray.exceptions.RayError as error:
        what = str(error).strip().partition("\n")[0]
        raise ChildProcessError(
            f"Ray lost the worker for {name}, and again in {_NUM_RETRIES} retries; run the command again ({what})"
        ) from None


def _do(shared: list[Any], task: Any) -> Any:
    """Run a task in a Ray worker, which keeps its set-up for later tasks."""
    # there is a worker for each processor already; a library's threads would only compete
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if shared[0] not in _started:
        _started.clear()
        start, arguments = _imported_ray().get(shared[0])
        _started[shared[0]] = start(*arguments)
    return _started[shared[0]](task)


def _imported_ray() -> Any:
    # disable Ray's usage reports
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
