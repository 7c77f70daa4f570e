import gzip

import pytest

from maskloom.errors import DataError
from maskloom.tasks import tables
from maskloom.tasks.tables import MAX_ROW_BYTES, layout_of, read_rows


def rows_of(tmp_path, content, layout, name="data.x"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [(row.line, row.fields) for row in read_rows(path, layout)]


def test_tsv_knows_no_quotes(tmp_path):
    content = 'a\t"one\nb\ttwo" "\n'
    assert rows_of(tmp_path, content, "tsv") == [(1, ["a", '"one']), (2, ["b", 'two" "'])]


def test_csv_quotes_line_ends_and_lines(tmp_path):
    content = 'text,label\n"one, ""two""\nthree",x\nfour,y\n'
    assert rows_of(tmp_path, content, "csv") == [
        (1, ["text", "label"]),
        (2, ['one, "two"\nthree', "x"]),
        (4, ["four", "y"]),
    ]


@pytest.mark.parametrize("layout", ["csv", "tsv"])
def test_mark_and_carriage_returns_go(tmp_path, layout):
    separator = {"csv": ",", "tsv": "\t"}[layout]
    content = b"\xef\xbb\xbf" + f"text{separator}label\r\na{separator}b\r\n".encode()
    assert rows_of(tmp_path, content, layout) == [(1, ["text", "label"]), (2, ["a", "b"])]


def test_line_separators_inside_text_do_not_split_lines(tmp_path):
    """Regression: U+2028 and U+2029 ended lines of a file without LF, so a final LF changed the number of rows."""
    for end in ("\n", ""):
        assert rows_of(tmp_path, f"a\u2028b\u2029\x0bc\x85{end}", "text") == [(1, ["a\u2028b\u2029\x0bc\x85"])]


@pytest.mark.parametrize("name", ["data.txt", "data.txt.gz"])
def test_a_file_without_any_line_feed_has_the_line_ends_of_old(tmp_path, monkeypatch, name):
    """Regression: such a file was read as one row, or as a header only: one prediction for all lines, exit code 0."""
    pack = gzip.compress if name.endswith(".gz") else bytes

    def found(text, layout):
        return [fields for _, fields in rows_of(tmp_path, pack(text.encode()), layout, name)]

    lines = [["one"], [""], ["two \u00e9"], ["three"]]
    assert found("one\r\rtwo \u00e9\rthree\r", "text") == lines
    assert found("one\r\rtwo \u00e9\rthree", "text") == lines
    assert found("text\tlabel\ra\tb\r", "tsv") == [["text", "label"], ["a", "b"]]
    assert found('text,label\r"a\rb",c\r', "csv") == [["text", "label"], ["a\nb", "c"]]
    assert found('{"text": "a"}\r{"text": "b"}\r', "jsonl") == [{"text": "a"}, {"text": "b"}]
    assert found('{"text": "a\u2028b"}', "jsonl") == [{"text": "a\u2028b"}]
    assert found("a\rb\nc", "text") == [["a\rb"], ["c"]]
    monkeypatch.setattr(tables, "MAX_ROW_BYTES", 8)
    with pytest.raises(DataError, match="line 1: a row larger than 8 bytes"):
        found("one\rtwo\rthree\rfour", "text")


@pytest.mark.parametrize("is_packed", [False, True])
def test_lines_end_with_line_feeds(tmp_path, is_packed):
    content = "one\n\n\r\ntwo\r\r\n\u00e9\u2028\U0001f600\n\nend"
    expected = [line.removesuffix("\r") for line in content.split("\n")]
    for text, lines in ((content, expected), (content + "\n", expected), ("\n", [""]), ("\ufeffx\n", ["x"])):
        data = text.encode()
        name = "data.txt.gz" if is_packed else "data.txt"
        found = rows_of(tmp_path, gzip.compress(data) if is_packed else data, "text", name)
        assert found == [(number, [line]) for number, line in enumerate(lines, start=1)]


def test_jsonl_may_end_in_json(tmp_path):
    """The datasets library writes it so; a list of objects is refused with the rule."""
    path = tmp_path / "data.json"
    path.write_text('{"text": "a"}\n{"text": "b"}\n', encoding="utf-8")
    assert layout_of(path) == layout_of(tmp_path / "data.JSON.gz") == "jsonl"
    assert [row.fields for row in read_rows(path, "jsonl")] == [{"text": "a"}, {"text": "b"}]
    path.write_text('[\n {"text": "a"}\n]\n', encoding="utf-8")
    assert "; expected one object per line" in str(next(read_rows(path, "jsonl")).problem)


def test_rows_before_a_bad_one_are_read(tmp_path):
    path = tmp_path / "data.tsv"
    long = b"x" * (MAX_ROW_BYTES + 1)
    for bad, message in ((b"caf\xe9", "byte 4"), (b"a\0", "contains a NUL"), (long, "a row larger than")):
        path.write_bytes(b"a\nb\r\n" + bad + b"\nc\n")
        rows = read_rows(path, "tsv")
        assert [next(rows).fields, next(rows).fields] == [["a"], ["b"]]
        with pytest.raises(DataError, match=f"line 3: .*{message}"):
            next(rows)


def test_last_line_without_end(tmp_path):
    assert rows_of(tmp_path, "a\nb", "text") == [(1, ["a"]), (2, ["b"])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        ("text\tlabel\n".encode("utf-16"), "line 1: byte 1 of the line is 0xff, which is not UTF-8"),
        ("text\tlabel\n".encode("utf-16-le"), "line 1: contains a NUL"),
        ("a\tb\ncaf\u00e9\tb\n".encode("latin-1"), "line 2: byte 4 of the line is 0xe9"),
    ],
)
def test_wrong_encodings_are_named(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path, content, "tsv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text,label\na,b\n"never closed,x\ny,z\n', "line 3: not valid CSV"),
        ('text,label\n"a"b,c\n', "line 2: not valid CSV"),
        ("text,label\na\rb,c\n", "line 2: not valid CSV"),
        ("text,label\n" + "x" * MAX_ROW_BYTES + ",c\n", "line 2: a row larger than 16,777,216 bytes"),
        ('text,label\n"' + ("x" * 2**20 + "\n") * 17, "line 2: a row larger than 16,777,216 bytes"),
    ],
)
def test_broken_csv_is_named(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path, content, "csv")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "blank line"),
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object"),
        ('{"score": NaN}', "NaN is not a JSON number"),
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_json_lines_keep_their_number(tmp_path, line, problem):
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a"}\n' + line + "\n")
    rows = list(read_rows(path, "jsonl"))
    assert [row.line for row in rows] == [1, 2]
    assert problem in (rows[1].problem or "")


