import json

import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.tables import ReadingOptions

read_choices = KINDS["choice"].read

SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
SWAG_ROW = '{id},v,{id},"A, B","She walks, slowly.",She,gold,"runs ""fast"".",sits.,eats.,sleeps.,{label}'


def write(tmp_path, name, *lines):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def swag(tmp_path, *labels):
    return write(tmp_path, "swag.csv", SWAG_HEADER, *(SWAG_ROW.format(id=n, label=v) for n, v in enumerate(labels)))


def jsonl(tmp_path, *rows):
    return write(tmp_path, "rows.jsonl", *(json.dumps(row) for row in rows))


def test_swag_pairs_the_first_sentence_with_the_second_and_each_ending(tmp_path):
    data = read_choices(swag(tmp_path, 2, 0))
    first = data.examples[0]
    assert first.pairs() == [
        ("She walks, slowly.", 'She runs "fast".'),
        ("She walks, slowly.", "She sits."),
        ("She walks, slowly.", "She eats."),
        ("She walks, slowly.", "She sleeps."),
    ]
    assert [example.label for example in data.examples] == [2, 0]
    assert [example.line for example in data.examples] == [2, 3]
    assert first.identifier == "0"


def test_swags_test_file_has_no_labels(tmp_path):
    header, row = SWAG_HEADER.removesuffix(",label"), SWAG_ROW.removesuffix(",{label}").format(id=7)
    path = write(tmp_path, "test.csv", header, row)
    assert read_choices(path, needs_label=False).examples[0].label is None
    with pytest.raises(DataError, match=r"test.csv: line 1: no label column"):
        read_choices(path)


def test_labels_are_not_looked_at_where_none_are_needed(tmp_path):
    assert read_choices(swag(tmp_path, "", "-1"), needs_label=False).examples[1].label is None


def test_hellaswag_lists_its_endings(tmp_path):
    path = jsonl(tmp_path, {"ind": 3, "ctx": "A man sits. he", "label": 1, "endings": ["a.", "b."]})
    example = read_choices(path).examples[0]
    assert example.pairs() == [("A man sits. he", "a."), ("A man sits. he", "b.")]
    assert (example.label, example.identifier) == (1, "3")


def test_hellaswags_split_context_is_preferred_to_the_joined_one(tmp_path):
    row = {"ind": 3, "ctx": "A. he", "ctx_a": "A.", "ctx_b": "he", "label": 1, "endings": ["a.", "b."]}
    assert read_choices(jsonl(tmp_path, row)).examples[0].pairs()[0] == ("A.", "he a.")


def test_codah_has_no_header_and_no_quotes(tmp_path):
    path = write(tmp_path, "codah.tsv", 'o\tHe said "I\tam.\twas.\tdo.\tgo."\t3', "in\tShe\ta\tb\tc\td\t0")
    data = read_choices(path, ReadingOptions(format="CODAH"))
    assert data.examples[0].pairs()[3] == ('He said "I', 'go."')
    assert [example.label for example in data.examples] == [3, 0]
    assert [example.line for example in data.examples] == [1, 2]


@pytest.mark.parametrize("label", ["-1", "?"])
def test_codah_with_placeholders_for_labels_is_read_for_prediction(tmp_path, label):
    path = write(tmp_path, "codah.tsv", f"o\tHe said\tam.\twas.\tdo.\tgo.\t{label}", "in\tShe\ta\tb\tc\td\t?")
    examples = read_choices(path, ReadingOptions(format="codah"), needs_label=False).examples
    assert [(len(example.choices), example.label) for example in examples] == [(4, None), (4, None)]
    with pytest.raises(DataError, match="no choice columns"):
        read_choices(path, needs_label=False)


def test_context_question_and_answers(tmp_path):
    path = write(tmp_path, "cosmos.csv", "id,context,question,answer0,answer1,answer2,label", "x,C.,Why?,a,b,c,2")
    assert read_choices(path).examples[0].pairs()[2] == ("C.", "Why? c")


def test_questions_of_race_one_per_row_share_the_name_of_their_article(tmp_path):
    """Regression: the name was taken for the id of a row, so that the second question of an article was refused."""
    row = {"example_id": "high1.txt", "article": "She sat.", "answer": "B", "options": ["Rex", "Tom"]}
    first, second = read_choices(jsonl(tmp_path, row | {"question": "Who?"}, row | {"question": "Who sat?"})).examples
    assert first.pairs() == [("She sat.", "Who? Rex"), ("She sat.", "Who? Tom")]
    assert (second.stem, second.label, second.identifier) == ("Who sat?", 1, None)


def test_a_question_alone_is_the_context(tmp_path):
    path = jsonl(tmp_path, {"question": "Q?", "choices": ["a", "b", "c"], "answer": "C"})
    example = read_choices(path).examples[0]
    assert example.pairs()[0] == ("Q?", "a")
    assert example.label == 2


@pytest.mark.parametrize(("label", "expected"), [("A", 0), ("d", 3), (" 3 ", 3), ("0", 0)])
def test_a_label_is_a_number_or_a_letter(tmp_path, label, expected):
    assert read_choices(swag(tmp_path, label)).examples[0].label == expected


def test_letters_and_numbers_from_one_name_columns_of_choices(tmp_path):
    path = write(tmp_path, "a.csv", "question,optionB,optionA,key", "q,bee,ay,B")
    assert read_choices(path, ReadingOptions(label_column="key")).examples[0].choices == ("ay", "bee")
    path = write(tmp_path, "b.csv", "premise,choice_2,choice_1,label", "p,second,first,1")
    assert read_choices(path).examples[0].choices == ("first", "second")


