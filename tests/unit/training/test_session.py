"""What a training session does about bad numbers, exhausted memory and interruptions."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.unit.training.tiny_sessions import VOCABULARY, are_equal, run_session, tiny_session, weights_of

from maskloom.data.batch import PretrainingBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.checkpointing.checkpoints import restore_checkpoint
from maskloom.training.events import EventLog, read_events
from maskloom.training.faults.interruption import Interrupted
from maskloom.training.faults.memory import MemoryExhaustedError
from maskloom.training.faults.nonfinite import NumericalError
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.session import TrainingSession
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

NO_MEMORY = (
    MemoryError("no room"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] data. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
)


class Planted(MaskedLanguageModeling):
    """An objective whose losses are NaN for batches that contain a sequence of six tokens."""

    def loss_sums(self, model, batch):
        sums = super().loss_sums(model, batch)
        return {name: value * float("nan") if 6 in batch.lengths else value for name, value in sums.items()}


class Hungry(MaskedLanguageModeling):
    """An objective that runs out of memory, after some work, on more than `most` sequences in one call."""

    def __init__(self, most: int, error: Exception) -> None:
        super().__init__()
        self.__dict__.update(most=most, error=error, asked=[])

    def loss_sums(self, model, batch):
        self.__dict__["asked"].append(batch.num_sequences)
        sums = super().loss_sums(model, batch)
        if batch.num_sequences > self.__dict__["most"]:
            torch.stack(list(sums.values())).sum().backward()
            raise self.__dict__["error"]
        return sums


def _state(seed: int = 0, dropout: float = 0.1, **settings) -> TrainState:
    config = BertConfig.of_size(
        "tiny",
        vocab_size=VOCABULARY,
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=12,
        num_hidden_layers=1,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return TrainState.fresh(build_model(config, seed=seed), TrainingSection(**settings))


def _batch(number: int, *, is_bad: bool = False) -> PretrainingBatch:
    rng = np.random.default_rng(number)
    lengths = np.array([5, 5, 5, 5, 6 if is_bad else 5])
    return PretrainingBatch(
        token_ids=rng.integers(5, VOCABULARY, lengths.sum()),
        segment_ids=np.zeros(lengths.sum(), dtype=np.int64),
        lengths=lengths,
        mlm_positions=np.array([1, 6, 7, 16, 21]),
        mlm_labels=rng.integers(5, VOCABULARY, 5),
        nsp_labels=rng.integers(0, 2, 5),
    )


def _stream(bad: set[int] = frozenset(), left_out: set[int] = frozenset()):  # pyright: ignore[reportArgumentType]
    """Return a function that draws batches 0, 1, 2, ..., some of them bad, and silently skips some."""

    def next_batch(position: dict[str, int]) -> tuple[PretrainingBatch, dict[str, int]]:
        number = position.get("number", 0)
        while number in left_out:
            number += 1
        return _batch(number, is_bad=number in bad), {"number": number + 1}

    return next_batch


def _session(folder: Path, next_batch=None, *, objective=None, seed: int = 0, dropout: float = 0.1, **settings) -> Any:
    section = TrainingSection(**{"steps": 8, "save_every": 2, "learning_rate": 1e-2, "log_every": 1, **settings})
    said: list[str] = []
    session: Any = TrainingSession(
        state=_state(seed, dropout),
        objective=objective or MaskedLanguageModeling(),
        next_batch=next_batch or _stream(),
        settings=section,
        seed=3,
        checkpoints=folder / "checkpoints",
        log=EventLog(folder / "events.jsonl"),
        say=said.append,
    )
    session.said = said
    _LOGS.append(session.log)
    return session


_LOGS: list[EventLog] = []


@pytest.fixture(autouse=True)
def _logs_are_closed():
    yield
    while _LOGS:
        _LOGS.pop().close()


def _equal(first: TrainState, second: TrainState) -> bool:
    same_place = (first.step, first.position) == (second.step, second.position)
    return same_place and are_equal(weights_of(first), weights_of(second))


def _events(folder: Path, kind: str) -> list[dict]:
    return [event for event in read_events(folder / "events.jsonl") if event["event"] == kind]


def _trained(folder: Path, *given, **named) -> Any:
    session = _session(folder, *given, **named)
    session.run()
    return session


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> TrainState:
    """The state after a run to which nothing happened."""
    return _trained(tmp_path_factory.mktemp("undisturbed")).state


@pytest.fixture(scope="module")
def steps_of_plenty(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """The steps of a run without dropout whose memory suffices."""
    folder = tmp_path_factory.mktemp("plenty")
    _trained(folder, dropout=0.0, steps=3)
    return _events(folder, "step")


def test_a_step_that_is_not_finite_stops_the_run_and_changes_nothing(tmp_path: Path) -> None:
    session = _session(tmp_path, _stream({4}), objective=Planted())
    with pytest.raises(NumericalError, match=r"step 5: loss nan.*Batch and weights: .*dumps/train/step-00000005"):
        session.run()
    reference = _state()
    restored = restore_checkpoint(reference, tmp_path / "checkpoints")
    assert restored is not None
    assert _equal(session.state, reference)
    assert session.state.step == 4
    (event,) = _events(tmp_path, "nonfinite")
    assert (event["step"], event["action"], event["loss"], event["position"]) == (5, "stop", None, {"number": 4})
    assert (tmp_path / "dumps" / "train" / "step-00000005-4" / "report.json").exists()
    assert [event["step"] for event in _events(tmp_path, "step")] == [1, 2, 3, 4]


def test_skipped_batches_leave_the_run_that_never_had_them(tmp_path: Path) -> None:
    bad = {0, 4, 5, 9}
    session = _trained(tmp_path, _stream(bad), objective=Planted(), on_nonfinite="skip", max_skips=2)
    assert _equal(session.state, _trained(tmp_path / "clean", _stream(left_out=bad)).state)
    assert [event["position"]["number"] for event in _events(tmp_path, "nonfinite") if event["position"]] == [4, 5, 9]
    assert [event["step"] for event in _events(tmp_path, "step")] == list(range(1, 9))
    assert len([text for text in session.said if "warning" in text and "loss nan" in text]) == 4


def test_more_bad_batches_in_a_row_than_may_be_skipped_stop_the_run(tmp_path: Path) -> None:
    session = _session(tmp_path, _stream({2, 4, 5, 6}), objective=Planted(), on_nonfinite="skip", max_skips=2)
    with pytest.raises(NumericalError, match="step 4: loss nan"):
        session.run()
    actions = [(event["position"]["number"], event["action"]) for event in _events(tmp_path, "nonfinite")]
    assert actions == [(2, "skip"), (4, "skip"), (5, "skip"), (6, "stop")]


def test_a_rewind_goes_back_to_the_checkpoint_and_on_behind_the_bad_batch(tmp_path: Path) -> None:
    session = _trained(tmp_path, _stream({5}), objective=Planted(), on_nonfinite="rewind")
    expected = _trained(tmp_path / "clean", _stream(left_out={4, 5}))
    assert _equal(session.state, expected.state)
    assert [event["step"] for event in _events(tmp_path, "step")] == list(range(1, 9))
    (event,) = _events(tmp_path, "nonfinite")
    assert (event["step"], event["action"]) == (6, "rewind")
    losses = [[event["loss"] for event in _events(folder, "step")] for folder in (tmp_path, tmp_path / "clean")]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("rule", ["skip", "rewind"])
def test_a_bad_batch_leaves_the_loss_scale_and_the_steps_that_it_has_held_for(tmp_path: Path, rule: str) -> None:
    """A scale of 1 would take 32,000 steps to grow to the first one again; a rewind takes that of the checkpoint."""
    session = _session(tmp_path, _stream({5}), objective=Planted(), on_nonfinite=rule, precision="fp16")
    session.state.loss_scale = (2.0**10, 0)
    session.run()
    assert session.state.step == 8
    assert session.state.loss_scale == (2.0**10, 8)


def test_a_rewind_before_the_first_save_goes_back_to_the_start(tmp_path: Path) -> None:
    session = _trained(tmp_path, _stream({1}), objective=Planted(), on_nonfinite="rewind", save_every=4)
    assert _equal(session.state, _trained(tmp_path / "clean", _stream(left_out={0, 1}), save_every=4).state)


def test_rewinds_are_counted_over_a_resume(tmp_path: Path) -> None:
    stream, rules = _stream({1, 5, 9}), {"on_nonfinite": "rewind", "max_skips": 2, "save_every": 1}

    def stopping(position: dict[str, int]):
        if position.get("number") == 7:
            os.kill(os.getpid(), signal.SIGUSR1)
        return stream(position)

    with pytest.raises(Interrupted):
        _session(tmp_path, stopping, objective=Planted(), **rules).run()
    resumed = _session(tmp_path, stream, objective=Planted(), seed=1, **rules)
    resumed.resume()
    with pytest.raises(NumericalError, match="loss nan"):
        resumed.run()
    assert [event["action"] for event in _events(tmp_path, "nonfinite")] == ["rewind", "rewind", "stop"]


@pytest.mark.parametrize("faster", ["fp32", "bf16"])
def test_the_faster_precision_is_found_once_said_and_kept_by_a_resume(tmp_path: Path, monkeypatch, faster: str) -> None:
    asked = []
    monkeypatch.setattr("maskloom.training.session.fastest_precision", lambda *_: asked.append(1) or faster)
    stated = _session(tmp_path / "stated", steps=4, precision=faster)
    stated.run()
    session = _session(tmp_path / "found", steps=4, precision="fastest")
    session.run()
    assert f"precision: {faster} is faster here" in session.said
    shutil.rmtree(max((tmp_path / "found" / "checkpoints").iterdir()))
    again = _session(tmp_path / "found", steps=4, precision="fastest")
    assert again.resume() == 2
    again.run()
    assert asked == [1]
    assert _equal(again.state, stated.state)


def test_micro_batches_that_fit_are_found_once_said_and_kept_by_a_resume(tmp_path: Path, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr("maskloom.training.session.fitting_micro_batch_size", lambda *_: asked.append(1) or 1)
    _session(tmp_path / "plain", steps=3).run()
    session = _session(tmp_path / "auto", steps=3, micro_batch_size="auto")
    session.run()
    assert "micro-batches of 1 sequences fit into memory" in session.said
    assert session.state.micro_batch_size == 1
    assert not _events(tmp_path / "auto", "out_of_memory")
    losses = [[event["loss"] for event in _events(tmp_path / name, "step")] for name in ("plain", "auto")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    again = _session(tmp_path / "auto", steps=4, micro_batch_size="auto")
    again.resume()
    again.run()
    assert (again.state.step, asked) == (4, [1])


@pytest.mark.parametrize("error", NO_MEMORY, ids=["processor", "accelerator", "torch", "cublas"])
def test_micro_batches_are_halved_until_they_fit_and_the_losses_stay(
    tmp_path: Path, steps_of_plenty: list[dict], error: Exception
) -> None:
    objective = Hungry(1, error)
    session = _trained(tmp_path, objective=objective, dropout=0.0, steps=3)
    found = _events(tmp_path, "step")
    assert len(found) == 3
    for name, tolerance in (("loss", 1e-6), ("gradient_norm", 1e-5)):
        expected = [step[name] for step in steps_of_plenty]
        assert [step[name] for step in found] == pytest.approx(expected, rel=tolerance)
    assert objective.__dict__["asked"][:4] == [5, 3, 2, 1]
    assert [(e["step"], e["micro_batch_size"]) for e in _events(tmp_path, "out_of_memory")] == [(1, 1)]
    assert len([text for text in session.said if "memory ran out" in text]) == 1


def test_what_a_killed_run_had_no_time_to_remove_goes_when_it_is_resumed(tmp_path: Path) -> None:
    run_session(tiny_session(tmp_path, keep_checkpoints=3))
    kept = tmp_path / "checkpoints"
    assert sorted(path.name[-1] for path in kept.iterdir()) == ["4", "6", "8"]
    (kept / "step-00000008" / "manifest.json").unlink()
    resumed = tiny_session(tmp_path, keep_checkpoints=1)
    with resumed.log:
        assert resumed.resume() == 6
    assert sorted(path.name[-1] for path in kept.iterdir()) == ["6", "8"]


def test_the_size_that_fits_is_remembered_by_checkpoints(tmp_path: Path) -> None:
    def stopping(position: dict[str, int]):
        if position.get("number") == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return _stream()(position)

    with pytest.raises(Interrupted):
        _session(tmp_path, stopping, objective=Hungry(2, MemoryError()), steps=6).run()
    objective = Hungry(2, MemoryError())
    resumed = _session(tmp_path, objective=objective, seed=1, steps=6)
    assert resumed.resume() == 4
    resumed.run()
    assert set(objective.__dict__["asked"]) == {1, 2}
    assert not [text for text in resumed.said if "memory ran out" in text]
    assert _equal(resumed.state, _trained(tmp_path / "alone", objective=Hungry(2, MemoryError()), steps=6).state)


def test_memory_that_does_not_suffice_for_one_sequence_is_a_clear_stop(tmp_path: Path) -> None:
    session = _session(tmp_path, objective=Hungry(0, MemoryError()), micro_batch_size=2)
    with pytest.raises(MemoryExhaustedError, match=r"step 1: .* one sequence .*data\.max_length"):
        session.run()
    assert session.state.step == 0
    assert _equal(session.state, _state())


def test_other_errors_of_a_step_are_not_taken_for_a_lack_of_memory(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        _session(tmp_path, objective=Hungry(1, RuntimeError("shapes do not match"))).run()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_a_signal_is_answered_after_the_step_with_a_save(tmp_path: Path, undisturbed: TrainState, name: str) -> None:
    number = getattr(signal, name)

    def stopping(position: dict[str, int]):
        if position.get("number") == 2:
            os.kill(os.getpid(), number)
        return _stream()(position)

    session = _session(tmp_path, stopping)
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        session.run()
    assert caught.value.exit_code == (130 if name == "SIGINT" else 75)
    assert signal.getsignal(number) == before
    assert any(f"{name} received: saving step 3" in text for text in session.said)
    resumed = _session(tmp_path, seed=1)
    assert resumed.resume() == 3
    resumed.run()
    assert _equal(resumed.state, undisturbed)


@pytest.mark.parametrize(("stop_at", "world_size"), [(4, 1), (8, 1), (4, 2)])
def test_a_signal_ends_an_evaluation_which_the_resumed_run_makes_up_for(
    tmp_path: Path, stop_at: int, world_size: int
) -> None:
    def evaluating(session: Any, stops: bool = False) -> Any:
        def evaluate() -> dict[str, float]:
            if stops and session.state.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
                raise AssertionError("the signal came too late")
            session.memory.setdefault("evaluated", []).append(session.state.step)
            return {"score": 1.0}

        session.evaluate, session.ranks = evaluate, Ranks(world_size=world_size)
        return session

    with pytest.raises(Interrupted):
        evaluating(_session(tmp_path, evaluate_every=2), stops=True).run()
    killed = evaluating(_session(tmp_path, seed=3, evaluate_every=2))  # after it has logged the evaluation
    killed.on_metrics = Mock(side_effect=KeyboardInterrupt)
    killed.resume()
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    resumed = evaluating(_session(tmp_path, seed=1, evaluate_every=2))
    assert resumed.resume() == stop_at
    resumed.run()
    assert resumed.memory["evaluated"] == [2, 4, 6, 8]
    assert [event["step"] for event in _events(tmp_path, "evaluation")] == [2, 4, 6, 8]
    again = _session(tmp_path, seed=2, evaluate_every=2)
    assert again.resume() == 8
    again.run()
    assert again.memory["evaluated"] == [2, 4, 6, 8]


def test_only_what_an_evaluation_found_is_told(tmp_path: Path) -> None:
    for found, told in (({"loss": 1.0}, 4), ({}, 0)):
        session, seen = _session(tmp_path / str(told), steps=4, evaluate_every=1), []
        session.evaluate = lambda found=found: found
        session.on_metrics = lambda step, metrics, seen=seen: seen.append((step, metrics))
        session.run()
        assert len(seen) == told


def test_a_spike_is_said_and_logged_and_does_not_stop(tmp_path: Path) -> None:
    class Spiking(MaskedLanguageModeling):
        def loss_sums(self, model, batch):
            sums = super().loss_sums(model, batch)
            return {name: value * 100.0 if 6 in batch.lengths else value for name, value in sums.items()}

    session = _trained(tmp_path, _stream({30}), objective=Spiking(), steps=35, learning_rate=1e-4, save_every=None)
    (event,) = _events(tmp_path, "warning")
    assert (event["step"], event["kind"]) == (31, "spike")
    assert len([text for text in session.said if "standard deviations" in text]) == 1
