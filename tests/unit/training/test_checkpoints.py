import json

import pytest
import torch

from maskloom.config import ConfigError, DataError, TrainingSection
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.training.checkpoints import Snapshot, restore_checkpoint, verify_checkpoint, write_checkpoint
from maskloom.training.loop import TrainState


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


def test_files_swapped_between_steps_are_refused(tmp_path) -> None:
    _two(tmp_path)
    (tmp_path / "step-00000002/model.safetensors").write_bytes(
        (tmp_path / "step-00000001/model.safetensors").read_bytes()
    )
    problem = verify_checkpoint(tmp_path / "step-00000002")
    assert problem is not None
    assert "model.safetensors" in problem


def test_when_none_is_whole_every_one_is_named(tmp_path) -> None:
    _two(tmp_path)
    for number in (1, 2):
        (tmp_path / f"step-0000000{number}/model.safetensors").unlink()
    with pytest.raises(DataError) as caught:
        restore_checkpoint(_state(), tmp_path)
    assert "step-00000001" in str(caught.value)
    assert "step-00000002" in str(caught.value)


def test_a_newer_format_is_refused_by_number(tmp_path) -> None:
    _two(tmp_path)
    for number in (1, 2):
        path = tmp_path / f"step-0000000{number}/manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 9}))
    with pytest.raises(DataError, match="format version 9"):
        restore_checkpoint(_state(), tmp_path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path) -> None:
    _two(tmp_path)
    with pytest.raises(ConfigError, match="another model"):
        restore_checkpoint(_state(hidden=16), tmp_path)


def test_a_half_written_folder_is_neither_taken_nor_kept(tmp_path) -> None:
    state, _ = _two(tmp_path)
    orphan = tmp_path / "step-00000003.tmp-999999999"
    orphan.mkdir()
    (orphan / "model.safetensors").write_bytes(b"half")
    restored = restore_checkpoint(_state(), tmp_path)
    assert restored is not None
    assert restored.step == 2
    _step(state)
    write_checkpoint(Snapshot.of(state, {}), tmp_path)
    assert not orphan.exists()
