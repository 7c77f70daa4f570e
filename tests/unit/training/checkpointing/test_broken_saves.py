"""A save is killed or fails at every write, sync, rename and removal: the old or the new checkpoint survives."""

import functools
import os
import shutil
import signal
import warnings
from pathlib import Path

import pytest
import torch
from tests.unit.training.tiny_sessions import are_equal, weights_of

from maskloom.system.files import DISK_ERRORS
from maskloom.training.checkpointing.checkpoints import (
    Snapshot,
    restore_checkpoint,
    step_folders,
    write_checkpoint,
)
from maskloom.training.optimizers import AdamW
from maskloom.training.state import TrainState
from tools.checking import verify_checkpoint
from tools.faults.fault_rules import arm


def _fresh() -> TrainState:
    """Return a state of few tensors, since each one adds a fault point."""
    model = torch.nn.Linear(3, 2)
    optimizer = AdamW(model.parameters(), 1e-3, (0.9, 0.999), 1e-8)
    return TrainState(model=model, optimizer=optimizer, step=0, position={})  # pyright: ignore[reportArgumentType]


@functools.cache
def _at(step: int) -> TrainState:
    """Return the state of a run at a step, the same every time."""
    torch.manual_seed(step)
    state = _fresh()
    for parameter in state.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    state.optimizer.step()
    state.step, state.position = step, {"number": step}
    return state


def _save(folder: Path, step: int, keep: int = 2) -> None:
    write_checkpoint(Snapshot.of(_at(step), {"step": step}), folder, keep=keep, run="this")


def _later(folder: Path) -> None:
    """A save that also drops an old checkpoint."""
    _save(folder, 4)


def _again(folder: Path) -> None:
    """A save that replaces a complete checkpoint of the same step."""
    _save(folder, 3)


def _replaced(folder: Path) -> None:
    """A save that replaces a damaged checkpoint of the same step, next to one that a killed save left behind."""
    _save(folder, 3, keep=1)


def _prepared(folder: Path, save) -> Path:
    for step in (1, 2, 3):
        _save(folder, step)
    if save is _replaced:
        (folder / "step-00000003" / "state.json").write_text("{}")
        half = folder / "step-00000002.tmp-999999999"
        half.mkdir()
        (half / "model.safetensors").write_bytes(b"half")
    return folder


def _points(folder: Path, log: Path, save) -> list[str]:
    """Return the names of all fault points that one save passes, in order."""
    arm(log=str(log))
    try:
        save(folder)
    finally:
        arm()
    return log.read_text(encoding="utf-8").split()


def _error_of(save, folder: Path) -> OSError | None:
    try:
        save(folder)
    except OSError as error:
        return error
    return None


def _killed(save, folder: Path, number: int) -> None:
    """Run the save in a child process that is killed at one of its fault points."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child saves and exits; it waits for no thread
        process = os.fork()
    if process == 0:
        arm(f"kill@*#{number}")
        save(folder)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def _check(folder: Path, save) -> None:
    """Check that the newest complete checkpoint is the old or the new one, with its step's state, and saves go on."""
    old, new = (2, 3) if save is _replaced else (3, 3) if save is _again else (3, 4)
    state = _fresh()
    restored = restore_checkpoint(state, folder, run="this")
    assert restored is not None
    assert restored.step in (old, new)
    assert restored.extra == {"step": restored.step}
    assert state.position == {"number": restored.step}
    assert are_equal(weights_of(state), weights_of(_at(restored.step)))
    for step in (new, new + 1):
        _save(folder, step)
    assert sorted(path.name for path in folder.iterdir()) == [f"step-{step:08d}" for step in (new, new + 1)]
    assert all(verify_checkpoint(path) is None for path in step_folders(folder))


@pytest.mark.parametrize("save", [_later, pytest.param(_again, marks=pytest.mark.slow), _replaced])
def test_a_save_killed_anywhere_leaves_the_old_checkpoint_or_the_new_one(tmp_path, save) -> None:
    start = _prepared(tmp_path / "start", save)
    points = _points(Path(shutil.copytree(start, tmp_path / "count")), tmp_path / "log", save)
    assert {"files.write", "files.sync", "files.rename", "files.unlink"} <= set(points)
    assert len(points) >= 14
    for number in range(1, len(points) + 1):
        folder = Path(shutil.copytree(start, tmp_path / f"kill-{number}"))
        _killed(save, folder, number)
        _check(folder, save)


@pytest.mark.parametrize("save", [_later, pytest.param(_again, marks=pytest.mark.slow), _replaced])
def test_a_save_whose_disk_fails_anywhere_leaves_the_old_checkpoint_or_the_new_one(tmp_path, save) -> None:
    start = _prepared(tmp_path / "start", save)
    points = _points(Path(shutil.copytree(start, tmp_path / "count")), tmp_path / "log", save)
    failed = 0
    for number in range(1, len(points) + 1):
        for stays in ("", "+"):  # once, or from there on, so that the cleanup fails as well
            folder = Path(shutil.copytree(start, tmp_path / f"error-{number}{stays}"))
            arm(f"{'eio' if number % 2 else 'enospc'}@*#{number}{stays}")
            error_of_save = _error_of(save, folder)
            arm()
            if error_of_save is not None:
                failed += 1
                assert error_of_save.errno in DISK_ERRORS
                assert "was not saved" in str(error_of_save)
            _check(folder, save)
    assert failed >= 20


def test_a_checkpoint_set_aside_by_a_killed_save_counts_until_it_has_its_name_again(tmp_path) -> None:
    for step in (1, 2):
        _save(tmp_path, step)
    (tmp_path / "step-00000002").rename(tmp_path / "step-00000002.old-999999999")
    restored = restore_checkpoint(_fresh(), tmp_path)
    assert restored is not None
    assert restored.step == 2
    _save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
