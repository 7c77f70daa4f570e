"""`maskloom.pretrain` and `maskloom.finetune`: the same work and results as the commands, from Python."""

import csv
import json
import random
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import maskloom
from maskloom.cli import app
from maskloom.errors import ConfigError

TINY = {
    "model.config": {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1},
    "training.num_threads": 1,
    "data": {"held_out_fraction": 0.2},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(0)
    words = ["the", "array", "list", "sorted", "in", "place", "of", "its", "keys", "returns", "a", "new", "copy"]
    documents = ["".join(" ".join(draw.choices(words, k=9)) + ". " for _ in range(6)) for _ in range(30)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    text, vocabulary = folder / "text.txt", folder / "v"
    for command in (
        ("vocab", "train", text, "--size", 60, "--out", vocabulary),
        ("corpus", "build", text, "--vocab", vocabulary, "--out", folder / "c"),
    ):
        done = CliRunner().invoke(app, [*map(str, command)])
        assert done.exit_code == 0, done.output
    return folder / "c"


def test_pretraining_and_finetuning_are_calls(corpus, tmp_path, capfd):
    metrics = maskloom.pretrain(
        corpus,
        tmp_path / "bert",
        size="tiny",
        recipe=TINY,
        steps=4,
        batch_size=4,
        max_length=24,
        seed=3,
        progress=False,
    )
    assert metrics["mlm_loss"] > 0
    assert "seed = 3" in (tmp_path / "bert" / "recipe.toml").read_text(encoding="utf-8")
    assert capfd.readouterr().err == ""
    assert maskloom.pretrain(corpus, tmp_path / "bert", resume=True) == metrics
    for wrong, message in (({"verify": True}, "set resume too"), ({"epochs": "1"}, "--epochs '1': expected a number")):
        with pytest.raises(ConfigError, match=message):
            maskloom.pretrain(corpus, tmp_path / "other", size="tiny", **wrong)
    capfd.readouterr()
    rows = [("sorted in place", "a"), ("a new copy", "b")] * 12
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("words", "kind"), *rows])
    result = maskloom.finetune(
        tmp_path / "bert",
        tmp_path / "rows.csv",
        tmp_path / "rows.csv",
        tmp_path / "classifier",
        recipe={"training.num_threads": 1},
        epochs=2,
        batch_size=8,
        learning_rate=1e-3,
        max_length=16,
        text_column="words",
        label_column="kind",
        resume=True,
    )
    said = capfd.readouterr().err
    assert said.startswith(f"no run in {tmp_path / 'classifier'} yet: starting a new one\n")
    assert re.search(
        r"task: single; 6 steps of 8 examples .* tokens per step; \d+ tokens, 2 epochs of 24 examples", said
    )
    assert json.loads((tmp_path / "classifier" / "metrics.json").read_text()) == result
    assert {answer["label"] for answer in maskloom.load(tmp_path / "classifier").predict(["a new copy"])} <= {"a", "b"}


def test_wrong_calls_name_what_is_wrong(corpus, tmp_path):
    with pytest.raises(ValueError, match=r"unknown key 'steps'; did you mean 'training\.steps'"):
        maskloom.pretrain(corpus, tmp_path / "run", recipe={"steps": 3})
    with pytest.raises(ValueError, match="did you mean the shipped recipe squad-v1"):
        maskloom.finetune("m", "t", "d", tmp_path / "run", recipe="squad-v11")
    with pytest.raises(ValueError, match=r"--epochs: training\.steps = 7 is also set"):
        maskloom.finetune("m", "t", "d", tmp_path / "run", recipe={"training.steps": 7}, epochs=2)
    assert not (tmp_path / "run").exists()


def test_what_is_no_path_is_refused_with_the_argument(corpus, tmp_path):
    for arguments, message in (
        ((None, "out"), "corpus: expected a path, as a str or Path, got NoneType"),
        ((corpus, 3), "out: expected a path, as a str or Path, got int"),
        ((corpus, "caf\udce9"), r"caf\\xe9: the name is not UTF-8; rename it"),
    ):
        with pytest.raises(ValueError, match=message):
            maskloom.pretrain(*arguments)
    for number, name in enumerate(("model", "train", "dev", "out")):
        paths = ["m", "t.csv", "d.csv", str(tmp_path / "run")]
        paths[number] = None
        with pytest.raises(ValueError, match=f"{name}: expected a path, as a str or Path, got NoneType"):
            maskloom.finetune(*paths)
    with pytest.raises(ValueError, match="init: expected a path"):
        maskloom.pretrain(corpus, tmp_path / "run", init=3)
    with pytest.raises(
        ValueError, match="recipe must be a TOML file, the name of a shipped recipe or a mapping of keys to values"
    ):
        maskloom.pretrain(corpus, tmp_path / "run", recipe=3)
    assert not (tmp_path / "run").exists()


def test_the_package_stays_light():
    code = "import sys, maskloom; print(sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)), maskloom.pretrain)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("[] <function pretrain")
