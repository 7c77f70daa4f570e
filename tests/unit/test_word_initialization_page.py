"""The page of embeddings that start from word2vec: which reviews score a run, wrong words, verdicts."""

import csv
import importlib
import json
import random
from pathlib import Path

import numpy as np
import pytest

from maskloom.text.word_vectors import read_vectors, write_vectors

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("word_initialization")


@pytest.mark.parametrize("seed", [0, 1])
def test_rates_are_chosen_on_reviews_that_score_nothing_else(script, seed, tmp_path, monkeypatch):
    rows = [(f"review {number}", "pos") for number in range(10_662)]
    asked = []

    def finetune(recipe, *, model, data, out):
        asked.append(recipe)
        out.mkdir(parents=True)
        parts = []
        for path in (data.train, data.dev):
            with path.open(encoding="utf-8", newline="") as file:
                parts.append([row["text"] for row in csv.DictReader(file)])
        drawn, scored = parts
        assert scored == [text for text, _ in (rows[:2000] if seed else rows[2000:3000])]
        assert {*drawn} < {text for text, _ in rows[3000:]}
        assert len({*drawn}) == 100
        return {"last": {"scores": {"accuracy": 0.75}}, "best": {"scores": {"accuracy": 0.9}}}

    monkeypatch.setattr(script, "finetune", finetune)
    arm = script.Arm("lstm", 100, script.WIKIPEDIA)
    assert [script.trained(tmp_path, rows, arm, 3e-3, seed) for _ in range(2)] == [0.75, 0.75]
    (recipe,) = asked
    assert recipe.model.word_vectors == str(tmp_path / "Wikipedia")
    assert (recipe.seed, recipe.training.learning_rate) == (seed, 3e-3)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_wrong_words_have_the_same_vectors(script, tmp_path):
    names = [f"word{number}" for number in range(20)]
    matrix = np.arange(60, dtype=np.float32).reshape(20, 3)
    for folder in ("vocab", "Wikipedia"):
        (tmp_path / folder).mkdir()
    (tmp_path / "vocab" / "vocab.txt").write_text("\n".join(["[PAD]", *names[:9], "unknown"]) + "\n", encoding="utf-8")
    write_vectors(tmp_path / "Wikipedia" / "vectors.bin", names, matrix, "binary")
    assert script.start_of(tmp_path, script.RANDOM, 1) is None
    assert script.start_of(tmp_path, script.IMDB, 1) == tmp_path / "IMDB"
    one, other = (read_vectors(script.start_of(tmp_path, script.WRONG, seed)) for seed in (1, 2))
    assert one.words == other.words == names[:9]
    for found in (one, other):
        assert sorted(found.matrix.tolist()) == matrix[:9].tolist()
        assert found.matrix.tolist() != matrix[:9].tolist()
    assert one.matrix.tolist() != other.matrix.tolist()


def content_of(script, accuracy):
    known = {"tokens": 10_000, **{name: {"words of text": 9_000_000, "tokens": 8_000} for name in script.TEXTS}}
    return {
        "seeds": 3,
        "known": known,
        "rates": {str(arm): 1e-3 for arm in script.ARMS},
        "scores": {str(arm): {"accuracy": [accuracy(arm, seed) for seed in range(3)]} for arm in script.ARMS},
        "machine": "a machine",
    }


def test_the_page_gives_scores_and_verdicts(script):
    draw = random.Random(0)

    def accuracy(arm, seed):
        gain = {script.WIKIPEDIA: 0.1 if arm.examples == 100 else 0.0, script.IMDB: -0.1}.get(arm.start, 0.0)
        return 0.7 + gain + (draw.gauss(0, 0.05) if arm.start == script.WRONG else 0.001 * seed)

    lines, verdicts = script.page(content_of(script, accuracy))
    assert max(len(line) for line in lines if not line.startswith("|")) <= 120
    assert "| lstm | 100 | Wikipedia | 0.001 | 0.801 ± 0.001 |" in lines
    assert "| lstm, 100 examples: Wikipedia is better than random | shown | +0.100 ± 0.000 |" in lines
    assert any(line.startswith("| gru, 1,000 examples: Wikipedia is better than random | not sh") for line in lines)
    assert "| lstm, 7,662 examples: IMDB is better than random | denied | -0.100 ± 0.000 |" in lines
    assert len(verdicts) == 4 * len(script.COMPARED) + 4
    assert sum("--seeds 3`" in line for line in lines) == 1


def test_the_page_is_that_of_its_figures(script):
    page = ROOT / "results" / "word_initialization.md"
    content = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    lines, verdicts = script.page(content)
    assert page.read_text(encoding="utf-8").splitlines() == lines
    assert content["verdicts"] == verdicts
