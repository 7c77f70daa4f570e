import csv
import json
import os
import signal
import sys
import threading

import numpy as np
import pytest
from tests.integration.tiny_models import WORDS, model_folder

from maskloom.cli import main
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.runs import features as features_run
from maskloom.runs import predict as predict_run
from maskloom.runs.display import Progress
from maskloom.runs.evaluate import evaluate
from maskloom.runs.predict import embed, predict
from maskloom.tasks.tables import ReadingOptions


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    names = {"0": "red", "1": "grün", "2": "blue, dark"}
    ids = {name: int(number) for number, name in names.items()}
    folder = tmp_path_factory.mktemp("classifier")
    return model_folder(folder, id2label=names, label2id=ids, problem_type="single_label_classification")


@pytest.fixture
def texts(tmp_path):
    rng = np.random.default_rng(4)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 40))) for _ in range(23)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


@pytest.mark.parametrize("window", [1, 7, 4096])
def test_order_is_kept_whatever_the_window(classifier, texts, tmp_path, monkeypatch, window):
    monkeypatch.setattr(predict_run, "_WINDOW", window)
    result = predict(classifier, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == texts
    assert [row["index"] for row in rows] == list(range(23))
    assert [row["line"] for row in rows] == list(range(1, 24))
    assert result["num_predictions"] == 23
    assert result["num_truncated_examples"] == sum(len(text.split()) > 22 for text in texts) > 0
    alone = Predictor.load(classifier)
    for text, row in zip(texts, rows, strict=True):
        (expected,) = alone.predict([text])
        assert row["label"] == expected["label"]
        assert row["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
        assert sum(row["probabilities"].values()) == pytest.approx(1.0)
    assert len({row["label"] for row in rows}) > 1


def test_csv_holds_the_same(classifier, texts, tmp_path):
    predict(classifier, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    predict(classifier, tmp_path / "in.jsonl", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["index", "line", "text", "label"]
    expected = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row, other in zip(rows, expected, strict=True):
        assert (row["text"], row["label"]) == (other["text"], other["label"])
        assert float(row["probability_grün"]) == other["probabilities"]["grün"]


def test_plain_text_in(classifier, tmp_path):
    (tmp_path / "in.txt").write_text("alpha beta\ngamma, delta\n")
    assert predict(classifier, tmp_path / "in.txt", tmp_path / "out.jsonl")["num_predictions"] == 2


def test_a_classifier_of_others_gets_pairs_where_the_file_holds_them(classifier, tmp_path):
    (tmp_path / "in.csv").write_text("sentence1,sentence2,label\nalpha,,red\nalpha,beta gamma,red\nzeta,eta,grün\n")
    reading = ReadingOptions(on_bad_rows="skip")
    predict(classifier, tmp_path / "in.csv", tmp_path / "out.jsonl", reading=reading)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["text"], row["pair"]) for row in rows] == [("alpha", "beta gamma"), ("zeta", "eta")]
    (expected,) = Predictor.load(classifier).predict([("alpha", "beta gamma")])
    assert rows[0]["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
    with pytest.raises(DataError, match="line 2: empty text"):
        evaluate(classifier, tmp_path / "in.csv")
    assert evaluate(classifier, tmp_path / "in.csv", reading=reading)["num_examples"] == 2
    (tmp_path / "named.csv").write_text("one,two\nalpha,beta\n")
    reading = ReadingOptions(text_column="one", pair_column="two")
    predict(classifier, tmp_path / "named.csv", tmp_path / "out.csv", reading=reading)
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        assert [row["pair"] for row in csv.DictReader(file)] == ["beta"]


def test_several_labels_and_scores(tmp_path):
    (tmp_path / "in.txt").write_text("alpha beta\ngamma\ndelta zeta eta\n")
    many = model_folder(tmp_path / "many", problem_type="multi_label_classification")
    predict(many, tmp_path / "in.txt", tmp_path / "many.csv")
    with (tmp_path / "many.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            chosen = [name for name in ("LABEL_0", "LABEL_1", "LABEL_2") if float(row[f"probability_{name}"]) >= 0.5]
            assert row["labels"] == ",".join(chosen)
    score = model_folder(tmp_path / "score", num_labels=1, problem_type="regression")
    predict(score, tmp_path / "in.txt", tmp_path / "score.jsonl")
    assert all("score" in json.loads(line) for line in (tmp_path / "score.jsonl").read_text().splitlines())


def test_bad_rows_stop_or_are_counted_and_leave_no_half_file(classifier, tmp_path):
    (tmp_path / "in.csv").write_text("text\nalpha\n  \nbeta\n")
    with pytest.raises(DataError, match=r"in\.csv: line 3: empty text"):
        predict(classifier, tmp_path / "in.csv", tmp_path / "out.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv"]
    reading = ReadingOptions(on_bad_rows="skip")
    result = predict(classifier, tmp_path / "in.csv", tmp_path / "out.jsonl", reading=reading)
    assert result["data"]["dropped"] == {"empty text": 1}
    lines = [json.loads(line)["line"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [2, 4]


def test_a_stopped_command_leaves_no_half_file_and_says_how_to_go_on(classifier, texts, tmp_path, monkeypatch, command):
    """Regression: SIGTERM ended `predict` and `features` with 143 and no message."""
    for run, (name, flag, kept) in {
        predict_run: ("predict", "--output", "nothing was written, start again with: "),
        features_run: ("features", "--out", "finished vectors are kept, continue with: "),
    }.items():
        monkeypatch.setattr(
            run, "_predictions" if run is predict_run else "frozen_vectors", lambda *_: signal.raise_signal(15)
        )
        how = (name, "--model", classifier, "--input", tmp_path / "in.jsonl", flag, tmp_path / "out.jsonl")
        code, said = command(*how)
        assert code == 75
        assert said.endswith(f"stopped by SIGTERM; {kept}maskloom {' '.join(map(str, how))}\n")
        assert "Traceback" not in said
        assert not (tmp_path / "out.jsonl").exists()
        assert not [*tmp_path.glob("*.tmp")]


def test_wrong_outputs(classifier, texts, tmp_path):
    with pytest.raises(ConfigError, match="suffix"):
        predict(classifier, tmp_path / "in.jsonl", tmp_path / "out.xls")
    with pytest.raises(ConfigError, match="replace the input"):
        predict(classifier, tmp_path / "in.jsonl", tmp_path / "in.jsonl")
    with pytest.raises(ConfigError, match="does not exist"):
        predict(classifier, tmp_path / "in.jsonl", tmp_path / "no" / "out.jsonl")


def test_an_output_that_is_a_folder_is_refused_before_the_model_is_read(texts, tmp_path):
    (tmp_path / "out.jsonl").mkdir()
    for run in (predict, embed):
        with pytest.raises(ConfigError, match="this is a folder; the output must be a file"):
            run(tmp_path / "absent", tmp_path / "in.jsonl", tmp_path / "out.jsonl")


def test_links_and_pipes_stay_what_they_are(classifier, texts, tmp_path):
    predict(classifier, tmp_path / "in.jsonl", tmp_path / "plain.jsonl")
    expected = (tmp_path / "plain.jsonl").read_bytes()
    (tmp_path / "target.jsonl").write_text("old")
    (tmp_path / "link.jsonl").symlink_to("target.jsonl")
    predict(classifier, tmp_path / "in.jsonl", tmp_path / "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "target.jsonl").read_bytes() == expected
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    predict(classifier, tmp_path / "in.jsonl", tmp_path / "pipe")
    reader.join(timeout=60)
    assert read == [expected]
    assert (tmp_path / "pipe").is_fifo()
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(ConfigError, match=r"pipe\.npy: the output's suffix must be \.jsonl"):
        embed(Predictor.load(classifier), tmp_path / "in.jsonl", tmp_path / "pipe.npy")


def test_standard_output_gets_the_rows_alone(classifier, texts, tmp_path, monkeypatch, capfd):
    predict(classifier, tmp_path / "in.jsonl", tmp_path / "plain.jsonl")
    arguments = ("--model", classifier, "--input", tmp_path / "in.jsonl", "--output", "/dev/stdout")
    monkeypatch.setattr(sys, "argv", ["maskloom", "predict", *map(str, arguments)])
    before = os.dup(1)
    with (tmp_path / "log").open("wb") as log:
        log.write(b"before\n")
        log.flush()
        os.dup2(log.fileno(), 1)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            os.dup2(before, 1)
            os.close(before)
    said = capfd.readouterr()
    assert not ended.value.code, said.err
    assert (tmp_path / "log").read_bytes() == b"before\n" + (tmp_path / "plain.jsonl").read_bytes()
    assert said.out == ""  # what Python's own standard output gets
    assert ["predictions", "23"] in [line.split() for line in said.err.splitlines()]


def test_a_label_without_a_name_and_a_configuration_that_is_a_pipe_are_refused(tmp_path):
    folder = model_folder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "id2label": {"0": "red", "1": "x", "2": None}}))
    with pytest.raises(DataError, match=r"config\.json: id2label: id 2 needs a name, not None$"):
        Predictor.load(folder)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(DataError, match=r"config\.json: is a pipe"):
        Predictor.load(folder)


def test_cells_that_a_spreadsheet_would_run(tmp_path):
    names = {"0": "=1+1", "1": "-", "2": "fine"}
    folder = model_folder(tmp_path / "m", id2label=names, label2id={name: int(n) for n, name in names.items()})
    texts = ["=SUM(A1)", "+1", "-1", "@x", "\tx", "\rx", "alpha", "a=b"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rows = {}
    for is_safe in (False, True):
        predict(folder, tmp_path / "in.jsonl", tmp_path / "out.csv", csv_safe=is_safe)
        with (tmp_path / "out.csv").open(newline="") as file:
            rows[is_safe] = list(csv.DictReader(file))
    assert [row["text"] for row in rows[False]] == texts
    assert [row["text"] for row in rows[True]] == [*(f"'{text}" for text in texts[:6]), "alpha", "a=b"]
    for row in rows[True]:
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row.values())
    assert any(row["label"] in ("=1+1", "-") for row in rows[False])
    with pytest.raises(ConfigError, match=r"--csv-safe is for \.csv"):
        predict(folder, tmp_path / "in.jsonl", tmp_path / "out.jsonl", csv_safe=True)


def test_a_csv_holds_questions_with_differing_columns(tmp_path):
    folder = model_folder(tmp_path / "m", heads=("choice",), num_labels=None)
    articles = [
        {"article": "alpha", "questions": ["_ beta"], "options": [["eta", "=zeta"]]},
        {"id": "a", "article": "beta", "questions": ["eta", "zeta"], "options": [["eta", "beta", "zeta"], ["eta"] * 4]},
        {"article": "gamma", "questions": ["beta"], "options": [["eta", "theta"]]},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(article) + "\n" for article in articles))
    race = ReadingOptions(format="race")
    predict(folder, tmp_path / "in.jsonl", tmp_path / "out.jsonl", reading=race)
    predict(folder, tmp_path / "in.jsonl", tmp_path / "out.csv", reading=race, csv_safe=True)
    with (tmp_path / "out.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    probabilities = [f"probability_{number}" for number in range(4)]
    texts = ["context", "choice0", "choice1", "id", "stem", "choice2", "choice3"]  # in the order of first occurrence
    assert header == ["index", "line", *texts, "choice", "choice_text", *probabilities]
    expected = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row, other in zip(rows, expected, strict=True):
        other |= {f"probability_{number}": value for number, value in other.pop("probabilities").items()}
        cells = [str(other.get(name, "")) for name in header]
        assert row == [f"'{cell}" if cell.startswith("=") else cell for cell in cells]


@pytest.mark.parametrize(("head", "settings"), [("span", None), ("tagger", {"kind": "tagging"})])
def test_lists_are_refused_for_a_csv_before_anything_is_read(tmp_path, head, settings):
    tags = {"id2label": {"0": "O", "1": "B-X"}, "label2id": {"O": 0, "B-X": 1}} if head == "tagger" else {}
    folder = model_folder(tmp_path / "m", heads=(head,), num_labels=2 if tags else None, settings=settings, **tags)
    with pytest.raises(ConfigError, match=r"out\.csv: .* predictions have several values per row"):
        predict(folder, tmp_path / "absent.txt", tmp_path / "out.csv")


def test_labels_with_commas_and_quotes_stay_apart(tmp_path):
    names = {"0": "blue, dark", "1": "red", "2": 'the "red"'}
    folder = model_folder(
        tmp_path / "m", problem_type="multi_label_classification",
        id2label=names, label2id={name: int(n) for n, name in names.items()},
        settings={"kind": "multilabel", "settings": {"thresholds": [0.0, 0.0, 0.0]}},
    )  # fmt: skip
    (tmp_path / "in.txt").write_text("alpha\n")
    predict(folder, tmp_path / "in.txt", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert next(csv.reader([row["labels"]])) == ["blue, dark", "red", 'the "red"']


class Shown(Progress):
    def __init__(self):
        self.stages, self.done = [], []

    def begin(self, what, total, done=0):
        self.stages.append((what, total))

    def advance(self, done, **figures):
        self.done.append(done)


def test_evaluation_in_pieces_equals_the_whole(classifier, tmp_path, monkeypatch):
    from maskloom.runs import evaluate as evaluate_run

    rng = np.random.default_rng(1)
    rows = [f"{' '.join(rng.choice(WORDS, 5))}\t{rng.choice(['red', 'grün'])}\n" for _ in range(30)]
    (tmp_path / "data.tsv").write_text("text\tlabel\n" + "".join(rows))
    whole = evaluate(classifier, tmp_path / "data.tsv")
    assert whole["metric"] == "accuracy"
    monkeypatch.setattr(evaluate_run, "_PIECE", 4)
    shown = Shown()
    pieces = evaluate(classifier, tmp_path / "data.tsv", progress=shown)
    assert shown.stages == [("evaluating", 30)]
    assert shown.done == sorted(shown.done)
    assert (len(shown.done), shown.done[-1]) == (8, 30)
    for name in ("loss", "calibration_error"):
        assert pieces.pop(name) == pytest.approx(whole.pop(name))
    assert whole == pieces
    (tmp_path / "data.tsv").write_text("text\tlabel\nalpha\tpurple\n")
    with pytest.raises(DataError, match="line 2: the label 'purple'"):
        evaluate(classifier, tmp_path / "data.tsv")


def test_a_model_without_classifier_says_so(tmp_path):
    folder = model_folder(tmp_path / "plain", heads=("mlm",), num_labels=None)
    (tmp_path / "in.txt").write_text("alpha\n")
    with pytest.raises(ConfigError, match="no task head"):
        predict(folder, tmp_path / "in.txt", tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match="no task head"):
        evaluate(folder, tmp_path / "in.txt")


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_of_a_file(classifier, texts, tmp_path, pooling):
    predictor, how = Predictor.load(classifier), {"pooling": pooling, "normalize": True}
    result = embed(predictor, tmp_path / "in.jsonl", tmp_path / "out.npy", **how)
    vectors = np.load(tmp_path / "out.npy")
    assert vectors.shape == (23, 24) == (result["num_vectors"], result["hidden_size"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    embed(predictor, tmp_path / "in.jsonl", tmp_path / "out.jsonl", **how)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([row["vector"] for row in rows], vectors, atol=1e-7)
    np.testing.assert_allclose(vectors, predictor.encode(texts, **how), atol=1e-6)


def test_masks_of_a_text(tmp_path):
    folder = model_folder(tmp_path / "model", heads=("mlm",), num_labels=None)
    predictor = Predictor.load(folder)
    assert [len(mask) for mask in predictor.fill_mask("alpha [MASK] beta [MASK]", top_k=3)] == [3, 3]
    with pytest.raises(DataError, match=r"0 \[MASK\] in the text"):
        predictor.fill_mask("alpha beta")


def test_pages_about_attention(classifier, tmp_path, run, monkeypatch):
    (tmp_path / "in.txt").write_text("alpha beta\nalpha gamma\n", encoding="utf-8")
    page, file = tmp_path / "page.html", ("embed", "--model", classifier, "--input", tmp_path / "in.txt")
    assert run(*file, "--report", page).splitlines()[0].split() == ["page", str(page)]
    assert page.read_text(encoding="utf-8").count('aria-label="layer 2, head 2"') == 2
    opened, load = [], Predictor.load
    monkeypatch.setattr(Predictor, "load", lambda *given, **how: opened.append(how) or load(*given, **how))
    both = json.loads(run(*file, "--report", page, "--output", tmp_path / "v.npy", "--json").splitlines()[0])
    assert len(opened) == 1
    alone = embed(load(classifier), tmp_path / "in.txt", tmp_path / "alone.npy")
    about = {"precision": "fp32", "page": str(page), "num_shown": 2, "num_left_out": 0}
    assert {**both, "output": alone["output"]} == {**alone, **about}
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()
    assert (both["num_vectors"], both["num_shown"], both["num_left_out"]) == (2, 2, 0)
    lines = run(*file, "--report", page, "--output", tmp_path / "v.npy").splitlines()
    assert ["page", str(page)] in [line.split() for line in lines]
    assert "pass --output FILE, --report PAGE or both" in run(*file, code=2)
    assert "--report names the page" in run(*file, "--report", tmp_path / "v.npy", code=3)
    html = (tmp_path / "in.txt").rename(tmp_path / "in.html")
    assert "would replace the input" in run(*file[:-1], html, "--report", html, code=3)
    assert "does not exist" in run(*file[:-1], html, "--report", tmp_path / "a" / "b.html", code=3)
