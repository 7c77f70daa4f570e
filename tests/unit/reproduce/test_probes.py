"""The span task, and the folders in which users' own tasks are found."""

import pytest

from maskloom.errors import DataError
from maskloom.quickstart.documentation import GatheredDocument
from maskloom.reproduce.probes import own_probes, span_questions

SENTENCES = (
    "The method returns an array of floats when all of its inputs are arrays.",
    "Too short a line.",
    "word " * 60,
    "An unknown option raises an error before anything has been written to disk.",
)
DOCUMENT = GatheredDocument("numpy", "solve", SENTENCES)


def test_questions_ask_for_the_word_before_one_that_occurs_once():
    for seed in range(20):
        (article,) = span_questions([DOCUMENT], 8, seed=seed, part=0)
        assert {paragraph["context"] for paragraph in article["paragraphs"]} == {SENTENCES[0], SENTENCES[3]}
        for paragraph in article["paragraphs"]:
            (question,) = paragraph["qas"]
            (answer,) = question["answers"]
            context, cue = paragraph["context"], question["question"].removeprefix("before ")
            assert context[answer["answer_start"] :].startswith(f"{answer['text']} {cue}")
            assert context.lower().count(cue.lower()) == 1


def test_no_more_than_so_many_are_drawn_and_seeds_draw_others():
    drawn = [list(span_questions([DOCUMENT], 1, seed=seed, part=0)) for seed in (0, 0, 1, 2, 3)]
    assert all(len(article["paragraphs"]) == 1 for (article,) in drawn)
    assert drawn[0] == drawn[1]
    assert any(found != drawn[0] for found in drawn[2:])


def test_own_tasks_are_found_by_their_folders(tmp_path):
    for name in ("RTE/train.tsv", "RTE/dev.tsv", "conll2003/train.txt", "conll2003/valid.txt", "squad/train.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(own_probes(tmp_path)) == ["conll2003", "rte"]
    with pytest.raises(DataError, match=r"no tasks found; expected GLUE's files .* squad/train.json"):
        own_probes(tmp_path / "RTE")
