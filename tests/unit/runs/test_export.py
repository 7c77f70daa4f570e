"""Exports of model folders and of finished runs, and refusals, which leave no folder."""

import shutil

import pytest
from tests.unit.inference.generators import SIZES, generator_folder
from typer.testing import CliRunner

from maskloom.checkpoints.huggingface import save_model
from maskloom.cli import app
from maskloom.config import FinetuneRecipe, recipe_toml
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.bart_config import BartConfig
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


def test_the_weights_of_a_bart_are_not_loaded_to_see_whether_it_generates(tmp_path, monkeypatch):
    generating = generator_folder(tmp_path / "bart", "bart")
    reading = shutil.copytree(generating, tmp_path / "reading")
    config = BartConfig(vocab_size=13, max_position_embeddings=80, **SIZES).with_marks(0, 2, 3)
    save_model(build_model(config, (), seed=3), reading)
    monkeypatch.setattr("maskloom.runs.export.load_model", lambda _: pytest.fail("the weights were loaded"))
    export = ["export", "--for-vectors", "mean", "--out", str(tmp_path / "out")]
    error = CliRunner().invoke(app, [*export, str(generating)]).exception
    assert f"{generating}: sentence-transformers pools the states of a BART's decoder" in str(error)
    assert CliRunner().invoke(app, [*export, str(reading)]).exit_code == 0
    assert (tmp_path / "out" / "modules.json").exists()


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
        assert refused(source, "--onnx") == f"{folder}: the architecture transformer cannot be exported to ONNX"
        said = refused(source, "--for-vectors", "mean")
        assert said.startswith(f"{folder}: sentence-transformers cannot open a model of type 'maskloom_transformer'")
