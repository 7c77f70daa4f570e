"""Exports of model folders and of finished runs, and what is refused before a folder is made."""

import pytest

from maskloom.config import FinetuneRecipe, recipe_toml
from maskloom.errors import ConfigError
from maskloom.runs.export import export
from maskloom.system.files import write_json, write_text


def _finished_run(folder):
    write_text(folder / "recipe.toml", recipe_toml(FinetuneRecipe()))
    write_json(folder / "run.json", {"id": "0", "paths": {}, "world_size": 1, "inputs": {}})
    for name in ("metrics.json", "model/config.json"):
        write_json(folder / name, {})
    return folder


@pytest.mark.parametrize("asked", [{"step": 0}, {"stage": ""}, {"step": 0, "stage": ""}])
def test_step_0_and_a_stage_without_a_name_are_not_the_finished_model(tmp_path, asked):
    """Regression: both counted as not given."""
    run, out = _finished_run(tmp_path / "run"), tmp_path / "out"
    with pytest.raises(ConfigError, match="no such checkpoint; available: none yet"):
        export(run, out, **asked)
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        export(run / "model", out, **asked)
    assert not out.exists()
    assert export(run, out)["stage"] == "finished"
