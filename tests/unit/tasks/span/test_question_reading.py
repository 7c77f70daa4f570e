import json

import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.kinds import SPAN
from maskloom.tasks.span.reading import Answer
from maskloom.tasks.tables import ReadingOptions

read_questions = SPAN.read
CONTEXT = "The cat sat.\nOn a mat, été."


def question(number=1, **values):
    made = {
        "id": f"q{number}",
        "question": "Who sat?",
        "answers": [{"text": "cat", "answer_start": 4}, {"text": "The cat", "answer_start": 0}],
    }
    return {key: value for key, value in {**made, **values}.items() if value != "absent"}


def squad(*questions, context=CONTEXT):
    return {"version": "x", "data": [{"title": "Cats", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def write(tmp_path, document, name="data.json"):
    path = tmp_path / name
    content = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    path.write_bytes(content.encode("utf-8"))
    return path


def test_squad_files_of_both_versions(tmp_path):
    second = question(2, answers=[], is_impossible=True, plausible_answers=[{"text": "mat", "answer_start": 18}])
    read = read_questions(write(tmp_path, squad(question(), second)))
    first, second = read.examples
    assert (first.id, first.question, first.context, first.line) == ("q1", "Who sat?", CONTEXT, 1)
    assert first.answers == (Answer("cat", 4), Answer("The cat", 0))
    assert not first.is_impossible
    assert second.answers == ()
    assert second.is_impossible
    assert second.context is first.context
    assert read.report.num_kept == read.report.num_rows == 2
    assert first.inputs() == ("Who sat?", CONTEXT)
    assert first.as_row() == {"id": "q1", "question": "Who sat?"}


def test_a_byte_order_mark_is_taken_off(tmp_path):
    assert len(read_questions(write(tmp_path, "\ufeff" + json.dumps(squad(question())))).examples) == 1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"text": " cat", "answer_start": 3}, Answer("cat", 4)),
        ({"text": " cat", "answer_start": 4}, Answer("cat", 4)),
        ({"text": "cat ", "answer_start": 4}, Answer("cat", 4)),
        ({"text": "sat.\n", "answer_start": 8}, Answer("sat.", 8)),
        ({"text": "été", "answer_start": 23}, Answer("été", 23)),
        ({"text": ".", "answer_start": 26}, Answer(".", 26)),
    ],
)
def test_blanks_around_an_answer_are_taken_off(tmp_path, answer, expected):
    path = write(tmp_path, squad(question(answers=[answer])))
    assert read_questions(path).examples[0].answers == (expected,)


def test_answers_are_not_looked_at_where_none_is_needed(tmp_path):
    wrong = question(3, answers=[{"text": "dog", "answer_start": 99}], is_impossible=7)
    path = write(tmp_path, squad(question(answers="absent"), question(2, answers=[]), wrong, question(4)))
    found = read_questions(path, needs_label=False).examples
    assert [example.answers for example in found] == [None] * 4
    assert not any(example.is_impossible for example in found)


