from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.examples import Example, ReadExamples, ReadingReport
from maskloom.tasks.labels import (
    balanced_weights,
    check_alike,
    checked_weights,
    doubtful_labels,
    encode_labels,
    label_counts,
    names_of_task,
    read_label_names,
    weights_by_name,
)
from maskloom.tasks.tables import ReadingOptions


def data_with(*labels):
    examples = [Example(text="t", pair=None, label=label, line=number) for number, label in enumerate(labels, 2)]
    return ReadExamples(examples, ReadingReport(Path("some.csv")))


def test_balanced_weights_of_several_labels_weigh_positives():
    labels = np.array([[1, 0, 0, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]], dtype=np.float32)
    assert balanced_weights(labels, 4) == [3.0, 1.0, pytest.approx(1 / 3), 1.0]
    assert label_counts(labels, 4).tolist() == [1, 0, 3, 4]
    assert label_counts(np.array([0, 2, 2]), 4).tolist() == [1, 0, 2, 0]
    with pytest.raises(ValueError, match="class_weights: 3 weights for 2 labels"):
        checked_weights([1.0, 2.0, 3.0], ("a", "b"))


def test_labels_that_may_be_slips_are_told_rarest_first():
    names = ("Files", "files", "filse", "network", "numbers", "rare", "nubmers")
    train, dev = [2, 60, 1, 50, 40, 5, 4], [1, 20, 0, 20, 20, 0, 2]
    assert doubtful_labels(names, train, dev) == [
        "'filse': 1 in train, none in dev; did you mean 'files'?",
        "'Files': 2 in train, 1 in dev; did you mean 'files'?",
        "'nubmers': 4 in train, 2 in dev; did you mean 'numbers'?",
        "'rare': 5 in train, none in dev",
    ]


@pytest.mark.parametrize("mark", ["-", "-1"])
def test_a_rare_label_that_marks_missing_ones_is_doubted(mark):
    """SNLI has such a label in one row of 700, which would be a fourth class."""
    told = f"{mark!r}: 785 in train, 158 in dev; does it mark rows without a label?"
    assert doubtful_labels((mark, "0", "1", "2"), [785, 183_416, 182_764, 183_187], [158, 3329, 3235, 3278]) == [told]
    assert doubtful_labels((mark, "0", "1"), [900, 1000, 1100], [9, 9, 9]) == []


def test_sound_labels_are_not_doubted():
    """Two similar names that are both frequent, names that differ in a number, and one that never occurs."""
    names = ("entailment", "not_entailment", "label_1", "label_10", "unseen")
    assert doubtful_labels(names, [50, 60, 400, 4, 0], [9, 9, 9, 1, 0]) == []


def test_names_are_in_a_fixed_order():
    assert names_of_task("single", data_with("pos", "neg", "pos"), ReadingOptions()) == ("neg", "pos")
    assert names_of_task("single", data_with("10", "9", "-1"), ReadingOptions()) == ("-1", "9", "10")
    assert names_of_task("multilabel", data_with(("b", "a"), (), ("c",)), ReadingOptions()) == ("a", "b", "c")
    assert names_of_task("regression", data_with(1.0, 2.0), ReadingOptions()) == ()


def test_arrays_by_kind():
    assert encode_labels(data_with("b", "a"), "single", ("a", "b")).tolist() == [1, 0]
    scores = encode_labels(data_with(1.5, 0.0), "regression", ())
    assert scores.dtype == np.float32
    assert scores.tolist() == [1.5, 0.0]
    marks = encode_labels(data_with(("b", "a"), (), ("c",)), "multilabel", ("a", "b", "c"))
    assert marks.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert encode_labels(data_with(None, None), "single", ("a", "b")) is None
    assert encode_labels(data_with("a", None), "single", ("a", "b")) is None


def test_labels_of_dev_must_occur_in_train():
    with pytest.raises(DataError, match=r"some.csv: line 3: the label 'new' is not one of .* 'a', 'b'"):
        encode_labels(data_with("a", "new"), "single", ("a", "b"))
    with pytest.raises(DataError, match="line 2: the label 'z'"):
        encode_labels(data_with(("a", "z")), "multilabel", ("a", "b"))


def test_ids_stand_for_names_only_where_nothing_else_is_a_label_and_no_name_is_a_number():
    data = data_with("1", "0")
    assert encode_labels(data, "single", ("a", "b")).tolist() == [1, 0]
    assert data.report.notes == ["labels are numbers, read as ids: 0 is 'a', 1 is 'b'"]
    many = data_with("1", "4")
    encode_labels(many, "single", tuple("abcde"))
    assert many.report.notes == ["labels are numbers, read as ids: 0 is 'a', 1 is 'b', 2 is 'c', ..., 4 is 'e'"]
    for labels, names in [(("1",), ("0", "5")), (("1", "-1"), ("+1", "-1")), (("1", "a"), ("a", "b"))]:
        with pytest.raises(DataError, match="'1' is not one of"):
            encode_labels(data_with(*labels), "single", names)


def test_the_first_piece_of_a_file_decides_whether_labels_are_ids():
    names, ids, named = ("a", "b"), data_with("1", "0"), data_with("a", "b")
    assert encode_labels(ids, "single", names).tolist() == [1, 0]
    assert encode_labels(replace(ids, examples=ids.examples[:1]), "single", names).tolist() == [1]
    assert len(ids.report.notes) == 1
    with pytest.raises(DataError, match="line 2: the label 'a' is not one of"):
        encode_labels(replace(named, report=ids.report), "single", names)
    assert encode_labels(named, "single", names).tolist() == [0, 1]
    with pytest.raises(DataError, match="line 2: the label '1' is not one of"):
        encode_labels(replace(ids, report=named.report), "single", names)


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (data_with("a", "a"), "single", "all 2 rows have the label 'a'"),
        (data_with((), ()), "multilabel", "no row has any label"),
        (data_with(2.0, 2.0), "regression", "all 2 rows have the score 2.0"),
    ],
)
def test_nothing_to_learn(data, kind, message):
    with pytest.raises(DataError, match=message):
        check_alike(kind, data, data)


def test_label_files(tmp_path):
    path = tmp_path / "labels.txt"
    for text in ("joy\nanger\u2028x\x85y\n\n", "joy\r\nanger\u2028x\x85y\r\n", "joy\ranger\u2028x\x85y"):
        path.write_bytes(text.encode())
        assert read_label_names(path) == ("joy", "anger\u2028x\x85y")
    for content, message in [("", "no label names"), ("a\n\nb\n", "line 2: .* empty"), ("a\na\n", "line 2: .* twice")]:
        path.write_text(content)
        with pytest.raises(DataError, match=message):
            read_label_names(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_label_names(tmp_path / "absent.txt")


def test_weights():
    assert balanced_weights(np.array([0, 0, 0, 1]), 2) == [pytest.approx(4 / 6), pytest.approx(2.0)]
    assert balanced_weights(np.array([0, 0]), 2) == [0.5, 1.0]
    assert weights_by_name({"b": 3.0}, ("a", "b")) == [1.0, 3.0]
    with pytest.raises(ConfigError, match="no label 'c'"):
        weights_by_name({"c": 1.0}, ("a", "b"))
