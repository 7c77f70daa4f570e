"""Sessions that end before their last step: because time is up, or because a stopping rule is met."""

import errno
import math
import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.training.tiny_sessions import are_equal, draw_batch, run_session, tiny_session, weights_of

from maskloom.errors import ConfigError
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.runs.resuming import verify_resuming
from maskloom.training.events import read_events
from maskloom.training.optimizers import TimeBudget, make_schedule
from maskloom.training.settings import TrainingSection

STEPS = 10**12


class Clock:
    """A clock that advances by one second with every reading."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1.0
        return self.time


class OfOneWeight(MaskedLanguageModeling):
    """An objective that computes next to nothing, since a clock of its own tells the session's time."""

    def loss_sums(self, model, batch):
        return dict.fromkeys(self.target_counts(batch), next(model.parameters()).square().sum())


def _by_clock(folder: Path, seconds: float):
    session = tiny_session(
        folder, objective=OfOneWeight(), steps=STEPS, save_every=None, learning_rate=1e-2, log_every=3
    )
    settings = TrainingSection(schedule="linear", warmup_ratio=0.25)
    session.budget = TimeBudget(seconds, settings, session.ranks, now=Clock())
    session.evaluate = lambda: {"loss": 1.0}
    return session


def test_a_session_ends_with_its_time_and_tells_every_steps_fraction(tmp_path):
    session = _by_clock(tmp_path, 400.0)
    run_session(session)
    events = read_events(tmp_path / "events.jsonl")
    steps = [event for event in events if event["event"] == "step"]
    fractions = [fraction for event in steps for fraction in event["fractions_of_time"]]
    assert len(fractions) == session.state.step > 10
    assert fractions == sorted(fractions)
    assert fractions[0] < 0.06
    assert 0.9 < fractions[-1] <= 1.0
    for event in steps:
        factor = make_schedule("linear", warmup_steps=250, steps=1000)(1000 * event["fractions_of_time"][-1])
        assert event["learning_rate"] == pytest.approx(1e-2 * factor)
    evaluated = [event["step"] for event in events if event["event"] == "evaluation"]
    assert evaluated[-1] == session.state.step
    assert 8 <= len(evaluated) <= 11
    saved = [event["step"] for event in events if event["event"] == "checkpoint"]
    assert saved == evaluated


@pytest.mark.parametrize("rule", ["skip", "rewind"])
def test_a_step_that_was_not_taken_has_no_fraction(tmp_path, rule):
    """It comes between two log lines, and after a rewind so do the steps that were taken twice."""
    bad = draw_batch({"number": 30})[0].mlm_labels.tolist()

    class Planted(OfOneWeight):
        def loss_sums(self, model, batch):
            factor = math.nan if batch.mlm_labels.tolist() == bad else 1.0
            return {name: value * factor for name, value in super().loss_sums(model, batch).items()}

    session = _by_clock(tmp_path, 200.0)
    session.objective, session.settings = Planted(), session.settings.model_copy(update={"on_nonfinite": rule})
    run_session(session)
    events = read_events(tmp_path / "events.jsonl")
    assert [event["action"] for event in events if event["event"] == "nonfinite"] == [rule]
    fractions = [fraction for event in events if event["event"] == "step" for fraction in event["fractions_of_time"]]
    assert len(fractions) == session.state.step > 40
    assert fractions == sorted(fractions)


def test_steps_take_nine_times_as_long_as_the_evaluation_before_them(tmp_path):
    session = _by_clock(tmp_path, 400.0)
    times = []

    def evaluate():
        times.append(session.budget.used())
        session.budget._now.time += 10.0
        return {"loss": 1.0}

    session.evaluate = evaluate
    run_session(session)
    assert times[-1] >= 399.0
    assert len(times) == 4  # at about 40, 170 and 300 of the 400 seconds, and at the end
    assert times[0] < 45.0
    assert all(later - earlier >= 10 * 10.0 for earlier, later in pairwise(times[:-1]))


def test_time_that_was_used_counts_after_a_resume_and_an_end_stays_one(tmp_path):
    first = _by_clock(tmp_path, 40.0)

    def stop(report):
        if report.step == 9:
            raise KeyboardInterrupt

    first.on_step = stop
    with pytest.raises(KeyboardInterrupt):
        run_session(first)
    second = _by_clock(tmp_path, 40.0)
    start = second.resume()
    assert 0 < start < 9
    assert 0.1 < second.budget.used() / 40.0 < 0.7
    run_session(second)
    events = [event for event in read_events(tmp_path / "events.jsonl") if event["event"] == "step"]
    fractions = [fraction for event in events for fraction in event["fractions_of_time"]]
    assert len(fractions) == second.state.step
    assert fractions == sorted(fractions)
    third = _by_clock(tmp_path, 40.0)
    assert third.resume() == second.state.step
    run_session(third)
    assert third.state.step == second.state.step
    assert are_equal(weights_of(third.state), weights_of(second.state))


def test_what_the_clock_led_cannot_be_verified(tmp_path):
    session = _by_clock(tmp_path, 20.0)
    run_session(session)
    again = _by_clock(tmp_path, 20.0)
    with again.log, pytest.raises(ConfigError, match="learning rate that followed the clock"):
        verify_resuming(again)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_replay_copies_no_checkpoint_where_the_file_system_has_links(tmp_path, monkeypatch, has_links):
    """Regression: the checkpoint that the replay starts from was copied, gigabytes for a large model."""
    run_session(tiny_session(tmp_path))
    copied, copy = [], shutil.copyfile

    def copyfile(source, target, **how):
        copied.append(Path(source).name)
        return copy(source, target, **how)

    def link(*_, **__):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    if not has_links:
        monkeypatch.setattr(os, "link", link)
    said: list[str] = []
    again = tiny_session(tmp_path)
    again.say = said.append
    with again.log:
        verify_resuming(again)
    assert "bit-identical" in said[-1]
    assert ("model.safetensors" in copied) != has_links
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "events.jsonl"]
    assert again.resume() == 8


def _until(folder: Path, number: int):
    session = tiny_session(folder, steps=20, save_every=4, evaluate_every=4)

    def evaluate():
        session.memory["number"] = session.memory.get("number", 0) + 1
        return {"loss": 1.0}

    session.evaluate = evaluate
    session.is_enough = lambda: session.memory["number"] >= number
    return session


def test_a_session_that_has_enough_ends_and_stays_ended(tmp_path):
    session = _until(tmp_path, 3)
    run_session(session)
    assert session.state.step == 12
    again = _until(tmp_path, 3)
    assert again.resume() == 12
    run_session(again)
    assert again.state.step == 12
    assert again.memory == {"number": 3}
    whole = tiny_session(tmp_path / "whole", steps=20, save_every=4)
    whole.on_step = lambda report: None
    run_session(whole)
    assert not are_equal(weights_of(whole.state), weights_of(session.state))
