import errno
import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from maskloom.errors import DataError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.system import files
from maskloom.system.folder_lock import FolderLostError
from maskloom.training.checkpointing import checkpoints
from maskloom.training.checkpointing.checkpoints import Snapshot, restore_checkpoint, write_checkpoint
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState
from tools.checking import verify_checkpoint


def _state(seed: int = 0, hidden: int = 8) -> TrainState:
    config = BertConfig.of_size(
        "tiny", vocab_size=23, hidden_size=hidden, num_attention_heads=2, intermediate_size=12, num_hidden_layers=1
    )
    return TrainState.fresh(build_model(config, seed=seed), TrainingSection())


def _step(state: TrainState) -> None:
    torch.manual_seed(state.step)
    for parameter in state.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    state.optimizer.step()
    state.step += 1
    state.position = {"epoch": 0, "block": 0, "instance": state.step}


def _values(state: TrainState) -> list[torch.Tensor]:
    moments = [v for p in state.model.parameters() for v in state.optimizer.state.get(p, {}).values()]
    return [p.detach().clone() for p in state.model.parameters()] + [torch.as_tensor(m).clone() for m in moments]


def test_a_restored_state_continues_to_the_bit(tmp_path) -> None:
    state = _state()
    for _ in range(3):
        _step(state)
    write_checkpoint(Snapshot.of(state, {"best": 0.5}), tmp_path)
    other = _state(seed=1)
    restored = restore_checkpoint(other, tmp_path)
    assert restored is not None
    assert (restored.step, restored.extra, restored.refused) == (3, {"best": 0.5}, [])
    assert other.position == state.position
    for again in (state, other):
        _step(again)
    assert all(torch.equal(a, b) for a, b in zip(_values(state), _values(other), strict=True))


def test_a_tensor_of_the_optimizer_of_a_wrong_shape_is_named(tmp_path) -> None:
    state = _state()
    _step(state)
    (name, parameter), *_ = state.model.named_parameters()
    state.optimizer.state[parameter]["exp_avg"] = torch.zeros(3, 5)
    write_checkpoint(Snapshot.of(state, {}), tmp_path)
    other = _state(seed=1)
    before = _values(other)
    with pytest.raises(DataError, match=rf"another model; it differs in 1 tensor: \['optimizer.exp_avg.{name}'\]"):
        restore_checkpoint(other, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(_values(other), before, strict=True))


def test_going_back_to_a_checkpoint_forgets_later_moments(tmp_path) -> None:
    state = _state()
    write_checkpoint(Snapshot.of(state, {}), tmp_path)
    _step(state)
    restore_checkpoint(state, tmp_path)
    assert not state.optimizer.state


def test_no_checkpoint_is_none(tmp_path) -> None:
    assert restore_checkpoint(_state(), tmp_path / "nothing") is None


def test_only_the_newest_are_kept(tmp_path) -> None:
    state = _state()
    for _ in range(4):
        _step(state)
        write_checkpoint(Snapshot.of(state, {}), tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


def _two(tmp_path) -> tuple[TrainState, list]:
    state = _state()
    values = []
    for _ in range(2):
        _step(state)
        write_checkpoint(Snapshot.of(state, {}), tmp_path)
        values.append(_values(state))
    return state, values


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "empty"])
def test_a_damaged_checkpoint_is_refused_by_name_and_the_older_one_taken(tmp_path, name: str, damage: str) -> None:
    _, values = _two(tmp_path)
    path = tmp_path / "step-00000002" / name
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(content[:-1])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "delete":
        path.unlink()
    else:
        path.write_bytes(b"")
    state = _state(seed=5)
    restored = restore_checkpoint(state, tmp_path)
    assert restored is not None
    assert restored.step == 1
    assert len(restored.refused) == 1
    assert "step-00000002" in restored.refused[0]
    assert all(torch.equal(a, b) for a, b in zip(_values(state), values[0], strict=True))


FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")


