import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score
from tests.fine_tuning import finetune

from maskloom.checkpoints.huggingface import save_model
from maskloom.config import FinetuneRecipe, load_recipe, validate_recipe
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.evaluate import evaluate, tune
from maskloom.runs.predict import predict
from maskloom.runs.task_summaries import finetuning_lines, tuning_lines
from maskloom.system.files import write_json
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.kinds import task_kind
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
LABELS = {"single": ["x", "y", "z"], "multilabel": ["x", "y", "z"], "regression": None}


def model_folder(folder, kind, num_outputs=3, bias=0.0):
    """Write a model with random weights; `bias` shifts the logits of all labels."""
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24, initializer_range=0.5,
    )  # fmt: skip
    model = build_model(config, ("classifier",), num_outputs, seed=3)
    for name, values in model.named_parameters():
        if name.startswith("heads.classifier") and name.endswith("bias"):
            values.data += bias
    problem = {"single": "single_label_classification", "multilabel": "multi_label_classification"}.get(kind, kind)
    names = LABELS[kind] or ["score"]
    save_model(model, folder, extra_config={"problem_type": problem, "id2label": dict(enumerate(names))})
    WordPieceTokenizer(vocabulary, max_length=24).save(folder)
    write_json(folder / "maskloom.json", {"kind": kind, "max_length": 12, "settings": {}, "by hand": 1})
    return folder


def write_rows(path, kind, num_rows=80, seed=1):
    draw, lines = random.Random(seed), []
    for _ in range(num_rows):
        row: dict[str, object] = {"text": " ".join(draw.choices(WORDS, k=draw.randint(1, 8)))}
        row["label"] = draw.choice("xyz")
        if kind == "multilabel":
            row["label"] = [name for name in "xyz" if draw.random() < 0.3]
        elif kind == "regression":
            row["label"] = draw.random()
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")
    return path


def settings_of(folder):
    return json.loads((folder / "maskloom.json").read_text())["settings"]