def test_gzip(tmp_path):
    path = tmp_path / "data.tsv.gz"
    path.write_bytes(gzip.compress(b"a\tb\n"))
    assert layout_of(path) == "tsv"
    assert [row.fields for row in read_rows(path, "tsv")] == [["a", "b"]]
    path.write_bytes(gzip.compress(b"a\tb\n" * 1000)[:-20])
    with pytest.raises(DataError, match="gzip stream is corrupt"):
        list(read_rows(path, "tsv"))
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match="gzip stream is corrupt"):
        list(read_rows(path, "tsv"))


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        list(read_rows(tmp_path / "absent.tsv", "tsv"))
    with pytest.raises(DataError, match="is a folder; expected a regular file"):
        list(read_rows(tmp_path, "tsv"))


def test_layout_by_suffix(tmp_path):
    assert layout_of(tmp_path / "A.CSV") == "csv"
    assert layout_of(tmp_path / "a.jsonl.gz") == "jsonl"
    for name, message in (("a.xlsx", r"'.xlsx' is not one of"), ("b.gz", r"'.gz' is not one of"), ("train", "suffix")):
        with pytest.raises(DataError, match="no such file or folder"):
            layout_of(tmp_path / name)
        (tmp_path / name).touch()
        with pytest.raises(DataError, match=message):
            layout_of(tmp_path / name)
