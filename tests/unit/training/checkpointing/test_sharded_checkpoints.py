"""Sharded checkpoints: loaded complete or refused, and never executed as code."""

import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from maskloom.checkpoints.huggingface import load_model
from maskloom.errors import DataError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.model_writing import write_best_model
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from maskloom.training.checkpointing import sharded_checkpoints
from maskloom.training.checkpointing.checkpoints import (
    Snapshot,
    check_checkpoint,
    restore_checkpoint,
    write_checkpoint,
    write_manifest,
)
from maskloom.training.checkpointing.sharded_checkpoints import ShardedSaves
from maskloom.training.ranks.distributed import DistributedRanks
from maskloom.training.ranks.rank_watch import RankWatch
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

SETTINGS = TrainingSection()


@pytest.fixture(scope="module")
def ranks() -> Iterator[DistributedRanks]:
    """The only rank of a job, which holds every tensor whole."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    watch = RankWatch(store, 0, 1, 60.0)
    yield DistributedRanks("fsdp", watch, dist.group.WORLD, torch.device("cpu"))
    dist.destroy_process_group()


def _model(seed: int, hidden: int = 8):
    config = BertConfig.of_size(
        "tiny", vocab_size=23, hidden_size=hidden, num_attention_heads=2, intermediate_size=12, num_hidden_layers=1
    )
    return build_model(config, seed=seed)


def _plain(seed: int, hidden: int = 8) -> TrainState:
    return TrainState.fresh(_model(seed, hidden), SETTINGS)


def _shared(ranks: DistributedRanks, seed: int) -> TrainState:
    model = _model(seed)
    ranks.spread(model)
    return TrainState.fresh(model, SETTINGS)


def _step(state: TrainState) -> None:
    torch.manual_seed(state.step)
    for parameter in state.model.parameters():
        parameter.grad = torch.ones_like(parameter) * 0.1 + parameter.detach()
    state.optimizer.step()
    state.step += 1
    state.position = {"batch": state.step}


def _values(state: TrainState) -> list[torch.Tensor]:
    moments = [v for p in state.model.parameters() for v in state.optimizer.state[p].values()]
    found = [*state.model.parameters(), *moments]
    return [(each.full_tensor() if hasattr(each, "full_tensor") else each).detach().clone() for each in found]


def _save(state: TrainState, ranks: DistributedRanks, folder: Path, extra: dict | None = None) -> Path:
    with ShardedSaves(folder, ranks, keep=2, on_whole=lambda step, path: None, say=print) as saves:
        return saves.save(state, extra or {})


@pytest.fixture(scope="module")
def written(ranks: DistributedRanks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sharded checkpoint of step 2, which no test changes."""
    state = _shared(ranks, 0)
    for _ in range(2):
        _step(state)
    return _save(state, ranks, tmp_path_factory.mktemp("written") / "checkpoints", {"best": 0.5})


@pytest.fixture
def saved(written: Path, tmp_path: Path) -> Path:
    """The folder of a copy of that checkpoint."""
    return Path(shutil.copytree(written.parent, tmp_path / "checkpoints")) / written.name


def test_shares_are_read_by_a_process_alone_and_what_one_wrote_is_shared(
    ranks: DistributedRanks, saved: Path, tmp_path: Path
) -> None:
    expected, alone, again = _plain(0), _plain(1), _shared(ranks, 2)
    for _ in range(2):
        _step(expected)
    restored = restore_checkpoint(alone, saved.parent)
    assert restored is not None
    assert (restored.step, restored.extra, restored.refused) == (2, {"best": 0.5}, [])
    (tmp_path / "plain").mkdir()
    write_checkpoint(Snapshot.of(alone, {}), tmp_path / "plain")
    restore_checkpoint(again, tmp_path / "plain", ranks=ranks)
    for state in (expected, alone, again):
        _step(state)
        assert (state.step, state.position) == (3, {"batch": 3})
        for value, wanted in zip(_values(state), _values(expected), strict=True):
            torch.testing.assert_close(value, wanted, rtol=0, atol=0)


def test_an_optimizer_that_counts_no_steps_is_restored(ranks: DistributedRanks, tmp_path: Path) -> None:
    def momentum(state: TrainState) -> TrainState:
        state.optimizer = torch.optim.SGD(state.model.parameters(), lr=0.1, momentum=0.9)
        return state

    expected, sharded = momentum(_plain(0)), momentum(_shared(ranks, 0))
    for _ in range(2):
        _step(expected)
        _step(sharded)
    folder = _save(sharded, ranks, tmp_path).parent
    for again, how in ((momentum(_plain(1)), {}), (momentum(_shared(ranks, 2)), {"ranks": ranks})):
        assert restore_checkpoint(again, folder, **how) is not None
        for value, wanted in zip(_values(again), _values(expected), strict=True):
            torch.testing.assert_close(value, wanted, rtol=0, atol=0)


def test_a_tensor_of_the_optimizer_of_a_wrong_shape_is_named(ranks: DistributedRanks, tmp_path: Path) -> None:
    state = _shared(ranks, 0)
    _step(state)
    (name, parameter), *_ = state.model.named_parameters()
    state.optimizer.state[parameter]["exp_avg"] = torch.zeros(3, 5)
    _save(state, ranks, tmp_path)
    with pytest.raises(DataError, match=rf"another model; it differs in 1 tensor: \['optimizer.exp_avg.{name}'\]"):
        restore_checkpoint(_plain(0), tmp_path)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "state.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["truncate", "flip", "delete"])
