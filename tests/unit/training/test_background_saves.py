"""Saves that a thread writes while training goes on."""

import errno
import os
import shutil
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from maskloom.checkpoints.safetensors_bytes import safetensors_pieces
from maskloom.config import TrainingSection
from maskloom.data.batch import PretrainingBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training import background_saves, checkpoints
from maskloom.training.background_saves import BackgroundSaves
from maskloom.training.checkpoints import restore_checkpoint, verify_checkpoint
from maskloom.training.events import EventLog, read_events
from maskloom.training.interruption import Interrupted
from maskloom.training.loop import TrainState
from maskloom.training.session import TrainingSession

VOCABULARY = 23


def _state(seed: int = 0, **settings) -> TrainState:
    config = BertConfig.of_size(
        "tiny", vocab_size=VOCABULARY, hidden_size=8, num_attention_heads=2, intermediate_size=12, num_hidden_layers=1
    )
    return TrainState.fresh(build_model(config, seed=seed), TrainingSection(**settings))


def _batch(position: dict[str, int]) -> tuple[PretrainingBatch, dict[str, int]]:
    number = position.get("number", 0)
    rng = np.random.default_rng(number)
    batch = PretrainingBatch(
        token_ids=rng.integers(5, VOCABULARY, 12),
        segment_ids=np.zeros(12, dtype=np.int64),
        lengths=np.array([5, 7]),
        mlm_positions=np.array([1, 2, 8]),
        mlm_labels=rng.integers(5, VOCABULARY, 3),
        nsp_labels=rng.integers(0, 2, 2),
    )
    return batch, {"number": number + 1}


def _session(folder: Path, *, next_batch=_batch, seed: int = 0, **settings) -> TrainingSession:
    section = TrainingSection(**{"steps": 8, "save_every": 2, "learning_rate": 1e-2, "log_every": 1, **settings})
    state = _state(seed)
    return TrainingSession(
        state=state,
        objective=MaskedLanguageModeling(),
        next_batch=next_batch,
        settings=section,
        seed=3,
        checkpoints=folder / "checkpoints",
        log=EventLog(folder / "events.jsonl"),
        say=lambda _: None,
    )


def _run(session: TrainingSession) -> None:
    with session.log:
        session.run()


def _weights(state: TrainState) -> list[torch.Tensor]:
    moments = [v for p in state.model.parameters() for v in state.optimizer.state.get(p, {}).values()]
    return [t.detach().clone() for t in (*state.model.parameters(), *moments)]


def _equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class _Gate:
    """Holds every write of a checkpoint until it is opened, and counts how many stand there together."""

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
    state, gate = _state(), _Gate(monkeypatch)
    state.step, state.position, extra = 5, {"number": 5}, {"best": [0.5]}
    expected, whole = _weights(state), []
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
    other = _state(seed=1)
    restored = restore_checkpoint(other, tmp_path)
    assert restored is not None
    assert (restored.step, restored.extra, other.position) == (5, {"best": [0.5]}, {"number": 5})
    assert _equal(_weights(other), expected)


def test_two_saves_never_overlap_and_share_their_buffers(tmp_path, monkeypatch) -> None:
    gate, state = _Gate(monkeypatch), _state()
    gate.open.set()
    places = set()
    with BackgroundSaves(tmp_path, keep=9, on_whole=lambda *_: None) as saves:
        for step in range(1, 6):
            state.step = step
            saves.start(state, {})
            places.add(tuple(buffer.data_ptr() for buffer in saves._buffers.values()))
    assert (gate.calls, gate.most, len(places)) == (5, 1, 1)
    assert [verify_checkpoint(path) for path in sorted(tmp_path.iterdir())] == [None] * 5


def _full_disk(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the second file of a step's checkpoint fill the disk."""
    write = checkpoints.write_hashed

    def full(path: Path, *given, **named):
        if path.parent.name.startswith(f"step-{step:08d}") and path.name == "optimizer.safetensors":
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, *given, **named)

    monkeypatch.setattr(checkpoints, "write_hashed", full)


@pytest.mark.parametrize("failing", [4, 8])
def test_a_failed_write_is_raised_at_the_next_step_and_loses_nothing(tmp_path, monkeypatch, failing: int) -> None:
    futures: list[Future] = []

    class Recording(ThreadPoolExecutor):
        def submit(self, *given, **named):  # pyright: ignore[reportIncompatibleMethodOverride]
            futures.append(super().submit(*given, **named))
            return futures[-1]

    def next_batch(position: dict[str, int]):
        wait(futures)
        return _batch(position)

    monkeypatch.setattr(background_saves, "ThreadPoolExecutor", Recording)
    _full_disk(monkeypatch, failing)
    session = _session(tmp_path, next_batch=next_batch)
    with pytest.raises(OSError, match=f"No space left on device; the checkpoint of step {failing} was not") as caught:
        _run(session)
    assert caught.value.errno == errno.ENOSPC
    assert f"step-{failing:08d}.tmp-" in str(caught.value.filename)
    assert session.state.step == min(failing + 1, 8)
    kept = [f"step-{step:08d}" for step in range(2, failing, 2)][-2:]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == kept
    assert all(verify_checkpoint(tmp_path / "checkpoints" / name) is None for name in kept)
    saved = [event["step"] for event in read_events(tmp_path / "events.jsonl") if event["event"] == "checkpoint"]
    assert saved == list(range(2, failing, 2))


