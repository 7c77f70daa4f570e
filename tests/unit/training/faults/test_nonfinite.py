"""A step with non-finite numbers is dumped so that it can be replayed."""

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from maskloom.data.batch import ChoiceBatch, PretrainingBatch
from maskloom.errors import DataError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.faults.nonfinite import NonFiniteStepError, _batch_as_data, write_dump
from maskloom.training.loop import train_steps
from maskloom.training.ranks.ranks import ONE_RANK
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState
from tools.replaying import batch_of_data, replay_dump

SETTINGS = TrainingSection(steps=5, learning_rate=1e-3, warmup_ratio=0.0, micro_batch_size=2)


def _model(seed: int = 0):
    config = BertConfig.of_size(
        "tiny", vocab_size=23, hidden_size=8, num_attention_heads=2, intermediate_size=12, num_hidden_layers=2
    )
    return build_model(config, seed=seed)


def _batches(position: dict) -> tuple[PretrainingBatch, dict]:
    """Return five sequences of five tokens per batch; the last one of the third batch has a sixth."""
    number = position.get("number", 0)
    rng = np.random.default_rng(number)
    lengths = np.array([5, 5, 5, 5, 6 if number == 2 else 5])
    batch = PretrainingBatch(
        token_ids=rng.integers(5, 23, lengths.sum()),
        segment_ids=np.zeros(lengths.sum(), dtype=np.int64),
        lengths=lengths,
        mlm_positions=np.array([1, 6, 7, 16, 21]),
        mlm_labels=rng.integers(5, 23, 5),
        nsp_labels=rng.integers(0, 2, 5),
    )
    return batch, {"number": number + 1}


def _bad_step(plant) -> tuple[TrainState, NonFiniteStepError]:
    """Train with an injected fault until a step is not finite."""
    state = TrainState.fresh(_model(), SETTINGS)
    plant(state.model)
    with pytest.raises(NonFiniteStepError) as caught:
        list(train_steps(state, MaskedLanguageModeling(), _batches, settings=SETTINGS, seed=4))
    return state, caught.value


def _plant_in_sixth_position(model) -> None:
    with torch.no_grad():
        model.encoder.embeddings.position.weight[5, 3] = float("inf")


def _dump(folder: Path, state: TrainState, bad: NonFiniteStepError) -> tuple[Path, dict]:
    session: Any = SimpleNamespace(
        state=state, objective=MaskedLanguageModeling(), settings=SETTINGS, seed=4, ranks=ONE_RANK
    )
    path = write_dump(folder, bad, session)
    return path, json.loads((path / "report.json").read_text(encoding="utf-8"))


def test_a_dump_names_the_step_the_batch_and_where_it_began(tmp_path: Path) -> None:
    state, bad = _bad_step(_plant_in_sixth_position)
    path, report = _dump(tmp_path, state, bad)
    assert path.name == "step-00000003-2"
    assert report["step"] == 3
    assert (report["position"], report["position_after"]) == ({"number": 2}, {"number": 3})
    assert report["loss"] == "nan"
    assert report["losses"].keys() == {"mlm", "nsp"}
    assert report["weights_not_finite"] == ["encoder.embeddings.position.weight"]
    assert "encoder.embeddings.word.weight" in report["gradients_not_finite"]
    expected, _ = _batches({"number": 2})
    stored = load_file(path / "batch.safetensors")
    arrays = {name: value for name, value in vars(expected).items() if value is not None}
    assert stored.keys() == arrays.keys()
    assert all(np.array_equal(stored[name], value) for name, value in arrays.items())
    assert not list(tmp_path.glob("*.tmp-*"))


def test_a_dump_is_replayed_to_the_same_numbers(tmp_path: Path) -> None:
    state, bad = _bad_step(_plant_in_sixth_position)
    expected = {name: parameter.grad for name, parameter in state.model.named_parameters()}
    path, _ = _dump(tmp_path, state, bad)
    model = _model(seed=9)
    replayed = replay_dump(path, model, MaskedLanguageModeling())
    assert math.isnan(sum(replayed.losses.values()))
    assert repr(replayed.losses) == repr(bad.report.losses)
    assert math.isnan(replayed.gradient_norm)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=0, equal_nan=True)


def test_a_gradient_that_overflows_is_dumped_and_replayed(tmp_path: Path) -> None:
    """The loss is finite; only a gradient is not, and its name is recorded."""

    state = TrainState.fresh(_model(), SETTINGS)
    name, weight = next((n, p) for n, p in state.model.named_parameters() if "nsp" in n and n.endswith("weight"))
    weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(NonFiniteStepError) as caught:
        next(train_steps(state, MaskedLanguageModeling(), _batches, settings=SETTINGS, seed=4))
    path, report = _dump(tmp_path, state, caught.value)
    assert math.isfinite(report["loss"])
    assert report["gradients_not_finite"] == [name]
    model = _model(seed=1)
    replayed = replay_dump(path, model, MaskedLanguageModeling())
    assert replayed.losses == caught.value.report.losses


def test_the_same_batch_is_written_once_and_another_one_beside_it(tmp_path: Path) -> None:
    state, bad = _bad_step(_plant_in_sixth_position)
    first, _ = _dump(tmp_path, state, bad)
    assert _dump(tmp_path, state, bad)[0] == first
    state.position = {"number": 8}
    assert _dump(tmp_path, state, bad)[0].name == "step-00000003-8"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003-2", "step-00000003-8"]


def test_only_the_newest_dumps_keep_their_weights(tmp_path: Path) -> None:
    state, bad = _bad_step(_plant_in_sixth_position)
    for number in range(5):
        state.position = {"number": number}
        path, _ = _dump(tmp_path, state, bad)
        os.utime(path / "model.safetensors", (number, number))
    assert len(list(tmp_path.iterdir())) == 5
    kept = {path.parent.name for path in tmp_path.glob("*/model.safetensors")}
    assert kept == {"step-00000003-2", "step-00000003-3", "step-00000003-4"}
    bare = next(path for path in tmp_path.iterdir() if not (path / "model.safetensors").exists())
    with pytest.raises(DataError, match="cannot be replayed"):
        replay_dump(bare, _model(), MaskedLanguageModeling())


def test_batches_of_other_kinds_come_back() -> None:
    batch = ChoiceBatch(np.arange(4), np.zeros(4, dtype=np.int64), np.array([2, 2]), None, np.array([5]), np.array([2]))
    arrays, described = _batch_as_data(batch)
    back = batch_of_data(json.loads(json.dumps(described)), arrays)
    assert isinstance(back, ChoiceBatch)
    assert (back.num_choices.tolist(), back.labels) == ([2], None)
    assert np.array_equal(back.token_ids, batch.token_ids)
    with pytest.raises(ValueError, match="no kind of batch"):
        batch_of_data({"class": "np", "values": {}}, {})
