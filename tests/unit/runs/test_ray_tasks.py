"""Tasks on a simulated Ray cluster: what is done, raised and given up. The integration tests use a real one."""

import itertools
import operator
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from maskloom.errors import ConfigError
from maskloom.runs import ray_tasks
from maskloom.runs.ray_tasks import chosen_engine, results_of_ray


class TaskError(Exception):
    """Ray's wrapper around an exception that a task raised."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class LostError(Exception):
    """Ray's report that a worker is lost for good."""


class Ray:
    """Runs each task when its result is requested."""

    exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=LostError)

    def __init__(self) -> None:
        self.most = 0
        self.was_shut_down = False
        self.numbers = itertools.count()
        self.work: dict[int, Callable[[], Any]] = {}

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        assert options["address"] in ("local", "cluster:1")

    def shutdown(self) -> None:
        self.was_shut_down = True

    def put(self, value: Any) -> Any:
        return value

    def get(self, reference: Any) -> Any:
        return self.work.pop(reference)() if isinstance(reference, int) else reference

    def remote(self, **options: Any) -> Any:
        assert options["max_retries"] == 3

        def submit(function: Callable[..., Any], *arguments: Any) -> int:
            number = next(self.numbers)
            self.work[number] = partial(function, *arguments)
            self.most = max(self.most, len(self.work))
            return number

        return lambda function: SimpleNamespace(remote=partial(submit, function))

    def wait(self, references: list[int]) -> tuple[list[int], list[int]]:
        return references[:1], references[1:]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    """A simulated cluster."""
    ray = Ray()
    monkeypatch.setattr(ray_tasks, "_imported_ray", lambda: ray)
    return ray


def results(function: Callable[..., Any], tasks: list[Any], **options: Any) -> list[Any]:
    return list(results_of_ray(partial, (function,), iter(tasks), 2, **options))


def test_every_task_is_done_once_and_few_are_in_the_cluster(ray: Ray) -> None:
    assert results(operator.neg, list(range(20))) == [-number for number in range(20)]
    assert ray.most == 3
    assert ray.was_shut_down


def test_what_a_task_raises_is_raised_as_itself(ray: Ray) -> None:
    def full(_: int) -> None:
        raise TaskError(OSError(28, "No space left on device", "shards"))

    with pytest.raises(OSError, match="No space left on device: 'shards'") as caught:
        results(full, [1])
    assert caught.value.errno == 28
    assert ray.was_shut_down


def test_a_worker_that_is_lost_for_good_is_named_by_its_task(ray: Ray) -> None:
    def lost(_: int) -> None:
        raise LostError("The node died.\nMore of it.")

    message = r"lost the worker for task 1, .*run the command again \(The node died\.\)"
    with pytest.raises(ChildProcessError, match=message):
        results(lost, [1], name=lambda task: f"task {task}")


def test_who_does_the_tasks_is_chosen_by_name(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_engine("local") is None
    with pytest.raises(ConfigError, match=r"--ray-address head:1 needs --engine ray"):
        chosen_engine("local", "head:1")
    engine = chosen_engine("ray", "cluster:1")
    assert engine is not None
    assert list(engine(partial, (operator.neg,), iter([3]), 1)) == [-3]

    def refuse(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ConfigError, match=r"--ray-address cluster:1: no Ray cluster answers there \(Could not find"):
        list(engine(partial, (operator.neg,), iter([3]), 1))


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ray_tasks.importlib.sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"--engine ray needs Ray: pip install 'maskloom\[ray\]'"):
        chosen_engine("ray")