def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "checkpoints").write_text("a file", encoding="utf-8")
    with pytest.raises(OSError, match="the checkpoint of step 2 was not saved") as caught:
        _run(_session(tmp_path))
    assert caught.value.filename == str(tmp_path / "checkpoints")


def test_a_folder_that_vanishes_during_a_write_is_named(tmp_path, monkeypatch) -> None:
    write = checkpoints.write_hashed

    def vanish(path: Path, *given, **named):
        if path.name == "manifest.json":
            shutil.rmtree(path.parent)
        return write(path, *given, **named)

    monkeypatch.setattr(checkpoints, "write_hashed", vanish)
    with pytest.raises(FileNotFoundError, match="the checkpoint of step 2 was not saved"):
        _run(_session(tmp_path))


def test_a_stop_during_a_write_ends_when_the_checkpoint_of_the_stop_step_is_whole(tmp_path, monkeypatch) -> None:
    gate = _Gate(monkeypatch)

    def next_batch(position: dict[str, int]):
        if position.get("number") == 3:
            assert gate.reached.wait(60)
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Timer(0.2, gate.open.set).start()
        return _batch(position)

    session = _session(tmp_path, next_batch=next_batch, save_every=3)
    with pytest.raises(Interrupted):
        _run(session)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000003", "step-00000004"]
    assert verify_checkpoint(tmp_path / "checkpoints" / "step-00000004") is None
    resumed = _session(tmp_path, seed=1)
    assert resumed.resume() == 4
    _run(resumed)
    alone = _session(tmp_path / "alone")
    _run(alone)
    assert _equal(_weights(resumed.state), _weights(alone.state))


def test_an_error_of_training_waits_for_the_write_and_is_not_replaced(tmp_path, monkeypatch) -> None:
    gate = _Gate(monkeypatch)

    def next_batch(position: dict[str, int]):
        if position.get("number") == 3:
            threading.Timer(0.2, gate.open.set).start()
            raise RuntimeError("of training")
        return _batch(position)

    with pytest.raises(RuntimeError, match="of training"):
        _run(_session(tmp_path, next_batch=next_batch))
    assert verify_checkpoint(tmp_path / "checkpoints" / "step-00000002") is None


def test_an_error_of_training_does_not_hide_that_a_write_failed(tmp_path, monkeypatch) -> None:
    _full_disk(monkeypatch, 7)
    state, said = _state(), []
    state.step = 7

    def train() -> None:
        with BackgroundSaves(tmp_path, keep=2, on_whole=lambda *_: None, say=said.append) as saves:
            saves.start(state, {})
            raise RuntimeError("of training")

    with pytest.raises(RuntimeError, match="of training"):
        train()
    assert len(said) == 1
    assert "step 7 was not saved" in said[0]


def test_a_second_ctrl_c_gives_the_write_up_and_leaves_no_half(tmp_path, monkeypatch) -> None:
    state, started, given_up = _state(), threading.Event(), threading.Event()
    pieces = checkpoints.safetensors_pieces

    def slow(tensors):
        for piece in pieces(tensors):
            yield piece
            started.set()
            assert given_up.wait(60)

    monkeypatch.setattr(checkpoints, "safetensors_pieces", slow)

    def train() -> None:
        with BackgroundSaves(tmp_path, keep=2, on_whole=lambda *_: None) as saves:
            saves.start(state, {})
            assert started.wait(60)
            threading.Timer(0.2, given_up.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_a_copy_training_waits_for_the_disk(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(background_saves, "available_memory", lambda: 1000)
    state, said = _state(), []
    with BackgroundSaves(tmp_path, keep=2, on_whole=lambda *_: None, say=said.append) as saves:
        for step in (1, 2):
            state.step = step
            saves.start(state, {})
            assert verify_checkpoint(tmp_path / f"step-{step:08d}") is None
        assert not saves._buffers
    assert len(said) == 1
    assert "stop the training" in said[0]


def test_a_run_without_saves_on_the_way_starts_no_thread_and_keeps_no_copy(tmp_path) -> None:
    before = threading.active_count()
    seen = []
    session = _session(tmp_path, save_every=None)
    session.on_step = lambda report: seen.append(threading.active_count())
    _run(session)
    assert set(seen) == {before}
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000008"]
