import json
import random
import sys
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from tests.fine_tuning import finetune

from maskloom.checkpoints.huggingface import save_model
from maskloom.cli import main
from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.errors import ConfigError
from maskloom.inference import Ensemble, Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.evaluate import evaluate
from maskloom.runs.predict import predict
from maskloom.system.files import write_json
from maskloom.tasks.examples import ReadExamples, ReadingReport
from maskloom.tasks.kinds import make_task, task_kind
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
TAGS = ("O", "B-PER", "I-PER")
SETTINGS = {
    "tagging": {"scheme": "iob2", "context": "sentence", "crf": False},
    "span": {"stride": 6, "max_question_length": 4, "max_answer_length": 5, "num_best": 10, "null_threshold": 0.0},
    "choice": {},
}
LABELS = {"tagging": TAGS, "span": (), "choice": ()}


def write_model(folder, kind, seed, settings=None, max_length=24):
    """Write a model with random weights for a kind of task; each seed gives another member of an ensemble."""
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", "##s"])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    task = make_task(kind, LABELS[kind], settings={**SETTINGS[kind], **(settings or {})})
    model = build_model(config, task.heads, task.num_outputs if kind != "span" else None, seed=seed)
    save_model(model, folder, extra_config=task.published_config)
    WordPieceTokenizer(vocabulary, max_length=32).save(folder)
    about = {"kind": kind, "max_length": max_length, "primary": task.primary, "settings": task.settings.as_stored()}
    write_json(folder / "maskloom.json", about)
    return folder


def write_data(path, kind, num_examples=16):
    draw, lines = random.Random(3), []

    def text(low, high):
        return " ".join(draw.choices(WORDS, k=draw.randint(low, high)))

    for number in range(num_examples):
        if kind == "choice":
            choices = [text(1, 5) for _ in range(4)]
            lines.append(json.dumps({"question": text(1, 6), "choices": choices, "label": draw.randrange(4)}))
        elif kind == "span":
            context = text(10, 60)
            words = context.split(" ")
            place = draw.randrange(len(words))
            start = len(" ".join(words[:place])) + (place > 0)
            answers = {"text": [words[place]], "answer_start": [start]}
            lines.append(
                json.dumps({"id": f"q{number}", "question": text(1, 6), "context": context, "answers": answers})
            )
        else:
            words = text(1, 30).split(" ")
            lines += [*(f"{word} {draw.choice(['O', 'B-PER'])}" for word in words), ""]
    path.write_text("\n".join(lines) + "\n")
    return path


def data_of(folder, kind):
    return write_data(folder / ("data.conll" if kind == "tagging" else "data.jsonl"), kind)


def read(kind, path):
    report = ReadingReport(path)
    options, settings = ReadingOptions(), task_kind(kind).settings(**SETTINGS[kind])
    examples = task_kind(kind).iterate(path, options, settings, needs_label=True, report=report)
    return ReadExamples(list(examples), report)


def scores_of(result):
    return {name: value for name, value in result.items() if isinstance(value, float)}


