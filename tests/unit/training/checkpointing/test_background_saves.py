"""Checkpoints that a thread writes while training goes on."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from tests.unit.training.tiny_sessions import (
    are_equal,
    draw_batch,
    run_session,
    tiny_session,
    tiny_state,
    weights_of,
    whole_names,
)
from torch.overrides import TorchFunctionMode

from maskloom.checkpoints.tensor_files import safetensors_pieces
from maskloom.training.checkpointing import background_saves, checkpoints
from maskloom.training.checkpointing.background_saves import BackgroundSaves
from maskloom.training.checkpointing.checkpoints import restore_checkpoint
from maskloom.training.faults.interruption import Interrupted
from maskloom.training.session import TrainingSession
from tools.checking import verify_checkpoint


class _Gate:
    """Blocks every checkpoint write until opened, and counts how many wait simultaneously."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.inside = self.most = self.calls = 0
        write = checkpoints.write_checkpoint

        def held(*given, **named) -> Path:
            self.calls += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.reached.set()
            assert self.open.wait(60)
            try:
                return write(*given, **named)
            finally:
                self.inside -= 1

        monkeypatch.setattr(background_saves, "write_checkpoint", held)


def test_a_file_has_the_bytes_of_the_safetensors_library() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "b.weight": torch.randn(3, 4, generator=generator),
        "a": torch.randn((), generator=generator),
        "long": torch.arange(5),
        "half": torch.randn(3, generator=generator).to(torch.bfloat16),
        "é": torch.zeros(0, 2),
        "turned": torch.randn(3, 4, generator=generator).T,
        "flag": torch.tensor([True, False, True]),
    }
    written = b"".join(bytes(piece) for piece in safetensors_pieces(tensors))
    assert written == save({name: tensor.contiguous() for name, tensor in tensors.items()})


def test_training_goes_on_while_a_checkpoint_of_the_asked_step_is_written(tmp_path, monkeypatch) -> None:
    state, gate = tiny_state(), _Gate(monkeypatch)
    state.step, state.position, extra = 5, {"number": 5}, {"best": [0.5]}
    expected, whole = weights_of(state), []
    with BackgroundSaves(tmp_path, keep=2, on_whole=lambda step, path: whole.append((step, path.name))) as saves:
        saves.start(state, extra)
        assert gate.reached.wait(60)
        with torch.no_grad():
            for parameter in state.model.parameters():
                parameter.add_(1.0)
        state.step, state.position = 6, {"number": 6}
        extra["best"].append(0.7)
        saves.check()
        assert not whole
        assert not list(tmp_path.glob("step-*"))
        gate.open.set()
    assert whole == [(5, "step-00000005")]
    other = tiny_state(seed=1)
    restored = restore_checkpoint(other, tmp_path)
    assert restored is not None
    assert (restored.step, restored.extra, other.position) == (5, {"best": [0.5]}, {"number": 5})
    assert are_equal(weights_of(other), expected)


def test_two_saves_never_overlap_and_share_their_buffers(tmp_path, monkeypatch) -> None:
    gate, state = _Gate(monkeypatch), tiny_state()
    gate.open.set()
    places = set()
    with BackgroundSaves(tmp_path, keep=9, on_whole=lambda *_: None) as saves:
        for step in range(1, 6):
            state.step = step
            saves.start(state, {})
            places.add(tuple(buffer.data_ptr() for buffer in saves._buffers.values()))
    assert (gate.calls, gate.most, len(places)) == (5, 1, 1)
    assert [verify_checkpoint(path) for path in sorted(tmp_path.iterdir())] == [None] * 5


def test_the_next_save_copies_nothing_until_the_one_before_is_on_disk(tmp_path, monkeypatch) -> None:
    gate, state, early = _Gate(monkeypatch), tiny_state(), []

    class Watched(BackgroundSaves):
        def _copied(self, snapshot):
            early.append(gate.inside)
            return super()._copied(snapshot)

    with Watched(tmp_path, keep=9, on_whole=lambda *_: None) as saves:
        saves.start(state, {})
        assert gate.reached.wait(60)
        threading.Timer(0.2, gate.open.set).start()
        state.step = 1
        saves.start(state, {})
    assert early == [0, 0]


