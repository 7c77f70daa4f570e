"""Exports of model folders and of finished runs, and refusals, which leave no folder."""

import shutil

import pytest
from tests.unit.inference.generators import generator_folder
from typer.testing import CliRunner

from maskloom.checkpoints.huggingface import save_model
from maskloom.cli import app
from maskloom.config import FinetuneRecipe, recipe_toml
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.bert_config import BertConfig
from maskloom.runs.export import export
from maskloom.system.files import write_json, write_text


def _finished_run(folder):
    write_text(folder / "recipe.toml", recipe_toml(FinetuneRecipe()))
    write_json(folder / "run.json", {"id": "0", "paths": {}, "world_size": 1, "inputs": {}})
    for name in ("metrics.json", "model/config.json"):
        write_json(folder / name, {})
    return folder


@pytest.mark.parametrize(
    ("asked", "named"),
    [({"step": 0}, "step 0"), ({"stage": ""}, "stage ''"), ({"step": 0, "stage": ""}, "stage '', step 0")],
)
def test_step_0_and_a_stage_without_a_name_are_not_the_finished_model(tmp_path, asked, named):
    """Regression: both counted as not given."""
    run, out = _finished_run(tmp_path / "run"), tmp_path / "out"
    with pytest.raises(ConfigError, match=f"no checkpoint of {named}; available: none yet"):
        export(run, out, **asked)
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        export(run / "model", out, **asked)
    assert not out.exists()
    assert export(run, out)["stage"] == "finished"


def test_a_refused_export_leaves_no_folder(tmp_path, monkeypatch):
    """Regression: a complete model folder stayed, without the files for vectors or ONNX that were asked for."""

    def refused(source, *flags):
        command = ["export", str(source), "--out", str(tmp_path / "out"), *flags]
        error = CliRunner().invoke(app, command).exception
        assert isinstance(error, ConfigError)
        assert not (tmp_path / "out").exists()
        return str(error)

    config = BertConfig.of_size("tiny", vocab_size=50, bilstm=True)
    save_model(build_model(config, ("span",), seed=0), tmp_path / "bilstm")
    assert "a BiLSTM cannot be exported to ONNX" in refused(tmp_path / "bilstm", "--onnx")  # its weights show it
    monkeypatch.setattr("maskloom.runs.export.export", lambda *_, **__: pytest.fail("a folder was made"))
    transformer = generator_folder(tmp_path / "transformer", "transformer")
    run = _finished_run(tmp_path / "run")
    shutil.copytree(transformer, run / "model", dirs_exist_ok=True)
    for source, folder in ((transformer, transformer), (run, run / "model")):
        assert refused(source, "--onnx") == f"{folder}: a transformer cannot be exported to ONNX"
        said = refused(source, "--for-vectors", "mean")
        assert said.startswith(f"{folder}: sentence-transformers cannot open a model of type 'maskloom_transformer'")
