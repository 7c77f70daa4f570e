"""What a folder is said to hold, also where its files were edited by hand."""

import json

import pytest

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
    assert describe_folder(tmp_path)["checkpoints"] == ["phase-1/step-00000004", "seed-3/step-00000004"]


def test_a_finished_run_shows_the_scores_of_its_best_step(tmp_path):
    (tmp_path / "recipe.toml").write_text('kind = "finetune"\n')
    best = {"step": 9, "scores": {"accuracy": 0.75, "loss": 0.6}, "reference": 0.5}
    (tmp_path / "metrics.json").write_text(json.dumps({"task": "single", "best": best}))
    assert describe_folder(tmp_path)["scores"] == {"accuracy": 0.75, "loss": 0.6, "constant answer": 0.5}
