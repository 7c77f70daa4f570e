import json
import random
import shutil
import sys

import pytest
from tests.entity_scores import entity_scores
from tests.fine_tuning import finetune
from tests.unused_tensors import unused_tensors

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.cli import main
from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Ensemble, Predictor
from maskloom.metrics.entities import entities_of
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs import evaluate as evaluate_run
from maskloom.runs import predict as predict_run
from maskloom.runs.evaluate import evaluate, tune
from maskloom.runs.predict import predict
from maskloom.tasks.kinds import TAGGING
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.tagging.schemes import tags_of
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

FIRST, LAST, PLACES = ["anna", "bob", "carl"], ["smith", "jones"], ["rome", "oslo"]
OTHERS = ["saw", "the", "in", "and", "old", "town", ".", ","]
TRAINING = {"epochs": 5.0, "batch_size": 8, "learning_rate": 1e-2, "num_threads": 1, "evaluate_every": 40}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    words = [*FIRST, *LAST, *PLACES, *OTHERS, "##s"]
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=48, initializer_range=0.2,
    )  # fmt: skip
    save_model(build_model(config, ("mlm", "nsp"), seed=3), folder)
    WordPieceTokenizer(vocabulary, max_length=48).save(folder)
    return folder


def sentences(num_sentences, seed, most=8):
    """Return sentences with two-word names of persons, and places; a possessive makes a word of two pieces."""
    draw, found = random.Random(seed), []
    for _ in range(num_sentences):
        rows = []
        for _ in range(draw.randint(1, most)):
            what = draw.random()
            if what < 0.2:
                rows += [(draw.choice(FIRST), "B-PER"), (draw.choice(LAST), "I-PER")]
            elif what < 0.4:
                rows.append((draw.choice(PLACES) + draw.choice(["", "s"]), "B-LOC"))
            rows.append((draw.choice(OTHERS), "O"))
        found.append(rows)
    return found


def write_columns(path, found, scheme="iob2", per_document=4):
    lines = []
    for number, rows in enumerate(found):
        if number % per_document == 0:
            lines += ["-DOCSTART- -X- O", ""]
        tags = tags_of(entities_of([tag for _, tag in rows]), len(rows), scheme)
        lines += [f"{word} -X- {tag}" for (word, _), tag in zip(rows, tags, strict=True)] + [""]
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe(training=None, max_length=32, **tagging):
    values = {"task": "tagging", "tagging": tagging, "data": {"max_length": max_length}}
    return validate_recipe(FinetuneRecipe, {**values, "training": {**TRAINING, **(training or {})}}, source="test")


def trained(folder, model_folder, tmp, **tagging):
    train = write_columns(tmp / "train.conll", sentences(120, 1))
    dev = write_columns(tmp / "dev.conll", sentences(40, 2))
    return finetune(recipe(**tagging), model=model_folder, train=train, dev=dev, out=folder), dev


