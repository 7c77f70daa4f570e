"""Model folders exported from the checkpoints of runs that ended early."""

import shutil
from dataclasses import replace

import pytest
import torch

import maskloom
from maskloom.checkpoints.huggingface import load_model
from maskloom.errors import ConfigError, DataError
from maskloom.inference.model_folder import read_settings
from maskloom.runs.convert import convert
from maskloom.runs.evaluate import evaluate
from maskloom.runs.export import export
from maskloom.runs.rerun import rerun
from maskloom.system.files import write_json
from maskloom.training.checkpointing.checkpoints import step_folders
from tools.soak.subjects import RUN, finetuning, pretraining, run_whole


def _ended_early(server, subject, folder, rule):
    folder.mkdir()
    assert server.start(subject.arguments, folder, folder / "output.txt", MASKLOOM_FAULTS=rule).wait() == -9
    return folder / RUN


@pytest.fixture(scope="module")
def pretrained(server, run_data, tmp_path_factory):
    """Return a pre-training run of 21 steps, saved every 5, killed just before it writes its model."""
    subject = pretraining(run_data, steps=21, save_every=5, evaluate_every=10)
    return subject, _ended_early(server, subject, tmp_path_factory.mktemp("pretrain") / "a", "kill@model.write#1")


@pytest.fixture(scope="module")
def finetuned(server, run_data, tmp_path_factory):
    """Return a fine-tuning run of two seeds, killed in the third epoch of the second; an epoch is 5 steps."""
    subject = finetuning(run_data, epochs=3)
    subject = replace(subject, arguments=(*subject.arguments, "--set", "training.save_every=5"))
    return subject, _ended_early(server, subject, tmp_path_factory.mktemp("finetune") / "a", "kill@training.step#28")


def _weights(folder):
    return dict(load_model(folder)[0].named_parameters())


def test_pre_training_ended_early_gives_a_model_to_go_on_from(server, run_data, pretrained, tmp_path):
    _, run = pretrained
    with pytest.raises(DataError, match=f"maskloom export {run} --out DIR"):
        maskloom.load(run)
    newest = export(run, tmp_path / "newest")
    assert (newest["stage"], newest["step"]) == ("phase-1", 21)
    older = export(run, tmp_path / "older", step=20)
    assert "mlm_loss" in older["scores"]
    first, second = _weights(tmp_path / "newest"), _weights(tmp_path / "older")
    assert not torch.equal(first["encoder.pooler.dense.weight"], second["encoder.pooler.dense.weight"])
    assert maskloom.load(tmp_path / "newest").fill_mask("a [MASK] b")
    assert "Step 20 of phase-1." in (tmp_path / "older" / "README.md").read_text(encoding="utf-8")
    arguments = ["pretrain", "--corpus", str(run_data / "corpus"), "--out", "on", "--init", str(tmp_path / "newest")]
    sets = ["training.steps=1", "data.max_length=32", "training.num_threads=1", "training.batch_size=8"]
    run_whole(server, (*arguments, *(word for each in sets for word in ("--set", each))), tmp_path)
    with pytest.raises(ConfigError, match="no checkpoint of step 7; available: phase-1: steps 20, 21"):
        export(run, tmp_path / "none", step=7)
    with pytest.raises(ConfigError, match="not an empty folder"):
        export(run, tmp_path / "older")
    assert not (tmp_path / "none").exists()


def test_damaged_checkpoints_are_skipped_by_name(pretrained, tmp_path):
    _, run = pretrained
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for number, path in enumerate(step_folders(copy / "checkpoints" / "phase-1")):
        (path / "model.safetensors").write_bytes(b"")
        if number == 0:
            result = export(copy, tmp_path / "out")
            assert result["step"] == 20
            assert "step-00000021" in result["skipped"][0]
            assert result["stage"] == "phase-1"
            assert "loss" in result["scores"]
    with pytest.raises(DataError, match=r"no checkpoint can be used: .*step-00000020"):
        export(copy, tmp_path / "none")


def test_a_finished_run_gives_its_model(server, pretrained, tmp_path):
    subject, run = pretrained
    shutil.copytree(run.parent, tmp_path / "run")
    run_whole(server, subject.resumed(), tmp_path / "run")
    finished = tmp_path / "run" / RUN
    result = export(finished, tmp_path / "out")
    assert result["step"] == 21
    for name in ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt"):
        assert (tmp_path / "out" / name).read_bytes() == (finished / "model" / name).read_bytes(), name


