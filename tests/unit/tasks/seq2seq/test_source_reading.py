"""Sources and targets from tables, JSON objects and pairs of files."""

import gzip
import re

import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.settings import Seq2SeqSettings
from maskloom.tasks.tables import ReadingOptions

KIND = KINDS["seq2seq"]


def read(path, *, suffix=None, needs_label=True, **options):
    settings = Seq2SeqSettings(target_suffix=suffix)
    return KIND.read(path, ReadingOptions(**options), settings, needs_label=needs_label)


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name

    return written


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"source": "ein Mann", "target": "a man"}\n{"source": "zwei", "target": "two"}\n'),
        ("a.csv", "summary,article\na man,ein Mann\ntwo,zwei\n"),
        ("a.tsv", "id\tSRC\tTGT\n1\tein Mann\ta man\n2\tzwei\ttwo\n"),
    ],
)
def test_columns_are_found_by_their_usual_names(write, name, content):
    data = read(write(name, content))
    assert [(one.text, one.label) for one in data.examples] == [("ein Mann", "a man"), ("zwei", "two")]


def test_a_list_of_targets_is_several_and_one_of_sentences_a_source(write):
    rows = '{"source": ["Ein Mann.", " Er geht.\\n"], "target": ["a man", "one man "]}\n'
    rows += '{"source": "b", "target": ["c"]}\n'
    data = read(write("a.jsonl", rows))
    assert [(one.text, one.label) for one in data.examples] == [
        ("Ein Mann. Er geht.", ("a man", "one man")),
        ("b", "c"),
    ]
    (one, _) = read(write("b.jsonl", rows), needs_label=False).examples
    assert (one.text, one.label) == ("Ein Mann. Er geht.", None)


def test_triples_are_a_source(write):
    rows = '{"triples": [["Aarhus", "leader", "Jacob B."], ["Aarhus", "in", "DK"]], "texts": ["He leads.", "Led."]}\n'
    (one,) = read(write("a.jsonl", rows)).examples
    assert (one.text, one.label) == ("Aarhus | leader | Jacob B.; Aarhus | in | DK", ("He leads.", "Led."))
    with pytest.raises(DataError, match="line 1: text is not a string: a part of 'triples' is list"):
        read(write("b.jsonl", '{"triples": [["a", ["b"]]], "texts": "c"}\n'))


@pytest.mark.realdata
def test_published_files_have_several_targets(data_folder):
    family = data_folder / "family" / "generation"
    (first, *_) = read(family / "scitldr_a" / "dev.jsonl").examples
    assert first.text.startswith("Mixed precision training (MPT) is becoming a practical technique")
    assert "half-precision floating point that is available in existing GPUs. MPT is typically" in first.text
    webnlg = family / "webnlg_v1.4_en" / "test.jsonl"
    data = read(webnlg)
    assert data.examples[0].text == "Abilene_Regional_Airport | cityServed | Abilene,_Texas"
    assert data.examples[0].label[1] == "Abilene Regional Airport serves the city of Abilene in Texas."
    assert sum(isinstance(one.label, tuple) for one in data.examples) > len(data.examples) / 2


@pytest.mark.realdata
def test_files_of_e2e_have_a_row_per_reference(data_folder):
    folder = data_folder / "family" / "e2e"
    data = read(folder / "testset_w_refs.csv")
    assert (data.report.num_rows, len(data.examples), len({one.text for one in data.examples})) == (4_693, 630, 630)
    assert data.examples[0].label[0] == "A coffee shop in the city centre area called Blue Spice."
    assert len(read(folder / "testset.csv", needs_label=False).examples) == 630


def test_consecutive_rows_with_the_same_source_are_references_of_one(write):
    rows = ["mr,ref", "a,x", "a,y", "b,x", "a,z", "b,u", "b,u", "b,v"]
    data = read(write("a.csv", "\n".join(rows) + "\n"))
    expected = [("a", ("x", "y"), 2), ("b", "x", 4), ("a", "z", 5), ("b", ("u", "u", "v"), 6)]
    assert [(one.text, one.label, one.line) for one in data.examples] == expected
    report = data.report
    assert (report.num_rows, report.num_kept, report.num_joined, report.dropped) == (7, 4, 3, {})
    assert report.notes == [
        "3 rows with the source of the row before: their targets are further references of one example"
    ]
    assert report.as_dict()["num_joined"] == 3
    unlabelled = read(write("b.csv", "\n".join(rows) + "\n"), needs_label=False)
    assert [one.text for one in unlabelled.examples] == ["a", "a", "b", "a", "b", "b", "b"]
    lists = read(write("c.jsonl", '{"source": "a", "target": ["x", "y"]}\n{"source": "a", "target": "z"}\n'))
    assert [one.label for one in lists.examples] == [("x", "y", "z")]


def test_columns_may_be_named(write):
    path = write("a.csv", "de,en\nein Mann,a man\n")
    (one,) = read(path, text_column="de", label_column="en").examples
    assert (one.text, one.label) == ("ein Mann", "a man")
    (one,) = read(path, text_column="en", needs_label=False).examples
    assert (one.text, one.label) == ("a man", None)
    with pytest.raises(DataError, match=r"a\.csv: line 1: no text column"):
        read(path)
    (one,) = read(write("prompts.jsonl", '{"prompt": "a man"}\n'), needs_label=False).examples
    assert one.text == "a man"