BAD = [
    (question(id="absent"), "no id"),
    (question(id=""), "the id is not a name: ''"),
    (question(id=["q"]), "the id is not a name"),
    (question(question="absent"), "no question"),
    (question(question=3), "text is not a string: the question is int"),
    (question(question=" \n"), "empty question"),
    (question(question="\ud800"), "contains an unpaired surrogate"),
    (question(answers="absent"), "no answers"),
    (question(answers=[]), "no answers: a question without an answer needs is_impossible = true"),
    (question(answers="cat"), "the answers are not a list: they are str"),
    (question(answers=["cat"]), "an answer is not an object: it is str"),
    (question(answers=[{"text": "cat"}]), "an answer has no answer_start"),
    (question(answers=[{"answer_start": 4}]), "an answer has no text"),
    (question(answers=[{"text": "cat", "answer_start": "4"}]), "answer_start is not a whole number: '4'"),
    (question(answers=[{"text": "cat", "answer_start": True}]), "answer_start is not a whole number"),
    (question(answers=[{"text": "cat", "answer_start": 4.0}]), "answer_start is not a whole number"),
    (question(answers=[{"text": "cat", "answer_start": -1}]), "outside of the context: -1, the context has 27"),
    (question(answers=[{"text": "cat", "answer_start": 27}]), "outside of the context: 27, the context has 27"),
    (question(answers=[{"text": " ", "answer_start": 3}]), "empty answer text"),
    (question(answers=[{"text": "", "answer_start": 3}]), "empty answer text"),
    (question(answers=[{"text": 7, "answer_start": 3}]), "text is not a string: the answer text is int"),
    (
        question(answers=[{"text": "cat", "answer_start": 5}]),
        "is not at its place in the context: 'cat' at 5, where the context has 'at '; the nearest occurrence is at 4",
    ),
    (question(answers=[{"text": "dog", "answer_start": 4}]), "'dog' at 4, where the context has 'cat'$"),
    (question(answers=[{"text": "Cat", "answer_start": 4}]), "'Cat' at 4, where the context has 'cat'$"),
    (question(is_impossible=True), "is_impossible is true, yet there are answers"),
    (question(is_impossible="no"), "is_impossible is not true or false: 'no'"),
    ("text", "a question is not an object: it is str"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_wrong_questions_are_refused_by_place_or_counted(tmp_path, bad, message):
    content = json.dumps(squad(question(1), bad, question(3)))
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=rf"data.json: article 1 \(Cats\), paragraph 1, question 2.*{message}"):
        read_questions(path)
    read = read_questions(path, ReadingOptions(on_bad_rows="skip"))
    assert [example.id for example in read.examples] == ["q1", "q3"]
    assert [example.line for example in read.examples] == [1, 3]
    report = read.report
    assert (report.num_rows, report.num_kept, sum(report.dropped.values())) == (3, 2, 1)
    assert list(report.first_dropped_lines.values()) == [2]


def test_an_id_that_comes_twice_names_both_places(tmp_path):
    document = squad(question(1), question(2))
    document["data"].append({"paragraphs": [{"context": CONTEXT, "qas": [question(2)]}]})
    path = write(tmp_path, document)
    message = r"article 2, paragraph 1, question 1 \(id 'q2'\): an id appears twice.*article 1 \(Cats\), .* question 2"
    with pytest.raises(DataError, match=message):
        read_questions(path)
    assert len(read_questions(path, ReadingOptions(on_bad_rows="skip")).examples) == 2


@pytest.mark.parametrize("context", ["", " \n\t", None, 7])
def test_wrong_contexts_are_refused(tmp_path, context):
    with pytest.raises(DataError, match="context"):
        read_questions(write(tmp_path, squad(question(), context=context)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1, column 1: not valid JSON"),
        ('{"data": [\n{"title" "x"}]}', "line 2, column 10: not valid JSON"),
        ("3", "the file: expected SQuAD's format, an object with a list 'data', got int"),
        ("[]", "the file: expected .* an object with a list 'data', got list"),
        ('{"version": "1.1"}', "the file: expected .* a list 'data', got none; if each line is a question, name"),
        ('{"id": 1}\n{"id": 2}\n', "line 2, column 1: not valid JSON: Extra data; if each line .* the file .jsonl$"),
        ('{"data": {}}', "the file: expected .* a list 'data', got dict"),
        ('{"data": [3]}', "article 1: expected .* a list 'paragraphs', got int"),
        ('{"data": [{"title": "T"}]}', r"article 1 \(T\): expected .* a list 'paragraphs', got none"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "article 1, paragraph 1: expected .* a list 'qas'"),
        ('{"data": []}', "no usable rows"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_not_squad_s_are_refused(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_questions(write(tmp_path, content))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_questions(tmp_path / "absent.json")
    (tmp_path / "latin.json").write_bytes(b'{"data": "\xe9"}')
    with pytest.raises(DataError, match="byte 11 is not UTF-8"):
        read_questions(tmp_path / "latin.json")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(DataError, match="has no contexts"):
        read_questions(tmp_path / "text.txt")


ROWS = {
    "one answer": {"answer": "cat", "answer_start": 4},
    "object of lists": {"answers": {"text": ["cat", "The cat"], "answer_start": [4, 0]}},
    "list of objects": {"answers": [{"text": "cat", "answer_start": 4}]},
}


@pytest.mark.parametrize("form", ROWS)
def test_rows_of_jsonl(tmp_path, form):
    rows = [{"question": "Who?", "context": CONTEXT, **ROWS[form]}, {"id": 7, "question": "Who?", "context": CONTEXT}]
    rows[1] |= {"answers": {"text": [], "answer_start": []}}
    path = write(tmp_path, "\n".join(map(json.dumps, rows)), "data.jsonl")
    first, second = read_questions(path).examples
    assert second.is_impossible
    assert first.answers is not None
    assert first.answers[0] == Answer("cat", 4)
    assert (first.id, first.line, second.id, second.line) == ("1", 1, "7", 2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: not valid JSON"),
        ("[]", "line 2: expected a JSON object"),
        ('{"question": "Who?", "answer": "cat", "answer_start": 4}', "line 2: no context"),
        ('{"question": "Who?", "context": "a cat", "answer": "cat"}', "line 2: an answer has no answer_start"),
        (
            '{"question": "Who?", "context": "a cat", "answer": "cat", "answer_start": 1}',
            "where the context has ' ca'; the nearest occurrence is at 2",
        ),
        (
            '{"question": "Who?", "context": "a cat", "answers": {"text": ["cat", "a"], "answer_start": [2]}}',
            "line 2: answers and starts are not lists of equal length: {'text'",
        ),
        (
            '{"question": "Who?", "context": "a cat", "answers": ["cat"], "answer_start": [2]}',
            "line 2: an answer is not an object: it is str",
        ),
        (
            '{"id": "1", "question": "Who?", "context": "a cat", "answer": "cat", "answer_start": 2}',
            "an id appears twice",
        ),
    ],
)
def test_wrong_rows_of_jsonl(tmp_path, row, message):
    good = json.dumps({"question": "Who?", "context": "a cat", "answer": "cat", "answer_start": 2})
    path = write(tmp_path, f"{good}\n{row}\n", "data.jsonl")
    with pytest.raises(DataError, match=message):
        read_questions(path)
    read = read_questions(path, ReadingOptions(on_bad_rows="skip"))
    assert len(read.examples) == 1
    assert not any(character.isdigit() for reason in read.report.dropped for character in reason)


@pytest.mark.parametrize("name", ["data.jsonl", "data.csv"])
def test_blank_lines_are_counted(tmp_path, name):
    row = {"question": "Who?", "context": "a cat", "answer": "cat", "answer_start": 2}
    content = {"data.jsonl": f"{json.dumps(row)}\n\n", "data.csv": ",".join(row) + "\n\nWho?,a cat,cat,2\n"}[name]
    read = read_questions(write(tmp_path, content, name))
    assert read.report.dropped == {"blank line": 1}
    assert (read.report.num_rows, read.report.num_kept) == (2, 1)


def test_rows_of_csv(tmp_path):
    text = (
        "id,question,context,answer,answer_start,is_impossible\n"
        'a,Who?,"The cat, sat",cat,4,\n'
        "b,Who?,The dog,dog,4,FALSE\n"
        "c,Who?,The dog,,,True\n"
        "d,Who?,The [1],[1],4,false\n"
    )
    first, second, third, fourth = read_questions(write(tmp_path, text, "data.csv")).examples
    assert first.answers == (Answer("cat", 4),)
    assert first.context == "The cat, sat"
    assert second.answers == (Answer("dog", 4),)
    assert third.is_impossible
    assert fourth.answers == (Answer("[1]", 4),)
    assert [example.line for example in (first, second, third, fourth)] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,Who?,The cat,cat,four", "line 2: answer_start is not a whole number: 'four'"),
        ("a,Who?,The cat,cat", "line 2: wrong number of fields: 4, expected 5"),
        ("a,Who?,The cat,,", "line 2: no answers"),
        ("a,Who?,The cat,cat,", "line 2: an answer has no answer_start"),
        ("a,Who?,The cat,[cat,4", "is not at its place in the context"),
        (',Who?,The cat,cat,"[4]"', r"line 2: answer_start is not a whole number: '\[4\]'"),
        ("a,,The cat,cat,4", "line 2: no question"),
    ],
)
def test_wrong_rows_of_csv(tmp_path, row, message):
    path = write(tmp_path, f"id,question,context,answer,answer_start\n{row}\n", "data.csv")
    with pytest.raises(DataError, match=message):
        read_questions(path)


def test_a_key_of_json_lines_counts_as_written(tmp_path):
    path = write(tmp_path, '{" question": "Who?", "context": "The cat", "answer": "cat"}\n', "data.jsonl")
    with pytest.raises(
        DataError, match="line 1: there is no column 'question'; the columns are ' question', 'context'"
    ):
        read_questions(path)


def test_columns_by_name(tmp_path):
    text = "frage\ttext\tantwort\tstart\nWer?\tDie Katze\tKatze\t4\n"
    path = write(tmp_path, text, "data.tsv")
    options = ReadingOptions(text_column="frage", pair_column="text", label_column="antwort")
    assert read_questions(path, options).examples[0].answers == (Answer("Katze", 4),)
    with pytest.raises(DataError, match="line 1: there is no column 'question'; the columns are 'frage', 'text'"):
        read_questions(path)
    with pytest.raises(DataError, match="no answer column"):
        read_questions(path, ReadingOptions(text_column="frage", pair_column="text"))
    with pytest.raises(DataError, match="there is no column '1'"):
        read_questions(path, ReadingOptions(text_column="1", pair_column="2"))
    with pytest.raises(ConfigError, match="line 1: one column is used twice: 'text'"):
        read_questions(path, ReadingOptions(text_column="text", pair_column="text", label_column="antwort"))
    doubled = write(tmp_path, "question\tcontext\tcontext\tanswer\nx\ty\tz\tw\n", "doubled.tsv")
    with pytest.raises(DataError, match="2 columns named 'context'"):
        read_questions(doubled)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "num_questions", "num_impossible"),
    [
        ("squad/dev-v2.0.json", 11_873, 5_945),
        ("squad/train-v1.1.part.json", 11_731, 0),
        ("xquad.en.json", 1_190, 0),
    ],
)
def test_every_question_of_real_sets_is_read(data_folder, name, num_questions, num_impossible):
    read = read_questions(data_folder / "qa" / name)
    assert read.report.num_kept == num_questions
    assert sum(example.is_impossible for example in read.examples) == num_impossible


@pytest.mark.realdata
def test_real_flaws_are_named_and_counted(data_folder):
    path = data_folder / "qa" / "covid-qa.json"
    with pytest.raises(DataError, match=r"article 91, paragraph 1, question 1 \(id 1057\).*occurrence is at 157"):
        read_questions(path)
    read = read_questions(path, ReadingOptions(on_bad_rows="skip"))
    assert read.report.num_kept == 1_342
    assert read.report.dropped == {"an answer is not at its place in the context": 38}


def test_a_file_of_another_kind_is_told_what_questions_come_in(tmp_path):
    path = tmp_path / "questions.conll"
    path.write_text("Anna NNP B-PER\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"questions\.conll: the suffix '\.conll' .*\.jsonl.*; SQuAD's \.json is accepted too"
    ):
        read_questions(path)


def test_a_missing_file_gets_no_hint_about_suffixes(tmp_path):
    with pytest.raises(DataError, match=r"questions\.conll: no such file or folder$"):
        read_questions(tmp_path / "questions.conll")
