"""How a new file is read for a model that was fine-tuned on another one."""

from types import SimpleNamespace

import pytest

from maskloom.errors import DataError
from maskloom.runs.reading_defaults import reading_for
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.tables import ReadingOptions


def reading_of(path, kind, known, *, needs_label=False, **given):
    task = SimpleNamespace(kind=kind, settings=KINDS[kind].settings())
    model = SimpleNamespace(required_task=lambda: task, settings=known)
    return reading_for(model, path, ReadingOptions(**given), needs_label=needs_label)


def test_a_blank_line_does_not_make_a_file_of_single_texts_one_of_pairs(tmp_path):
    """Regression: for a model fine-tuned elsewhere, it did, and the first text was then refused as no pair."""
    path = tmp_path / "texts.txt"
    path.write_text("one text\n\nanother\n")
    assert [example.inputs() for example in reading_of(path, "single", {}).examples()] == [
        ("one text", None),
        ("", None),
        ("another", None),
    ]
    path.write_text("\none\ttwo\n")
    assert [example.inputs() for example in reading_of(path, "single", {}).examples()] == [("", ""), ("one", "two")]


@pytest.mark.parametrize("needs_label", [False, True])
def test_column_names_of_fine_tuning_do_not_apply_to_a_file_in_numbered_columns(tmp_path, needs_label):
    """Regression: they were refused as the user's own, although nobody had given them for this file."""
    path = tmp_path / "test.conll"
    path.write_text("Anna B-PER\nmet O\n")
    known = {"reading": {"text_column": "tokens", "label_column": "ner"}}
    (sentence,) = reading_of(path, "tagging", known, needs_label=needs_label).examples()
    assert sentence.words == ("Anna", "met")


@pytest.mark.parametrize("kind", ["single", "seq2seq"])
def test_column_names_of_fine_tuning_do_not_apply_to_a_file_of_lines(kind, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("one text\nanother\n")
    known = {"reading": {"text_column": "body", "label_column": "mark"}}
    assert [example.text for example in reading_of(path, kind, known).examples()] == ["one text", "another"]


@pytest.mark.parametrize("on_bad_rows", ["error", "skip"])
def test_a_format_that_fits_no_row_does_not_apply(tmp_path, on_bad_rows):
    """Regression: if bad rows were skipped, all rows were."""
    path = tmp_path / "texts.txt"
    path.write_text("one text\nanother\n")
    known = {"takes_pairs": False, "reading": {"format": "cola"}}
    found = reading_of(path, "single", known, on_bad_rows=on_bad_rows)
    assert [example.text for example in found.examples()] == ["one text", "another"]


def test_columns_of_fine_tuning_apply_to_a_file_without_usable_rows(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("body,mark\n")
    known = {"takes_pairs": False, "reading": {"text_column": "body", "label_column": "mark"}}
    assert reading_of(path, "single", known, needs_label=True).options.text_column == "body"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("good,x,1\nfine,y\n", "line 2: wrong number of fields: 3, expected 2"),
        (",x\nfine,y\n", "line 2: empty text"),
        ("fine,\n", "line 2: missing label"),
    ],
)
def test_a_bad_first_row_is_named_for_a_model_with_columns_of_its_own(tmp_path, rows, message):
    """Regression: the usual names were tried instead, and the message was that there is no text column."""
    path = tmp_path / "texts.csv"
    path.write_text(f"body,stars\n{rows}")
    known = {"takes_pairs": False, "reading": {"text_column": "body", "label_column": "stars"}}
    with pytest.raises(DataError, match=rf"texts\.csv: {message}"):
        list(reading_of(path, "single", known, needs_label=True).examples())


@pytest.mark.parametrize("kind", ["regression", "multilabel", "document"])
def test_two_texts_are_refused_for_a_model_of_single_texts(tmp_path, kind):
    """Regression: they were read as pairs, which such a model has never seen; predicting in Python refused them."""
    path = tmp_path / "texts.csv"
    path.write_text("sentence1,sentence2,title,body,text\na,b,c,d,e\n")
    message = r"texts\.csv: line 2: two texts; the model was fine-tuned on single texts: name their .* --text-column$"
    with pytest.raises(DataError, match=message):
        reading_of(path, kind, {"takes_pairs": False})
    (example,) = reading_of(path, kind, {"takes_pairs": False}, text_column="text").examples()
    assert example.inputs() == ("e", None)
    (example,) = reading_of(path, kind, {"takes_pairs": True}).examples()
    assert example.pair is not None


def test_the_format_of_a_data_set_of_pairs_is_refused_for_a_model_of_single_texts(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n")
    with pytest.raises(DataError, match="two texts; the model was fine-tuned on single texts"):
        reading_of(path, "single", {"takes_pairs": False}, needs_label=True, format="wnli")