def test_two_files_are_read_line_by_line(write):
    path = write("a.de", "ein Mann\nzwei\n")
    write("a.en", "a man \ntwo\n")
    data = read(path, suffix="en")
    assert [(one.text, one.label, one.line) for one in data.examples] == [("ein Mann", "a man", 1), ("zwei", "two", 2)]
    assert [one.label for one in read(path, needs_label=False).examples] == [None, None]


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ("a\nb\nc\n", "x\n", r"a\.de: line 2 has no counterpart: 3 lines, but 1 in .*a\.en"),
        ("a\n", "x\ny\n", r"a\.en: line 2 has no counterpart: 2 lines, but 1 in .*a\.de"),
        ("a\n\n", "x\ny\n", r"a\.de: line 2: empty source"),
        ("a\nb\n", "x\n  \n", r"a\.de: line 2: empty target"),
    ],
)
def test_lines_that_do_not_fit_are_named(write, sources, targets, message):
    path = write("a.de", sources)
    write("a.en", targets)
    with pytest.raises(DataError, match=message):
        read(path, suffix="en")


def test_compressed_files_stand_beside_each_other(tmp_path, write):
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"ein Mann\n"))
    write("a.en", "a man\n")
    (one,) = read(tmp_path / "a.de.gz", suffix="en").examples
    assert (one.text, one.label) == ("ein Mann", "a man")
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(b"one man\n"))
    (one,) = read(tmp_path / "a.de.gz", suffix="en").examples
    assert one.label == "one man"


def test_a_first_row_that_is_broken_hides_no_columns(write):
    path = write("a.jsonl", '{"source\n{"source": "ein Mann", "target": "a man"}\n')
    (one,) = read(path, on_bad_rows="skip").examples
    assert one.label == "a man"


def test_rows_that_break_a_rule_are_counted_where_they_are_skipped(write):
    path = write("a.de", "a\n\nc\n")
    write("a.en", "x\ny\nz\n")
    data = read(path, suffix="en", on_bad_rows="skip")
    assert [one.line for one in data.examples] == [1, 3]
    assert data.report.dropped == {"empty source": 1}


def test_what_is_missing_is_said(write):
    path = write("a.de", "a\n")
    with pytest.raises(DataError, match=r"a\.de: a file of lines has only sources.*seq2seq\.target_suffix=en"):
        read(path)
    with pytest.raises(DataError, match=r"line 1: no target column \(target, tgt, summary.*among 'source', 'x'"):
        read(write("b.csv", "source,x\na,b\n"))
    with pytest.raises(DataError, match=r"line 1: no text column \(source, src, text.*among 'de', 'target'"):
        read(write("c.csv", "de,target\na,b\n"))
    with pytest.raises(DataError, match=r"a\.en: no such file; .* targets of .*a\.de \(seq2seq\.target_suffix"):
        read(path, suffix="en")
    with pytest.raises(ConfigError, match="would be its own target file"):
        read(path, suffix="de")
    with pytest.raises(ConfigError, match="--format rte: no format has targets"):
        read(path, format="rte")


def test_messages_speak_of_targets(write):
    for value in ("", '" "'):
        with pytest.raises(DataError, match=r"a\.csv: line 3: missing target"):
            read(write("a.csv", f"source,target\na,b\nc,{value}\n"))
    for value, message in (
        ('{"x": 1}', r"target is not a text: \{'x': 1\}"),
        ('["b", ["c"]]', r"target is not a text: \['c'\]"),
        ("[]", "missing target: an empty list$"),
        ('["b", " "]', "missing target: reference 2 is empty"),
        ('["b", "c", null]', "missing target: reference 3 is empty"),
        ('[""]', "missing target$"),
    ):
        with pytest.raises(DataError, match=rf"a\.jsonl: line 1: {message}"):
            read(write("a.jsonl", f'{{"source": "a", "target": {value}}}\n'))
    for value, message in (('["a", ["b"]]', "text is not a string: a part of 'source'"), ('[" "]', "empty text")):
        with pytest.raises(DataError, match=rf"a\.jsonl: line 1: {message}"):
            read(write("a.jsonl", f'{{"source": {value}, "target": "b"}}\n'))
    with pytest.raises(ConfigError, match="pair column 'x': the task takes one text"):
        read(write("a.csv", "source,target,x\na,b,c\n"), pair_column="x")
    lines = write("a.txt", "a\nb\n")
    with pytest.raises(ConfigError, match=r"text column 'x': .* has one text per line and no columns"):
        read(lines, needs_label=False, text_column="x")


def test_the_suffix_of_targets_may_be_told_beside_what_fine_tuning_knew(write):
    path = write("a.de", "ein Mann\n")
    write("a.en", "a man\n")
    write("a.fr", "un homme\n")
    for suffix in (None, "en"):
        assert [one.label for one in read(path, suffix=suffix, target_suffix="fr").examples] == ["un homme"]
    for wrong in ("", ".fr", "../fr", "f r"):
        for stored in (None, "en"):
            with pytest.raises(ConfigError, match=f"target suffix '{re.escape(wrong)}': only letters"):
                read(path, suffix=stored, target_suffix=wrong)
    with pytest.raises(ConfigError, match=r"--target-suffix fr: .*a\.csv has its targets in a column"):
        read(write("a.csv", "source,target\na,b\n"), target_suffix="fr")


def test_suffixes_of_tables_are_read_as_tables_in_any_case(write):
    assert [one.label for one in read(write("a.en.CSV", "source,target\na,b\n")).examples] == ["b"]
    (one,) = read(write("a.csv.de", "source,target\n"), needs_label=False).examples
    assert one.text == "source,target"