def test_labels_are_tuned_and_used(tmp_path):
    folder = model_folder(tmp_path / "model", "multilabel", bias=-3.0)
    dev = write_rows(tmp_path / "dev.jsonl", "multilabel")
    before = evaluate(folder, dev)
    result = tune(folder, dev)
    assert settings_of(folder) == result["settings"]
    assert json.loads((folder / "maskloom.json").read_text())["by hand"] == 1
    assert result["before"]["f1_macro"] == before["f1_macro"]
    assert result["before"]["calibration_error"] == pytest.approx(before["calibration_error"])
    for name in ("f1_macro", "f1_micro"):
        assert result["after"][name] > result["before"][name]
    assert result["after"]["negative_log_likelihood"] < result["before"]["negative_log_likelihood"]
    after = evaluate(folder, dev)
    for name in ("f1_micro", "f1_macro", "calibration_error"):
        assert after[name] == pytest.approx(result["after"][name])
    predict(folder, dev, tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    thresholds = dict(zip("xyz", result["settings"]["thresholds"], strict=True))
    for row in rows:
        assert row["labels"] == [name for name in "xyz" if row["probabilities"][name] >= thresholds[name]]
    truth = [json.loads(line)["label"] for line in dev.read_text().splitlines()]
    marks = [[[name in chosen for name in "xyz"] for chosen in side] for side in (truth, [r["labels"] for r in rows])]
    assert f1_score(np.array(marks[0]), np.array(marks[1]), average="micro") == pytest.approx(after["f1_micro"])
    again = tune(folder, dev)
    assert {key: again[key] for key in ("settings", "before", "after")} == {
        key: result[key] for key in ("settings", "before", "after")
    }
    text = "\n".join(tuning_lines(result))
    assert "dev.jsonl; the scores below are on this file" in text
    assert f"f1 macro                 {before['f1_macro']:.4g} -> {after['f1_macro']:.4g}" in text


def test_classes_keep_their_decisions(tmp_path):
    folder = model_folder(tmp_path / "model", "single")
    dev = write_rows(tmp_path / "dev.jsonl", "single")
    before = Predictor.load(folder).predict(WORDS)
    result = tune(folder, dev)
    assert list(result["settings"]) == ["temperature"]
    assert result["after"]["accuracy"] == result["before"]["accuracy"]
    assert result["after"]["negative_log_likelihood"] < result["before"]["negative_log_likelihood"]
    after = Predictor.load(folder).predict(WORDS)
    assert [row["label"] for row in after] == [row["label"] for row in before]
    assert after != before


def test_wrong_use_changes_nothing(tmp_path):
    score = model_folder(tmp_path / "score", "regression", num_outputs=1)
    with pytest.raises(ConfigError, match="a regression task has neither"):
        tune(score, write_rows(tmp_path / "scores.jsonl", "regression"))
    assert "calibration_error" not in evaluate(score, tmp_path / "scores.jsonl")
    folder = model_folder(tmp_path / "model", "single")
    (tmp_path / "bad.jsonl").write_text('{"text": "alpha", "label": "purple"}\n')
    with pytest.raises(DataError, match="line 1: the label 'purple'"):
        tune(folder, tmp_path / "bad.jsonl")
    assert settings_of(folder) == {}
    label = Predictor.load(folder).predict(["alpha"])[0]["label"]
    (tmp_path / "right.jsonl").write_text(json.dumps({"text": "alpha", "label": label}) + "\n")
    with pytest.raises(DataError, match=r"right\.jsonl: a temperature cannot be fitted to 1 example: more than one is"):
        tune(folder, tmp_path / "right.jsonl")
    assert settings_of(folder) == {}
    content = json.loads((folder / "maskloom.json").read_text())
    write_json(folder / "maskloom.json", {**content, "settings": {"temperature": -1}})
    with pytest.raises(DataError, match=r"maskloom\.json: settings: temperature = -1: it must be greater"):
        Predictor.load(folder)


@pytest.mark.parametrize("kind", ["single", "multilabel"])
def test_a_model_that_is_right_on_all_examples_is_not_refused(tmp_path, kind):
    """Regression: it was refused like a file that determines nothing, and labels got no thresholds."""
    folder, dev = model_folder(tmp_path / "model", kind), write_rows(tmp_path / "dev.jsonl", kind)
    texts = [json.loads(line)["text"] for line in dev.read_text().splitlines()]
    key = "label" if kind == "single" else "labels"
    found = [row[key] for row in Predictor.load(folder).predict(texts)]
    rows = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, found, strict=True)]
    dev.write_text("\n".join(rows) + "\n")
    content = json.loads((folder / "maskloom.json").read_text())
    write_json(folder / "maskloom.json", {**content, "settings": {"temperature": 3.0}})
    result = tune(folder, dev)
    why = "a temperature cannot be fitted to 80 examples: the model is right on all of them, so a lower one is always"
    assert result["note"].startswith(why)
    assert any(why in line for line in tuning_lines(result))
    if kind == "single":
        assert result["note"].endswith("better; nothing was changed")
        assert settings_of(folder) == {"temperature": 3.0}
    else:  # at the temperature with which they were fitted
        assert result["note"].endswith("better; the thresholds are those at temperature 1")
        assert settings_of(folder) == {"temperature": 1.0, "thresholds": [0.5] * 3}
        assert evaluate(folder, dev)["exact_match"] == 1.0


