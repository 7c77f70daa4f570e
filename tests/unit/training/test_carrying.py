"""State that is carried from batch to batch: with micro-batches, checkpoints, bad steps and precisions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.contract.added_carrying import Remembering
from tests.unit.training.tiny_sessions import (
    are_equal,
    draw_batch,
    run_session,
    tiny_session,
    tiny_state,
    weights_of,
)

from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.runs.resuming import verify_resuming
from maskloom.training.loop import evaluate, train_steps
from maskloom.training.precision import in_precision
from maskloom.training.settings import TrainingSection
from tools.replaying import replay_dump


def _trained(num_steps: int, *, next_batch=draw_batch, objective=None, **settings):
    state = tiny_state()
    section = TrainingSection(steps=num_steps, learning_rate=1e-2, **settings)
    reports = list(train_steps(state, objective or Remembering(), next_batch, settings=section, seed=3))
    return state, [report.loss for report in reports]


def test_each_row_goes_on_with_what_it_left():
    state, losses = _trained(5)
    memory, age = state.carry
    assert age.tolist() == [5, 5]
    assert memory.shape == (2, 8)
    assert not memory.requires_grad

    class Forgetting(Remembering):
        def loss_sums(self, model, batch):
            batch.carry = self.first_carry(model, len(batch.lengths))
            return super().loss_sums(model, batch)

    _state, forgetful = _trained(5, objective=Forgetting())
    assert forgetful[0] == losses[0]
    assert forgetful[1] != losses[1]


def test_micro_batches_carry_what_one_batch_does():
    whole, losses = _trained(6)
    parts, split = _trained(6, micro_batch_size=1)
    assert split == pytest.approx(losses, rel=1e-6)
    torch.testing.assert_close(parts.carry, whole.carry, rtol=1e-5, atol=1e-6)


def test_a_run_goes_on_with_it_to_the_bit(tmp_path):
    alone = tiny_session(tmp_path / "alone", objective=Remembering(), steps=8)
    run_session(alone)
    first = tiny_session(tmp_path / "cut", objective=Remembering(), steps=8)
    first.on_step = lambda report: report.step == 6 and (_ for _ in ()).throw(KeyError)
    with pytest.raises(KeyError):
        run_session(first)
    again = tiny_session(tmp_path / "cut", objective=Remembering(), steps=8)
    assert again.resume() == 4
    assert again.state.carry[1].tolist() == [4, 4]
    run_session(again)
    assert are_equal(weights_of(again.state), weights_of(alone.state))
    assert are_equal([*again.state.carry], [*alone.state.carry])
    saved = load_file(alone.checkpoints / "step-00000008" / "carry.safetensors")
    assert torch.equal(saved["0"], alone.state.carry[0])
    said = []
    verified = tiny_session(tmp_path / "cut", objective=Remembering(), steps=8)
    verified.say = said.append
    with verified.log:
        verify_resuming(verified)
    assert sum("identical" in line for line in said) == 4


def test_without_it_nothing_is_written(tmp_path):
    session = tiny_session(tmp_path, steps=2)
    run_session(session)
    assert session.state.carry is None
    assert not (session.checkpoints / "step-00000002" / "carry.safetensors").exists()


@pytest.mark.parametrize("rule", ["skip", "rewind"])
def test_a_step_that_is_not_taken_leaves_it(tmp_path, rule):
    """The batch after the bad one continues from the state of the last good step."""

    class Breaking(Remembering):
        def loss_sums(self, model, batch):
            sums = super().loss_sums(model, batch)
            return {"mlm": sums["mlm"] * (float("nan") if batch.mlm_labels.sum() == bad else 1.0)}

    bad = draw_batch({"number": 3})[0].mlm_labels.sum()
    session = tiny_session(tmp_path, objective=Breaking(), steps=6, on_nonfinite=rule)
    run_session(session)
    assert session.state.carry[1].tolist() == [6, 6]
    assert session.state.position == {"number": {"skip": 7, "rewind": 8}[rule]}
    (dump,) = (tmp_path / "dumps" / "train").iterdir()
    assert load_file(dump / "carry.safetensors")["1"].tolist() == [3, 3]
    replayed = replay_dump(dump, build_model(session.state.model.config), Breaking())
    assert np.isnan(replayed.losses["mlm"])
    kept = replay_dump(dump, build_model(session.state.model.config), Remembering())
    assert np.isfinite(kept.losses["mlm"])


def test_rows_that_begin_anew_begin_with_nothing():
    def beginning(begins):
        def next_batch(position):
            batch, after = draw_batch(position)
            return replace(batch, begins=np.array(begins[position.get("number", 0)])), after

        return next_batch

    state, _ = _trained(3, next_batch=beginning([[False, False], [False, False], [False, True]]))
    assert state.carry[1].tolist() == [3, 1]
    state, _ = _trained(3, next_batch=beginning([[True, True], [False, False], [True, True]]))
    assert state.carry[1].tolist() == [1, 1]


def test_a_batch_of_another_size_is_refused():
    def shrinking(position):
        batch, after = draw_batch(position)
        return (batch.split(1)[0] if position.get("number") == 2 else batch), after

    with pytest.raises(ConfigError, match=r"training\.batch_size: a batch of 1 sequences after one of 2"):
        _trained(3, next_batch=shrinking)


def test_half_precision_and_measured_settings_carry_it_too(tmp_path):
    objective = in_precision(Remembering(), "bf16", torch.device("cpu"))
    state, losses = _trained(4, objective=objective)
    assert state.carry[1].tolist() == [4, 4]
    assert losses == pytest.approx(_trained(4)[1], rel=0.02)
    session = tiny_session(tmp_path, objective=Remembering(), steps=2, precision="fastest", micro_batch_size="auto")
    run_session(session)
    assert session.state.carry[1].tolist() == [2, 2]


def test_evaluation_carries_from_batch_to_batch():
    state = tiny_state()
    batches = [draw_batch({"number": number})[0] for number in range(3)]
    assert evaluate(state.model, Remembering(), iter(batches))["age"] == 2 * (1 + 2 + 3)
    assert state.carry is None


def test_lack_of_memory_in_the_middle_leaves_no_trace():
    whole, losses = _trained(3)
    calls = []

    class Failing(Remembering):
        def loss_sums(self, model, batch):
            calls.append(len(batch.lengths))
            if len(calls) == 2:
                raise MemoryError
            return super().loss_sums(model, batch)

    state, found = _trained(3, objective=Failing())
    assert calls[:4] == [2, 2, 1, 1]
    assert found == pytest.approx(losses, rel=1e-6)
    torch.testing.assert_close(state.carry, whole.carry, rtol=1e-5, atol=1e-6)