def flat(value):
    """Return all floats of a prediction, and all its other values, as two flat lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        parts = [flat(item) for item in value]
        return [n for numbers, _ in parts for n in numbers], [o for _, others in parts for o in others]
    return ([float(value)], []) if isinstance(value, float) else ([], [value])


KINDS = ["tagging", "choice", "span"]
AVERAGES = ["probabilities", "logits"]


@pytest.mark.parametrize("kind", [*KINDS, "crf", "crf with a temperature"])
def test_a_model_with_itself_is_that_model(tmp_path, kind):
    settings: dict[str, object] = {"crf": True} if kind.startswith("crf") else {}
    settings |= {"temperature": 1.6} if kind in ("choice", "tagging", "crf with a temperature") else {}
    kind = "tagging" if kind.startswith("crf") else kind
    folder, path = write_model(tmp_path / "model", kind, 1, settings), data_of(tmp_path, kind)
    data = read(kind, path)
    alone = Predictor.load(folder).predict_examples(data)
    for average, members in product(AVERAGES, ([folder], [folder, folder])):
        together = Ensemble.load(members, average=average).predict_examples(data)
        for one, other in zip(alone, together, strict=True):
            (numbers, decisions), (found, decided) = flat(one), flat(other)
            assert decided == decisions
            assert found == pytest.approx(numbers, abs=1e-4)
    expected = scores_of(evaluate(folder, path))
    # alone, a model's loss ignores the temperature, and with a CRF it is that of whole tag paths
    ignored = {"loss"} if settings else set()
    assert ignored <= expected.keys()
    for average in AVERAGES:
        found = scores_of(evaluate([folder, folder], path, average=average))
        assert found.keys() - ignored == expected.keys() - ignored
        for name in found.keys() - ignored:
            assert found[name] == pytest.approx(expected[name], rel=1e-4), (name, average)


@pytest.mark.parametrize("average", AVERAGES)
def test_votes_of_chains_weigh_equally_whatever_the_temperatures(tmp_path, average):
    """Any two members outvote the third, however far apart their temperatures; a temperature changes no vote."""
    path = data_of(tmp_path, "tagging")
    data, votes, decided = read("tagging", path), [], []
    for temperatures in ([1.0, 1.0, 1.0], [0.2, 5.0, 1.0], [5.0, 1.0, 0.2]):
        folders = [
            write_model(tmp_path / f"{seed}-{temperature}", "tagging", seed, {"crf": True, "temperature": temperature})
            for seed, temperature in enumerate(temperatures)
        ]
        ensemble = Ensemble.load(folders, average=average)
        encoded = ensemble.encoded(data)
        rows = encoded.word_rows(ensemble.outputs(encoded).rows)
        votes.append(rows[:, len(TAGS) :])
        decided.append([row["tags"] for row in ensemble.predict_examples(data)])
    members = [[row["tags"] for row in Predictor.load(folder).predict_examples(data)] for folder in folders]
    for other in votes[1:]:
        np.testing.assert_array_equal(other, votes[0])
    num_outvoted = 0
    words = [[tag for tags in part for tag in tags] for part in (decided[-1], *members)]
    for tags, *each in zip(*words, strict=True):
        best, count = max(((tag, each.count(tag)) for tag in each), key=lambda pair: pair[1])
        assert count == 1 or tags == best
        num_outvoted += count == 2
    assert num_outvoted > 20


@pytest.mark.parametrize("kind", KINDS)
def test_order_does_not_matter_and_members_do(tmp_path, kind):
    folders, path = [write_model(tmp_path / str(seed), kind, seed) for seed in (1, 2, 3)], data_of(tmp_path, kind)
    data = read(kind, path)
    one = Ensemble.load(folders).predict_examples(data)
    assert Ensemble.load(folders[::-1]).predict_examples(data) == one
    assert Ensemble.load(folders[:2]).predict_examples(data) != one
    assert all(Predictor.load(folder).predict_examples(data) != one for folder in folders)


def test_seven_models_of_answers(tmp_path):
    """Start and end distributions over the tokens of a window are averaged, and the answer is read from the average."""
    folders = [write_model(tmp_path / f"seed-{seed}", "span", seed) for seed in range(7)]
    path = data_of(tmp_path, "span")
    data = read("span", path)
    members = [Predictor.load(folder) for folder in folders]
    ensemble = Ensemble.load(folders)
    encoded = ensemble.encoded(data)
    assert len(encoded) > len(data.examples)  # some contexts have several windows
    rows = ensemble.outputs(encoded).rows
    parts = [member.outputs(encoded).rows for member in members]
    for unit, values in enumerate(rows):
        mean = np.mean([softmax(part[unit].astype(np.float64), axis=0) for part in parts], axis=0)
        assert softmax(values, axis=0) == pytest.approx(mean, abs=1e-6)
        levels = [logsumexp(part[unit], axis=0) for part in parts]
        assert logsumexp(values, axis=0) == pytest.approx(np.mean(levels, axis=0), abs=1e-5)
    decoded = members[0].required_task().decode(encoded, rows)
    assert ensemble.predict_examples(data) == decoded
    result = evaluate(folders, path)
    assert result["num_examples"] == 16
    assert result["loss"] > 0
    predict(folders, path, tmp_path / "out.jsonl")
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [flat({key: row[key] for key in decoded[0]})[1] for row in written] == [flat(row)[1] for row in decoded]


def test_the_null_threshold_is_the_mean_of_those_of_the_members(tmp_path):
    path = data_of(tmp_path, "span")
    folders = [
        write_model(tmp_path / str(seed), "span", seed, {"has_unanswerable": True, "null_threshold": threshold})
        for seed, threshold in enumerate([-1.0, 0.0, 2.5])
    ]
    ensemble = Ensemble.load(folders)
    assert ensemble.task.settings.null_threshold == 0.5
    rows = ensemble.predict_examples(read("span", path))
    assert {row["answer"] == "" for row in rows} == {True, False}
    for row in rows:
        assert (row["answer"] == "") == (row["null_odds"] > 0.5)


@pytest.mark.parametrize(
    ("kind", "other", "difference"),
    [
        ("tagging", {"settings": {"crf": True}}, "setting crf: True, not False"),
        ("tagging", {"settings": {"context": "document"}}, "setting context"),
        ("span", {"settings": {"stride": 5}}, "setting stride: 5, not 6"),
        ("choice", {"max_length": 20}, "max_length: 20, not 24"),
    ],
)
def test_models_that_do_not_go_together(tmp_path, kind, other, difference):
    first, second = write_model(tmp_path / "one", kind, 1), write_model(tmp_path / "two", kind, 2, **other)
    with pytest.raises(ConfigError, match=f"two: model 2 of the ensemble differs from the first in {difference}"):
        Ensemble.load([first, second])


@pytest.mark.parametrize("kind", KINDS)
def test_all_members_need_one_tokenizer(tmp_path, kind):
    first, second = (write_model(tmp_path / name, kind, 1) for name in ("one", "two"))
    words = (second / "vocab.txt").read_text().split()
    words[5], words[6] = words[6], words[5]
    WordPieceTokenizer(Vocabulary(words), max_length=32).save(second)
    with pytest.raises(ConfigError, match=r"two: model 2 .* tokenizer"):
        Ensemble.load([first, second])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run that kept all of its three seeds, its dev data, and its result."""
    folder = tmp_path_factory.mktemp("ensemble")
    source = write_model(folder / "source", "choice", 0)
    draw, lines = random.Random(1), []
    for _ in range(60):
        words = draw.choices(WORDS, k=draw.randint(1, 6))
        lines.append(json.dumps({"text": " ".join(words), "label": "odd" if "eta" in words else "even"}))
    (folder / "train.jsonl").write_text("\n".join(lines[:40]) + "\n")
    (folder / "dev.jsonl").write_text("\n".join(lines[40:]) + "\n")
    training = {"epochs": 2.0, "batch_size": 8, "learning_rate": 3e-3, "num_threads": 1}
    values = {"restarts": 3, "keep_restarts": True, "data": {"max_length": 16}, "training": training, "seed": 4}
    recipe = validate_recipe(FinetuneRecipe, values, source="test")
    dev = folder / "dev.jsonl"
    result = finetune(recipe, model=source, train=folder / "train.jsonl", dev=dev, out=folder / "run")
    return folder / "run", dev, result


