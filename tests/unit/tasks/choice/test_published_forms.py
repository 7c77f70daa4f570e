"""ARC, CommonsenseQA, COPA and RACE are read in the form in which they are distributed."""

import json
import os

import pytest

from maskloom.errors import DataError
from maskloom.tasks import tables
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.tables import ReadingOptions

read_choices = KINDS["choice"].read

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
RACE_7 = RACE.replace("high19088", "middle7")
FORMATS = {ARC: "arc", ARC_AS_LISTS: "arc", COMMONSENSEQA: "commonsenseqa", COPA: "copa", RACE: "race"}
OF_RACE = ReadingOptions(format="race")


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


def race_folder(folder, **articles):
    """Write RACE articles by name, such as high_1, and return their folder."""
    for name, content in articles.items():
        level, number = name.split("_")
        (folder / level).mkdir(parents=True, exist_ok=True)
        (folder / level / f"{number}.txt").write_text(content)
    return folder


def test_race_is_a_folder_of_articles(tmp_path):
    folder = race_folder(tmp_path / "train", high_1=RACE, middle_7=json.dumps(json.loads(RACE_7), indent=1))
    (folder / "high" / "notes.md").write_text("no article")
    for place, name, expected in (
        (folder, "race", ["high19088.txt-1", "high19088.txt-2", "middle7.txt-1", "middle7.txt-2"]),
        (folder / "middle", "RACE", ["middle7.txt-1", "middle7.txt-2"]),
    ):
        found = read_choices(place, ReadingOptions(format=name))
        assert [one.identifier for one in found.examples] == expected
        assert found.report.num_kept == found.report.num_rows == len(expected)
    assert [one.line for one in read_choices(folder, OF_RACE).examples] == [1, 1, 2, 2]
    with pytest.raises(DataError, match=r"train/middle: is a folder; expected a file"):
        read_choices(folder / "middle")
    with pytest.raises(DataError, match=r"no \.txt file in it, its high/ or middle/; give train/"):
        read_choices(tmp_path, ReadingOptions(format="race"))


@pytest.mark.parametrize(
    ("article", "message"),
    [
        ("", "the file is empty"),
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object, got a list"),
        ("[" * 100_000, "JSON nested too deeply"),
        (RACE_7 + RACE_7, "not valid JSON: Extra data"),
        (RACE_7.replace('"C"', "NaN"), "NaN is not a JSON number"),
        (RACE_7.replace('"C"', '"E"'), "label is none of the choices: 'E'"),
        (RACE_7.replace("article", "text"), "text is not a string: context is NoneType"),
        (RACE_7.replace("Oslo", "\\ud800"), "text contains an unpaired surrogate"),
        (RACE_7.replace("birds", "bi\0rds"), "contains a NUL character"),
        (RACE, "an id appears twice: 'high19088.txt-1'"),
    ],
)
def test_wrong_articles_of_race_are_named_by_their_file(tmp_path, article, message):
    folder = race_folder(tmp_path / "train", high_1=RACE, middle_7=article)
    with pytest.raises(DataError, match=rf"middle/7\.txt: .*{message}"):
        read_choices(folder, OF_RACE)


def test_hostile_files_in_a_folder_of_race_are_refused(tmp_path, monkeypatch):
    folder, secret = race_folder(tmp_path / "train", high_1=RACE), tmp_path / "secret.txt"
    secret.write_text(RACE)
    place = folder / "high" / "2.txt"
    place.symlink_to(secret)
    with pytest.raises(DataError, match=r"high/2\.txt: is a link to .*secret\.txt, outside the folder"):
        read_choices(folder, OF_RACE)
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(DataError, match=r"high/2\.txt: is a pipe; expected a regular file"):
        read_choices(folder, OF_RACE)
    place.unlink()
    race_folder(tmp_path / "elsewhere", middle_1=RACE)
    (folder / "middle").symlink_to(tmp_path / "elsewhere" / "middle")
    with pytest.raises(DataError, match=r"train/middle: is a link to .*elsewhere/middle, outside the folder"):
        read_choices(folder, OF_RACE)
    (folder / "middle").unlink()
    place.write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"high/2\.txt: line 1: byte 1 of the line is 0xff, which is not UTF-8"):
        read_choices(folder, OF_RACE)
    place.write_text(RACE)
    monkeypatch.setattr(tables, "MAX_ROW_BYTES", 100)
    with pytest.raises(DataError, match=r"high/1\.txt: larger than 100 bytes"):
        read_choices(folder, OF_RACE)


@pytest.mark.parametrize("row", [ARC, COMMONSENSEQA, COPA, RACE])
def test_files_without_answers_are_read_for_prediction(tmp_path, row):
    fields = {key: value for key, value in json.loads(row).items() if key not in ("answerKey", "label", "answers")}
    found = read(tmp_path, json.dumps(fields), needs_label=False, format=FORMATS[row]).examples
    assert all(one.label is None for one in found)
    more = {"id": "another"} if "id" in fields else {"idx": 7}
    with pytest.raises(DataError, match=r"rows\.jsonl: line 2: missing label"):
        read(tmp_path, row, json.dumps(fields | more), format=FORMATS[row])


@pytest.mark.parametrize("row", [ARC, ARC_AS_LISTS, COMMONSENSEQA, COPA, RACE])
@pytest.mark.parametrize("given", ["?", "-1", ["?"], ""])
def test_placeholders_in_place_of_answers_do_not_stop_prediction(tmp_path, row, given):
    """Regression: ARC's were looked up among the labels of the choices, so `predict` failed on a test set."""
    fields = json.loads(row)
    (key,) = {"answerKey", "label", "answers"} & set(fields)
    examples = read(tmp_path, json.dumps({**fields, key: given}), needs_label=False, format=FORMATS[row]).examples
    assert [one.label for one in examples] == [None] * len(examples) != []


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
        (RACE, {"answers": ["C"]}, "questions, options and answers differ in number"),
        (RACE, {"options": [["a", "b"]]}, "questions, options and answers differ in number"),
        (RACE, {"options": [["a", "b"], "ab"]}, "a question is not a string with a list of options: question 2"),
        (RACE, {"answers": ["C", "Z"]}, "label is none of the choices: 'Z'"),
    ],
)
def test_wrong_rows_of_published_sets_are_named_or_counted(tmp_path, row, changes, message):
    fields = json.loads(row) | ({"id": "another"} if "id" in json.loads(row) else {"idx": 7}) | changes
    with pytest.raises(DataError, match=rf"rows\.jsonl: line 2: {message}"):
        read(tmp_path, row, json.dumps(fields), format=FORMATS[row])
    report = read(tmp_path, row, json.dumps(fields), format=FORMATS[row], on_bad_rows="skip").report
    assert report.num_rows == report.num_kept + sum(report.dropped.values())
    assert [len(reason) < 60 for reason in report.dropped] == [True]