def test_columns_can_be_named(tmp_path):
    path = write(tmp_path, "a.csv", "before,start,ending0,ending1,right", "B.,S,x,y,1")
    options = ReadingOptions(text_column="before", pair_column="start", label_column="right")
    assert read_choices(path, options).examples[0].pairs()[1] == ("B.", "S y")
    with pytest.raises(DataError, match="there is no column 'behind'; the columns are 'before', 'start'"):
        read_choices(path, ReadingOptions(text_column="behind"))
    with pytest.raises(DataError, match="there is no column '1'; the columns are 'before', 'start'"):
        read_choices(path, ReadingOptions(text_column="1"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "choices": ["a", "b"], "label": 2}, "label is none of the choices: 2, expected 0 to 1"),
        ({"question": "q", "choices": ["a", "b"], "label": "C"}, "label is none of the choices: 'C'"),
        ({"question": "q", "choices": ["a", "b"], "label": -1}, "label is none of the choices: -1"),
        ({"question": "q", "choices": ["a", "b"], "label": True}, "label is none of the choices: True"),
        ({"question": "q", "choices": ["a", "b"], "label": 1.0}, "label is none of the choices"),
        ({"question": "q", "choices": ["a", "b"], "label": None}, "missing label"),
        ({"question": "q", "choices": ["a", "b"]}, "missing key: 'label'"),
        ({"question": "q", "choices": ["a"], "label": 0}, "fewer than two choices: 1"),
        ({"question": "q", "choices": ["a", " "], "label": 0}, "empty choice: choice 1"),
        ({"question": "q", "choices": ["a", 3], "label": 0}, "text is not a string: choice 1 is int"),
        ({"question": "q", "choices": "ab", "label": 0}, "choices are not a list"),
        ({"question": "", "choices": ["a", "b"], "label": 0}, "empty text: context"),
        ({"question": "q\ud800", "choices": ["a", "b"], "label": 0}, "text contains an unpaired surrogate"),
        ({"question": "q", "choices": ["a", "b"], "label": 0, "id": "one"}, "an id appears twice: .one., first at"),
    ],
)  # fmt: skip
def test_wrong_rows_are_refused_by_line_or_counted(tmp_path, row, message):
    path = jsonl(tmp_path, {"id": "one", "question": "q", "choices": ["a", "b"], "label": 0}, row)
    with pytest.raises(DataError, match=rf"rows\.jsonl: line 2: {message}"):
        read_choices(path)
    data = read_choices(path, ReadingOptions(on_bad_rows="skip"))
    assert len(data.examples) == 1
    assert sum(data.report.dropped.values()) == 1
    assert set(data.report.first_dropped_lines.values()) == {2}


def test_the_first_of_two_columns_of_ids_counts(tmp_path):
    path = write(tmp_path, "a.csv", "id,context,choice0,choice1,label,id", "1,c,a,b,0,x", "2,c,a,b,1,x")
    assert [example.identifier for example in read_choices(path).examples] == ["1", "2"]


def test_a_row_that_was_dropped_does_not_take_its_id(tmp_path):
    row = {"id": "two", "question": "q", "choices": ["a", "b"], "label": 1}
    path = jsonl(tmp_path, {**row, "id": "one"}, {**row, "label": 9}, row)
    assert len(read_choices(path, ReadingOptions(on_bad_rows="skip")).examples) == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("a,b,c", "1,2,3"), "no choice columns"),
        (("ending0,ending1,label", "x,y,0"), "no text column"),
        (("sent1,ending0,ending2,label", "c,x,y,0"), "leave one out"),
        (("sent1,ending0,ending1,ending1,label", "c,x,y,z,0"), "2 columns named 'ending1'"),
        (("sent1,ending0,ending1,label", "c,x,0"), "line 2: wrong number of fields: 3, expected 4"),
        (("sent1,ending0,ending1,label",), "no usable rows"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, lines, message):
    with pytest.raises(DataError, match=message):
        read_choices(write(tmp_path, "a.csv", *lines))


def test_a_format_says_the_kind_of_task(tmp_path):
    path = swag(tmp_path, 1)
    assert len(read_choices(path, ReadingOptions(format="swag")).examples) == 1
    with pytest.raises(ConfigError, match="'rte' is for the task pair, not choice"):
        read_choices(path, ReadingOptions(format="rte"))
    assert catalog_row("HellaSwag").kind == "choice"


def test_text_files_and_empty_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"a \.txt file has no columns"):
        read_choices(write(tmp_path, "a.txt", "x"))
    with pytest.raises(DataError, match="no row can be read: all lines are blank"):
        read_choices(write(tmp_path, "a.jsonl", "", " "))


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "num_rows", "first"),
    [
        ("hellaswag/val.jsonl", 10_042, ("A man is sitting on a roof. he", "is using wrap to wrap a pair of skis.")),
        (
            "codah/full_data.tsv",
            2_776,
            ("I am always very hungry before I go to bed. I am", "concerned that this is an"),
        ),
        ("cosmosqa_valid.csv", 2_985, ("Do i need to go for a legal divorce ?", "Why is this person asking about")),
    ],
)
def test_published_files_are_read_whole(data_folder, name, num_rows, first):
    options = ReadingOptions(format="codah") if "codah" in name else None
    data = read_choices(data_folder / "choice" / name, options)
    assert len(data.examples) == data.report.num_rows == num_rows
    assert {len(example.choices) for example in data.examples} == {4}
    assert {example.label for example in data.examples} == {0, 1, 2, 3}
    for text, start in zip(data.examples[0].pairs()[0], first, strict=True):
        assert text.startswith(start)
