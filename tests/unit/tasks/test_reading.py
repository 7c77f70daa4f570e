import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.reading import iterate_examples
from maskloom.tasks.tables import ReadingOptions


def read(tmp_path, content, kind="single", name="data.csv", **options):
    needs_label = options.pop("needs_label", True)
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return KINDS[kind].read(path, ReadingOptions(**options), needs_label=needs_label)


def plain(data):
    return [(example.text, example.pair, example.label, example.line) for example in data.examples]


def test_usual_names(tmp_path):
    assert plain(read(tmp_path, "label,text\nx,a b\ny,c\n")) == [("a b", None, "x", 2), ("c", None, "y", 3)]
    assert plain(read(tmp_path, "Sentence,Label\na,0\n")) == [("a", None, "0", 2)]


@pytest.mark.parametrize(
    ("first", "second"),
    [("sentence1", "sentence2"), ("text_a", "text_b"), ("premise", "hypothesis"), ("question", "sentence")],
)
def test_pairs_by_usual_names(tmp_path, first, second):
    data = read(tmp_path, f"id\t{first}\t{second}\tlabel\n7\ta\tb\tyes\n", "pair", "data.tsv")
    assert plain(data) == [("a", "b", "yes", 2)]


def test_named_columns_win(tmp_path):
    data = read(tmp_path, "text,body,label,mark\na,b,c,d\n", text_column="body", label_column="mark")
    assert plain(data) == [("b", None, "d", 2)]


def test_columns_by_number_mean_no_header(tmp_path):
    data = read(tmp_path, "great\t1\tid1\nbad\t0\tid2\n", name="a.tsv", text_column="1", label_column="2")
    assert plain(data) == [("great", None, "1", 1), ("bad", None, "0", 2)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"text_column": "0", "label_column": "1"}, DataError, "no column '0'; the columns are '1', '2'"),
        ({"text_column": "1", "label_column": "label"}, DataError, "no column 'label'; the columns are '1', '2'"),
        ({"text_column": "1", "label_column": "1"}, ConfigError, "one column is used twice: '1'; name another"),
        ({"text_column": "1"}, DataError, "no label column .* among '1', '2'; name it with --label-column"),
        ({"label_column": "2"}, DataError, "no text column .* among '1', '2'; name it with --text-column, by number"),
        ({"text_column": "9", "label_column": "1"}, DataError, "line 1: there is no column '9'"),
        ({"text_column": "body"}, DataError, "line 1: there is no column 'body'; the columns are 'text', 'label'"),
        ({"text_column": "label", "label_column": "label"}, ConfigError, "used twice"),
        ({"text_column": "text", "pair_column": "label"}, ConfigError, "takes one text"),
    ],
)
def test_wrong_columns(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        read(tmp_path, "text,label\na,b\n", **options)


def test_a_column_of_a_file_without_columns_is_refused(tmp_path):
    """Regression: it was ignored."""
    with pytest.raises(ConfigError, match=r"text column 'x': .* has one text per line and no columns"):
        read(tmp_path, "a\nb\n", name="a.txt", needs_label=False, text_column="x")


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ("body,label\na,b\n", "single", "no text column"),
        ("text,mark\na,b\n", "single", "no label column"),
        ("text,label\na,b\n", "pair", "no second text"),
        ("text;label\na;b\n", "single", "is the separator a semicolon"),
        ("text,text,label\na,b,c\n", "single", "line 1: the header has 2 columns named 'text'"),
        ("text,label\n", "single", "no usable rows"),
        ("text,label\na,b\nc\n", "single", "line 3: wrong number of fields: 1, expected 2"),
        ("text,label\na,b,c\n", "single", "line 2: wrong number of fields: 3, expected 2"),
        ("text,label\n  ,b\n", "single", "line 2: empty text"),
        ("text,label\na,\n", "single", "line 2: missing label"),
        ("text,score\na,high\n", "regression", "line 2: label is not a finite number: 'high'"),
        ("text,score\na,nan\n", "regression", "line 2: label is not a finite number: 'nan'"),
        ("text,score\na,1e400\n", "regression", "line 2: label is not a finite number"),
        ("text,score\na,\n", "regression", "line 2: missing label"),
        ('text,labels\na,"x,x"\n', "multilabel", "line 2: a label appears twice"),
        ('text,labels\na,"x,,y"\n', "multilabel", "line 2: missing label"),
        ("text,labels\na,\"['x', 'y']\"\n", "multilabel", "line 2: labels are not a list: .*a JSON list"),
    ],
)
def test_bad_tables_are_errors_with_their_line(tmp_path, content, kind, message):
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, content, kind)
    assert "data.csv" in str(caught.value)


