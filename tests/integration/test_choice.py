import csv
import json
import random
import sys
from pathlib import Path

import pytest
from tests.fine_tuning import finetune

from maskloom.checkpoints.huggingface import save_model
from maskloom.cli import main
from maskloom.config import FinetuneRecipe, load_recipe, validate_recipe
from maskloom.errors import DataError
from maskloom.inference import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.evaluate import evaluate
from maskloom.runs.predict import predict
from maskloom.runs.report.page import report
from maskloom.runs.rerun import rerun
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

GOOD, BAD, OTHERS = ["fine", "great"], ["awful", "poor"], ["film", "book", "very", "and", "so"]
TRAINING = {"epochs": 3.0, "batch_size": 8, "learning_rate": 1e-2, "num_threads": 1}
HEADER = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source", *(f"ending{n}" for n in range(4))]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *OTHERS])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    save_model(build_model(config, ("mlm", "nsp"), seed=3), folder)
    WordPieceTokenizer(vocabulary, max_length=32).save(folder)
    return folder


def write_swag(path, num_rows, seed, *, has_labels=True):
    """Write rows in SWAG's format; the right ending is the only one with a good word."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER + ["label"] * has_labels)
        for number in range(num_rows):
            label = draw.randrange(4)
            endings = [
                " ".join([*draw.sample(OTHERS, draw.randint(0, 3)), draw.choice(GOOD if place == label else BAD)])
                for place in range(4)
            ]
            row = [number, "v", "f", "x", draw.choice(OTHERS), "so", "gold", *endings]
            writer.writerow(row + [label] * has_labels)
    return path


@pytest.fixture(scope="module")
def run(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("choice")
    data = {"train": write_swag(folder / "train.csv", 80, 1), "dev": write_swag(folder / "dev.csv", 40, 2)}
    values = {"task": "choice", "data": {"max_length": 24}, "training": TRAINING}
    recipe = validate_recipe(FinetuneRecipe, values, source="test")
    result = finetune(recipe, model=model_folder, out=folder / "run", **data)
    return folder / "run", result, data


def test_it_learns_to_choose(run):
    _, result, _ = run
    best = result["best"]
    assert result["metric"] == "accuracy"
    assert best["scores"]["accuracy"] > 0.8
    assert 0.25 <= best["reference"] < 0.5
    assert result["data"]["train"]["num_choices"] == 4 * result["data"]["train"]["num_kept"]


def test_the_saved_model_evaluates_and_predicts(run, tmp_path):
    folder, result, data = run
    scores = evaluate(folder, data["dev"])
    assert scores["accuracy"] == result["best"]["scores"]["accuracy"]
    assert scores["loss"] == pytest.approx(result["best"]["scores"]["loss"], rel=1e-4)
    assert 0.0 <= scores["calibration_error"] <= 1.0
    predict(folder, data["dev"], tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    with data["dev"].open(newline="") as file:
        truth = [int(row["label"]) for row in csv.DictReader(file)]
    assert sum(row["choice"] == label for row, label in zip(rows, truth, strict=True)) / 40 == scores["accuracy"]
    for row in rows:
        assert row["choice_text"] == row[f"choice{row['choice']}"]
        assert sum(row["probabilities"].values()) == pytest.approx(1.0)
        assert max(row["probabilities"], key=row["probabilities"].get) == str(row["choice"])


def test_files_without_labels_and_with_other_numbers_of_choices_are_predicted(run, tmp_path):
    folder, _, _ = run
    predict(folder, write_swag(tmp_path / "test.csv", 5, 3, has_labels=False), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    assert {"choice", "choice_text", "probability_0", "probability_3"} <= set(rows[0])
    path = tmp_path / "two.jsonl"
    path.write_text(json.dumps({"question": "so", "choices": ["very poor", "great"]}) + "\n")
    predict(folder, path, tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text())["choice"] == 1


def test_the_task_is_known_without_our_own_file(run, tmp_path):
    folder, _, data = run
    for name in ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / "model" / name).read_bytes())
    task = Predictor.load(tmp_path).task
    assert task is not None
    assert task.kind == "choice"
    assert evaluate(tmp_path, data["dev"])["accuracy"] == evaluate(folder, data["dev"])["accuracy"]


def test_from_the_command_line_with_the_recipe_of_swag(run, model_folder, tmp_path, monkeypatch, capsys):
    _, _, data = run
    path = Path(__file__).parents[2] / "src/maskloom/recipes" / "swag.toml"
    recipe = load_recipe(FinetuneRecipe, path)
    training = recipe.training
    assert (recipe.task, training.learning_rate, training.batch_size, training.epochs) == ("choice", 2e-5, 16, 3.0)
    changes = ["--set", "data.max_length=24", "--set", "training.steps=2"]
    files = ["--train", str(data["train"]), "--dev", str(data["dev"]), "--out", str(tmp_path / "run")]
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "maskloom",
            "finetune",
            "--format",
            "swag",
            "--model",
            str(model_folder),
            "--recipe",
            str(path),
            *files,
            *changes,
        ],
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    assert "accuracy" in capsys.readouterr().out


def write_arc(path, num_rows, seed):
    """Write questions in ARC's format, with three to five choices labelled by letters or digits."""
    draw, lines = random.Random(seed), []
    for number in range(num_rows):
        labels = ["ABCDE", "12345"][number % 2][: 3 + number % 3]
        right = draw.randrange(len(labels))
        texts = [draw.choice(GOOD if place == right else BAD) for place in range(len(labels))]
        choices = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        question = {"stem": " ".join(draw.sample(OTHERS, 3)), "choices": choices}
        lines.append(json.dumps({"id": f"Mercury_{number}", "question": question, "answerKey": labels[right]}) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.mark.slow
def test_questions_with_three_four_or_five_choices(model_folder, tmp_path):
    data = {"train": write_arc(tmp_path / "train.jsonl", 240, 1), "dev": write_arc(tmp_path / "dev.jsonl", 45, 2)}
    values = {"task": "choice", "data": {"max_length": 24}, "training": TRAINING, "restarts": 2, "keep_restarts": True}
    recipe = validate_recipe(FinetuneRecipe, {**values, "tune_on_dev": True}, source="test")
    reading = ReadingOptions(format="arc")
    result = finetune(recipe, model=model_folder, out=tmp_path / "run", reading=reading, **data)
    assert result["best"]["scores"]["accuracy"] > 0.6 > result["best"]["reference"]
    assert result["data"]["train"]["num_choices"] == 240 * 4
    assert evaluate(tmp_path / "run", data["dev"])["accuracy"] == result["best"]["scores"]["accuracy"]
    members = [tmp_path / "run" / "restarts" / f"seed-{seed}" / "model" for seed in (0, 1)]
    assert evaluate(members, data["dev"])["accuracy"] > 0.6
    predict(tmp_path / "run", data["dev"], tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [len(row["probabilities"]) for row in rows] == [3, 4, 5] * 15
    assert rows[0]["id"] == "Mercury_0"
    predict(tmp_path / "run", data["dev"], tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        flat = list(csv.DictReader(file))
    for row, other in zip(flat, rows, strict=True):
        for name in ("id", "choice", "choice_text"):
            assert row[name] == str(other[name])
        for number in map(str, range(5)):
            assert row[f"choice{number}"] == other.get(f"choice{number}", "")
            assert row[f"probability_{number}"] == str(other["probabilities"].get(number, ""))


def test_dev_may_have_other_numbers_of_choices_than_train(run, tmp_path):
    folder, _, _ = run
    path = tmp_path / "dev.jsonl"
    rows = [
        {"question": "so", "choices": ["poor", "great", "dull"][: 2 + number % 2], "label": number % 2}
        for number in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert evaluate(folder, path)["num_examples"] == 4


def write_race(folder, num_articles, seed):
    """Write articles in RACE's format: one file each, in a folder for high schools and one for middle schools."""
    draw = random.Random(seed)
    for number in range(num_articles):
        level = ("high", "middle")[number % 2]
        (folder / level).mkdir(parents=True, exist_ok=True)
        right = [draw.randrange(4) for _ in range(3)]
        options = [[draw.choice(GOOD if place == label else BAD) for place in range(4)] for label in right]
        article = {
            "article": " ".join(draw.sample(OTHERS, 3)),
            "questions": ["so", "very _", "and"],
            "options": options,
            "answers": ["ABCD"[label] for label in right],
            "id": f"{level}{number}.txt",
        }
        (folder / level / f"{number}.txt").write_text(json.dumps(article))
    return folder


def test_race_is_trained_and_predicted_from_its_folders(model_folder, tmp_path, monkeypatch):
    data = {part: write_race(tmp_path / "RACE" / part, number, number) for part, number in (("train", 30), ("dev", 12))}
    values = {"task": "choice", "data": {"max_length": 24}, "training": {**TRAINING, "epochs": 2.0}}
    recipe = validate_recipe(FinetuneRecipe, values, source="test")
    reading = ReadingOptions(format="race")
    result = finetune(recipe, model=model_folder, out=tmp_path / "run", reading=reading, **data)
    assert result["data"]["train"]["num_kept"] == 90
    assert result["best"]["scores"]["accuracy"] > 0.6
    assert evaluate(tmp_path / "run", data["dev"])["accuracy"] == result["best"]["scores"]["accuracy"]
    arguments = ["--model", tmp_path / "run", "--input", data["dev"], "--output", tmp_path / "out.jsonl"]
    monkeypatch.setattr(sys, "argv", ["maskloom", "predict", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows[:4]] == ["high0.txt-1", "high0.txt-2", "high0.txt-3", "high10.txt-1"]
    report([tmp_path / "run"], tmp_path / "report.html")
    assert "36 of 36" in (tmp_path / "report.html").read_text()
    assert rerun(tmp_path / "run", out=tmp_path / "again")["identical"]
    (data["train"] / "high" / "0.txt").write_text((data["train"] / "high" / "2.txt").read_text())
    with pytest.raises(DataError, match=r"the train of .* has changed"):
        rerun(tmp_path / "run", out=tmp_path / "more")
