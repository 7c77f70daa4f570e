"""Prediction ignores labels, reads every line in order, and holds a bounded amount of text in memory."""

import json

import numpy as np
import pytest
from tests.integration.tiny_models import model_folder

from maskloom.errors import DataError
from maskloom.inference import Predictor
from maskloom.runs.evaluate import evaluate
from maskloom.runs.first_look import look_at_input
from maskloom.runs.predict import answer, answer_lines, embed, predict
from maskloom.runs.reading_defaults import FileReading
from maskloom.runs.task_summaries import evaluation_lines
from maskloom.tasks import examples as task_examples
from maskloom.tasks.tables import ReadingOptions

TAGS = {"0": "O", "1": "B-X", "2": "I-X"}
TAG_CONFIG = {"id2label": TAGS, "label2id": {name: int(number) for number, name in TAGS.items()}}
MODELS = {
    "single": {"settings": {"kind": "single", "takes_pairs": False, "reading": {"label_column": "label"}}},
    "pair": {"settings": {"kind": "pair", "takes_pairs": True}},
    "regression": {"num_labels": 1, "settings": {"kind": "regression", "takes_pairs": False}},
    "multilabel": {"settings": {"kind": "multilabel", "takes_pairs": False}},
    "choice": {"heads": ("choice",), "num_labels": None},
    "span": {"heads": ("span",), "num_labels": None},
    "tagging": {"heads": ("tagger",), **TAG_CONFIG},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that returns the model folder of a kind, creating it on first use."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = model_folder(tmp_path_factory.mktemp(kind), **MODELS[kind])
        return made[kind]

    return get


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def question(**answers):
    return json.dumps({"question": "alpha", "context": "beta", **answers})


@pytest.mark.parametrize(
    ("kind", "name", "lines"),
    [
        ("single", "in.csv", ["text,label", "alpha,", "beta,?", "gamma,-1", "delta,purple"]),
        ("single", "in.jsonl", ['{"text": "eta", "label": null}', '{"text": "eta", "label": [1]}', '{"text": "eta"}']),
        ("pair", "in.csv", ["text_a,text_b,label", "alpha,beta,", "beta,gamma,?"]),
        ("regression", "in.csv", ["text,score", "alpha,", "beta,?", "gamma,nan"]),
        ("regression", "in.tsv", ["text\tlabel", "alpha\t", "beta\t-"]),
        ("multilabel", "in.csv", ["text,labels", "alpha,", 'beta,"?,?"']),
        ("choice", "in.csv", ["sent1,ending0,ending1,label", "alpha,beta,eta,", "alpha,zeta,eta,-1", "eta,eta,beta,?"]),
        ("span", "in.csv", ["question,context,answer,answer_start,is_impossible", "alpha,beta,?,-1,?", "eta,zeta,,,"]),
        ("span", "in.jsonl", [question(answers=[{"text": "?", "answer_start": -1}], is_impossible="?")]),
        ("span", "in.jsonl", [question(answers=["?", "!"], answer_start=-1)]),
        ("tagging", "in.jsonl", ['{"tokens": ["alpha"], "tags": ["?"]}', '{"tokens": ["eta", "zeta"], "tags": []}']),
        ("tagging", "in.conll", ["alpha\t", "beta\t?", "", "gamma\t-1", ""]),
        ("tagging", "in.txt", ["alpha X ?", "beta Y ?", "", "gamma Z ?", "eta Z ?", ""]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("on_bad_rows", ["error", "skip"])
def test_labels_are_not_looked_at(models, tmp_path, kind, name, lines, on_bad_rows):
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    reading = ReadingOptions(on_bad_rows=on_bad_rows)
    result = predict(models(kind), tmp_path / name, tmp_path / "out.jsonl", reading=reading)
    num_rows = {"in.conll": 2, "in.txt": 2}.get(name, len(lines) - (0 if name.endswith(".jsonl") else 1))
    assert len(rows_of(tmp_path / "out.jsonl")) == num_rows == result["num_predictions"]
    assert result["data"]["dropped"] == {}


def test_a_column_of_labels_is_still_needed_for_a_score(models, tmp_path):
    (tmp_path / "in.csv").write_text("text,label\nalpha,\n")
    with pytest.raises(DataError, match="line 2: missing label"):
        evaluate(models("single"), tmp_path / "in.csv")


@pytest.mark.parametrize("kind", ["single", "embed"])
def test_skipping_every_row_is_an_error(models, tmp_path, kind):
    (tmp_path / "in.csv").write_text("text\n  \n \n")
    model, reading = models("single"), ReadingOptions(on_bad_rows="skip")
    use, opened, output = predict, model, "out.jsonl"
    if kind == "embed":
        use, opened, output = embed, Predictor.load(model), "out.npy"
    with pytest.raises(DataError, match=r"in\.csv: no usable rows: 2 read, dropped: {'empty text': 2}"):
        use(opened, tmp_path / "in.csv", tmp_path / output, reading=reading)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.parametrize("kind", ["single", "pair", "tagging"])
def test_every_line_of_a_text_is_answered_in_order(models, tmp_path, kind):
    texts = ["", "alpha beta", " \t", "gamma", "", ""]
    lines = [f"{text}\tzeta" if kind == "pair" and text.strip() else text for text in texts]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    result = predict(models(kind), tmp_path / "in.txt", tmp_path / "out.jsonl")
    rows = rows_of(tmp_path / "out.jsonl")
    assert [row["line"] for row in rows] == list(range(1, 7))
    assert [row["text"] for row in rows] == texts
    assert (result["data"]["num_blank"], result["data"]["first_blank_line"]) == (4, 1)
    predictor = Predictor.load(models(kind))
    if kind == "tagging":
        assert [row["words"] for row in rows] == [[], ["alpha", "beta"], [], ["gamma"], [], []]
        (expected,) = predictor.predict(["gamma"])
        assert rows[3]["tags"] == expected["tags"]
        return
    for text, row in zip(texts, rows, strict=True):
        (expected,) = predictor.predict([(text, "zeta" if text.strip() else "") if kind == "pair" else text])
        assert row["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "settings", "row", "key", "shown"),
    [
        ("document", {"max_sentences": 1}, {"text": "Alpha beta. Gamma eta. Zeta.", "labels": ["LABEL_0"]},
         "num_left_out", "4 sentences left out (document.max_sentences)"),
        ("span", {"max_question_length": 1}, {"question": "alpha beta", "context": "eta", "answer": "eta",
         "answer_start": 0}, "num_cut_questions", "2 questions truncated (span.max_question_length)"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_counted_and_shown(tmp_path, kind, settings, row, key, shown):
    """Regression: predicting did not count it, and an evaluation showed it only with --json."""
    heads, num_labels = (kind,), 3 if kind == "document" else None
    folder = model_folder(tmp_path / "m", heads, num_labels, settings={"kind": kind, "settings": settings})
    (tmp_path / "in.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    scores = evaluate(folder, tmp_path / "in.jsonl")
    written = predict(folder, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert scores["data"][key] == written[key] == int(shown[0])
    assert shown in "\n".join(evaluation_lines(scores))
    if kind == "span":
        (tmp_path / "context.txt").write_text("eta zeta")
        found = answer(folder, tmp_path / "context.txt", ["alpha", "alpha beta"])
        assert found[key] == 1
        assert "1 question truncated" in answer_lines(found)[-1]


@pytest.mark.parametrize("context", ["sentence", "document"])
def test_a_text_of_blank_lines_has_no_entities(tmp_path, context):
    settings = {"kind": "tagging", "settings": {"context": context}}
    folder = model_folder(tmp_path / "m", heads=("tagger",), settings=settings, **TAG_CONFIG)
    (tmp_path / "in.txt").write_text("\n\n")
    predict(folder, tmp_path / "in.txt", tmp_path / "out.jsonl")
    assert [row["tags"] for row in rows_of(tmp_path / "out.jsonl")] == [[], []]


def test_a_file_that_changes_while_vectors_are_written_is_refused(models, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("alpha\nbeta\n")
    predictor = Predictor.load(models("single"))
    monkeypatch.setattr(FileReading, "count", lambda self: 3)
    with pytest.raises(DataError, match=r"in\.txt: had 3 rows, then 2: it was changed while it was read"):
        embed(predictor, tmp_path / "in.txt", tmp_path / "out.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_blank_lines_have_vectors(models, tmp_path):
    (tmp_path / "in.txt").write_text("alpha\n\nbeta\n")
    predictor = Predictor.load(models("single"))
    result = embed(predictor, tmp_path / "in.txt", tmp_path / "out.npy")
    expected = predictor.encode(["alpha", "", "beta"])
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)
    assert result["data"]["num_blank"] == 1


@pytest.mark.parametrize("kind", ["single", "tagging", "choice", "span"])
def test_a_window_is_bounded_in_characters(models, tmp_path, monkeypatch, kind):
    texts = ["alpha beta", "gamma " * 30, "zeta", "eta", "theta " * 50, "alpha"] * 2
    if kind == "choice":
        rows = [{"context": "alpha", "choices": [text, "beta"], "label": 0} for text in texts]
    elif kind == "span":
        rows = [{"question": "alpha", "context": text} for text in texts]
    else:
        rows = [{"text": text} for text in texts]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    predict(models(kind), tmp_path / "in.jsonl", tmp_path / "whole.jsonl")
    inner = Predictor.predict_examples
    sizes = []

    def watched(self, data):
        sizes.append(len(data.examples))
        return inner(self, data)

    monkeypatch.setattr(Predictor, "predict_examples", watched)
    monkeypatch.setattr(task_examples, "CHARACTERS_AT_ONCE", 150)
    predict(models(kind), tmp_path / "in.jsonl", tmp_path / "pieces.jsonl")
    assert sum(sizes) == len(texts)
    assert len(sizes) > 3
    assert max(sizes) > 1
    for whole, piece in zip(rows_of(tmp_path / "whole.jsonl"), rows_of(tmp_path / "pieces.jsonl"), strict=True):
        for key in {"label", "tags", "choice", "answer"} & set(whole):
            assert whole[key] == piece[key]


def test_tags_may_be_ids_of_the_model_s_labels(tmp_path):
    stored = {"kind": "tagging", "labels": [*TAGS.values()], "settings": {"trained_scheme": "iob2"}}
    folder = model_folder(tmp_path / "model", heads=("tagger",), settings=stored, **TAG_CONFIG)
    for name, tags in (("names", ["B-X", "I-X", "O"]), ("ids", [1, 2, 0])):
        row = {"tokens": ["alpha", "beta", "eta"], "ner_tags": tags}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    look_at_input([folder], tmp_path / "ids.jsonl", ReadingOptions(), needs_label=True)
    by_name, by_id = (evaluate(folder, tmp_path / f"{name}.jsonl") for name in ("names", "ids"))
    assert by_id["loss"] == by_name["loss"]
    assert by_id["data"]["notes"] == ["tags are numbers, read as ids: 0 is 'O', 1 is 'B-X', 2 is 'I-X'"]
