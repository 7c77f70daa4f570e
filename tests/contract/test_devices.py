"""What must hold on every device that torch finds and between any two of them: the CPU, and GPUs if present."""

from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.tiny_models import model_folder

from maskloom.data.batch import PretrainingBatch
from maskloom.inference import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.system.devices import found_devices
from maskloom.training.checkpointing.checkpoints import Snapshot, restore_checkpoint, write_checkpoint
from maskloom.training.loop import train_steps
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

SETTINGS = TrainingSection(steps=6, learning_rate=1e-3, optimizer="bert_adam", precision="fp32")


def _batch(position: dict[str, int]) -> tuple[PretrainingBatch, dict[str, int]]:
    number = position.get("n", 0)
    draw = np.random.default_rng(number)
    lengths = np.array([9, 4, 7])
    batch = PretrainingBatch(
        token_ids=draw.integers(5, 41, 20),
        segment_ids=draw.integers(0, 2, 20),
        lengths=lengths,
        mlm_positions=np.array([1, 3, 10, 14]),
        mlm_labels=draw.integers(5, 41, 4),
        nsp_labels=draw.integers(0, 2, 3),
    )
    return batch, {"n": number + 1}


def _state(device: torch.device, seed: int) -> TrainState:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 20}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig.of_size("tiny", vocab_size=41, **sizes, **rates)
    return TrainState.fresh(build_model(config, seed=seed).to(device), SETTINGS)


def _losses(state: TrainState, device: torch.device, number: int) -> list[float]:
    ranks, objective = Ranks(device), MaskedLanguageModeling()
    steps = train_steps(state, objective, _batch, settings=SETTINGS, seed=0, ranks=ranks)
    return [step.loss for step in islice(steps, number)]


def _cases(*, num_devices: int) -> list[Any]:
    """Return every device, or every two; `make gpu-check` runs those with a GPU."""
    chosen = product(found_devices(), repeat=num_devices)
    return [
        pytest.param(*each, marks=[pytest.mark.gpu] if any(device.type == "cuda" for device in each) else [])
        for each in chosen
    ]


@pytest.mark.parametrize(("first", "second"), _cases(num_devices=2), ids=str)
def test_a_run_moves_from_one_device_to_another(first: torch.device, second: torch.device, tmp_path: Path) -> None:
    processor = torch.device("cpu")
    expected = _losses(_state(processor, 0), processor, 6)
    state = _state(first, 0)
    begun = _losses(state, first, 3)
    write_checkpoint(Snapshot.of(state, {}), tmp_path)
    moved = _state(second, 1)
    restored = restore_checkpoint(moved, tmp_path)
    assert restored is not None
    assert (moved.step, moved.position) == (3, {"n": 3})
    for parameter, source in zip(moved.model.parameters(), state.model.parameters(), strict=True):
        assert parameter.device == second
        assert torch.equal(parameter.cpu(), source.cpu())
        ours, theirs = moved.optimizer.state[parameter], state.optimizer.state[source]
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert value.device == second
            assert torch.equal(value.cpu(), theirs[key].cpu())
    found = begun + _losses(moved, second, 3)
    assert found == pytest.approx(expected, rel=1e-3 if {first.type, second.type} != {"cpu"} else 0.0)


@pytest.mark.parametrize("device", _cases(num_devices=1), ids=str)
def test_a_model_in_use_gives_the_same_on_every_device(device: torch.device, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, heads=("classifier", "mlm"))
    texts = ["alpha beta", "gamma", "delta alpha beta zeta"]
    expected = Predictor.load(folder, device="cpu")
    exact = Predictor.load(folder, device=str(device), precision="fp32")
    assert exact.device == device
    np.testing.assert_allclose(exact.encode(texts), expected.encode(texts), rtol=0, atol=1e-4)
    np.testing.assert_allclose(
        Predictor.load(folder, device=str(device)).encode(texts), expected.encode(texts), rtol=0, atol=0.2
    )
