import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.fine_tuning import finetune

from maskloom.checkpoints.huggingface import save_model
from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.display import Progress
from maskloom.runs.evaluate import evaluate
from maskloom.tasks.encoding import ShuffledBatches
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from maskloom.training.events import read_events

GOOD, BAD, OTHER = ["fine", "great", "lovely"], ["awful", "poor", "dull"], ["film", "book", "song", "very", "and", "so"]
TRAINING = {"epochs": 6.0, "batch_size": 8, "learning_rate": 3e-3, "num_threads": 1}
OPTIMIZERS = {"adamw": {}, "bert_adam": {"head_learning_rate": 2e-2, "optimizer": "bert_adam"}}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *OTHER])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    save_model(build_model(config, ("mlm", "nsp"), seed=3), folder)
    WordPieceTokenizer(vocabulary, max_length=32).save(folder)
    return folder


def sentence(draw, words):
    return " ".join([*draw.sample(OTHER, draw.randint(1, 5)), draw.choice(words), *draw.sample(OTHER, 1)])


def write_rows(path, kind, num_rows, seed):
    draw, lines = random.Random(seed), []
    for number in range(num_rows):
        good, also = draw.random() < 0.5, draw.random() < 0.5
        words, more = (GOOD if good else BAD), (GOOD if also else BAD)
        row: dict[str, object] = {"text": sentence(draw, words), "label": "good" if good else "bad"}
        if kind == "pair":
            row = {"premise": sentence(draw, words), "hypothesis": sentence(draw, more), "label": str(good == also)}
        elif kind == "regression":
            row["label"] = 4.5 if good else 1.5
        elif kind == "multilabel":
            row["label"] = [name for name, words in (("kind", GOOD), ("song", ["song"])) if _holds(row["text"], words)]
        lines.append(json.dumps({"id": number, **row}))
    path.write_text("\n".join(lines) + "\n")
    return path


def _holds(text, words):
    return any(word in text.split() for word in words)


@pytest.fixture
def data(tmp_path):
    return lambda kind, num_rows=64: (
        write_rows(tmp_path / f"{kind}-train.jsonl", kind, num_rows, 1),
        write_rows(tmp_path / f"{kind}-dev.jsonl", kind, 40, 2),
    )


def recipe(**values):
    training = {**TRAINING, **values.pop("training", {})}
    return validate_recipe(FinetuneRecipe, {"data": {"max_length": 16}, "training": training, **values}, source="test")


@pytest.mark.parametrize(
    ("kind", "primary", "least"),
    [("single", "accuracy", 0.9), ("regression", "pearson", 0.9), ("multilabel", "f1_micro", 0.8)],
)
def test_every_kind_learns_and_can_be_used(model_folder, data, tmp_path, kind, primary, least):
    train, dev = data(kind, 192)
    settings = recipe(task=kind, training={"learning_rate": 2e-2, "epochs": 6.0, "batch_size": 16})
    result = finetune(settings, model=model_folder, train=train, dev=dev, out=tmp_path / "run")
    assert result["metric"] == primary
    assert result["best"]["scores"][primary] > least
    again = evaluate(tmp_path / "run", dev)
    assert {name: again[name] for name in result["best"]["scores"]} == pytest.approx(result["best"]["scores"])
    assert again["num_examples"] == 40
    prediction = Predictor.load(tmp_path / "run").predict(["so great film", "very dull song"])
    if kind == "single":
        assert [row["label"] for row in prediction] == ["good", "bad"]
    elif kind == "regression":
        assert prediction[0]["score"] > 3 > prediction[1]["score"]
    else:
        assert [row["labels"] for row in prediction] == [["kind"], ["song"]]


def test_batches_of_like_length_are_there_for_the_asking(model_folder, data, tmp_path, monkeypatch):
    train, dev = data("single")
    next_batch, sizes = ShuffledBatches.next_batch, []

    def watched(batches, position):
        batch, after = next_batch(batches, position)
        sizes.append(batch.num_tokens)
        return batch, after

    monkeypatch.setattr(ShuffledBatches, "next_batch", watched)
    for is_grouped in (False, True):
        training = {"steps": 16, "group_by_length": is_grouped}
        finetune(recipe(training=training), model=model_folder, train=train, dev=dev, out=tmp_path / str(is_grouped))
    assert np.std(sizes[16:]) > 2 * np.std(sizes[:16])  # batches of like lengths vary more in tokens
    assert sum(sizes[16:]) == sum(sizes[:16])


