"""Half precision: close to fp32, with a loss scale that adapts, and the same again after a resume."""

import math
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maskloom.data.batch import PretrainingBatch
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.faults.nonfinite import NonFiniteStepError
from maskloom.training.loop import train_steps
from maskloom.training.precision import FIRST_LOSS_SCALE, HalfPrecision, fastest_precision, in_precision
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

CPU = torch.device("cpu")
# Bounds on the effect of rounding to 8 and 11 bits on the losses of twenty steps, with a margin.
BOUNDS = {"bf16": 5e-3, "fp16": 5e-4}


def _settings(precision: str) -> TrainingSection:
    return TrainingSection(steps=20, learning_rate=1e-3, micro_batch_size=2, precision=precision)  # pyright: ignore


def _batches(position: dict) -> tuple[PretrainingBatch, dict]:
    number = position.get("number", 0)
    random, lengths = np.random.default_rng(number), np.array([9, 14, 5, 11])
    starts = np.cumsum(lengths) - lengths
    batch = PretrainingBatch(
        token_ids=random.integers(5, 300, lengths.sum()),
        segment_ids=np.zeros(lengths.sum(), dtype=np.int64),
        lengths=lengths,
        mlm_positions=np.concatenate([start + np.arange(1, 4) for start in starts]),
        mlm_labels=random.integers(5, 25, 12),
        nsp_labels=np.array([0, 1, 0, 1]),
    )
    return batch, {"number": number + 1}


def _state(settings: TrainingSection) -> TrainState:
    config = BertConfig.of_size("tiny", vocab_size=300, hidden_size=32, num_attention_heads=2, intermediate_size=64)
    return TrainState.fresh(build_model(config, seed=0), settings)


def _losses(precision: str, state: TrainState | None = None, num_steps: int = 20) -> list[float]:
    settings = _settings(precision)
    objective = in_precision(MaskedLanguageModeling(), precision, CPU)
    state = state or _state(settings)
    steps = train_steps(state, objective, _batches, settings=settings, seed=1)
    return [report.loss for report in islice(steps, num_steps)]


@pytest.fixture(scope="module")
def exact() -> list[float]:
    """The losses in fp32."""
    return _losses("fp32")


@pytest.mark.parametrize("precision", BOUNDS)
def test_half_precision_stays_near_fp32_over_fp32_weights(exact: list[float], precision: str) -> None:
    state = _state(_settings(precision))
    found = _losses(precision, state)
    difference = max(abs(a - b) for a, b in zip(exact, found, strict=True))
    assert 0 < difference < BOUNDS[precision]
    assert found[-1] < found[0] - 0.2
    assert {parameter.dtype for parameter in state.model.parameters()} == {torch.float32}
    assert found[:8] == _losses(precision, num_steps=8)


def test_a_loss_scale_that_overflows_is_halved_until_it_fits_and_changes_no_step(exact: list[float]) -> None:
    settings = _settings("fp16")
    state = _state(settings)
    state.loss_scale = (2.0**30, 0)
    losses = _losses("fp16", state, num_steps=10)
    assert state.loss_scale is not None
    scale, num_held = state.loss_scale
    assert 1 < scale < 2**30
    assert 0 < num_held <= 10
    assert max(abs(a - b) for a, b in zip(losses, exact[:10], strict=True)) < BOUNDS["fp16"]


def test_a_loss_scale_that_holds_is_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskloom.training.precision._STEPS_OF_A_SCALE", 3)
    state = _state(_settings("fp16"))
    state.loss_scale = (2.0, 0)
    _losses("fp16", state, num_steps=8)
    assert state.loss_scale == (8.0, 2)


def test_a_batch_that_no_loss_scale_helps_is_an_error_and_keeps_the_scale() -> None:
    state = _state(_settings("fp16"))
    with torch.no_grad():
        next(state.model.parameters()).fill_(math.nan)
    with pytest.raises(NonFiniteStepError):
        _losses("fp16", state)
    assert state.loss_scale == (FIRST_LOSS_SCALE, 0)
    assert state.step == 0


def test_a_loss_that_is_not_finite_with_gradients_that_are_keeps_the_scale() -> None:
    class Infinite(MaskedLanguageModeling):
        def loss_sums(self, model, batch):
            return {name: value + math.inf for name, value in super().loss_sums(model, batch).items()}

    state, settings = _state(_settings("fp16")), _settings("fp16")
    state.loss_scale = (8.0, 3)
    with pytest.raises(NonFiniteStepError):
        next(train_steps(state, in_precision(Infinite(), "fp16", CPU), _batches, settings=settings, seed=1))
    assert state.loss_scale == (8.0, 4)


def test_auto_is_bf16_on_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, gpu = MaskedLanguageModeling(), torch.device("cuda")
    assert in_precision(objective, "auto", CPU) is objective
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=8, minor=0))
    assert in_precision(objective, "auto", gpu) == HalfPrecision(objective, torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=7, minor=5))
    assert in_precision(objective, "auto", gpu) is objective
    with pytest.raises(ConfigError, match="cuda does not support bf16; use 'fp16' or 'fp32'"):
        in_precision(objective, "bf16", gpu)


def test_the_fastest_precision_is_the_one_that_takes_clearly_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    state = _state(_settings("fp32"))
    batch, _ = _batches({})
    clock = {"now": 0.0, "fp32": 1.0, "bf16": 1.0}
    objective = MaskedLanguageModeling()

    def timed(given, precision: str, device: torch.device):
        clock["now"] += clock[precision]
        return in_precision(given, precision, device)

    monkeypatch.setattr("maskloom.training.precision._has_bf16_kernels", lambda: clock["bf16"] < 9.0)
    monkeypatch.setattr("maskloom.training.precision.in_precision", timed)
    monkeypatch.setattr("maskloom.training.precision.time.perf_counter", lambda: clock["now"])
    for bf16, expected, passes in ((0.5, "bf16", 4), (0.95, "fp32", 4), (2.0, "fp32", 2), (9.0, "fp32", 0)):
        clock |= {"now": 0.0, "bf16": bf16}
        torch.manual_seed(3)
        assert fastest_precision(state.model, objective, batch) == expected
        assert clock["now"] == pytest.approx(passes * (clock["fp32"] + bf16))
        first = torch.rand(2)
        torch.manual_seed(3)
        assert torch.equal(first, torch.rand(2))
    assert all(parameter.grad is None for parameter in state.model.parameters())
