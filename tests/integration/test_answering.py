import json
import math
import random

import pytest
from tests.fine_tuning import finetune
from typer.testing import CliRunner

from maskloom.checkpoints.huggingface import save_model
from maskloom.cli import app
from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs import predict as predict_run
from maskloom.runs.evaluate import evaluate, tune
from maskloom.runs.predict import answer, answer_lines, predict
from maskloom.tasks.span.reading import score_files
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from maskloom.training.events import read_events

COLORS = ["red", "green", "blue", "black", "white"]
THINGS = ["cat", "dog", "car", "hat", "door"]
FILLERS = ["the", "a", "very", "and", "then", "some"]
MAX_LENGTH = 20


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    vocabulary = Vocabulary(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "is", "what", "?", ".", *COLORS, *THINGS, *FILLERS]
    )
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=32, initializer_range=0.2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    save_model(build_model(config, ("mlm", "nsp"), seed=3), folder)
    WordPieceTokenizer(vocabulary, max_length=32).save(folder)
    return folder


def squad_file(path, num_paragraphs, seed, *, v2):
    """Write contexts whose only color is the answer; in v2 some have none. Most are longer than a window."""
    draw, paragraphs = random.Random(seed), []
    for number in range(num_paragraphs):
        words = [draw.choice([*FILLERS, *THINGS]) for _ in range(draw.choice([5, 12, 25]))]
        is_impossible = v2 and draw.random() < 0.4
        answers = []
        if not is_impossible:
            place = draw.randrange(len(words))
            words[place] = draw.choice(COLORS).title()
            answers = [{"text": words[place], "answer_start": len(" ".join([*words[:place], ""]))}]
        question = {"id": f"{seed}-{number}", "question": "what color?", "answers": answers}
        if v2:
            question["is_impossible"] = is_impossible
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    document = {"version": "v2.0" if v2 else "1.1", "data": [{"title": "colors", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def recipe(**values):
    training = {"epochs": 3.0, "batch_size": 16, "learning_rate": 1e-2, "num_threads": 1}
    values = {"task": "span", "data": {"max_length": MAX_LENGTH}, "span": {"stride": 6}, "training": training, **values}
    return validate_recipe(FinetuneRecipe, values, source="test")


@pytest.fixture(scope="module", params=[False, True], ids=["v1", "v2"])
def trained(request, start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train = squad_file(folder / "train.json", 150, 1, v2=request.param)
    dev = squad_file(folder / "dev.json", 40, 2, v2=request.param)
    result = finetune(recipe(), model=start, train=train, dev=dev, out=folder / "run")
    return folder / "run", dev, result, request.param


def test_answers_are_learnt_and_scored_officially(trained, tmp_path):
    run, dev, result, v2 = trained
    assert result["best"]["scores"]["f1"] > 90
    scores = evaluate(run, dev)
    assert scores["metric"] == "f1"
    assert {name: scores[name] for name in result["best"]["scores"]} == pytest.approx(result["best"]["scores"])
    assert ("NoAns_f1" in scores) == v2
    assert scores["num_examples"] == 40
    assert scores["data"]["num_windows"] > 60
    predict(run, dev, tmp_path / "predictions.json")
    official = score_files(dev, tmp_path / "predictions.json")
    assert official["num_missing"] == 0
    assert official["f1"] == pytest.approx(scores["f1"])
    assert official["exact" if v2 else "exact_match"] == pytest.approx(scores["exact_match"])


def test_an_epoch_is_a_pass_over_all_windows(trained):
    """Regression: epochs counted questions while batches contained windows, so 10 epochs were only 5."""
    run, _, result, _ = trained
    windows = result["data"]["train"]["num_windows"]
    assert windows > 200 > result["data"]["train"]["num_kept"] == 150
    steps = [event["step"] for event in read_events(run / "events.jsonl") if event["event"] == "step"]
    assert max(steps) == 3 * windows // 16


def test_rows_of_predictions_hold_places_and_candidates(trained, tmp_path):
    run, dev, _, v2 = trained
    predict(run, dev, tmp_path / "predictions.json")
    predict(run, dev, tmp_path / "predictions.jsonl")
    by_id = json.loads((tmp_path / "predictions.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    contexts = [paragraph["context"] for paragraph in json.loads(dev.read_text())["data"][0]["paragraphs"]]
    assert {row["id"]: row["answer"] for row in rows} == by_id
    assert list(by_id) == [f"2-{number}" for number in range(40)]
    for row, context in zip(rows, contexts, strict=True):
        assert ("null_odds" in row) == v2
        if row["answer"]:
            assert context[row["start"] : row["end"]] == row["answer"]
        assert 1 < len(row["candidates"]) <= 21
        assert sum(candidate["probability"] for candidate in row["candidates"]) == pytest.approx(1)


def test_null_threshold_is_tuned_and_kept(trained):
    run, dev, _, v2 = trained
    if not v2:
        with pytest.raises(ConfigError, match="span task"):
            tune(run, dev)
        return
    before = evaluate(run, dev)
    result = tune(run, dev)
    threshold = result["settings"]["null_threshold"]
    assert json.loads((run / "model" / "maskloom.json").read_text())["settings"]["null_threshold"] == threshold
    after = evaluate(run, dev)
    assert after["f1"] == pytest.approx(before["best_f1"])
    assert Predictor.load(run).required_task().settings.null_threshold == threshold


def test_other_lengths_of_windows_and_wrong_ones(trained):
    run, dev, _, _ = trained
    assert evaluate(run, dev, max_length=32)["data"]["num_windows"] < evaluate(run, dev)["data"]["num_windows"]
    with pytest.raises(ConfigError, match="leave no room"):
        evaluate(run, dev, max_length=6)
    with pytest.raises(DataError, match=r"input 0: expected \(question, context\), got str"):
        Predictor.load(run).predict(["what color?"])


def test_data_without_answers_is_refused(start, tmp_path):
    dev = squad_file(tmp_path / "dev.json", 3, 2, v2=True)
    document = json.loads(dev.read_text())
    for paragraph in document["data"][0]["paragraphs"]:
        paragraph["qas"][0] |= {"answers": [], "is_impossible": True}
    (tmp_path / "train.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="none of 3 questions has an answer"):
        finetune(recipe(), model=start, train=tmp_path / "train.json", dev=dev, out=tmp_path / "run")


def test_questions_that_cannot_be_aligned_are_counted_and_listed(start, tmp_path):
    train = squad_file(tmp_path / "train.json", 12, 1, v2=False)
    document = json.loads(train.read_text())
    paragraph = document["data"][0]["paragraphs"][3]
    paragraph["context"] = "red\u202fcat is"
    paragraph["qas"][0]["answers"] = [{"text": "d\u202fcat is", "answer_start": 2}]
    train.write_text(json.dumps(document))
    dev = squad_file(tmp_path / "dev.json", 4, 2, v2=False)
    training = {"epochs": 1.0, "batch_size": 4, "num_threads": 1}
    result = finetune(recipe(training=training), model=start, train=train, dev=dev, out=tmp_path / "run")
    assert result["data"]["train"]["unaligned"] == []
    paragraph["context"] = "red\u00a0cat is"
    paragraph["qas"][0]["answers"] = [{"text": "d\u00a0cat is", "answer_start": 2}]
    train.write_text(json.dumps(document))
    result = finetune(recipe(training=training), model=start, train=train, dev=dev, out=tmp_path / "other")
    assert result["data"]["train"]["unaligned"] == ["1-3"]
    assert result["data"]["train"]["num_unaligned"] == 1
    assert any("answers of 1 of 12 questions" in note and "1-3" in note for note in result["data"]["notes"])


def test_questions_on_a_text_of_any_length(trained, tmp_path):
    run, _, _, v2 = trained
    path = tmp_path / "context.txt"
    text = "the cat and dog\n" * 400 + "some Green\u202fhat" + "\na very door" * 300
    path.write_text(text, encoding="utf-8")
    result = answer(run, path, ["what color?", "what?", "what color?"], top_k=3)
    first, _, again = result["answers"]
    assert first["answer"] == "Green" == text[first["start"] : first["end"]]
    assert (first["answer"], first["start"]) == (again["answer"], again["start"])
    assert len(first["candidates"]) == 3
    assert result["num_windows"] > 3 * 2500 / MAX_LENGTH
    assert ("null_odds" in first) == v2
    assert answer_lines(result)[0] == "what color?"
    assert "Green" in answer_lines(result)[1]
    assert answer_lines(result)[-1].endswith("tokens for 3 questions")
    nothing = answer(run, path, ["what color?"], null_threshold=-1e9)["answers"][0]
    assert (nothing["answer"], nothing["start"]) == ("", None)
    assert nothing["null_odds"] == pytest.approx(first.get("null_odds", nothing["null_odds"]))
    told = answer_lines(answer(run, path, ["what color?"], top_k=3, null_threshold=-1e9))
    assert told[1].startswith("  (no answer)  (")  # the answer comes before better candidates
    assert len(told) == 1 + 3 + 1
    assert told[-1].endswith(" tokens")


def test_parts_of_the_windows_give_the_same_answers(trained, tmp_path, monkeypatch):
    run, _, _, _ = trained
    path = tmp_path / "context.txt"
    path.write_text("the cat " * 30 + "red dog", encoding="utf-8")
    questions = ["what color?", "what cat?", "is the dog?"]
    whole = answer(run, path, questions, top_k=20)
    monkeypatch.setattr(predict_run, "_WINDOWS_AT_ONCE", 1)
    parts = answer(run, path, questions, top_k=20)
    for one, other in zip(whole["answers"], parts["answers"], strict=True):
        assert one["answer"] == other["answer"]
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)


@pytest.mark.parametrize(
    ("content", "questions", "options", "message"),
    [
        (b"", ["what?"], {}, "the file is empty"),
        (b" \n", ["what?"], {}, "the file is empty"),
        (b"a\nred \xff", ["what?"], {}, "line 2: byte 7 of the file is not UTF-8"),
        (b"a\n\nred\0", ["what?"], {}, "line 3: contains a NUL character"),
        (b"red", ["what?"], {"top_k": 21}, r"top_k 21: the model keeps 20 candidates per question \(span\.num_best\)"),
        (b"red", ["what?"], {"max_length": 400}, "3 to 32"),
        (b"red", ["what?"], {"null_threshold": math.nan}, "null_threshold nan: expected a number"),
        (None, ["what?"], {}, "cannot be read"),
    ],
)
def test_wrong_questions_and_texts_are_refused(trained, tmp_path, content, questions, options, message):
    path = tmp_path / "context.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((ConfigError, DataError), match=message):
        answer(trained[0], path, questions, **options)


def test_models_of_other_tasks_do_not_answer(start, tmp_path):
    (tmp_path / "context.txt").write_text("red")
    with pytest.raises(ConfigError, match="no task head"):
        answer(start, tmp_path / "context.txt", ["what?"])


def test_the_command_prints_answers_for_people_and_programs(trained, tmp_path):
    (tmp_path / "context.txt").write_text("the cat and Red hat")
    arguments = ["answer", "--model", str(trained[0]), "--context", str(tmp_path / "context.txt")]
    done = CliRunner().invoke(app, [*arguments, "--question", "what color?", "--question", "what?", "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [row["question"] for row in result["answers"]] == ["what color?", "what?"]
    assert result["answers"][0]["answer"] == "Red"
    shown = CliRunner().invoke(app, [*arguments, "--question", "what color?"])
    assert "Red  (" in shown.stdout
    assert "characters 12 to 15" in shown.stdout


def test_files_of_predictions_are_scored_from_the_command_line(trained, tmp_path):
    run, dev, _, v2 = trained
    path = tmp_path / "predictions.json"
    predict(run, dev, path)
    done = CliRunner().invoke(app, ["score-answers", "--data", str(dev), "--predictions", str(path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["total"] == 40
    assert ("HasAns_total" in found) == v2
    assert found["f1"] == pytest.approx(evaluate(run, dev)["f1"])
    assert found == score_files(dev, path)
