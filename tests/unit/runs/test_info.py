"""What `info` reports about a folder, even if its files were edited by hand."""

import json

import pytest
from tests.unit.runs.test_convert import unigram

from maskloom.checkpoints.huggingface import save_model
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import build_model
from maskloom.runs.info import describe_folder


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ({"space": "grid"}, "search"),
        ({"space": "grid", "tasks": ["cola"]}, "GLUE"),
        ({"train": "x"}, "run"),
        (1.5, "run"),
    ],
)
def test_kinds_of_runs(tmp_path, inputs, kind):
    (tmp_path / "recipe.toml").write_text('kind = "finetune"\n')
    (tmp_path / "run.json").write_text(json.dumps({"inputs": inputs}))
    assert describe_folder(tmp_path)["kind"] == kind


def test_checkpoints_are_named_with_their_phase_or_seed(tmp_path):
    (tmp_path / "recipe.toml").write_text('kind = "finetune"\n')
    for place in ("checkpoints/phase-1", "restarts/seed-3/checkpoints"):
        (tmp_path / place / "step-00000004").mkdir(parents=True)
        (tmp_path / place / "step-00000008.tmp-123").mkdir()
    assert describe_folder(tmp_path)["checkpoints"] == ["phase-1/step-00000004", "seed-3/step-00000004"]


def test_a_finished_run_shows_the_scores_of_its_best_step(tmp_path):
    (tmp_path / "recipe.toml").write_text('kind = "finetune"\n')
    best = {"step": 9, "scores": {"accuracy": 0.75, "loss": 0.6}, "reference": 0.5}
    (tmp_path / "metrics.json").write_text(json.dumps({"task": "single", "best": best}))
    assert describe_folder(tmp_path)["scores"] == {"accuracy": 0.75, "loss": 0.6, "constant answer": 0.5}


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_the_sizes_of_every_architecture_are_said_by_the_same_names(name, tmp_path):
    row = ARCHITECTURES[name]
    config = row.config_type.of_size("tiny", row.sizes, vocab_size=50, max_position_embeddings=16)
    model = build_model(config, (row.vocabulary_head,), seed=0)
    save_model(model, tmp_path)
    found = describe_folder(tmp_path)
    sizes = (found["hidden_size"], found["num_hidden_layers"], found["num_attention_heads"], found["vocab_size"])
    assert sizes == (128, config.num_hidden_layers, config.num_attention_heads, 50)
    assert found["parameters"]["all"] == sum(parameter.numel() for parameter in model.parameters())


def test_a_vocabulary_may_be_a_single_file(tmp_path):
    unigram().save(tmp_path)
    assert not (tmp_path / "vocab.json").exists()
    found = describe_folder(tmp_path)
    assert (found["kind"], found["size"]) == ("vocabulary", 5)
