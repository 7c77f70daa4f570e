"""What a run reports before it starts."""

from typing import cast

import numpy as np
import pytest
import torch

from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.data.loader import Account
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.pretraining_plan import phase_plans
from maskloom.runs.start_summary import default_lines, finetuning_lines, model_line, phase_lines, precision_lines
from maskloom.tasks.encoding import EncodedData

_CONFIG = BertConfig(vocab_size=70, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)


def test_a_model_tells_its_parameters_and_sizes():
    model = build_model(_CONFIG, seed=0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    expected = f"{parameters:,} parameters, 2 layers of 8, a vocabulary of 70"
    assert model_line(model) == f"model: {expected}"
    assert model_line(model, "tiny") == f"model: tiny: {expected}"


def test_a_phase_tells_its_steps_tokens_and_epochs_and_what_a_cap_cuts_off():
    recipe = load_recipe(PretrainRecipe, None, ["training.steps=2000", "data.max_predictions_per_seq=4"])
    (plan,) = phase_plans(recipe)
    account = Account(16_000, 100.0, 4.0, 0.75)
    assert phase_lines(plan, account) == [
        "phase-1: 2,000 steps of 32 sequences up to 128 tokens, about 3,200 tokens per step; 6.4 million tokens, "
        "4 epochs of 16,000 sequences",
        "phase-1: learning rate 0.0001 after 200 steps of warm-up, then falling to 0; 4.0 predictions per sequence",
        "phase-1: data.max_predictions_per_seq = 4 drops 75.0% of the predictions that data.masked_lm_prob = 0.15 asks "
        "for",
    ]
    assert len(phase_lines(plan, Account(16_000, 100.0, 15.0, 0.0))) == 2
    assert " tokens, 3,200 epochs of 20 " in phase_lines(plan, Account(20, 100.0, 15.0, 0.0))[0]
    (short,) = phase_plans(load_recipe(PretrainRecipe, None, ["training.steps=10"]))
    assert "after 1 step of warm-up, then" in phase_lines(short, account)[1]


def test_finetuning_tells_the_epochs_over_what_batches_hold():
    recipe = load_recipe(FinetuneRecipe, None, ["restarts=3", "task=span", "data.max_length=64"])
    settings = recipe.training.with_steps(3200)
    assert finetuning_lines(recipe, settings, cast(EncodedData, _Windows()))[0] == (
        "task: span; 300 steps of 32 windows up to 64 tokens, about 320 tokens per step; 96,000 tokens, 1.5 epochs of "
        "6,400 windows, 3 seeds"
    )
    once = load_recipe(FinetuneRecipe, None, ["task=span", "training.epochs=1.0"])
    one = finetuning_lines(once, once.training.with_steps(6400), cast(EncodedData, _Windows()))[0]
    assert one.startswith("task: span; 200 steps of 32 windows up to ")
    assert one.endswith("tokens, 1 epoch of 6,400 windows")


def test_the_clock_leaves_steps_and_epochs_aside():
    changes = ["training.epochs=4.0", "training.minutes=30.0", "training.batch_size=16"]
    recipe = load_recipe(FinetuneRecipe, None, changes)
    lines = finetuning_lines(recipe, recipe.training.with_steps(3200), cast(EncodedData, _Windows()))
    assert lines[0] == "training.epochs = 4.0: ignored, training.minutes is set"
    assert lines[1].startswith(
        "task: single; 30 minutes, in steps of 16 windows up to 128 tokens, about 160 tokens per step; epochs of "
    )
    expected = "training.learning_rate = 5e-05, data.max_length = 128"
    assert default_lines(recipe) == [f"by default: task = single, {expected}"]
    named = load_recipe(FinetuneRecipe, None, [*changes, "task=single"])
    assert default_lines(named) == [f"by default: {expected}"]


def test_steps_leave_epochs_aside():
    recipe = load_recipe(FinetuneRecipe, None, ["training.epochs=9.0", "training.steps=2"])
    lines = finetuning_lines(recipe, recipe.training.with_steps(3200), cast(EncodedData, _Windows()))
    assert lines[0] == "training.epochs = 9.0: ignored, training.steps is set"
    timed = load_recipe(FinetuneRecipe, None, ["training.epochs=9.0", "training.steps=2", "training.minutes=1.0"])
    lines = finetuning_lines(timed, timed.training.with_steps(3200), cast(EncodedData, _Windows()))
    assert lines[:2] == [f"training.{said}: ignored, training.minutes is set" for said in ("steps = 2", "epochs = 9.0")]


class _Windows:
    num_examples = 3200
    lengths = np.full(6400, 10)

    def __len__(self) -> int:
        return 6400


def test_defaults_that_were_taken_are_named_and_given_ones_are_not():
    assert default_lines(PretrainRecipe()) == [
        "by default: training.steps = 10000, training.batch_size = 32, training.learning_rate = 0.0001, "
        "data.max_length = 128"
    ]
    phases = load_recipe(PretrainRecipe, None, ["phases=[{max_length=8, steps=3}]", "training.batch_size=32"])
    assert default_lines(phases) == ["by default: training.learning_rate = 0.0001"]
    keys = (
        "training.steps=4",
        "training.batch_size=4",
        "training.learning_rate=1e-5",
        "data.max_length=9",
        "task=pair",
    )
    assert default_lines(load_recipe(FinetuneRecipe, None, [*keys])) == []


@pytest.mark.parametrize(
    ("setting", "device", "instructions", "is_told"),
    [
        ("training.precision=auto", "cpu", "AVX-512", True),
        ("training.precision=auto", "cpu", None, False),
        ("training.precision=auto", "cuda", "AVX-512", False),
        ("training.precision=fp32", "cpu", "AVX-512", False),
        ("training.parallel=fsdp", "cpu", "AVX-512", False),
        ("training.precision=fastest", "cpu", "AVX-512", False),
    ],
)
def test_a_run_in_fp32_by_default_is_told_of_bf16(monkeypatch, setting, device, instructions, is_told):
    monkeypatch.setattr("maskloom.runs.start_summary.bf16_instructions", lambda: instructions)
    training = load_recipe(PretrainRecipe, None, [setting]).training
    told = precision_lines(training, torch.device(device))
    assert (
        told
        == ["precision: fp32; this processor also has bf16 (AVX-512), which training.precision=fastest tries"][
            : int(is_told)
        ]
    )