@pytest.fixture(scope="module", params=["plain", "crf"])
def run(request, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    result, dev = trained(folder / "run", model_folder, folder, crf=request.param == "crf")
    return folder / "run", result, dev


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_learns_and_says_how_well(run):
    folder, result, dev = run
    assert result["metric"] == "f1"
    assert result["best"]["scores"]["f1"] > 0.9
    assert result["data"]["labels"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert result["data"]["dev"]["num_words"] == sum(len(rows) for rows in sentences(40, 2))
    scores = evaluate(folder, dev)
    assert scores["f1"] == pytest.approx(result["best"]["scores"]["f1"])
    assert scores["loss"] == pytest.approx(result["best"]["scores"]["loss"], rel=1e-4)
    assert {"strict_f1", "accuracy", "f1_PER", "f1_LOC", "precision", "recall"} <= set(scores)
    assert scores["reference"] == 0.0


def test_a_file_in_another_scheme_scores_the_same(run, tmp_path):
    folder, _, dev = run
    expected = evaluate(folder, dev)["f1"]
    for scheme in ("iob1", "bioes", "bilou"):
        path = write_columns(tmp_path / f"{scheme}.conll", sentences(40, 2), scheme)
        assert evaluate(folder, path)["f1"] == pytest.approx(expected)


def test_columns_in_columns_out(run, tmp_path):
    folder, _, dev = run
    result = predict(folder, dev, tmp_path / "out.conll")
    assert result["num_predictions"] == 40
    written = (tmp_path / "out.conll").read_text().splitlines()
    given = dev.read_text().splitlines()
    assert [line.rsplit(" ", 1)[0] for line in written if line] == [line for line in given if line]
    assert len(written) == len(given)
    # the file contains the tags that evaluation scored
    fields = [line.split(" ") for line in written]
    true = [s.tags for s in TAGGING.read(tmp_path / "out.conll", ReadingOptions(label_column="3")).examples]
    predicted, current = [], []
    for parts in fields:
        if parts[0] == "-DOCSTART-":
            continue
        if parts == [""]:
            predicted += [current] if current else []
            current = []
        else:
            current.append(parts[3])
    assert entity_scores(predicted, true)["f1"] == pytest.approx(evaluate(folder, dev)["f1"])


def test_entities_of_raw_text_stand_on_its_characters(run, tmp_path):
    folder, _, _ = run
    texts = ["The old anna smith saw Rome.", "in oslos,  carl jones"]
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    predict(folder, tmp_path / "in.txt", tmp_path / "out.jsonl")
    rows = rows_of(tmp_path / "out.jsonl")
    assert [row["text"] for row in rows] == texts
    assert [row["line"] for row in rows] == [1, 2]
    found = [[(e["text"], e["type"], e["words"]) for e in row["entities"]] for row in rows]
    assert found[0] == [("anna smith", "PER", [2, 4]), ("Rome", "LOC", [5, 6])]
    assert ("oslos", "LOC", [1, 2]) in found[1]
    for row in rows:
        assert len(row["words"]) == len(row["tags"])
        for entity in row["entities"]:
            assert row["text"][entity["start"] : entity["end"]] == entity["text"]
            assert 0.2 < entity["probability"] <= 1.0
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    predict(folder, tmp_path / "in.jsonl", tmp_path / "same.jsonl")
    assert [row["entities"] for row in rows_of(tmp_path / "same.jsonl")] == [row["entities"] for row in rows]


def test_words_given_as_lists_keep_their_places(run, tmp_path):
    folder, _, _ = run
    (tmp_path / "in.jsonl").write_text(json.dumps({"tokens": ["the", "anna", "jones"]}) + "\n")
    predict(folder, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    (row,) = rows_of(tmp_path / "out.jsonl")
    (entity,) = row["entities"]
    assert (row["text"], entity["text"], entity["start"], entity["end"]) == ("the anna jones", "anna jones", 4, 14)
    predict(folder, tmp_path / "in.jsonl", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "the O\nanna B-PER\njones I-PER\n\n"


def test_long_sentences_lose_no_word(run, tmp_path):
    folder, _, _ = run
    long = write_columns(tmp_path / "long.conll", sentences(5, 3, most=120))
    num_words = sum(len(rows) for rows in sentences(5, 3, most=120))
    scores = evaluate(folder, long)
    assert scores["data"]["num_words"] == num_words
    assert scores["data"]["num_split_sentences"] >= 3
    # the previous token is enough context here, so windows cost almost nothing
    assert scores["f1"] > 0.9
    predict(folder, long, tmp_path / "out.jsonl")
    assert sum(len(row["tags"]) for row in rows_of(tmp_path / "out.jsonl")) == num_words


def test_the_model_folder_says_what_it_is(run):
    folder, _, _ = run
    model, report = load_model(folder / "model")
    settings = json.loads((folder / "model" / "maskloom.json").read_text())
    assert settings["kind"] == "tagging"
    assert set(model.heads) == ({"tagger", "crf"} if settings["settings"]["crf"] else {"tagger"})
    assert not unused_tensors(folder / "model", report)
    config = json.loads((folder / "model" / "config.json").read_text())
    has_crf = settings["settings"]["crf"]
    assert config["architectures"] == [f"{'MaskloomBertCrf' if has_crf else 'Bert'}ForTokenClassification"]
    assert config["model_type"] == ("maskloom_bert_crf" if has_crf else "bert")
    assert config["id2label"]["1"] == "B-LOC"


def test_sentences_as_columns_as_lines_and_as_text_get_the_same_tags(run, tmp_path):
    """Regression: lines were split at punctuation, unlike the training words, so the same sentences got other tags."""
    folder, _, dev = run
    words = [list(sentence.words) for sentence in TAGGING.read(dev).examples]
    (tmp_path / "lines.txt").write_text("".join(f"{' '.join(line)}\n" for line in words))
    told = predict(folder, tmp_path / "lines.txt", tmp_path / "lines.jsonl")
    predict(folder, dev, tmp_path / "columns.jsonl")
    lines, columns = rows_of(tmp_path / "lines.jsonl"), rows_of(tmp_path / "columns.jsonl")
    assert [row["words"] for row in lines] == [row["words"] for row in columns] == words
    assert [row["tags"] for row in lines] == [row["tags"] for row in columns]
    assert told["data"]["notes"] == ["its lines are already split into words, and are split only at blanks"]
    raw = ["anna smith saw rome, oslo and the old town."]
    for predictor in (Predictor.load(folder), Ensemble.load([folder, folder])):
        (found,) = predictor.predict(raw)
        assert found["words"] == ["anna", "smith", "saw", "rome", ",", "oslo", "and", "the", "old", "town", "."]
        (given,) = predictor.predict([found["words"]])
        assert given["tags"] == found["tags"]
        with pytest.raises(DataError, match="input 0: the text is empty"):
            predictor.predict([["anna", ""]])


def test_several_models_answer_as_one(run, tmp_path):
    folder, _, dev = run
    one, two = evaluate(folder, dev), evaluate([folder, folder], dev)
    assert two["f1"] == pytest.approx(one["f1"])
    assert evaluate([folder, folder], dev, average="logits")["f1"] == pytest.approx(one["f1"])


def test_probabilities_can_be_tuned(run, tmp_path):
    folder, _, _ = run
    # the model may be right on all others, to which no temperature can be fitted
    dev = write_columns(tmp_path / "dev.conll", [*sentences(40, 2), [("old", "B-LOC")]])
    shutil.copytree(folder / "model", tmp_path / "model")
    result = tune(tmp_path / "model", dev)
    assert result["after"]["f1"] == result["before"]["f1"]
    assert result["after"]["negative_log_likelihood"] <= result["before"]["negative_log_likelihood"]
    scores = evaluate(tmp_path / "model", dev)
    assert scores["calibration_error"] == pytest.approx(result["after"]["calibration_error"])


def test_a_published_tagger_opens_without_our_settings(run, tmp_path):
    folder, _, dev = run
    model, _ = load_model(folder / "model", heads=("tagger",))
    config = json.loads((folder / "model" / "config.json").read_text())
    save_model(model, tmp_path / "bare", extra_config={"id2label": config["id2label"]})
    Tokenizer.load(folder / "model").save(tmp_path / "bare")
    predictor = Predictor.load(tmp_path / "bare")
    assert predictor.required_task().kind == "tagging"
    assert evaluate(tmp_path / "bare", dev)["f1"] > 0.8


@pytest.mark.parametrize("crf", [pytest.param(False, marks=pytest.mark.slow), True])
def test_document_context(model_folder, tmp_path, crf, monkeypatch):
    train = write_columns(tmp_path / "train.conll", sentences(120, 1, most=3))
    dev = write_columns(tmp_path / "dev.conll", sentences(40, 2, most=3))
    options = recipe({"epochs": 15.0, "learning_rate": 2e-2}, max_length=48, context="document", crf=crf)
    result = finetune(options, model=model_folder, train=train, dev=dev, out=tmp_path / "run")
    assert result["data"]["dev"]["num_windows"] < 40
    assert result["data"]["dev"]["num_words"] == sum(len(rows) for rows in sentences(40, 2, most=3))
    assert result["best"]["scores"]["f1"] > 0.9
    assert evaluate(tmp_path / "run", dev)["f1"] == pytest.approx(result["best"]["scores"]["f1"])
    predict(tmp_path / "run", dev, tmp_path / "out.jsonl")
    for module in (evaluate_run, predict_run):
        monkeypatch.setattr(module, "_PIECE" if module is evaluate_run else "_WINDOW", 3)
    # files are read in pieces, which must not split documents of four sentences
    assert evaluate(tmp_path / "run", dev)["data"]["num_windows"] == result["data"]["dev"]["num_windows"]
    predict(tmp_path / "run", dev, tmp_path / "pieces.jsonl")
    assert [row["tags"] for row in rows_of(tmp_path / "pieces.jsonl")] == [
        row["tags"] for row in rows_of(tmp_path / "out.jsonl")
    ]
    assert [row["words"] for row in rows_of(tmp_path / "out.jsonl")] == [
        [word for word, _ in rows] for rows in sentences(40, 2, most=3)
    ]


def test_the_command_line(model_folder, tmp_path, capsys, monkeypatch):
    def run_command(*arguments):
        monkeypatch.setattr(sys, "argv", ["maskloom", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    train = write_columns(tmp_path / "train.txt", sentences(40, 1), "iob1")
    dev = write_columns(tmp_path / "dev.txt", sentences(20, 2), "iob1")
    arguments = [
        "--task",
        "tagging",
        "--train",
        train,
        "--dev",
        dev,
        "--model",
        model_folder,
        "--out",
        tmp_path / "run",
    ]
    changes = ["training.epochs=2", "data.max_length=32", "tagging.crf=true", "training.num_threads=1"]
    settings = [part for change in changes for part in ("--set", change)]
    assert run_command("finetune", *arguments, *settings) == 0
    assert run_command("evaluate", "--model", tmp_path / "run", "--data", dev) == 0
    assert "strict f1" in capsys.readouterr().out
    assert run_command("predict", "--model", tmp_path / "run", "--input", dev, "--output", tmp_path / "o.conll") == 0
    assert (tmp_path / "o.conll").read_text().count("\n\n") >= 20


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("anna B-PER\nrome\n", "line 2: wrong number of columns"),
        ("anna B-PER\n\nbob PER\n", "line 3: unknown form of tag"),
        ("anna O\n\nbob O\n", "there is no entity to learn from"),
        ("", "the file is empty"),
    ],
)
def test_wrong_training_data_is_refused_before_anything_is_written(model_folder, tmp_path, content, says):
    (tmp_path / "train.conll").write_text(content)
    dev = write_columns(tmp_path / "dev.conll", sentences(4, 2))
    with pytest.raises(DataError, match=says):
        finetune(recipe(), model=model_folder, train=tmp_path / "train.conll", dev=dev, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


PARTS = {**dict.fromkeys([*FIRST, *LAST, *PLACES], "NNP"), "saw": "VBD", "town": "NN", "old": "JJ", ".": ".", ",": ","}


def write_parts_of_speech(path, seed, num_sentences=100):
    """Write columns with parts of speech in the second column and entities in the last."""
    draw, lines = random.Random(seed), []
    for _ in range(num_sentences):
        words = draw.choices([*PARTS, "the", "in", "and"], k=draw.randint(1, 8))
        lines += [f"{word} {PARTS.get(word, 'IN')} {'B-X' if word in FIRST else 'O'}" for word in words] + [""]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("crf", [pytest.param(False, marks=pytest.mark.slow), True])
def test_parts_of_speech(model_folder, tmp_path, crf):
    train, dev = (write_parts_of_speech(tmp_path / f"{name}.conll", seed) for name, seed in (("train", 1), ("dev", 2)))
    settings, reading = (
        recipe({"epochs": 3.0, "learning_rate": 2e-2}, crf=crf),
        ReadingOptions(format="conll2003", label_column="2"),
    )
    run = tmp_path / "run"
    result = finetune(settings, model=model_folder, train=train, dev=dev, out=run, reading=reading)
    assert result["metric"] == "accuracy"
    assert result["data"]["labels"] == sorted({*PARTS.values(), "IN"})
    assert result["best"]["scores"]["accuracy"] > 0.95
    scores = evaluate(run, dev)  # reads the same columns as fine-tuning
    assert scores["accuracy"] == pytest.approx(result["best"]["scores"]["accuracy"])
    assert 0.3 < scores["reference"] < 0.6
    assert scores["degenerate"] is None
    assert evaluate([run, run], dev)["accuracy"] == scores["accuracy"]
    (tmp_path / "wrong.conll").write_text(dev.read_text().replace(" VBD ", " JJ ", 1))  # it may be right on all of dev
    assert "temperature" in tune(run, tmp_path / "wrong.conll")["settings"]
    predict(run, dev, tmp_path / "out.conll")
    written = [line.split(" ") for line in (tmp_path / "out.conll").read_text().splitlines() if line]
    right = [fields[1] == fields[3] for fields in written]
    assert sum(right) / len(right) == pytest.approx(scores["accuracy"])
    (tmp_path / "raw.txt").write_text("  the old, town\n")
    predict(run, tmp_path / "raw.txt", tmp_path / "out.jsonl")
    (row,) = rows_of(tmp_path / "out.jsonl")
    assert [row["words"], row["tags"]] == [["the", "old", ",", "town"], ["IN", "JJ", ",", "NN"]]
    assert row["spans"] == [[2, 5], [6, 9], [9, 10], [11, 15]]
    assert all(0.2 < probability <= 1 for probability in row["tag_probabilities"])
    assert "entities" not in row


def test_a_plain_tag_that_training_lacks_is_refused(model_folder, tmp_path):
    train, dev = write_parts_of_speech(tmp_path / "train.conll", 1, 8), tmp_path / "dev.conll"
    dev.write_text("saw VBD O\nmay MD O\n")
    with pytest.raises(DataError, match=r"dev.conll: line 2: the label 'MD' is not one of the .*--labels FILE"):
        finetune(
            recipe(), model=model_folder, train=train, dev=dev, out=tmp_path / "run",
            reading=ReadingOptions(label_column="2"),
        )  # fmt: skip


def test_a_format_stands_for_the_task_and_its_score(model_folder, tmp_path, run):
    folder, _, dev = run
    reading = ReadingOptions(format="conll2003")
    expected = evaluate(folder, dev)
    assert evaluate(folder, dev, reading=reading) == expected
    predict(folder, dev, tmp_path / "out.conll", reading=reading)
    with pytest.raises(ConfigError, match=r"'cola' is for the task single, not tagging; tagging formats: .*conll2003"):
        evaluate(folder, dev, reading=ReadingOptions(format="cola"))
    train = write_columns(tmp_path / "train.conll", sentences(8, 1))
    values = {"training": {**TRAINING, "epochs": 1.0}, "data": {"max_length": 32}}
    short = validate_recipe(FinetuneRecipe, values, source="test")
    result = finetune(short, model=model_folder, train=train, dev=dev, out=tmp_path / "run", reading=reading)
    assert (result["task"], result["metric"]) == ("tagging", "f1")


def test_a_type_that_training_lacks_is_refused(model_folder, tmp_path):
    train = write_columns(tmp_path / "train.conll", sentences(8, 1))
    (tmp_path / "dev.conll").write_text("anna B-PER\nmay B-DATE\n")
    with pytest.raises(DataError, match=r"dev.conll: line 2: the label 'B-DATE' .*: 'O', 'B-LOC', 'I-LOC', 'B-PER'"):
        finetune(recipe(), model=model_folder, train=train, dev=tmp_path / "dev.conll", out=tmp_path / "run")


def test_wrong_requests_are_refused(run, tmp_path):
    folder, _, dev = run
    with pytest.raises(ConfigError, match="several values per row"):
        predict(folder, dev, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    with pytest.raises(ConfigError, match=r"suffix must be one of .jsonl, .csv, .conll, .txt"):
        predict(folder, dev, tmp_path / "out.xml")