def test_quoted_fields_of_a_tsv_are_read_literally_with_a_note(tmp_path):
    """Regression: files that pandas writes were read with their quotes, or refused for the number of fields."""
    content = 'text\tlabel\n"I am" he said "so"\tx\n"a ""b"" c"\ty\n""\tx\n"\tx\n"a"\ty\n"" b\tx\n""a"\ty\n'
    data = read(tmp_path, content, name="a.tsv")
    assert data.examples[1].text == '"a ""b"" c"'
    assert data.report.notes == [
        "1 row with a field quoted as in CSV, such as line 3: a .tsv is read literally; if the quotes do not belong "
        "to the text, save the file as .csv"
    ]
    as_csv = read(tmp_path, 'text,label\n"a ""b"" c",y\n')
    assert (as_csv.examples[0].text, as_csv.report.notes) == ('a "b" c', [])
    for cut in ('"a\tb"\tx', '"a'):
        with pytest.raises(DataError, match=r"a\.tsv: line 2: wrong number .*; a field begins with a quote: a \.tsv"):
            read(tmp_path, f"text\tlabel\n{cut}\n", name="a.tsv")
    with pytest.raises(DataError, match=r'among .*, \'"label"\' \(in quotes: save it as \.csv\)'):
        read(tmp_path, '"text"\t"label"\n"a"\t"b"\n', name="a.tsv")
    with pytest.raises(DataError, match="among ; name it"):
        read(tmp_path, "{}\n", name="a.jsonl")


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("{}", "single", "line 2: missing key: 'text'"),
        ('{"text": "b"}', "single", "line 2: missing key: 'label'"),
        ('{"text": 3, "label": "x"}', "single", "line 2: text is not a string"),
        ('{"text": "b", "label": null}', "single", "line 2: missing label"),
        ('{"text": "b", "label": {"x": 1}}', "single", "line 2: label is not a name"),
        ('{"text": "\\ud800", "label": "x"}', "single", "line 2: text contains an unpaired surrogate"),
        ('{"text": "b", "label": true}', "regression", "line 2: label is not a finite number"),
        ('{"text": "b", "label": 5}', "multilabel", "line 2: labels are not a list"),
        ("nonsense", "single", "line 2: not valid JSON"),
        ("[1]", "single", "line 2: expected a JSON object, got a list; expected one object per line, not a list of"),
    ],
)
def test_bad_json_rows_are_errors_with_their_line(tmp_path, line, kind, message):
    first = {"text": "a", "label": {"single": "x", "regression": 1.5, "multilabel": ["x"]}[kind]}
    with pytest.raises(DataError, match=message):
        read(tmp_path, json.dumps(first) + "\n" + line + "\n", kind, "data.jsonl")


def test_json_labels_of_every_kind(tmp_path):
    rows = '{"text": "a", "label": 3}\n{"text": "b", "label": true}\n{"text": "c", "label": " x "}\n'
    assert [label for _, _, label, _ in plain(read(tmp_path, rows, name="a.jsonl"))] == ["3", "true", "x"]
    rows = '{"text": "a", "labels": ["x", 2]}\n{"text": "b", "labels": []}\n{"text": "c", "labels": "x,y"}\n'
    labels = [label for _, _, label, _ in plain(read(tmp_path, rows, "multilabel", "a.jsonl"))]
    assert labels == [("x", "2"), (), ("x", "y")]
    rows = '{"sentence1": "a", "sentence2": "b", "score": 2}\n{"sentence1": "a", "sentence2": "b", "score": "2.5"}\n'
    assert plain(read(tmp_path, rows, "regression", "a.jsonl"))[1] == ("a", "b", 2.5, 2)


def test_the_second_text_of_pairs_is_not_left_out(tmp_path):
    """Regression: by default, with --task single, only the first text was read, and nothing said so."""
    content = "premise,Hypothesis,label\na,b,x\n"
    message = r"line 1: 'premise' and 'Hypothesis' are both texts; name one with --text-column; .* --task pair, "
    with pytest.raises(DataError, match=message):
        read(tmp_path, content, "single")
    assert plain(read(tmp_path, content, "single", text_column="premise")) == [("a", None, "x", 2)]
    assert plain(
        read(tmp_path, content.replace("label", "mark"), "single", label_column="Hypothesis", text_column="mark")
    )