def test_fine_tuning_ends_with_tuning(tmp_path):
    source = model_folder(tmp_path / "source", "multilabel")
    train, dev = (write_rows(tmp_path / f"{name}.jsonl", "multilabel", 40, seed) for seed, name in enumerate("td"))
    values = {
        "task": "multilabel", "tune_on_dev": True, "restarts": 2, "keep_restarts": True,
        "data": {"max_length": 12}, "training": {"epochs": 2.0, "batch_size": 8, "num_threads": 1},
    }  # fmt: skip
    recipe = validate_recipe(FinetuneRecipe, values, source="test")
    run = tmp_path / "run"
    result = finetune(recipe, model=source, train=train, dev=dev, out=run)
    tuned = result["tuned"]
    assert settings_of(run / "model") == tuned["settings"]
    assert tuned["before"]["f1_micro"] == pytest.approx(result["best"]["scores"]["f1_micro"])
    assert evaluate(run, dev)["f1_micro"] == pytest.approx(tuned["after"]["f1_micro"])
    assert any("tuned on" in line for line in finetuning_lines(result))
    kept = [run / "restarts" / f"seed-{seed}" / "model" for seed in (0, 1)]
    assert settings_of(kept[result["best_seed"]]) == tuned["settings"]
    assert settings_of(kept[0]) != settings_of(kept[1])
    # a run that ended after writing its models and before its result resumes to the same result
    for seed, model in enumerate(kept):
        shutil.copytree(model, run / "restarts" / f"seed-{seed}" / "best")
    (run / "metrics.json").unlink()
    assert finetune(recipe, model=source, train=train, dev=dev, out=run, resume=True) == result
    with pytest.raises(ConfigError, match="no temperature or thresholds"):
        validate_recipe(FinetuneRecipe, {**values, "task": "regression"}, source="test")


@pytest.mark.slow
def test_tuning_by_command(tmp_path):
    folder = model_folder(tmp_path / "model", "multilabel", bias=-3.0)
    dev = write_rows(tmp_path / "dev.jsonl", "multilabel")
    command = [sys.executable, "-m", "maskloom", "tune", "--model", str(folder), "--dev", str(dev)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert list(json.loads(done.stdout)["settings"]) == ["temperature", "thresholds"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for word in ("calibration error", "negative log likelihood", "f1 micro", "f1 macro", "temperature", " -> ",
                 "evaluate on a different one"):  # fmt: skip
        assert word in done.stdout


def test_comments_with_emotions_as_distributed(tmp_path):
    rows = ['He said "hi\t4,27\teebbqej', "WHY\t2\ted00q6i", 'so "sad"\t25\tedcu99z']
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n")
    kind, options = task_kind("multilabel"), ReadingOptions(format="goemotions")
    data = kind.read(tmp_path / "train.tsv", options)
    assert [example.text for example in data.examples] == ['He said "hi', "WHY", 'so "sad"']
    assert [example.label for example in data.examples] == [("4", "27"), ("2",), ("25",)]
    names = kind.label_names(data, options, {})
    task = kind.make(names, None, kind.settings())
    tokenizer = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    marks = task.encode(data, tokenizer, 8).labels
    chosen = [[names[place] for place in np.flatnonzero(row)] for row in marks]
    assert chosen == [["approval", "neutral"], ["anger"], ["sadness"]]
    (tmp_path / "bad.tsv").write_text("WHY\t28\ted00q6i\n")
    bad = kind.read(tmp_path / "bad.tsv", options)
    with pytest.raises(DataError, match="line 1: the label '28'"):
        task.encode(bad, tokenizer, 8)
    (tmp_path / "short.tsv").write_text("WHY\t2\n")
    with pytest.raises(DataError, match=r"line 1: wrong number of fields: 2, expected 3"):
        kind.read(tmp_path / "short.tsv", options)


@pytest.mark.realdata
def test_all_comments_with_emotions(data_folder):
    folder = data_folder / "goemotions"
    assert catalog_row("goemotions").labels == tuple((folder / "labels.txt").read_text().split())
    expected = {"train": (43_410, 7_102), "dev": (5_426, 878), "test": (5_427, 837)}
    for name, counts in expected.items():
        data = task_kind("multilabel").read(folder / f"{name}.tsv", ReadingOptions(format="goemotions"))
        several = sum(len(example.label) > 1 for example in data.examples)
        assert (len(data.examples), several, data.report.dropped) == (*counts, {})
        assert {number for example in data.examples for number in example.label} == {str(n) for n in range(28)}


def test_the_recipe_is_sound():
    recipe = load_recipe(FinetuneRecipe, Path(__file__).parents[2] / "src/maskloom/recipes" / "goemotions.toml")
    assert (recipe.task, recipe.tune_on_dev, recipe.training.batch_size) == ("multilabel", True, 16)
