"""ELMo from raw text to features and tasks, on the command line."""

import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import maskloom
from maskloom.cli import app
from maskloom.data.feature_files import FeatureFile
from maskloom.errors import ConfigError

SMALL = [
    *("--set", "objective=bidirectional_lm", "--set", "data.held_out_fraction=0.2", "--set", "data.max_length=6"),
    *("--set", "model.config.hidden_size=24", "--set", "model.config.intermediate_size=24"),
    *("--set", "model.config.filters=[[1,8],[2,8],[3,8]]", "--set", "training.num_threads=1"),
    *("--set", "training.evaluate_every=40", "--set", "training.save_every=40", "--batch-size", "4"),
]
COLORS = ["red", "green", "blue", "black", "white"]
TAGGED = "the O\nRed B-PER\ncat O\n\nblue O\ndog O\nsees O\nGreen B-PER\n\nBlack B-PER\nruns O\n"


def invoke(*arguments, code=0):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elmo")
    texts = [f"The {a} cat sees the {b} dog. Then the {b} dog sees the {a} cat." for a in COLORS for b in COLORS]
    (folder / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    words = ("--model", "words", "--cased", "--size", 100)
    told = invoke("vocab", "train", folder / "text.txt", *words, "--out", folder / "words", "--json")
    report = json.loads(told.splitlines()[-1])
    assert report["why_smaller"] == "no word that occurs at least 2 times is left"
    assert report["unknown_rate"] == 0.0
    invoke("corpus", "build", folder / "text.txt", "--vocab", folder / "words", "--out", folder / "corpus")
    return folder / "corpus"


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "elmo"
    steps = ("--steps", 80, "--learning-rate", "2e-2")
    output = invoke("pretrain", "--corpus", corpus, *SMALL, *steps, "--out", out)
    assert "(forward" in output
    return out


def test_both_ways_learn_and_a_stopped_run_ends_with_the_same_weights(run, corpus, tmp_path):
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["forward_perplexity"] < 5
    assert metrics["backward_perplexity"] < 5
    out = tmp_path / "run"
    shutil.copytree(run, out)
    shutil.rmtree(out / "model")
    (out / "metrics.json").unlink()
    *_, before, last = sorted((out / "checkpoints" / "phase-1").glob("step-*"))
    assert (before / "carry.safetensors").exists()
    shutil.rmtree(last)
    said = invoke("pretrain", "--corpus", corpus, "--recipe", out / "recipe.toml", "--resume", "--out", out)
    assert f"continuing at {int(before.name[5:])} of 80" in said
    again, weights = (load_file(folder / "model" / "model.safetensors") for folder in (out, run))
    assert all(again[name].equal(values) for name, values in weights.items())


def test_training_goes_on_with_the_same_words_alone(run, corpus, tmp_path):
    more = ("--set", "objective=bidirectional_lm", "--set", "data.held_out_fraction=0.2", "--batch-size", 4)
    output = invoke("pretrain", "--init", run, "--corpus", corpus, *more, "--steps", 1, "--out", tmp_path / "more")
    assert "before step 1: held-out bilm loss" in output
    invoke("corpus", "build", corpus.parent / "text.txt", "--vocab", run, "--out", tmp_path / "again")
    for name in ("manifest.json", "vocab.txt"):
        assert (tmp_path / "again" / name).read_bytes() == (corpus / name).read_bytes()


def test_features_are_one_row_for_each_word(run, tmp_path):
    (tmp_path / "tagged.txt").write_text(TAGGED, encoding="utf-8")
    (tmp_path / "plain.txt").write_text("Unheard-of words\n\nred cat\n", encoding="utf-8")
    for name, words in (("tagged", [3, 4, 2]), ("plain", [6, 2, 4])):
        out = tmp_path / f"{name}.features"
        invoke("features", "--model", run, "--input", tmp_path / f"{name}.txt", "--layers", "all", "--out", out)
        file = FeatureFile.open(out)
        assert np.diff(file.offsets).tolist() == words
        assert file.array.shape[1:] == (3, 24)
    names = [json.loads(line) for line in (tmp_path / "plain.features" / "tokens.jsonl").read_text().splitlines()]
    assert names[0]["tokens"] == ["<S>", "Unheard", "-", "of", "words", "</S>"]
    assert file.rows([2])[1, 0].tolist() == pytest.approx(file.rows([2])[1, 0][[*range(12)] * 2].tolist())


def test_a_frozen_model_serves_taggers_and_classifiers(run, tmp_path):
    (tmp_path / "tagged.txt").write_text(TAGGED, encoding="utf-8")
    (tmp_path / "texts.csv").write_text("text,label\nred cat,a\nblue dog,b\nred dog,a\nblue cat,b\n", encoding="utf-8")
    frozen = ("--set", "frozen=true", "--set", "data.max_length=99", "--epochs", 2, "--learning-rate", "1e-2")
    mixed = ("--set", "mix.layer_norm=true", "--set", "mix.l2=0.001", "--set", "mix.dropout=0.1")
    kinds = {"tagging": ("tagged.txt", "--set", "tagging.crf=true", "--set", "bilstm=true"), "single": ("texts.csv",)}
    before = load_file(run / "model" / "model.safetensors")
    mixes = []
    for kind, (name, *more) in kinds.items():
        files, out = ("--train", tmp_path / name, "--dev", tmp_path / name), tmp_path / kind
        invoke("finetune", "--model", run, "--task", kind, *files, *frozen, *mixed, *more, "--out", out)
        after = load_file(out / "model" / "model.safetensors")
        changed = {name for name in before.keys() & after.keys() if not before[name].equal(after[name])}
        assert changed == {"encoder.mix.weights", "encoder.mix.scale"}
        mixes.append(after["encoder.mix.weights"].tolist())
        config = json.loads((out / "model" / "config.json").read_text(encoding="utf-8"))
        assert (config["mix_layer_norm"], config["mix_dropout"], config["bilstm"]) == (True, 0.1, kind == "tagging")
    assert mixes[0] != mixes[1]
    assert len(maskloom.load(tmp_path / "tagging").predict(["Green sees a dog"])) == 1
    features = ("--recipe", "features", "--set", "features.layers=scalar_mix", "--set", "features.lstm_size=8")
    files = ("--train", tmp_path / "tagged.txt", "--dev", tmp_path / "tagged.txt", "--epochs", 1)
    out = tmp_path / "features"
    invoke("finetune", "--model", run, *features, *files, "--set", "mix.layer_norm=true", "--out", out)
    config = json.loads((out / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["maskloom_heads"]["bilstm_tagger"]["mix_layer_norm"]


def test_what_does_not_go_together_is_refused(run, corpus, tmp_path):
    (tmp_path / "texts.csv").write_text("text,label\nred cat,a\nblue dog,b\n", encoding="utf-8")
    files = ("--train", tmp_path / "texts.csv", "--dev", tmp_path / "texts.csv", "--out", tmp_path / "out")
    for options, message in (
        (("--set", "frozen=true", "--set", "from_scratch=true"), "frozen = true cannot be combined"),
        (("--set", "mix.dropout=0.5", "--recipe", "features"), "features.dropout, which applies to"),
    ):
        result = CliRunner().invoke(app, [*map(str, ("finetune", "--model", run, *files, *options))])
        assert isinstance(result.exception, ConfigError)
        assert message in str(result.exception)
    new = ("--vocab", corpus, "--set", "model.architecture=elmo", "--set", "model.config.hidden_size=8")
    invoke("finetune", "--task", "single", *new, *files[:4], "--epochs", 1, "--out", tmp_path / "new")
    assert maskloom.load(tmp_path / "new").predict(["blue cat"])[0]["label"] in ("a", "b")


def test_a_lower_cased_vocabulary_is_refused(corpus, tmp_path):
    text = corpus.parent / "text.txt"
    invoke("vocab", "train", text, "--model", "words", "--size", 100, "--out", tmp_path / "words")
    invoke("corpus", "build", text, "--vocab", tmp_path / "words", "--out", tmp_path / "corpus")
    command = ("pretrain", "--corpus", tmp_path / "corpus", *SMALL, "--out", tmp_path / "run")
    result = CliRunner().invoke(app, [*map(str, command)])
    assert "is lower-cased" in str(result.exception)
    assert "--cased" in str(result.exception)