@pytest.mark.parametrize("name", ["data.csv", "data.tsv"])
def test_a_json_list_of_labels_in_a_table(tmp_path, name):
    """Regression: it was split at its commas, brackets and quotes included."""
    first, second = ('"[""x"", ""y, z""]"', "[]") if name == "data.csv" else ('["x", "y, z"]', " [] ")
    rows = [("text", "labels"), ("a", first), ("b", second), ("c", "[x] or"), ("d", "")]
    content = "".join(f"{text}{',' if name == 'data.csv' else chr(9)}{label}\n" for text, label in rows)
    labels = [label for _, _, label, _ in plain(read(tmp_path, content, "multilabel", name))]
    assert labels == [("x", "y, z"), (), ("[x] or",), ()]


def test_skipping_counts_every_row(tmp_path):
    content = "text,label\na,x\n\nb\n,x\nc,\nd,y\n"
    data = read(tmp_path, content, on_bad_rows="skip")
    assert [example.text for example in data.examples] == ["a", "d"]
    report = data.report
    assert report.num_rows == 6 == report.num_kept + sum(report.dropped.values())
    assert report.dropped == {"blank line": 1, "wrong number of fields": 1, "empty text": 1, "missing label": 1}
    assert report.first_dropped_lines["wrong number of fields"] == 4


def test_plain_text_files_have_no_labels(tmp_path):
    with pytest.raises(DataError, match="no labels"):
        read(tmp_path, "a\nb\n", name="data.txt")
    assert plain(read(tmp_path, "a, b\nc\n", name="data.txt", needs_label=False))[0] == ("a, b", None, None, 1)
    assert plain(read(tmp_path, "a\tb\n", "pair", "data.txt", needs_label=False)) == [("a", "b", None, 1)]
    with pytest.raises(DataError, match="line 2: a pair is two texts"):
        read(tmp_path, "a\tb\nc\n", "pair", "data.txt", needs_label=False)
    assert [row[0] for row in plain(read(tmp_path, "a\n\nb\n", name="data.txt", needs_label=False))] == ["a", "", "b"]
    assert plain(read(tmp_path, "\na\tb\n", "pair", "data.txt", needs_label=False))[0] == ("", "", None, 1)


def test_labels_are_optional_for_prediction(tmp_path):
    assert plain(read(tmp_path, "text\na\n", needs_label=False)) == [("a", None, None, 2)]


def test_all_json_rows_bad(tmp_path):
    with pytest.raises(DataError, match="line 1"):
        read(tmp_path, "[]\n[]\n", name="data.jsonl")
    with pytest.raises(DataError, match="no usable rows: 2 read"):
        read(tmp_path, "[]\n[]\n", name="data.jsonl", on_bad_rows="skip")


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=200), suffix=st.sampled_from(["csv", "tsv", "jsonl", "txt"]))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, suffix):
    path = tmp_path_factory.mktemp("fuzz") / f"data.{suffix}"
    path.write_bytes(content)
    report = ReadingReport(path)
    options = ReadingOptions(on_bad_rows="skip")
    try:
        kept = list(iterate_examples(path, "single", options, needs_label=suffix != "txt", report=report))
    except DataError:
        return
    assert len(kept) == report.num_kept == report.num_rows - sum(report.dropped.values())


def test_a_folder_and_the_text_column_as_label_are_named(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,x\n")
    with pytest.raises(DataError, match=r"is a folder; expected a file, such as one of these in it: train\.csv$"):
        KINDS["single"].read(tmp_path)
    with pytest.raises(DataError, match="'text' was given as the label column, which leaves no text column"):
        KINDS["single"].read(tmp_path / "train.csv", ReadingOptions(label_column="text"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_bad_rows": "raise"}, "on_bad_rows = 'raise': must be 'error' or 'skip'"),
        ({"text_column": 5}, "text_column = 5: expected a str or None, got int"),
        ({"format": ["cola"]}, r"format = \['cola'\]: expected a str or None, got list"),
    ],
)
def test_options_of_another_type_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ReadingOptions(**options)
