"""The copy of a run's log for TensorBoard, read back by TensorBoard itself."""

import errno
import importlib.util

import pytest
from tests.unit.training.tiny_sessions import tiny_session

from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe, recipe_toml
from maskloom.errors import ConfigError
from maskloom.training.events import EventLog, NoLog, TensorBoardLog, check_log_targets, open_run_log, read_events

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed (the extra tensorboard)"
)
SETTING = ['training.log_to=["tensorboard"]']


def scalars(folder, tag="loss"):
    """Return the points of a tag as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return [(event.step, event.value) for event in read.Scalars(tag)] if tag in read.Tags()["scalars"] else []


def write_step(log, number, loss):
    log.write("step", stage="seed-0", step=number, loss=loss, losses={"mlm": loss}, learning_rate=0.5)


@needs_tensorboard
def test_steps_and_evaluations_are_copied(tmp_path):
    with open_run_log(tmp_path / "events.jsonl", is_first=True, log_to=["tensorboard"]) as log:
        write_step(log, 1, 4.0)
        write_step(log, 2, float("nan"))
        log.write("evaluation", stage="seed-0", step=2, metrics={"accuracy": 0.75})
        log.write("checkpoint", stage="seed-0", step=2, folder="step-2")
    place = tmp_path / "tensorboard" / "seed-0"
    assert scalars(place) == [(1, 4.0)]
    assert scalars(place, "losses/mlm") == [(1, 4.0)]
    assert scalars(place, "learning_rate") == [(1, 0.5), (2, 0.5)]
    assert scalars(place, "evaluation/accuracy") == [(2, 0.75)]


@needs_tensorboard
def test_a_run_that_goes_on_has_every_step_once(tmp_path):
    path = tmp_path / "events.jsonl"
    with TensorBoardLog(path) as stopped:
        for number in range(1, 8):
            write_step(stopped, number, float(number))
    with TensorBoardLog(path) as log:
        log.forget_after("seed-0", 5)
        write_step(log, 6, 60.0)
    expected = [*((number, float(number)) for number in range(1, 6)), (6, 60.0)]
    assert scalars(tmp_path / "tensorboard" / "seed-0") == expected


@needs_tensorboard
def test_a_session_that_is_taken_up_again_has_every_step_once(tmp_path):
    for steps in (5, 8):
        session = tiny_session(tmp_path, steps=steps)
        session.log.close()
        session.log = TensorBoardLog(tmp_path / "events.jsonl")
        session.resume()
        session.run()
        session.log.close()
    found = scalars(tmp_path / "tensorboard" / session.name)
    logged = [(e["step"], e["loss"]) for e in read_events(tmp_path / "events.jsonl") if e["event"] == "step"]
    assert [step for step, _ in found] == list(range(1, 9))
    assert found == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in logged]


@needs_tensorboard
def test_a_full_disk_ends_the_copy_and_not_the_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    with TensorBoardLog(tmp_path / "events.jsonl") as log:
        write_step(log, 1, 1.0)
        monkeypatch.setattr(log._copies["seed-0"], "write", full, raising=False)
        write_step(log, 2, 2.0)
        write_step(log, 3, 3.0)
    events = read_events(tmp_path / "events.jsonl")
    assert [event["event"] for event in events] == ["step", "step", "warning", "step"]
    assert "no space left" in events[2]["text"]
    assert scalars(tmp_path / "tensorboard" / "seed-0") == [(1, 1.0)]


def test_who_logs_and_where(tmp_path):
    path = tmp_path / "events.jsonl"
    assert isinstance(open_run_log(path, is_first=False, log_to=["tensorboard"]), NoLog)
    with open_run_log(path, is_first=True) as log:
        assert type(log) is EventLog


@pytest.mark.parametrize("kind", [PretrainRecipe, FinetuneRecipe])
def test_a_recipe_that_logs_is_read_back(tmp_path, kind):
    recipe = load_recipe(kind, None, SETTING)
    (tmp_path / "recipe.toml").write_text(recipe_toml(recipe))
    assert load_recipe(kind, tmp_path / "recipe.toml") == recipe
    assert recipe.training.log_to == ["tensorboard"]
    assert "log_to" not in recipe_toml(load_recipe(kind, None))


def test_an_absent_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    check_log_targets([])
    with pytest.raises(ConfigError, match=r"pip install 'maskloom\[tensorboard\]'"):
        check_log_targets(["tensorboard"])


def test_nothing_is_read_or_written_before_an_absent_package_is_named(tmp_path, monkeypatch):
    from maskloom.runs.finetune import LabelledFiles, finetune
    from maskloom.runs.pretrain import pretrain
    from maskloom.runs.search import search

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    out, nowhere = tmp_path / "run", tmp_path / "absent"
    labelled = {"model": nowhere, "data": LabelledFiles(nowhere, nowhere), "out": out}
    calls = [
        lambda: pretrain(load_recipe(PretrainRecipe, None, SETTING), corpus=nowhere, out=out),
        lambda: finetune(load_recipe(FinetuneRecipe, None, SETTING), **labelled),
        lambda: search(load_recipe(FinetuneRecipe, None, SETTING), **labelled),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="tensorboard is not installed"):
            call()
    assert not (out / "recipe.toml").exists()
