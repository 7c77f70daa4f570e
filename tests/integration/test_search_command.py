"""The search command: its table, a trial that cannot work, and commands that a shell can repeat."""

import json
import os
import random
import shlex
import stat
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from maskloom.checkpoints.huggingface import save_model
from maskloom.cli import app
from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.errors import ConfigError
from maskloom.inference import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.rerun import rerun
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["film", "book", "song", "so", "very", "fine", "great", "awful", "poor"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder whose name needs quoting in a shell, with a model and data."""
    folder = tmp_path_factory.mktemp("it's a $place; really")
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    save_model(build_model(config, ("mlm", "nsp"), seed=3), folder / "model")
    WordPieceTokenizer(vocabulary, max_length=32).save(folder / "model")
    for name, size in (("train", 40), ("dev", 24)):
        draw = random.Random(name)
        rows = [(" ".join(draw.choices(WORDS, k=6)), draw.randint(0, 1)) for _ in range(size)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"body": t, "mark": k}) + "\n" for t, k in rows))
    return folder


@pytest.fixture(scope="module")
def finished(folder):
    arguments = ["search", "--model", folder / "model", "--train", folder / "train.jsonl", "--out", folder / "out",
                 "--dev", folder / "dev.jsonl", "--text-column", "body", "--label-column", "mark", "--metric", "f1",
                 "--grid", "data.max_length=16,64", "--grid", "training.learning_rate=1e-3,5e-3", "--restarts", "2",
                 "--steps", "3", "--set", "training.num_threads=1"]  # fmt: skip
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.output, json.loads((folder / "out" / "results.json").read_text())


def test_the_table_names_the_trials_that_cannot_work(finished, folder):
    output, result = finished
    assert (result["num_trials"], result["num_failed"]) == (4, 2)
    assert load_recipe(FinetuneRecipe, folder / "out" / "recipe.toml").training.steps == 3
    (line,) = [line for line in output.splitlines() if " trial-003 " in line]
    assert " ".join(line.split()).startswith(
        "– trial-003 64 0.001 failed: ConfigError: data.max_length 64 exceeds the 32 tokens"
    )
    assert "f1, best on dev" in output
    assert (folder / "out" / "results.md").read_text().count("maskloom finetune") == 4


def test_settings_that_suit_no_trial_leave_no_search_behind(folder, tmp_path):
    arguments = ["search", "--model", folder / "model", "--train", folder / "train.jsonl", "--out", tmp_path / "out",
                 "--dev", folder / "dev.jsonl", "--text-column", "body", "--label-column", "mark",
                 "--grid", "training.learning_rate=1e-3,5e-3", "--set", "data.max_length=64"]  # fmt: skip
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("data.max_length 64 exceeds the 32 tokens")
    assert not list((tmp_path / "out").glob("*"))


def test_the_best_model_is_that_of_the_folder(finished, folder):
    _, result = finished
    scores = [score for trial in result["trials"][:2] for score in trial["restarts"]["scores"].values()]
    assert result["best"]["score"] == max(scores)
    assert Predictor.load(folder / "out").max_length == 16
    assert not list((folder / "out" / "trials").glob("*/model"))


def test_a_search_that_goes_on_knows_what_it_was_given(finished, folder):
    done = CliRunner().invoke(app, ["search", "--resume", "--out", str(folder / "out"), "--json"])
    assert done.exit_code == 0, done.output
    again, (_, result) = json.loads(done.output.splitlines()[-1]), finished
    assert [trial["settings"] for trial in again["trials"]] == [trial["settings"] for trial in result["trials"]]


@pytest.mark.slow
def test_a_shell_repeats_a_trial_to_the_last_digit(finished, folder, tmp_path):
    _, result = finished
    program = tmp_path / "maskloom"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m maskloom "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    for told in result["trials"]:
        words = shlex.split(told["command"])
        assert words[words.index("--out") + 1] == str(folder / "out" / "reruns" / told["name"])
    trial = result["trials"][1]
    done = subprocess.run(
        ["sh", "-c", trial["command"] + " --json"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["best"] == trial["best"]
    assert again["restarts"] == trial["restarts"]
    assert again["metric"] == "f1"


def test_the_best_trial_is_repeated_to_the_bit_and_no_other_has_a_model(finished, folder, tmp_path):
    _, result = finished
    out, again = folder / "out", tmp_path / "again"
    done = CliRunner().invoke(app, ["rerun", str(out), "--out", str(again)])
    assert done.exit_code == 0, done.output
    weights = [path / "model" / "model.safetensors" for path in (out, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    other = result["trials"][1]
    with pytest.raises(ConfigError, match="its search kept only the best"):
        rerun(out / "trials" / other["name"], out=tmp_path / "other")