def test_every_truncation_and_every_flipped_bit_is_noticed_and_named(tmp_path) -> None:
    _two(tmp_path)
    folder, draw = tmp_path / "step-00000002", random.Random(5)
    whole = {name: (folder / name).read_bytes() for name in FILES}
    damages = [(name, size) for name in FILES for size in draw.sample(range(len(whole[name])), 5)]
    for name, size in damages:
        (folder / name).write_bytes(whole[name][:size])
        problem = verify_checkpoint(folder)
        assert problem is not None, f"{name} cut to {size} bytes"
        assert name in problem
        (folder / name).write_bytes(whole[name])
    headers = {"model.safetensors": 400, "optimizer.safetensors": 400}
    places = [(name, draw.randrange(8 * len(whole[name]))) for name in FILES for _ in range(40)]
    places += [(name, draw.randrange(8 * headers[name])) for name in headers for _ in range(20)]
    for name, bit in places:
        content = bytearray(whole[name])
        content[bit // 8] ^= 1 << bit % 8
        (folder / name).write_bytes(content)
        problem = verify_checkpoint(folder)
        assert problem is not None, f"bit {bit} of {name}"
        assert str(folder) in problem
        (folder / name).write_bytes(whole[name])
    assert verify_checkpoint(folder) is None


def test_every_bit_of_a_manifest_counts(tmp_path) -> None:
    _two(tmp_path)
    path = tmp_path / "step-00000002/manifest.json"
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 5):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        assert verify_checkpoint(path.parent) is not None, f"bit {bit}: {bytes(content[bit // 8 - 9 : bit // 8 + 9])}"


def _swap(first: Path, second: Path) -> None:
    other = first.with_name("swapped")
    first.rename(other)
    second.rename(first)
    other.rename(second)


@pytest.mark.parametrize("name", FILES)
def test_files_swapped_between_steps_are_refused_in_both(tmp_path, name: str) -> None:
    _two(tmp_path)
    _swap(tmp_path / "step-00000001" / name, tmp_path / "step-00000002" / name)
    for number in (1, 2):
        problem = verify_checkpoint(tmp_path / f"step-0000000{number}")
        assert problem is not None
        assert f"step-0000000{number}" in problem


def test_folders_swapped_between_steps_are_refused(tmp_path) -> None:
    _two(tmp_path)
    _swap(tmp_path / "step-00000001", tmp_path / "step-00000002")
    with pytest.raises(DataError, match="its manifest is for step 1: the folder was renamed or swapped"):
        restore_checkpoint(_state(), tmp_path)


def test_a_checkpoint_of_another_run_or_model_is_skipped(tmp_path) -> None:
    state = _state()
    for number, run in ((1, "mine"), (2, "another")):
        _step(state)
        write_checkpoint(Snapshot.of(state, {}), tmp_path, run=run, keep=9)
        assert state.step == number
    large = _state(hidden=16)
    large.step = 3
    write_checkpoint(Snapshot.of(large, {}), tmp_path, run="mine", keep=9)
    restored = restore_checkpoint(_state(seed=1), tmp_path, run="mine")
    assert restored is not None
    assert restored.step == 1
    assert len(restored.refused) == 2
    assert "step-00000003: the checkpoint belongs to another model" in restored.refused[0]
    assert "step-00000002: the checkpoint belongs to another run (another; this one is mine)" in restored.refused[1]


def test_the_checkpoint_just_written_stays_beside_a_newer_one_that_was_skipped(tmp_path) -> None:
    state, _ = _two(tmp_path)
    (tmp_path / "step-00000002").rename(tmp_path / "step-00000009")
    for _ in range(3):
        _step(state)
        write_checkpoint(Snapshot.of(state, {}), tmp_path, keep=1)
        restored = restore_checkpoint(_state(), tmp_path)
        assert restored is not None
        assert restored.step == state.step
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000009"]


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(tmp_path) -> None:
    state, _ = _two(tmp_path)
    (tmp_path / "step-00000002" / "state.json").write_text("{}")
    write_checkpoint(Snapshot.of(state, {}), tmp_path)
    assert verify_checkpoint(tmp_path / "step-00000002") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_when_none_is_whole_every_one_is_named(tmp_path) -> None:
    _two(tmp_path)
    for number in (1, 2):
        (tmp_path / f"step-0000000{number}/model.safetensors").unlink()
    with pytest.raises(DataError) as caught:
        restore_checkpoint(_state(), tmp_path)
    assert "step-00000001" in str(caught.value)
    assert "step-00000002" in str(caught.value)


