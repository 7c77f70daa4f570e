import re

import numpy as np
import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.kinds import KINDS, TAGGING, make_task
from maskloom.tasks.settings import TaggingSettings
from maskloom.tasks.tables import ReadingOptions

LABELS = ("O", "B-X", "I-X")


@pytest.fixture
def read(tmp_path):
    def read(content, settings=None):
        path = tmp_path / "data.conll"
        path.write_text(content)
        return TAGGING.read(path, None, settings)

    return read


def test_the_task_names_its_parts():
    assert KINDS["tagging"] is TAGGING
    plain, crf = make_task("tagging", LABELS), make_task("tagging", LABELS, settings={"crf": True})
    assert (plain.heads, crf.heads) == (("tagger",), ("tagger", "crf"))
    assert plain.primary == plain.metric().primary == "f1"
    assert plain.num_outputs == 3
    assert plain.published_config["id2label"] == {"0": "O", "1": "B-X", "2": "I-X"}
    assert crf.settings == TaggingSettings(crf=True, trained_scheme="iob2", labels=[*LABELS])
    assert make_task("tagging", LABELS, primary="strict_f1").metric().primary == "strict_f1"


def test_settings_come_back_from_the_model_folder_unchanged():
    settings = make_task("tagging", LABELS, settings={"scheme": "iob1", "context": "document"}).settings
    assert make_task("tagging", LABELS, settings=settings.as_stored()).settings == settings


def test_unknown_scores_and_missing_labels_are_refused():
    with pytest.raises(ValueError, match="'matthews' is not one of"):
        make_task("tagging", LABELS, primary="matthews")
    with pytest.raises(ValueError, match="names of its tags"):
        make_task("tagging")


def test_labels_are_all_tags_of_the_types_of_training(read):
    train = read("a S-X\nb O\nc B-Y\nd E-Y\n")
    assert TAGGING.label_names(train, ReadingOptions(), TaggingSettings()) == ("O", "B-X", "I-X", "B-Y", "I-Y")


def test_labels_of_a_file_have_to_be_whole(read, tmp_path):
    train, path = read("a B-X\n"), tmp_path / "labels.txt"
    options = ReadingOptions(labels=str(path))
    path.write_text("I-X\nB-X\nO\n")
    assert TAGGING.label_names(train, options, TaggingSettings()) == ("I-X", "B-X", "O")
    path.write_text("O\nB-X\n")
    with pytest.raises(ConfigError, match="'I-X' is missing"):
        TAGGING.label_names(train, options, TaggingSettings())
    path.write_text("O\nB-X\nI-X\nS-X\n")
    with pytest.raises(ConfigError, match="'S-X' is not a tag of IOB2"):
        TAGGING.label_names(train, options, TaggingSettings())


def test_plain_tags_are_those_of_training(read):
    train = read("a VB\nb NN\nc VB\n")
    assert TAGGING.label_names(train, ReadingOptions(), TaggingSettings()) == ("NN", "VB")
    marked = read("a O\nb I-X\n", TaggingSettings(scheme="plain", trained_scheme="plain"))
    assert TAGGING.label_names(marked, ReadingOptions(), TaggingSettings(scheme="plain")) == ("I-X", "O")
    with pytest.raises(DataError, match="every word of 1 sentences has the tag NN; there is nothing to learn"):
        TAGGING.check(read("a NN\nb NN\n"), train)
    TAGGING.check(train, read("a NN\n"))


def test_a_single_plain_tag_is_refused_with_the_file_it_stands_in(read, tmp_path):
    train = read("dog NN\ncat NN\n\n")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(train.report.path))}: the only tag is 'NN'"):
        TAGGING.label_names(train, ReadingOptions(), TaggingSettings())
    labels = tmp_path / "labels.txt"
    labels.write_text("NN\n")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(labels))}: the only tag is 'NN'"):
        TAGGING.label_names(train, ReadingOptions(labels=str(labels)), TaggingSettings())


def test_plain_tags_may_be_listed_in_a_file(read, tmp_path):
    (tmp_path / "labels.txt").write_text("VB\nNN\nJJ\n")
    options = ReadingOptions(labels=str(tmp_path / "labels.txt"))
    assert TAGGING.label_names(read("a NN\n"), options, TaggingSettings()) == ("VB", "NN", "JJ")


@pytest.mark.parametrize("crf", [False, True])
def test_plain_tags_are_scored_word_by_word(crf):
    task = make_task("tagging", ("NN", "O", "VB"), settings={"crf": crf})
    assert task.primary == task.metric().primary == "accuracy"
    assert task.settings.trained_scheme == "plain"
    assert make_task("tagging", task.labels, settings=task.settings.as_stored()).settings == task.settings
    assert getattr(task.objective, "forbidden", ()) == ()
    metric = task.metric()
    metric.update(np.array([0, 0, 1, 2]), np.array([0, 0, 0, 2]))
    scores = metric.compute()
    assert scores["accuracy"] == metric.reference() == 0.75
    assert scores["f1_macro"] == pytest.approx((0.8 + 0 + 1) / 3)
    assert metric.degeneracy() is None
    metric = task.metric()
    metric.update(np.array([0, 0]), np.array([0, 2]))
    assert metric.degeneracy() == "every prediction is the same class"


def test_plain_tags_have_scores_of_their_own():
    assert make_task("tagging", ("A", "B"), primary="f1_macro").metric().primary == "f1_macro"
    with pytest.raises(ValueError, match=r"plain tags: metric 'f1' is not one of"):
        make_task("tagging", ("NN", "VB"), primary="f1")
    # tags that look like entities are plain if the recipe says so
    assert make_task("tagging", LABELS, settings={"scheme": "plain"}).primary == "accuracy"


def test_data_without_entities_cannot_be_learnt_from(read):
    some, none = read("a B-X\n"), read("a O\n\nb O\n")
    TAGGING.check(some, some)
    for pair in ((none, some), (some, none)):
        with pytest.raises(DataError, match="every word of 2 sentences has the tag O"):
            TAGGING.check(*pair)


@pytest.mark.parametrize("content", ["a I-P\nb I-L\nc B-L\n", "a B-P\nb B-L\nc B-L\n"])
def test_a_tagger_whose_types_lack_b_is_read_as_iob1(tmp_path, content):
    path = tmp_path / "data.conll"
    path.write_text(content)
    task = make_task("tagging", ("O", "I-P", "B-L", "I-L"), settings={"crf": True})
    assert task.settings.trained_scheme == "iob1"
    assert task.objective.forbidden == ()  # P may begin with I-
    (sentence,) = TAGGING.read(path, None, task.settings).examples
    assert sentence.tags == ("I-P", "I-L", "B-L")


def test_a_conversion_of_tags_is_noted(read):
    assert read("a I-X\nb B-X\n").report.notes == ["its IOB1 tags are read as IOB2, the scheme of the model's tags"]
    assert read("a B-X\nb I-X\n").report.notes == []


def test_files_are_read_in_the_scheme_of_the_labels(tmp_path):
    path = tmp_path / "data.conll"
    path.write_text("a I-X\nb I-X\n")
    bioes = make_task("tagging", ("O", "B-X", "I-X", "E-X", "S-X"))
    assert bioes.settings.trained_scheme == "bioes"
    options = {"needs_label": True, "report": ReadingReport(path)}
    (sentence,) = TAGGING.iterate(path, ReadingOptions(), bioes.settings, **options)
    assert sentence.tags == ("B-X", "E-X")
    assert sentence.inputs() == ("a", "b")
    assert sentence.as_row() == {"text": "a b"}
