"""Values in data files that once caused a traceback, a hang, or a message as long as the file."""

import json
import time

import numpy as np
import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.kinds import task_kind
from maskloom.tasks.labels import names_of_task, read_label_names
from maskloom.tasks.tables import ReadingOptions, read_rows

DIGITS = "9" * 5_000


def read(kind, path, content, **options):
    path.write_text(content, encoding="utf-8")
    return task_kind(kind).read(path, ReadingOptions(**options))


@pytest.mark.parametrize("label", ["--5", "-", "²", DIGITS, "-" + DIGITS])
def test_labels_that_only_look_like_numbers_are_names(tmp_path, label):
    train = read("single", tmp_path / "d.csv", f"text,label\na,{label}\nb,1\n")
    assert set(names_of_task("single", train, ReadingOptions())) == {label, "1"}


@pytest.mark.parametrize("score", ["1e308", "-1e17", "3.4e38"])
@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
def test_a_target_whose_squared_error_fp32_cannot_hold_is_named(tmp_path, name, score):
    rows = {
        "d.csv": f"text,score\na,1\nb,{score}\n",
        "d.jsonl": f'{{"text": "a", "score": 1}}\n{{"text": "b", "score": {score}}}',
    }
    line = 3 if name == "d.csv" else 2
    with pytest.raises(DataError, match=rf"{name}: line {line}: label is too large for fp32: .*{score[:2]}"):
        read("regression", tmp_path / name, rows[name])
    assert np.isfinite(np.float32(1e16) ** 2 * np.float32(4096))


@pytest.mark.parametrize("score", ["1_000", "１２", "٣", "infinity", "0x10", "1e", ".", "+-1", "1 2"])
def test_a_score_is_written_in_plain_digits(tmp_path, score):
    with pytest.raises(DataError, match=r"d\.csv: line 3: label is not a finite number: "):
        read("regression", tmp_path / "d.csv", f"text,score\na,1\nb,{score}\n")
    kept = read("regression", tmp_path / "d.csv", f"text,score\na,1\nb,{score}\n", on_bad_rows="skip")
    assert kept.report.dropped == {"label is not a finite number": 1}


def test_scores_in_every_plain_spelling(tmp_path):
    spelled = ["-3", "+2.5", ".5", "7.", " 1e-3 ", "1E2", "1e-400"]
    data = read(
        "regression",
        tmp_path / "d.csv",
        "".join(f"a,{score}\n" for score in ["score", *spelled]).replace("a,score", "text,score"),
    )
    assert [example.label for example in data.examples] == [-3.0, 2.5, 0.5, 7.0, 1e-3, 100.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "row", "what"),
    [
        ("single", {"text": "b", "label": "half \ud800"}, "label"),
        ("pair", {"text_a": "b", "text_b": "c", "label": "\udc00"}, "label"),
        ("multilabel", {"text": "b", "labels": ["fine", "\ud800"]}, "label"),
        ("multilabel", {"text": "b", "labels": "fine,\ud800"}, "label"),
        ("choice", {"id": "\ud800", "context": "b", "choices": ["c", "d"], "label": 0}, "id"),
        ("span", {"id": "\ud800", "question": "b?", "context": "c", "answer": "c", "answer_start": 0}, "id"),
        ("tagging", {"tokens": ["b"], "tags": ["B-\ud800"]}, "text"),
    ],
)
def test_half_of_a_surrogate_pair_in_a_name_is_refused_at_reading(tmp_path, kind, row, what):
    """Regression: it was accepted, and caused a traceback in predict or when labels were written after training."""
    with pytest.raises(DataError, match=rf"d\.jsonl: line 2: .*{what} contains an unpaired surrogate"):
        read(
            kind,
            tmp_path / "d.jsonl",
            json.dumps(row).replace("\\ud800", "x").replace("\\udc00", "y") + "\n" + json.dumps(row),
        )


def test_half_of_a_surrogate_pair_in_an_id_of_squad_is_refused_with_its_place(tmp_path):
    question = {"id": "\ud800", "question": "Who?", "answers": [{"text": "Bob", "answer_start": 0}]}
    document = {"data": [{"title": "t", "paragraphs": [{"context": "Bob.", "qas": [question]}]}]}
    with pytest.raises(DataError, match=r"d\.json: article 1 .*question 1 .*id contains an unpaired surrogate"):
        read("span", tmp_path / "d.json", json.dumps(document))


@pytest.mark.parametrize("column", ["²", DIGITS, "1²"])
@pytest.mark.parametrize("kind", ["single", "choice", "span", "tagging"])
def test_columns_that_only_look_like_numbers_are_names(tmp_path, kind, column):
    with pytest.raises((ConfigError, DataError), match="column"):
        read(kind, tmp_path / "d.csv", "text,label\na,x\n", text_column=column)


def test_a_choice_of_thousands_of_digits_is_none_of_the_choices(tmp_path):
    with pytest.raises(DataError, match="line 2: label is none of the choices: '999"):
        read("choice", tmp_path / "d.csv", f"sent1,ending0,ending1,label\na,b,c,{DIGITS}\n")


def test_numbers_of_thousands_of_digits_are_no_json(tmp_path):
    (tmp_path / "d.json").write_text(f'{{"version": {DIGITS}}}')
    with pytest.raises(DataError, match=r"d\.json: not valid JSON: a number has too many digits"):
        task_kind("span").read(tmp_path / "d.json")


def test_deep_nesting_within_a_field_is_named(tmp_path):
    deep = "[" * 100_000
    with pytest.raises(DataError, match="line 2: answer_start is not a whole number"):
        read("span", tmp_path / "d.csv", f"question,context,answer,answer_start\nWho?,Bob,Bob,{deep}\n")


def test_keys_and_labels_that_stand_twice_are_found_among_many(tmp_path):
    count, started = 50_000, time.process_time()
    pairs = ", ".join(f'"k{n}": {n}' for n in range(count))
    (tmp_path / "d.jsonl").write_text(f'{{{pairs}, "k{count - 1}": 0}}\n')
    (row,) = read_rows(tmp_path / "d.jsonl", "jsonl")
    assert row.problem == f"not valid JSON: the key 'k{count - 1}' appears twice"
    (tmp_path / "labels.txt").write_text("\n".join([*(f"l{n}" for n in range(count)), f"l{count - 1}"]))
    with pytest.raises(DataError, match=rf"line {count + 1}: the label 'l{count - 1}' appears twice"):
        read_label_names(tmp_path / "labels.txt")
    assert time.process_time() - started < 30  # it once took minutes, in quadratic time


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        ("span", "d.csv", "question,context,answer,answer_start,is_impossible\nWho?,Bob,Bob,0,{}\n"),
        ("span", "d.csv", "question,{},answer\nWho?,Bob,Bob\n"),
        ("tagging", "d.conll", "Bonn {}\nEU B-ORG\n"),
        ("tagging", "d.conll", "Bonn B-LOC\nEU I-{}\n"),
        ("single", "d.jsonl", '{{"text": "a", "label": ["{}"]}}\n'),
        ("regression", "d.csv", "text,score\na,{}\n"),
    ],
)
def test_messages_are_short_however_long_a_value_is(tmp_path, kind, name, content):
    with pytest.raises(DataError) as caught:
        read(kind, tmp_path / name, content.format("x" * 100_000))
    assert len(str(caught.value)) < 1_000