def test_every_restart_is_kept(run):
    folder, dev, result = run
    kept = {seed: folder / "restarts" / f"seed-{seed}" / "model" for seed in (4, 5, 6)}
    for seed, model in kept.items():
        assert evaluate(model, dev)["accuracy"] == pytest.approx(result["restarts"]["scores"][str(seed)])
        assert not (model.parent / "best").exists()
    best = kept[result["best_seed"]]
    for name in ("model.safetensors", "vocab.txt", "maskloom.json", "config.json"):
        assert (best / name).read_bytes() == (folder / "model" / name).read_bytes()
    weights = {(model / "model.safetensors").read_bytes() for model in kept.values()}
    assert len(weights) == 3


def run_command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["maskloom", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


def test_by_command(run, tmp_path, monkeypatch, capsys):
    folder, dev, _ = run
    models = [folder / "restarts" / f"seed-{seed}" / "model" for seed in (4, 5, 6)]
    expected = scores_of(evaluate(models, dev))
    code, said = run_command(monkeypatch, capsys, "evaluate", "--ensemble", folder, "--data", dev, "--json")
    assert code == 0
    assert scores_of(json.loads(said.out)) == expected
    named = [part for model in models for part in ("--model", model)]
    _, said = run_command(monkeypatch, capsys, "evaluate", *named, "--data", dev, "--average", "logits", "--json")
    assert scores_of(json.loads(said.out)) == scores_of(evaluate(models, dev, average="logits"))
    one = ("--model", models[0], "--data", dev, "--average", "logits")
    code, said = run_command(monkeypatch, capsys, "evaluate", *one)
    assert (code, "--average: " in said.err) == (2, True)
    code, _ = run_command(monkeypatch, capsys, "predict", *named, "--input", dev, "--output", tmp_path / "out.jsonl")
    assert code == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    singly = [Predictor.load(model).predict([row["text"] for row in rows]) for model in models]
    for row, *each in zip(rows, *singly, strict=True):
        mean = np.mean([list(one["probabilities"].values()) for one in each], axis=0)
        assert list(row["probabilities"].values()) == pytest.approx(mean, abs=1e-6)
    code, said = run_command(monkeypatch, capsys, "evaluate", "--data", dev)
    assert code == 2
    assert "pass --model" in said.err
    code, said = run_command(monkeypatch, capsys, "evaluate", "--ensemble", models[0], "--data", dev)
    assert code == 3
    assert "--keep-restarts" in said.err