def test_fine_tuning_ended_early_predicts_and_is_scored(server, run_data, finetuned, tmp_path):
    subject, run = finetuned
    newest = export(run, tmp_path / "newest")
    # the save of step 5 ends before the save of step 10 begins, which the kill may have interrupted
    assert (newest["stage"], newest["step"]) in (("seed-1", 5), ("seed-1", 10))
    first = export(run, tmp_path / "first", stage="seed-0")
    assert first["stage"] == "seed-0"
    for name, result in (("newest", newest), ("first", first)):
        scored = evaluate([tmp_path / name], run_data / "dev.jsonl")
        assert scored["accuracy"] == pytest.approx(result["scores"]["accuracy"])
        assert maskloom.load(tmp_path / name).predict(["a true film"])[0]["label"] in ("good", "bad")
    shutil.copytree(run.parent, tmp_path / "run")
    run_whole(server, subject.resumed(), tmp_path / "run")
    finished = tmp_path / "run" / RUN
    own = {**read_settings(finished / "model"), "settings": None}
    assert {**read_settings(tmp_path / "newest"), "settings": None} == own
    checkpoints = [path for seed in (finished / "restarts").iterdir() for path in step_folders(seed / "checkpoints")]
    assert checkpoints
    for path in checkpoints:  # the finished model does not depend on them
        (path / "model.safetensors").write_bytes(b"")
    export(finished, tmp_path / "finished")
    assert (tmp_path / "finished" / "maskloom.json").read_bytes() == (finished / "model" / "maskloom.json").read_bytes()


def test_what_is_no_single_run_is_refused(run_data, tmp_path):
    with pytest.raises(ConfigError, match="not the folder of a run"):
        export(run_data / "corpus", tmp_path / "out")
    for command in (export, rerun):
        with pytest.raises(ConfigError, match=r"rnu: no such folder$"):
            command(tmp_path / "rnu", out=tmp_path / "out")


def test_a_finished_search_gives_its_best_model_and_its_trials_are_exported_alone(run_data, finetuned, tmp_path):
    _, run = finetuned
    search, trial = tmp_path / "search", tmp_path / "search" / "trials" / "trial-001"
    shutil.copytree(run, trial)
    shutil.copy(run / "recipe.toml", search)
    told = {"id": "0", "paths": {}, "world_size": 1}
    write_json(search / "run.json", {**told, "inputs": {"space": {}, "method": "grid"}})
    with pytest.raises(ConfigError, match="several runs; export one of them"):
        export(search, tmp_path / "out")
    assert export(trial, tmp_path / "out")["stage"] == "seed-1"
    shutil.copytree(run_data / "first" / "model", search / "model")
    assert export(search, tmp_path / "best")["step"] is None
    for path in (search / "model").iterdir():
        assert (tmp_path / "best" / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(ConfigError, match="several runs; export one of them"):
        export(search, tmp_path / "none", step=5)


def test_convert_says_what_it_was_given_instead(run_data, pretrained, tmp_path):
    _, run = pretrained
    (tmp_path / "empty").mkdir()
    (tmp_path / "vectors").mkdir()
    for name in ("recipe.toml", "vectors.bin"):
        (tmp_path / "vectors" / name).touch()
    for place, message in (
        (
            tmp_path / "empty",
            "no weights; the folder is empty; expected model.safetensors or .* `maskloom convert` also",
        ),
        (run_data / "corpus", "no weights; it holds document_offsets.bin, .*; expected"),
        (run_data / "first", f"no weights; this is a run; its model is in {run_data / 'first' / 'model'}; expected"),
        (run, f"no weights; this is a run; maskloom export {run} --out DIR makes a model folder from a checkpoint;"),
        (run_data / "vocab" / "vocab.txt", "a vocabulary, not weights; name the folder that contains it, config.json"),
        (
            run_data / "first" / "model" / "model.safetensors",
            "cannot be read on its own; name the folder that contains it,",
        ),
        (tmp_path / "vectors", "no weights; it holds recipe.toml, vectors.bin; expected"),
        (run_data, "no weights; it holds corpus, dev.jsonl, first,"),
    ):
        with pytest.raises(DataError, match=f"{place}: {message}"):
            convert(place, tmp_path / "out")
