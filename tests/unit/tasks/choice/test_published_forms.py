"""ARC, CommonsenseQA, COPA and RACE are read in the form in which they are distributed."""

import json

import pytest

from maskloom.config import DataError
from maskloom.tasks.choice.reading import read_choices
from maskloom.tasks.columns import ReadingOptions

# The first row of each set's training file, shortened.
ARC = (
    '{"id":"Mercury_SC_415702","question":{"stem":"George wants to warm his hands quickly by rubbing them. Which skin '
    'surface will produce the most heat?","choices":[{"text":"dry palms","label":"A"},{"text":"wet palms","label":"B"},'
    '{"text":"palms covered with oil","label":"C"},{"text":"palms covered with lotion","label":"D"}]},"answerKey":"A"}'
)
ARC_OF_THREE = (
    '{"id":"TIMSS_2003_8_pg29_17","question":{"stem":"Which is a mammal?","choices":[{"text":"crow","label":"1"},'
    '{"text":"bat","label":"2"},{"text":"trout","label":"3"}]},"answerKey":"2"}'
)
ARC_AS_LISTS = (
    '{"id":"MCAS_2000_4_6","question":"Which is a magnet?","choices":{"text":["a nail","a lodestone"],'
    '"label":["A","B"]},"answerKey":"B"}'
)
COMMONSENSEQA = (
    '{"answerKey":"A","id":"075e483d21c29a511267ef62bedc0461","question":{"question_concept":"punishing","choices":['
    '{"label":"A","text":"ignore"},{"label":"B","text":"enforce"},{"label":"C","text":"authoritarian"},{"label":"D",'
    '"text":"yell at"},{"label":"E","text":"avoid"}],"stem":"The sanctions against the school were a punishing blow?"}}'
)
COPA = (
    '{"premise": "My body cast a shadow over the grass.", "choice1": "The sun was rising.", "choice2": "The grass was '
    'cut.", "question": "cause", "label": 0, "idx": 0}'
)
RACE = json.dumps(
    {
        "answers": ["C", "A"],
        "options": [["one", "two", "three", "four"], ["Rome", "Oslo", "Bonn", "Kiev"]],
        "questions": ["How many did he see?", "He lives in _ ."],
        "article": "He saw three birds. He lives in Rome.",
        "id": "high19088.txt",
    }
)


def read(tmp_path, *lines, **options):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    needs_label = options.pop("needs_label", True)
    return read_choices(path, ReadingOptions(**options), needs_label=needs_label)


def test_arc_with_letters_and_numbers_and_differing_numbers_of_choices(tmp_path):
    first, second, third = read(tmp_path, ARC, ARC_OF_THREE, ARC_AS_LISTS, format="arc").examples
    assert first.pairs()[0][1] == "dry palms"
    assert first.pairs()[0][0].startswith("George wants to warm his hands")
    assert (len(first.choices), first.label, first.identifier) == (4, 0, "Mercury_SC_415702")
    assert (second.choices, second.label, second.line) == (("crow", "bat", "trout"), 1, 2)
    assert (third.context, third.choices, third.label) == ("Which is a magnet?", ("a nail", "a lodestone"), 1)


def test_commonsenseqa(tmp_path):
    (found,) = read(tmp_path, COMMONSENSEQA, format="commonsenseqa").examples
    assert (found.context, found.stem) == ("The sanctions against the school were a punishing blow?", "")
    assert (found.choices[-1], len(found.choices), found.label) == ("avoid", 5, 0)


def test_copa_joins_premise_and_choice_by_what_is_asked(tmp_path):
    effect = COPA.replace("cause", "effect").replace('"label": 0, "idx": 0', '"label": 1, "idx": 1')
    first, second = read(tmp_path, COPA, effect, format="copa").examples
    assert first.pairs()[0] == ("My body cast a shadow over the grass.", "because The sun was rising.")
    assert second.pairs()[1] == ("My body cast a shadow over the grass.", "so The grass was cut.")
    assert (first.label, second.label, second.identifier) == (0, 1, "1")


def test_race_has_an_example_for_each_question(tmp_path):
    first, second = read(tmp_path, RACE, format="race").examples
    assert first.pairs()[2] == ("He saw three birds. He lives in Rome.", "How many did he see? three")
    assert second.pairs()[0] == ("He saw three birds. He lives in Rome.", "He lives in Rome .")
    assert [(one.label, one.identifier) for one in (first, second)] == [(2, "high19088.txt-1"), (0, "high19088.txt-2")]


@pytest.mark.parametrize("row", [ARC, COMMONSENSEQA, COPA, RACE])
def test_files_without_answers_are_read_for_prediction(tmp_path, row):
    fields = {key: value for key, value in json.loads(row).items() if key not in ("answerKey", "label", "answers")}
    assert all(one.label is None for one in read(tmp_path, json.dumps(fields), needs_label=False).examples)
    with pytest.raises(DataError, match=r"rows\.jsonl: line 2: missing label"):
        read(tmp_path, row, json.dumps(fields | ({"id": "another"} if "id" in fields else {"idx": 7})))


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        (ARC, {"answerKey": "E"}, "label is none of the choices: 'E', expected one of A, B, C, D"),
        (ARC, {"question": "plain"}, "choices are not a list"),
        (ARC, {"question": {"stem": "s", "choices": [{"text": "a", "label": "A"}]}}, "fewer than two choices"),
        (ARC, {"question": {"stem": "", "choices": [{"text": c, "label": c} for c in "AB"]}}, "empty text: context"),
        (ARC_AS_LISTS, {"choices": {"text": ["a"], "label": ["A", "B"]}}, "texts and labels of choices are not lists"),
        (COPA, {"question": "why"}, "the question is neither cause nor effect: 'why'"),
        (COPA, {"question": ["cause"]}, "the question is neither cause nor effect"),
        (COPA, {"choice2": None}, "text is not a string: choice 1 is NoneType"),
        (COPA, {"label": 2}, "label is none of the choices: 2"),
        (RACE, {"answers": ["C"]}, "questions and answers are not lists of one length"),
        (RACE, {"options": [["a", "b"]]}, "questions and options are not lists of one length"),
        (RACE, {"options": [["a", "b"], "ab"]}, "a question is not a string with a list of options: question 2"),
        (RACE, {"answers": ["C", "Z"]}, "label is none of the choices: 'Z'"),
    ],
)
def test_wrong_rows_of_published_sets_are_named_or_counted(tmp_path, row, changes, message):
    fields = json.loads(row) | ({"id": "another"} if "id" in json.loads(row) else {"idx": 7}) | changes
    with pytest.raises(DataError, match=rf"rows\.jsonl: line 2: {message}"):
        read(tmp_path, row, json.dumps(fields))
    report = read(tmp_path, row, json.dumps(fields), on_bad_rows="skip").report
    assert report.num_rows == report.num_kept + sum(report.dropped.values())
    assert [len(reason) < 60 for reason in report.dropped] == [True]
