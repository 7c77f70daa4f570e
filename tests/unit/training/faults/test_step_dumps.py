"""A step with non-finite numbers is dumped so that it can be replayed."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from maskloom.data.batch import ChoiceBatch, PretrainingBatch
from maskloom.errors import DataError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.faults.step_dumps import LossWatch, _batch_as_data, write_dump
from maskloom.training.loop import NonFiniteStepError, TrainState, train_steps
from maskloom.training.settings import TrainingSection
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
    path = write_dump(folder, state, MaskedLanguageModeling(), bad, seed=4, micro_batch_size=SETTINGS.micro_batch_size)
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
        _dump(tmp_path, state, bad)
    assert len(list(tmp_path.iterdir())) == 5
    assert len(list(tmp_path.glob("*/model.safetensors"))) == 3
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


def _said(losses: list[float]) -> list[tuple[str, int]]:
    watch = LossWatch()
    return [(what, step) for step, loss in enumerate(losses, start=1) for what in watch.look(step, loss)]


def _noise(number: int, seed: int = 0, scale: float = 0.1) -> list[float]:
    draw = random.Random(seed)
    return [3.0 + draw.gauss(0.0, scale) for _ in range(number)]


@pytest.mark.parametrize("at", [21, 60, 300])
def test_a_spike_of_ten_deviations_is_warned_of_at_its_step(at: int) -> None:
    losses = _noise(400)
    losses[at - 1] = 3.0 + 1.6
    assert _said(losses) == [("spike", at)]


def test_nine_deviations_and_a_loss_that_falls_are_no_spike() -> None:
    losses = [4.0 if number % 2 else 3.0 for number in range(100)]
    assert _said([*losses, 3.5 + 0.5 * 9.9]) == []
    assert _said([*losses, 3.5 + 0.5 * 10.1]) == [("spike", 101)]
    assert _said([10.0 * 0.99**step + noise - 3.0 for step, noise in enumerate(_noise(1000, seed=1))]) == []


def test_spikes_are_said_once_in_a_hundred_steps() -> None:
    losses = _noise(500)
    for step in (200, 201, 290, 301, 450):
        losses[step - 1] = 1e4 * step**3
    assert _said(losses) == [("spike", 200), ("spike", 301), ("spike", 450)]


def test_a_frozen_loss_is_warned_of_within_a_hundred_steps_and_again_after_as_many() -> None:
    losses = [*_noise(70), *[2.5] * 220, *_noise(50)]
    assert _said(losses) == [("frozen", 120), ("frozen", 220)]
    assert _said([0.0] * 50) == [("frozen", 50)]
    assert _said(_noise(300, scale=1e-4)) == []