@pytest.mark.parametrize("version", [3, 9, 10**12])
def test_a_newer_format_is_refused_by_number(tmp_path, version: int) -> None:
    _two(tmp_path)
    shutil.rmtree(tmp_path / "step-00000001")
    path = tmp_path / "step-00000002/manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": version, "more": {}}))
    with pytest.raises(DataError, match=f"format version {version}; this program reads version 2"):
        restore_checkpoint(_state(), tmp_path)


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b"{}", b"[" * 100_000, b"\xff", b'{"format_version": "2"}'])
def test_what_is_no_manifest_is_named(tmp_path, content: bytes) -> None:
    _two(tmp_path)
    path = tmp_path / "step-00000002/manifest.json"
    path.write_bytes(content)
    problem = verify_checkpoint(path.parent)
    assert problem is not None
    assert str(path) in problem


def test_a_checkpoint_of_another_model_is_refused(tmp_path) -> None:
    _two(tmp_path)
    with pytest.raises(DataError, match="another model"):
        restore_checkpoint(_state(hidden=16), tmp_path)


def test_a_run_whose_lock_was_taken_over_touches_no_checkpoint_of_the_other(tmp_path, monkeypatch) -> None:
    state, other = _state(), tmp_path / "step-00000009.tmp-4194305"  # by a process on another machine
    write_checkpoint(Snapshot.of(state, {}), tmp_path)
    other.mkdir()

    def lost() -> None:
        raise FolderLostError

    monkeypatch.setattr(files, "WRITE_CHECKS", [lost])
    with pytest.raises(FolderLostError):
        write_checkpoint(Snapshot.of(state, {}), tmp_path)
    with pytest.raises(FolderLostError):
        restore_checkpoint(state, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000000", other.name]


@pytest.mark.parametrize("name", ["rename", "remove_tree"])
def test_an_older_checkpoint_that_could_not_be_removed_once_is_removed(tmp_path, monkeypatch, name: str) -> None:
    original, failed = getattr(checkpoints, name), []

    def fail_once(path: Path, *more: Path) -> None:
        if not failed and path.name.startswith("step-00000000"):
            failed.append(path)
            raise OSError(errno.EROFS, "Read-only file system")
        original(path, *more)

    monkeypatch.setattr(checkpoints, name, fail_once)
    state = _state()
    write_checkpoint(Snapshot.of(state, {}), tmp_path, keep=1)
    state.step = 1
    write_checkpoint(Snapshot.of(state, {}), tmp_path, keep=1)
    assert len(failed) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("process", [999999999, 1])  # in a container, PIDs are soon in use again
def test_a_half_written_folder_is_neither_taken_nor_kept(tmp_path, process: int) -> None:
    state, _ = _two(tmp_path)
    orphan = tmp_path / f"step-00000003.tmp-{process}"
    orphan.mkdir()
    (orphan / "model.safetensors").write_bytes(b"half")
    restored = restore_checkpoint(_state(), tmp_path)
    assert restored is not None
    assert restored.step == 2
    _step(state)
    write_checkpoint(Snapshot.of(state, {}), tmp_path)
    assert not orphan.exists()


def test_other_ranks_load_the_step_of_the_first_though_their_list_of_the_folder_is_old(tmp_path, monkeypatch) -> None:
    """A network disk may show a list that is half a minute old."""
    state = _state()
    _step(state)
    write_checkpoint(Snapshot.of(state, {}), tmp_path)
    ranks, other = Ranks(rank=1, world_size=2), _state(seed=1)
    monkeypatch.setattr(ranks, "sum_", lambda values: {"step": state.step + 1})
    monkeypatch.setattr(checkpoints, "step_folders", lambda _: [])
    restored = restore_checkpoint(other, tmp_path, ranks=ranks)
    assert restored is not None
    assert restored.step == other.step == state.step
    shutil.rmtree(tmp_path / f"step-{state.step:08d}")
    with pytest.raises(DataError, match=f"rank 1 does not see step {state.step}"):
        restore_checkpoint(other, tmp_path, ranks=ranks)