def test_the_checkpoint_of_the_best_evaluation_is_kept_beside_the_newest(tmp_path) -> None:
    scores = {1: 0.1, 3: 0.9, 5: 0.3, 7: 0.9, 8: float("nan")}

    def session() -> TrainingSession:
        chosen = tiny_session(tmp_path, steps=8, save_every=2, evaluate_every=2, keep_best=True)
        chosen.settings = chosen.settings.model_copy(update={"evaluate_every": 1})
        chosen.evaluate = lambda: {"score": scores.get(chosen.state.step, 0.0)}
        chosen.score = lambda metrics: metrics["score"]
        return chosen

    first = session()
    run_session(first)
    assert whole_names(tmp_path) == ["step-00000003", "step-00000006", "step-00000008"]
    assert first.memory["kept"] == {"step": 3, "score": 0.9}
    resumed = session()
    with resumed.log:
        assert resumed.resume() == 8
    assert resumed.memory["kept"] == {"step": 3, "score": 0.9}


def test_a_stop_during_a_write_ends_when_the_checkpoint_of_the_stop_step_is_whole(tmp_path, monkeypatch) -> None:
    gate = _Gate(monkeypatch)

    def next_batch(position: dict[str, int]):
        if position.get("number") == 3:
            assert gate.reached.wait(60)
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Timer(0.2, gate.open.set).start()
        return draw_batch(position)

    session = tiny_session(tmp_path, next_batch=next_batch, save_every=3)
    with pytest.raises(Interrupted):
        run_session(session)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000003", "step-00000004"]
    assert verify_checkpoint(tmp_path / "checkpoints" / "step-00000004") is None
    resumed = tiny_session(tmp_path, seed=1)
    assert resumed.resume() == 4
    run_session(resumed)
    alone = tiny_session(tmp_path / "alone")
    run_session(alone)
    assert are_equal(weights_of(resumed.state), weights_of(alone.state))


def test_an_error_of_training_waits_for_the_write_and_is_not_replaced(tmp_path, monkeypatch) -> None:
    gate = _Gate(monkeypatch)

    def next_batch(position: dict[str, int]):
        if position.get("number") == 3:
            threading.Timer(0.2, gate.open.set).start()
            raise RuntimeError("of training")
        return draw_batch(position)

    with pytest.raises(RuntimeError, match="of training"):
        run_session(tiny_session(tmp_path, next_batch=next_batch))
    assert verify_checkpoint(tmp_path / "checkpoints" / "step-00000002") is None


def test_without_room_for_a_copy_training_waits_for_the_disk(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(background_saves, "available_memory", lambda: 1000)
    state, said = tiny_state(), []
    with BackgroundSaves(tmp_path, keep=2, on_whole=lambda *_: None, say=said.append) as saves:
        for step in (1, 2):
            state.step = step
            saves.start(state, {})
            assert verify_checkpoint(tmp_path / f"step-{step:08d}") is None
        assert not saves._buffers
    assert len(said) == 1
    assert "training waits until each save is on disk" in said[0]


def test_a_run_without_saves_on_the_way_starts_no_thread_and_keeps_no_copy(tmp_path) -> None:
    seen = []
    session = tiny_session(tmp_path, save_every=None)
    session.on_step = lambda report: seen.extend(thread.name for thread in threading.enumerate())
    run_session(session)
    assert seen
    assert not [name for name in seen if name.startswith("checkpoint")]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000008"]


def test_copies_are_waited_for_on_the_device_of_the_weights(tmp_path, monkeypatch) -> None:
    """A process on cuda:1 may have cuda:0 as its current device."""

    class OfSecondGpu:
        device, is_cuda = torch.device("cuda", 1), True

    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    monkeypatch.setattr(BackgroundSaves, "_copy", lambda self, key, tensor: torch.zeros(1))
    saves = BackgroundSaves(tmp_path, keep=1, on_whole=lambda step, path: None)
    snapshot = checkpoints.Snapshot.of(tiny_state(), {})
    saves._copied(replace(snapshot, model=dict.fromkeys(snapshot.model, OfSecondGpu())))
    assert waited == [torch.device("cuda", 1)]


def test_only_a_copy_that_is_waited_for_runs_asynchronously(tmp_path) -> None:
    """MPS would not wait for an asynchronous copy; any device but CUDA behaves as this one does."""
    asked = []

    class Watched(TorchFunctionMode):
        def __torch_function__(self, function, types, given=(), named=None):
            if function is torch.Tensor.copy_:
                asked.append((named or {}).get("non_blocking", False))
            return function(*given, **(named or {}))

    saves = BackgroundSaves(tmp_path, keep=1, on_whole=lambda step, path: None)
    snapshot = checkpoints.Snapshot.of(tiny_state(), {})
    with Watched():
        saves._copied(snapshot)
    assert asked == [False] * len(snapshot.model)
