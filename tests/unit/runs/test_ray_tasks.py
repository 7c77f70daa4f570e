"""Tasks on Ray, with a cluster that is played: what is repeated, named and given up. The real one: integration."""

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
from maskloom.system.worker_processes import Patience


class TaskError(Exception):
    """Ray's wrapping of what a task raised."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class LostError(Exception):
    """Ray's news that a worker is gone for good."""


class Ray:
    """Does a task when its result is asked for; a task in `hanging` has no result for so many times."""

    exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=LostError)

    def __init__(self, hanging: dict[Any, int], clock: list[float]) -> None:
        self.hanging, self.clock = hanging, clock
        self.most = 0
        self.was_shut_down = False
        self.cancelled: list[Any] = []
        self.numbers = itertools.count()
        self.work: dict[int, Callable[[], Any]] = {}
        self.waits: dict[int, Any] = {}

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
            self.waits[number] = arguments[-1]
            self.most = max(self.most, len(self.work))
            return number

        return lambda function: SimpleNamespace(remote=partial(submit, function))

    def wait(self, references: list[int], **_: Any) -> tuple[list[int], list[int]]:
        self.clock[0] += 1
        ready = [number for number in references if not self.hanging.get(self.waits[number])]
        return ready[:1], ready[1:]

    def cancel(self, reference: int, *, force: bool) -> None:
        assert force
        task = self.waits[reference]
        self.cancelled.append(task)
        self.hanging[task] -= 1
        del self.work[reference]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ray]:
    """A function that plays a cluster in which some tasks hang."""

    def play(**hanging: int) -> Ray:
        clock = [0.0]
        ray = Ray(hanging, clock)
        monkeypatch.setattr(ray_tasks, "_imported_ray", lambda: ray)
        monkeypatch.setattr(ray_tasks.time, "monotonic", lambda: clock[0])
        return ray

    return play


def results(function: Callable[..., Any], tasks: list[Any], **options: Any) -> list[Any]:
    return list(results_of_ray(partial, (function,), iter(tasks), 2, **options))


def test_every_task_is_done_once_and_few_are_in_the_cluster(played: Callable[..., Ray]) -> None:
    ray = played()
    assert results(operator.neg, list(range(20))) == [-number for number in range(20)]
    assert ray.most == 3
    assert ray.was_shut_down


def test_what_a_task_raises_is_raised_as_itself(played: Callable[..., Ray]) -> None:
    def full(_: int) -> None:
        raise TaskError(OSError(28, "No space left on device", "shards"))

    ray = played()
    with pytest.raises(OSError, match="No space left on device: 'shards'") as caught:
        results(full, [1])
    assert caught.value.errno == 28
    assert ray.was_shut_down


def test_a_worker_that_is_lost_for_good_is_named_by_its_task(played: Callable[..., Ray]) -> None:
    def lost(_: int) -> None:
        raise LostError("The node died.\nMore of it.")

    played()
    with pytest.raises(ChildProcessError, match=r"lost its worker at task 1, .*run it again \(The node died\.\)"):
        results(lost, [1], name=lambda task: f"task {task}")


def test_a_task_that_hangs_is_named_and_given_to_another(
    played: Callable[..., Ray], caplog: pytest.LogCaptureFixture
) -> None:
    ray = played(b=1)
    found = results(str.upper, ["a", "b", "c"], patience=Patience(named_after=20, ended_after=60))
    assert sorted(found) == ["A", "B", "C"]
    assert ray.cancelled == ["b"]
    assert caplog.messages == [
        "Ray has had b for 20 seconds; 1 processors are free",
        "Ray: the worker at b hung for 60 seconds; another does that again",
    ]


def test_a_task_that_hangs_twice_ends_the_work(played: Callable[..., Ray]) -> None:
    ray = played(b=2)
    with pytest.raises(ChildProcessError, match="the second worker at b hung for 60 seconds"):
        results(str.upper, ["a", "b"])
    assert ray.was_shut_down


def test_who_does_the_tasks_is_chosen_by_name(played: Callable[..., Ray], monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_engine("local") is None
    with pytest.raises(ConfigError, match=r"--ray-address head:1 is of use with --engine ray only"):
        chosen_engine("local", "head:1")
    ray = played()
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
