"""Documents read from files into a title and sentences, and the relations between their labels."""

import json
from itertools import pairwise

import numpy as np
import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.classification import label_relations
from maskloom.tasks.kinds import KINDS, make_task
from maskloom.tasks.settings import DocumentSettings
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["red", "cat", "dog", "sat", "ran", "bzw", "."]
TOKENIZER = WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS]), max_length=32)


def encoded(path, text, max_length=16, **settings):
    path.write_text(text, encoding="utf-8")
    data = KINDS["document"].read(path)
    task = make_task("document", ("x", "y"), settings=settings)
    found = task.encode(data, TOKENIZER, max_length)
    ends = found.offsets.tolist()
    tokens = [TOKENIZER.vocabulary.tokens[token] for token in found.token_ids]
    pieces = [" ".join(tokens[first + 1 : last - 1]) for first, last in pairwise(ends)]
    return found, [pieces[first:last] for first, last in pairwise(found.first)]


@pytest.mark.parametrize("names", ["title,text,labels", "headline,body,labels"])
def test_a_title_stands_before_the_sentences_of_its_text(tmp_path, names):
    data, documents = encoded(tmp_path / "in.csv", f'{names}\nred cat,Dog sat. Ran.,"x,y"\nCat,Sat.,\n')
    assert documents == [["red cat", "dog sat .", "ran ."], ["cat", "sat ."]]
    assert data.labels.tolist() == [[1, 1], [0, 0]]
    assert data.notes(tmp_path) == []


def test_without_a_title_the_first_sentence_is_both(tmp_path):
    found = encoded(tmp_path / "in.csv", "text,labels\nRed cat. Sat.,x\nDog,\n")[1]
    assert found == [["red cat .", "red cat .", "sat ."], ["dog", "dog"]]


def test_what_is_not_read_is_counted(tmp_path):
    long, short = "Cat sat. Cat ran. Dog sat. Dog ran.", "Sat."
    rows = [{"title": "red cat ran", "text": long, "labels": ["x"]}, {"title": "dog", "text": short, "labels": []}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    data, documents = encoded(tmp_path / "in.jsonl", text, max_length=4, max_sentences=2)
    assert documents == [["red cat", "cat sat", "cat ran"], ["dog", "sat ."]]
    assert data.account()["num_left_out"] == 2
    assert data.account()["num_sentences"] == 5
    cut, left_out = data.notes(tmp_path / "in.jsonl")
    assert "1 of 2 examples exceed 4 tokens and lose 3 tokens" in cut
    assert "1 of 2 documents lose 2 sentences at the end (document.max_sentences)" in left_out


def test_sentences_follow_the_rules_of_the_language(tmp_path):
    text = "title,text,labels\nred,Cat bzw. Dog sat. Ran.,x\n"
    english, german = (encoded(tmp_path / "in.csv", text, language=code)[1] for code in ("en", "de"))
    assert german == [["red", "cat bzw . dog sat .", "ran ."]]
    assert english == [["red", "cat bzw .", "dog sat .", "ran ."]]


def test_relations_of_labels_come_from_the_training_data():
    targets = np.array([[1, 1, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]], dtype=np.float32)
    assert label_relations(targets, DocumentSettings()) == {}
    alike = label_relations(targets, DocumentSettings(similarity=1.0))
    assert alike == {"similar": ((0, 1, pytest.approx(2 / 8**0.5)), (1, 2, pytest.approx(1 / 8**0.5)))}
    for share, expected in ((1.0, ((0, 1),)), (0.5, ((0, 1), (2, 1)))):
        settings = DocumentSettings(implication=1.0, implied_from=share)
        assert label_relations(targets, settings) == {"implied": expected}


def test_a_label_that_is_nowhere_has_no_relations():
    targets = np.array([[1, 0], [1, 0]], dtype=np.float32)
    settings = DocumentSettings(similarity=1.0, implication=1.0)
    assert label_relations(targets, settings) == {"similar": (), "implied": ()}


def test_what_cannot_be_is_refused(tmp_path):
    nothing = {"title": False, "guided": False, "own": False}
    with pytest.raises(ValueError, match=r"document.title, guided and own are all false"):
        make_task("document", ("x",), settings=nothing)
    with pytest.raises(ConfigError, match="language is 'klingon'"):
        make_task("document", ("x",), settings={"language": "klingon"})
    with pytest.raises(ConfigError, match=r"similarity = -1.0: it must be greater than or equal to 0"):
        make_task("document", ("x",), settings={"similarity": -1.0})
    path = tmp_path / "in.csv"
    path.write_text("title,text,labels\n,a,x\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"in.csv: line 2: empty text: 'title'"):
        KINDS["document"].read(path)
    path.write_text("title,labels\na,x\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"in.csv: line 1: no text column"):
        KINDS["document"].read(path)