def test_pairs_and_restarts(model_folder, data, tmp_path):
    train, dev = data("pair")
    out = tmp_path / "run"
    settings = recipe(task="pair", restarts=3, seed=5, training={"epochs": 2.0, "learning_rate": 1e-4})
    result = finetune(settings, model=model_folder, train=train, dev=dev, out=out)
    restarts = result["restarts"]
    scores = [restarts["scores"][str(seed)] for seed in (5, 6, 7)]
    assert restarts["mean"] == pytest.approx(np.mean(scores))
    assert restarts["standard_deviation"] == pytest.approx(np.std(scores, ddof=1))
    assert result["best"]["scores"]["accuracy"] == max(scores)
    assert result["best_seed"] == 5 + int(np.argmax(scores))
    for seed, reason in restarts["degenerate"].items():
        assert seed in restarts["scores"]
        assert "same class" in reason or "not above" in reason
    settings = json.loads((out / "model" / "maskloom.json").read_text())
    assert (settings["kind"], settings["takes_pairs"], settings["max_length"]) == ("pair", True, 16)
    with pytest.raises(ConfigError, match="fine-tuned on pairs of texts"):
        Predictor.load(out).predict(["one text"])


def test_a_run_that_cannot_learn_is_called_degenerate(model_folder, data, tmp_path):
    train, dev = data("single")
    settings = recipe(training={"learning_rate": 1e-9, "epochs": 1.0})
    result = finetune(settings, model=model_folder, train=train, dev=dev, out=tmp_path / "run")
    assert "0" in result["restarts"]["degenerate"]
    assert result["restarts"]["mean_of_sound"] is None
    assert result["restarts"]["standard_deviation"] is None


def test_best_is_kept_and_last_is_told(model_folder, data, tmp_path):
    (train, dev), out = data("single"), tmp_path / "run"
    result = finetune(recipe(), model=model_folder, train=train, dev=dev, out=out)
    evaluations = [event for event in read_events(out / "events.jsonl") if event["event"] == "evaluation"]
    assert [event["step"] for event in evaluations] == [8, 16, 24, 32, 40, 48]
    scores = [event["metrics"]["accuracy"] for event in evaluations]
    assert result["best"]["scores"]["accuracy"] == max(scores)
    assert result["best"]["step"] == evaluations[int(np.argmax(scores))]["step"]
    assert result["last"]["step"] == 48
    assert "best on dev by accuracy" in (out / "model" / "README.md").read_text()
    assert json.loads((out / "metrics.json").read_text()) == result