def test_a_damaged_share_is_refused_by_name(saved: Path, name: str, harm: str) -> None:
    path = saved / name
    content = bytearray(path.read_bytes())
    if harm == "delete":
        path.unlink()
    else:
        content[len(content) // 2] ^= 4
        path.write_bytes(content[:-1] if harm == "truncate" else content)
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        restore_checkpoint(_plain(0), saved.parent)


class _Canary:
    """An object that runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def _outside(metadata: Metadata) -> Metadata:
    for stored in metadata.storage_data.values():
        stored.relative_path = "../../elsewhere.distcp"
    return metadata


def _with_bytes(metadata: Metadata) -> Metadata:
    metadata.state_dict_metadata["model.more"] = BytesStorageMetadata()
    return metadata


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda metadata, canary: _Canary(canary), "it refers to"),
        (lambda metadata, canary: {**vars(metadata), "planner_data": _Canary(canary)}, "it refers to"),
        (lambda metadata, canary: _outside(metadata), "not a plain file in the folder"),
        (lambda metadata, canary: _with_bytes(metadata), "it refers to .*BytesStorageMetadata"),
        (lambda metadata, canary: [1, 2], "a list"),
        (lambda metadata, canary: None, "a NoneType"),
    ],
    ids=["code", "code inside", "path out", "bytes", "list", "none"],
)
def test_a_made_up_description_with_a_right_manifest_does_nothing_and_is_refused(
    saved: Path, tmp_path: Path, change: Callable, message: str
) -> None:
    place, canary = saved / ".metadata", tmp_path / "canary"
    place.write_bytes(pickle.dumps(change(pickle.loads(place.read_bytes()), canary)))
    _write_manifest_again(saved)
    check_checkpoint(saved)
    with pytest.raises(DataError, match=rf"\.metadata: does not describe a maskloom checkpoint: .*{message}"):
        restore_checkpoint(_plain(0), saved.parent)
    assert not canary.exists()


def _write_manifest_again(folder: Path) -> None:
    import hashlib

    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    (folder / "manifest.json").unlink()
    write_manifest(folder, step=2, files=files, facts={"layout": "sharded", "world_size": 1, "run": None})


def test_shares_of_another_model_are_refused(saved: Path) -> None:
    with pytest.raises(DataError, match="belongs to another model"):
        restore_checkpoint(_plain(0, hidden=12), saved.parent)


def test_a_failed_write_leaves_the_older_checkpoint_and_is_forgiven_once(
    ranks: DistributedRanks, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tools.faults.fault_rules import arm

    state, said = _shared(ranks, 1), []
    for _ in range(3):
        _step(state)
    with ShardedSaves(saved.parent, ranks, keep=2, on_whole=lambda step, path: None, say=said.append) as saves:
        arm("enospc@files.write#1+")
        try:
            saves.start(state, {})
            saves.start(state, {})
            assert "No space left" in said[0]
            with pytest.raises(OSError, match="No space left"):
                saves.wait()
            assert [path.name for path in saved.parent.iterdir()] == [saved.name]
            with pytest.raises(OSError, match="No space left"):
                saves.save(state, {})
        finally:
            arm()
    assert restore_checkpoint(_plain(0), saved.parent) is not None


@pytest.mark.parametrize("shape", [(1,), (1, 1)], ids=["fsdp", "hsdp"])
def test_a_copy_of_what_lies_on_gpus_is_whole(
    ranks: DistributedRanks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    """The mesh reports "cuda" from when the copies are made; process groups and values stay on the processor."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("machines", "processes")[-len(shape) :])
    monkeypatch.setattr(ranks, "_mesh", lambda: mesh)
    state, made = _shared(ranks, 1), []
    _step(state)
    expected = _values(state)
    from_group = DeviceMesh.from_group
    monkeypatch.setattr(
        DeviceMesh, "from_group", lambda *given, **named: made.append(given) or from_group(*given, **named)
    )
    monkeypatch.setattr(mesh, "_device_type", "cuda")
    with ShardedSaves(tmp_path, ranks, keep=2, on_whole=lambda step, path: None, say=print) as saves:
        saves.start(state, {})
        saves.wait()
        saves.start(state, {})
    monkeypatch.undo()
    assert len(made) == 1
    restored = _plain(0)
    assert restore_checkpoint(restored, tmp_path).step == 1
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(_values(restored), expected, strict=True))


def test_training_goes_on_while_shares_are_written(
    ranks: DistributedRanks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, may_write, write = _shared(ranks, 1), threading.Event(), sharded_checkpoints.write_sharded

    def held_back(*arguments, **settings):
        assert may_write.wait(60)
        return write(*arguments, **settings)

    monkeypatch.setattr(sharded_checkpoints, "write_sharded", held_back)
    _step(state)
    saved = _values(state)
    with ShardedSaves(tmp_path, ranks, keep=2, on_whole=lambda step, path: None, say=print) as saves:
        saves.start(state, {})
        _step(state)
        may_write.set()
        saves.wait()
    restored = _plain(0)
    assert restore_checkpoint(restored, tmp_path).step == 1
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(_values(restored), saved, strict=True))
    assert not torch.equal(_values(state)[0], saved[0])


def test_the_best_model_is_written_from_shares(ranks: DistributedRanks, tmp_path: Path) -> None:
    state, extra = _shared(ranks, 1), {"kept": {"step": 1, "score": -3.0}}
    _step(state)
    best = _values(state)[: len([*state.model.parameters()])]
    _save(state, ranks, tmp_path / "checkpoints", extra)
    _step(state)
    _save(state, ranks, tmp_path / "checkpoints", extra)
    model, tokenizer = _model(0), WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, *"abcdefghijklmnopqr"]))
    assert write_best_model(model, tmp_path / "checkpoints", tokenizer, tmp_path / "best-model") == 1
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(model.parameters(), best, strict=True))
    loaded, _report = load_model(tmp_path / "best-model", heads=tuple(model.heads))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(loaded.parameters(), best, strict=True))
