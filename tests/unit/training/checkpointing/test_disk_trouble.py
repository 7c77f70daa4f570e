"""A full, broken, read-only or vanished disk during a run: nothing that was saved is lost."""

import errno
import math
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from tests.unit.training.tiny_sessions import (
    are_equal,
    draw_batch,
    run_session,
    saved_steps,
    tiny_session,
    tiny_state,
    weights_of,
    whole_names,
)

from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.runs.model_writing import write_best_model
from maskloom.system.files import DISK_ERRORS
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from maskloom.training.checkpointing import background_saves, checkpoints
from maskloom.training.checkpointing.background_saves import BackgroundSaves


def fill_disk(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Make the second file of a step's checkpoint, the optimizer's, fill the disk."""
    write = checkpoints.write_hashed

    def full(path: Path, *given, **named):
        if path.parent.name.startswith(f"step-{step:08d}") and path.name == "optimizer.safetensors":
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, *given, **named)

    monkeypatch.setattr(checkpoints, "write_hashed", full)


@pytest.fixture
def prompt(monkeypatch):
    """Return a batch function that waits for all writes to end before it draws the next batch."""
    futures: list[Future] = []

    class Recording(ThreadPoolExecutor):
        def submit(self, *given, **named):  # pyright: ignore[reportIncompatibleMethodOverride]
            futures.append(super().submit(*given, **named))
            return futures[-1]

    def next_batch(position: dict[str, int]):
        wait(futures)
        return draw_batch(position)

    monkeypatch.setattr(background_saves, "ThreadPoolExecutor", Recording)
    return next_batch


def test_one_failed_write_is_said_at_the_next_step_and_training_goes_on(tmp_path, monkeypatch, prompt) -> None:
    fill_disk(monkeypatch, 4)
    said: list[tuple[int, str]] = []
    session = tiny_session(tmp_path, next_batch=prompt)
    session.say = lambda message: said.append((session.state.step, message))
    run_session(session)
    assert [step for step, _ in said] == [5]
    assert "No space left on device; the checkpoint of step 4 was not saved; earlier ones are intact" in said[0][1]
    assert saved_steps(tmp_path) == [2, 6, 8]
    assert whole_names(tmp_path) == ["step-00000006", "step-00000008"]
    alone = tiny_session(tmp_path / "alone")
    run_session(alone)
    assert are_equal(weights_of(session.state), weights_of(alone.state))


def test_a_rewind_outlives_one_failed_write_too(tmp_path, monkeypatch, prompt) -> None:
    """The write of step 4 has failed by the time of the bad step 5, and nothing has asked for it yet."""
    fill_disk(monkeypatch, 4)
    bad = draw_batch({"number": 4})[0].mlm_labels.tolist()

    class Planted(MaskedLanguageModeling):
        def loss_sums(self, model, batch):
            factor = math.nan if batch.mlm_labels.tolist() == bad else 1.0
            return {name: value * factor for name, value in super().loss_sums(model, batch).items()}

    said = []

    def say(message: str) -> None:
        said.append(message)
        monkeypatch.undo()  # there is room again

    session = tiny_session(tmp_path, next_batch=prompt, objective=Planted(), on_nonfinite="rewind")
    session.say = say
    run_session(session)
    assert "step 5: loss nan" in said[0]
    assert "the checkpoint of step 4 was not saved" in said[1]
    assert saved_steps(tmp_path) == [0, 2, 4, 6, 8]
    assert session.state.position == {"number": 11}  # from step 2 on, after the fifth batch


@pytest.mark.parametrize(("save_every", "rest"), [(2, [6, 8]), (8, [8])], ids=["a save in between", "none"])
@pytest.mark.parametrize(("later", "kept"), [(0.4, 1), (0.7, 5)])
def test_the_best_checkpoint_stays_until_a_better_one_is_on_disk(
    tmp_path, monkeypatch, prompt, later: float, kept: int, save_every: int, rest: list[int]
) -> None:
    scores = {1: 0.5, 3: 0.9, 5: later}
    fill_disk(monkeypatch, 3)
    session = tiny_session(tmp_path, next_batch=prompt, save_every=save_every, evaluate_every=1, keep_best=True)
    session.evaluate = lambda: {"score": scores.get(session.state.step, 0.0)}
    session.score = lambda metrics: metrics["score"]
    run_session(session)
    assert whole_names(tmp_path) == [f"step-{step:08d}" for step in (kept, *rest)]
    assert session.memory["kept"] == {"step": kept, "score": scores[kept]}
    model, tokenizer = session.state.model, WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, *"abcdefghijklmnopqr"]))
    assert write_best_model(model, session.checkpoints, tokenizer, tmp_path / "best-model") == kept


@pytest.mark.parametrize("failing", [(4, 6), (8,)], ids=["two in a row", "the last save"])
def test_two_failed_writes_in_a_row_or_the_last_one_stop_and_lose_nothing(
    tmp_path, monkeypatch, prompt, failing: tuple[int, ...]
) -> None:
    for step in failing:
        fill_disk(monkeypatch, step)
    session = tiny_session(tmp_path, next_batch=prompt)
    with pytest.raises(
        OSError, match=f"No space left on device; the checkpoint of step {failing[-1]} was not"
    ) as caught:
        run_session(session)
    assert caught.value.errno == errno.ENOSPC
    assert f"step-{failing[-1]:08d}.tmp-" in str(caught.value.filename)
    assert session.state.step == min(failing[-1] + 1, 8)
    whole = list(range(2, failing[0], 2))
    assert whole_names(tmp_path) == [f"step-{step:08d}" for step in whole][-2:]
    assert saved_steps(tmp_path) == whole
    monkeypatch.undo()
    resumed = tiny_session(tmp_path, seed=1)
    assert resumed.resume() == whole[-1]
    run_session(resumed)
    alone = tiny_session(tmp_path / "alone")
    run_session(alone)
    assert are_equal(weights_of(resumed.state), weights_of(alone.state))


def test_a_save_without_room_is_not_begun(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: (10**9, 10**9 - 1_000, 1_000))
    with BackgroundSaves(tmp_path, keep=2, on_whole=lambda *_: None) as saves:
        with pytest.raises(
            OSError, match=r"0\.0 MiB free, [\d,]+\.\d MiB \(1\.2 times the checkpoint\) needed"
        ) as caught:
            saves.save(tiny_state(), {})
        assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: (0, 0, 0))  # a file system that reports no size
    with BackgroundSaves(tmp_path, keep=2, on_whole=lambda *_: None) as saves:
        saves.save(tiny_state(), {})


def test_a_folder_that_cannot_be_made_is_named(tmp_path, prompt) -> None:
    (tmp_path / "checkpoints").write_text("a file", encoding="utf-8")
    with pytest.raises(OSError, match="the checkpoint of step 4 was not saved") as caught:
        run_session(tiny_session(tmp_path, next_batch=prompt))
    assert caught.value.filename == str(tmp_path / "checkpoints")
    assert caught.value.errno in DISK_ERRORS


def test_a_folder_that_vanishes_during_a_write_is_named(tmp_path, monkeypatch, prompt) -> None:
    write = checkpoints.write_hashed

    def vanish(path: Path, *given, **named):
        shutil.rmtree(path.parent)
        return write(path, *given, **named)

    monkeypatch.setattr(checkpoints, "write_hashed", vanish)
    with pytest.raises(OSError, match="the checkpoint of step 4 was not saved") as caught:
        run_session(tiny_session(tmp_path, next_batch=prompt))
    assert caught.value.errno in DISK_ERRORS


def test_a_run_folder_that_vanishes_is_not_made_again_half(tmp_path, prompt) -> None:
    run = tmp_path / "run"

    def vanish(position: dict[str, int]):
        if position.get("number") == 3:
            shutil.rmtree(run)
        return prompt(position)

    with pytest.raises(OSError, match="checkpoint of step 6 was not saved; its folder no longer exists") as caught:
        run_session(tiny_session(run, next_batch=vanish))
    assert caught.value.errno in DISK_ERRORS
    assert not run.exists()


def test_a_checkpoints_folder_that_vanishes_is_made_again(tmp_path, prompt) -> None:
    def vanish(position: dict[str, int]):
        if position.get("number") == 3:
            shutil.rmtree(tmp_path / "checkpoints")
        return prompt(position)

    run_session(tiny_session(tmp_path, next_batch=vanish))
    assert whole_names(tmp_path) == ["step-00000006", "step-00000008"]


def test_an_error_of_training_does_not_hide_that_a_write_failed(tmp_path, monkeypatch) -> None:
    fill_disk(monkeypatch, 7)
    state, said = tiny_state(), []
    state.step = 7

    def train() -> None:
        with BackgroundSaves(tmp_path, keep=2, on_whole=lambda *_: None, say=said.append) as saves:
            saves.start(state, {})
            raise RuntimeError("of training")

    with pytest.raises(RuntimeError, match="of training"):
        train()
    assert len(said) == 1
    assert "step 7 was not saved" in said[0]