@pytest.mark.parity
def test_the_folder_opens_in_transformers(model_folder, data, tmp_path):
    transformers = pytest.importorskip("transformers")
    import torch

    train, dev = data("pair")
    settings = recipe(task="pair", training={"epochs": 1.0})
    finetune(settings, model=model_folder, train=train, dev=dev, out=tmp_path / "run")
    folder = tmp_path / "run" / "model"
    oracle = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert oracle.config.id2label == {0: "False", 1: "True"}
    pairs = [("so great film", "very dull song"), ("fine", "lovely and so poor book")]
    ids = tokenizer([first for first, _ in pairs], [second for _, second in pairs], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = oracle(**ids).logits.softmax(-1).numpy()
    found = [list(row["probabilities"].values()) for row in Predictor.load(folder).predict(pairs)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


class _Stop(Progress):
    """Interrupts a run at a given step, as a crash would."""

    def __init__(self, stage, step):
        self._stage, self._step, self._current, self.begun = stage, step, "", {}

    def begin(self, what, total, done=0):
        self._current, self.begun[what] = what, done

    def advance(self, done, **figures):
        if self._stage in self._current and done == self._step:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def uninterrupted(request, model_folder, tmp_path_factory):
    """Return the recipe of a run of two seeds with 8 steps an epoch, its inputs, its folder and its result."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    parts = {"train": (64, 1), "dev": (40, 2)}
    files = {name: write_rows(folder / f"{name}.jsonl", "single", *of) for name, of in parts.items()}
    settings = recipe(restarts=2, training={"epochs": 3.0, **OPTIMIZERS[request.param]})
    inputs = {"model": model_folder, **files}
    return settings, inputs, folder / "whole", finetune(settings, **inputs, out=folder / "whole")


@pytest.mark.parametrize(
    ("uninterrupted", "stage", "step"),
    [("adamw", "seed 0", 1), ("adamw", "seed 0", 24), ("adamw", "seed 1", 9), ("bert_adam", "seed 0", 13)],
    indirect=["uninterrupted"],
)
def test_a_crashed_run_continues_to_the_bit(uninterrupted, tmp_path, stage, step):
    settings, inputs, folder, whole = uninterrupted
    with pytest.raises(KeyboardInterrupt):
        finetune(settings, **inputs, out=tmp_path / "cut", progress=_Stop(stage, step))
    assert not (tmp_path / "cut" / "model").exists()
    resumed = finetune(settings, **inputs, out=tmp_path / "cut", resume=True, progress=(again := _Stop("none", 0)))
    assert again.begun[f"fine-tuning, {stage}"] == (step - 1) // 8 * 8
    assert {**resumed, "model": ""} == {**whole, "model": ""}
    for name in ("model.safetensors", "config.json", "maskloom.json", "vocab.txt"):
        assert _sum(tmp_path / "cut" / "model" / name) == _sum(folder / "model" / name)
    steps = [(event["stage"], event["step"]) for event in read_events(tmp_path / "cut" / "events.jsonl")
             if event["event"] == "evaluation"]  # fmt: skip
    assert steps == [(f"seed-{seed}", step) for seed in (0, 1) for step in (8, 16, 24)]
    best = tmp_path / "cut" / "restarts" / "seed-0" / "best"
    best.mkdir()  # as after a stop just before the removal of files no longer needed
    assert finetune(settings, **inputs, out=tmp_path / "cut", resume=True) == resumed
    assert not best.exists()


def test_patience_ends_a_seed_and_a_resumed_run_ends_there_too(model_folder, data, tmp_path):
    inputs = {"model": model_folder, **dict(zip(("train", "dev"), data("single"), strict=True))}
    patient = recipe(training={"epochs": 30.0, "patience": 2, "learning_rate": 1e-2})
    whole = finetune(patient, **inputs, out=tmp_path / "whole")
    events = read_events(tmp_path / "whole" / "events.jsonl")
    steps = [event["step"] for event in events if event["event"] == "evaluation"]
    assert whole["best"]["step"] == steps[-3]
    assert steps[-1] == whole["last"]["step"] < 240
    with pytest.raises(KeyboardInterrupt):
        finetune(patient, **inputs, out=tmp_path / "cut", progress=_Stop("fine-tuning, seed 0", steps[-2] + 1))
    resumed = finetune(patient, **inputs, out=tmp_path / "cut", resume=True, progress=(again := _Stop("none", 0)))
    assert again.begun["fine-tuning, seed 0"] == steps[-2]
    assert {**resumed, "model": ""} == {**whole, "model": ""}
    for name in ("model.safetensors", "config.json"):
        assert _sum(tmp_path / "cut" / "model" / name) == _sum(tmp_path / "whole" / "model" / name)


_KILLED = """
import sys
from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.runs.finetune import LabelledFiles, finetune
recipe, model, train, dev, out = sys.argv[1:]
finetune(load_recipe(FinetuneRecipe, recipe), model=model, data=LabelledFiles(train, dev), out=out, resume=True)
"""


@pytest.mark.slow
def test_a_killed_process_continues_to_the_bit(model_folder, data, tmp_path):
    train, dev = data("single")
    settings = recipe(training={"epochs": 30.0, "save_every": 5})
    inputs = {"model": model_folder, "train": train, "dev": dev}
    finetune(settings, **inputs, out=tmp_path / "whole")
    recipe_file = tmp_path / "whole" / "recipe.toml"
    arguments = [recipe_file, model_folder, train, dev, tmp_path / "cut"]
    process = subprocess.Popen([sys.executable, "-c", _KILLED, *map(str, arguments)], env={**os.environ})
    checkpoints = tmp_path / "cut" / "restarts" / "seed-0" / "checkpoints"
    deadline = time.monotonic() + 120
    while process.poll() is None and not list(checkpoints.glob("step-????????")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cut" / "metrics.json").exists()
    finetune(settings, **inputs, out=tmp_path / "cut", resume=True, progress=(again := _Stop("none", 0)))
    assert again.begun["fine-tuning, seed 0"] > 0
    name = Path("model") / "model.safetensors"
    assert _sum(tmp_path / "cut" / name) == _sum(tmp_path / "whole" / name)


def _sum(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_used_folder_is_left_alone(model_folder, data, tmp_path):
    train, dev = data("single")
    settings = recipe(training={"epochs": 1.0})
    inputs = {"model": model_folder, "train": train, "dev": dev, "out": tmp_path / "run"}
    finetune(settings, **inputs)
    with pytest.raises(ConfigError, match="already contains a run"):
        finetune(settings, **inputs)
    with pytest.raises(ConfigError, match=r"training\.batch_size was 8, is 4"):
        finetune(recipe(training={"epochs": 1.0, "batch_size": 4}), **inputs, resume=True)
    train.write_text(train.read_text() + '{"id": 1, "text": "so", "label": "bad"}\n')
    with pytest.raises(ConfigError, match="has changed since the start of this run"):
        finetune(settings, **inputs, resume=True)


def test_a_resumed_run_remembers_how_to_read(model_folder, tmp_path):
    for name in ("train", "dev"):
        rows = "".join(f"{'great' if number % 2 else 'dull'} film\t{number % 2}\n" for number in range(16))
        (tmp_path / f"{name}.tsv").write_text(rows)
    settings = recipe(training={"epochs": 1.0})
    inputs = {"model": model_folder, "train": tmp_path / "train.tsv", "dev": tmp_path / "dev.tsv"}
    reading = ReadingOptions(text_column="1", label_column="2")
    first = finetune(settings, **inputs, out=tmp_path / "run", reading=reading, metric="matthews")
    assert first["metric"] == "matthews"
    assert finetune(settings, **inputs, out=tmp_path / "run", resume=True) == first
    assert evaluate(tmp_path / "run", tmp_path / "dev.tsv")["matthews"] == first["best"]["scores"]["matthews"]


def test_class_weights_change_training(model_folder, data, tmp_path):
    train, dev = data("single", 29)
    inputs = {"model": model_folder, "train": train, "dev": dev}
    plain = finetune(recipe(training={"epochs": 1.0}), **inputs, out=tmp_path / "plain")
    assert plain["data"]["class_weights"] is None
    num_good = sum('"good"' in line for line in train.read_text().splitlines())
    balanced = {"bad": 29 / (2 * (29 - num_good)), "good": 29 / (2 * num_good)}
    for weights, expected in (("balanced", balanced), ({"bad": 3.0}, {"bad": 3.0, "good": 1.0})):
        settings, out = recipe(class_weights=weights, training={"epochs": 1.0}), tmp_path / f"by-{len(weights)}"
        weighted = finetune(settings, **inputs, out=out)
        used = dict(zip(weighted["data"]["labels"], weighted["data"]["class_weights"], strict=True))
        assert used == pytest.approx(expected)
        assert weighted["last"]["scores"]["loss"] != plain["last"]["scores"]["loss"]
        assert len({_sum(run / "model" / "model.safetensors") for run in (tmp_path / "plain", out)}) == 2


def test_weights_of_positives_make_a_rare_label_likelier(model_folder, tmp_path):
    draw = random.Random(5)
    for name in ("train", "dev"):
        rows = [{"text": sentence(draw, GOOD), "labels": ["rare"] if number % 10 == 0 else []} for number in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files, found = {"train": tmp_path / "train.jsonl", "dev": tmp_path / "dev.jsonl"}, {}
    for name in ("none", "balanced", {"rare": 40.0}):
        settings = recipe(task="multilabel", class_weights=name, training={"epochs": 2.0})
        run = tmp_path / f"{len(found)}"
        used = finetune(settings, model=model_folder, **files, out=run)["data"]["class_weights"]
        predictions = Predictor.load(run).predict(["so very film", "and book film", "so so song"])
        found[str(name)] = used, np.mean([row["probabilities"]["rare"] for row in predictions])
    assert found["none"][0] is None
    for name, weight in (("balanced", 9.0), ("{'rare': 40.0}", 40.0)):
        assert found[name][0] == [weight]
        assert found[name][1] > found["none"][1] + 0.1


def test_weights_of_tags_make_a_rare_tag_likelier(model_folder, tmp_path):
    words, draw = [*GOOD, *BAD, *OTHER], random.Random(4)
    for name in ("train", "dev"):
        lines = [f"{word} {'B-X' if draw.random() < 0.15 else 'O'}" for word in draw.choices(words, k=80)]
        (tmp_path / f"{name}.conll").write_text("\n".join("\n\n".join(lines).split("\n")) + "\n")
    counts = {}
    for weights in ("none", "balanced", {"B-X": 50.0}):
        settings = recipe(task="tagging", class_weights=weights, training={"epochs": 2.0})
        files = {"train": tmp_path / "train.conll", "dev": tmp_path / "dev.conll"}
        result = finetune(settings, model=model_folder, **files, out=tmp_path / f"run{len(counts)}")
        tags = [tag for row in Predictor.load(tmp_path / f"run{len(counts)}").predict(words) for tag in row["tags"]]
        counts[str(weights)] = tags.count("B-X")
        assert (result["data"]["class_weights"] is None) == (weights == "none")
    assert counts["none"] < min(counts["balanced"], counts["{'B-X': 50.0}"])


@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        ("span", {}, "class_weights: task = 'span' has no labels to weight"),
        ("choice", {}, "class_weights: task = 'choice' has no labels to weight"),
        ("regression", {}, "class_weights: task = 'regression' has no labels to weight"),
        ("tagging", {"tagging": {"crf": True}}, "tagging.crf = true scores whole sentences"),
    ],
)
def test_weights_that_could_not_act_are_refused(task, more, message):
    with pytest.raises(ConfigError, match=message):
        recipe(task=task, class_weights="balanced", **more)


def test_class_lists(model_folder, data, tmp_path):
    """A single label is refused; a label only in dev needs a label list; labels missing from train are reported."""
    train, dev = data("single", 24)
    inputs = {"model": model_folder, "train": train, "dev": dev}
    classes, settings = tmp_path / "labels.txt", recipe(training={"epochs": 1.0})
    listed = ReadingOptions(labels=str(classes))
    classes.write_text("good\n")
    with pytest.raises(ConfigError, match=r"labels\.txt: the only label is 'good'; a classifier needs at least two"):
        finetune(settings, **inputs, out=tmp_path / "one", reading=listed)
    classes.write_text("good\n\nbad\n")
    with pytest.raises(DataError, match=r"labels\.txt: line 2: a label name is empty"):
        finetune(settings, **inputs, out=tmp_path / "one", reading=listed)
    dev.write_text(dev.read_text() + '{"id": 99, "text": "very film", "label": "mixed"}\n')
    with pytest.raises(DataError, match=r"the label 'mixed' is not one of the task's labels: .*\(--labels FILE\)"):
        finetune(settings, **inputs, out=tmp_path / "one")
    classes.write_text("good\nbad\nodd\n")
    with pytest.raises(DataError, match=r"the label 'mixed' is not one of the task's labels: 'good', 'bad', 'odd'$"):
        finetune(settings, **inputs, out=tmp_path / "one", reading=listed)
    classes.write_text("good\nbad\nmixed\nodd\n")
    result = finetune(settings, **inputs, out=tmp_path / "one", reading=listed)
    assert result["data"]["labels"] == ["good", "bad", "mixed", "odd"]
    assert "2 of 4 labels do not occur in train and cannot be learned: mixed, odd" in result["data"]["notes"]
    (predicted,) = Predictor.load(tmp_path / "one").predict(["so film"])
    assert {*predicted["probabilities"]} == {*result["data"]["labels"]}
    train, dev = data("regression", 24)
    with pytest.raises(ConfigError, match="a regression task has no label names"):
        finetune(
            recipe(task="regression"), **{**inputs, "train": train, "dev": dev}, out=tmp_path / "r", reading=listed
        )


def test_what_is_read_cut_and_shared_is_told(model_folder, data, tmp_path):
    train, dev = data("single", 20)
    shared = json.loads(train.read_text().splitlines()[0])
    dev.write_text(dev.read_text() + json.dumps(shared) + '\n{"id": 3}\n\n')
    long = {"id": 9, "text": "film " * 40, "label": "bad"}
    train.write_text(train.read_text() + json.dumps(long) + "\n")
    reading = ReadingOptions(on_bad_rows="skip")
    settings = recipe(training={"epochs": 1.0, "batch_size": 32})
    out = tmp_path / "run"
    result = finetune(settings, model=model_folder, train=train, dev=dev, out=out, reading=reading)
    account = result["data"]
    assert (account["train"]["num_truncated_examples"], account["train"]["num_truncated_tokens"]) == (1, 26)
    assert account["dev"]["num_rows"] == 43 == account["dev"]["num_kept"] + sum(account["dev"]["dropped"].values())
    assert account["dev"]["num_also_in_train"] >= 1
    notes = "\n".join(account["notes"])
    assert [*account["dev"]["dropped"].values()] == [1, 1]
    for part in ("lose 26 tokens", "are also in train", "batch_size 32 lowered to 21"):
        assert part in notes


def test_a_slip_in_a_label_is_told(model_folder, data, tmp_path):
    """A note for training data; for evaluation data an error, which names no option of training."""
    train, dev = data("single", 40)
    train.write_text(train.read_text() + '{"id": 99, "text": "very film", "label": "godo"}\n')
    out = tmp_path / "run"
    result = finetune(recipe(training={"epochs": 0.1}), model=model_folder, train=train, dev=dev, out=out)
    assert "labels to check: 'godo': 1 in train, none in dev; did you mean 'good'?" in result["data"]["notes"]
    dev.write_text('{"id": 1, "text": "very film", "label": "Good"}\n')
    with pytest.raises(DataError, match=r"the label 'Good' is not one .*; did you mean 'good'\?$"):
        evaluate(out / "model", dev)


@pytest.mark.parametrize(
    ("train", "dev", "options", "error", "message"),
    [
        ("text,label\na,x\nb,y\n", "text,label\na,z\n", {}, DataError, r"dev\.csv: line 2: the label 'z'"),
        ("text,label\na,x\nb,x\n", "text,label\na,x\n", {}, DataError, r"train\.csv: all 2 rows"),
        ("text,label\na,x\nb,y\n", "", {}, DataError, r"dev\.csv: the file is empty"),
        ("text,label\na,x\nb,y\n", "text,label\na,x\n", {"task": "pair"}, DataError, "no second text"),
        ("text,label\na,x\nb,y\n", "text,label\na,x\n", {"data": {"max_length": 64}}, ConfigError, "exceeds the 32"),
        ("text,label\na,x\nb,y\n", "text,label\na,x\n", {"class_weights": {"w": 2.0}}, ConfigError, "no label 'w'"),
        (
            "text,label\na,1\nb,2\n", "text,label\na,1\n", {"task": "regression", "class_weights": "balanced"},
            ConfigError, "class_weights",
        ),
        (
            "sentence1,sentence2,score\na,b,1\nb,c,2\n", "text,score\na,1\n", {"task": "regression"},
            DataError, r"dev\.csv: has no second text",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_written(model_folder, tmp_path, train, dev, options, error, message):
    (tmp_path / "train.csv").write_text(train)
    (tmp_path / "dev.csv").write_text(dev)
    files = {part: tmp_path / f"{part}.csv" for part in ("train", "dev")}
    with pytest.raises(error, match=message):
        finetune(recipe(**options), model=model_folder, **files, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_format_decides_the_task(model_folder, tmp_path):
    for name in ("train", "dev"):
        rows = [f"x\t{number % 2}\t\t{'great' if number % 2 else 'dull'} film\n" for number in range(12)]
        (tmp_path / f"{name}.tsv").write_text("".join(rows))
    inputs = {"model": model_folder, "train": tmp_path / "train.tsv", "dev": tmp_path / "dev.tsv"}
    reading = ReadingOptions(format="cola")
    result = finetune(recipe(training={"epochs": 1.0}), **inputs, out=tmp_path / "run", reading=reading)
    assert (result["task"], result["metric"]) == ("single", "matthews")
    with pytest.raises(ConfigError, match="format cola is a single task"):
        finetune(recipe(task="pair"), **inputs, out=tmp_path / "other", reading=reading)


def test_scratch_starts_from_other_weights_of_the_same_shape(model_folder, data, tmp_path):
    train, dev = data("single", 24)
    scores = []
    for from_scratch in (False, True):
        settings = recipe(from_scratch=from_scratch, training={"epochs": 1.0})
        out = tmp_path / f"run-{from_scratch}"
        finetune(settings, model=model_folder, train=train, dev=dev, out=out)
        scores.append(Predictor.load(out).encode(["so great film"]))
    assert scores[0].shape == scores[1].shape
    assert np.abs(scores[0] - scores[1]).max() > 0.1


def test_a_fine_tuned_model_can_be_fine_tuned_again_with_other_labels(model_folder, data, tmp_path):
    train, dev = data("single", 24)
    settings = recipe(training={"epochs": 1.0})
    finetune(settings, model=model_folder, train=train, dev=dev, out=tmp_path / "first")
    train, dev = data("multilabel", 24)
    settings = recipe(task="multilabel", training={"epochs": 1.0})
    result = finetune(settings, model=tmp_path / "first", train=train, dev=dev, out=tmp_path / "second")
    assert result["data"]["labels"] == ["kind", "song"]
