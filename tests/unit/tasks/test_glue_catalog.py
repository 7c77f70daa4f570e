"""Crafted files in GLUE's own format, with the pitfalls of the real ones."""

import gzip

import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.catalog import CATALOG, catalog_row
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.labels import encode_labels
from maskloom.tasks.tables import ReadingOptions

MNLI_HEADER = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    "sentence2_parse\tsentence1\tsentence2\tlabel1\t{more}gold_label"
)
FILES = {
    "cola": 'gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tSailors the "rode.\n',
    "sst-2": 'sentence\tlabel\na "fine film \t1\nbad " film\t0\n',
    "mrpc": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t1\t2\t"He said\tHe said "\r\n0\t3\t4\tA\tB\r\n',
    "sts-b": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    "0\tg\tf\ty\t1\tnone\tnone\tA plane.\tAn air plane.\t5.000\n1\tg\tf\ty\t1\tnone\tnone\tA\tB\t0.250\n",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tWho?\tWhat?\t0\n3\t4\n1\t1\t2\tA?\tA ?\t1\n",
    "mnli": MNLI_HEADER.format(more="label2\tlabel3\tlabel4\tlabel5\t")
    + "\n0\tp\tq\tg\t(\t(\t(\t(\tOne\tTwo\tcontradiction\tneutral\tneutral\tneutral\tneutral\tneutral\n"
    + "1\tp\tq\tg\t(\t(\t(\t(\tA\tB\tneutral\tentailment\tentailment\tentailment\tneutral\tentailment\n"
    + "2\tp\tq\tg\t(\t(\t(\t(\tC\tD\tneutral\tentailment\tcontradiction\tentailment\tneutral\t-\n",
    "qnli": "index\tquestion\tsentence\tlabel\n0\tWhen?\tThen.\tentailment\n1\tWho?\tNo.\tnot_entailment\n",
    "rte": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n1\tC\tD\tentailment\n",
    "wnli": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n1\tC\tD\t0\n",
}
EXPECTED = {
    "cola": [("The sailors rode.", None, 1), ('Sailors the "rode.', None, 0)],
    "sst-2": [('a "fine film ', None, 1), ('bad " film', None, 0)],
    "mrpc": [('"He said', 'He said "', 1), ("A", "B", 0)],
    "sts-b": [("A plane.", "An air plane.", 5.0), ("A", "B", 0.25)],
    "qqp": [("Who?", "What?", 0), ("A?", "A ?", 1)],
    "mnli": [("One", "Two", 2), ("A", "B", 1)],
    "qnli": [("When?", "Then.", 0), ("Who?", "No.", 1)],
    "rte": [("A", "B", 1), ("C", "D", 0)],
    "wnli": [("A", "B", 1), ("C", "D", 0)],
}


def read(tmp_path, name, content, **options):
    path = tmp_path / "train.tsv"
    path.write_bytes(content.encode())
    row = catalog_row(name)
    needs_label = options.pop("needs_label", True)
    return row, KINDS[row.kind].read(path, ReadingOptions(format=name, **options), needs_label=needs_label)


@pytest.mark.parametrize("name", FILES)
def test_every_task_reads_as_distributed(tmp_path, name):
    row, data = read(tmp_path, name, FILES[name])
    labels = encode_labels(data, row.kind, row.labels)
    found = [(e.text, e.pair, label) for e, label in zip(data.examples, labels.tolist(), strict=True)]
    assert found == EXPECTED[name]


def test_a_compressed_text_file_of_a_format_is_a_table_too(tmp_path):
    """Regression: msr_paraphrase_train.txt was read, but not with .gz."""
    path = tmp_path / "msr_paraphrase_train.txt.gz"
    path.write_bytes(gzip.compress(FILES["mrpc"].encode()))
    data = KINDS["pair"].read(path, ReadingOptions(format="mrpc"))
    assert [example.label for example in data.examples] == ["1", "0"]


def test_columns_given_for_a_file_without_a_header_are_read(tmp_path):
    """Regression: they were ignored, while formats with a header used them."""
    _, data = read(tmp_path, "cola", FILES["cola"], text_column="1")
    assert [(example.text, example.label) for example in data.examples] == [("gj04", "1"), ("gj04", "0")]
    with pytest.raises(DataError, match=r"line 1: there is no column 'sentence'; the columns are '1', '2', '3', '4'"):
        read(tmp_path, "cola", FILES["cola"], text_column="sentence")


def test_short_rows_of_qqp_are_counted(tmp_path):
    _, data = read(tmp_path, "qqp", FILES["qqp"])
    assert data.report.dropped == {"wrong number of fields": 1}
    assert data.report.num_rows == 3


def test_rows_of_mnli_without_gold_label_are_counted(tmp_path):
    _, data = read(tmp_path, "mnli", FILES["mnli"])
    assert data.report.dropped == {"no gold label": 1}


def test_short_train_form_of_mnli(tmp_path):
    content = MNLI_HEADER.format(more="") + "\n0\tp\tq\tg\t(\t(\t(\t(\tOne\tTwo\tneutral\tentailment\n"
    _, data = read(tmp_path, "glue:mnli", content)
    assert data.examples[0].label == "entailment"


def test_test_files_have_no_labels(tmp_path):
    _, data = read(tmp_path, "cola", "index\tsentence\n0\tBill whistled.\n", needs_label=False)
    assert (data.examples[0].text, data.examples[0].label) == ("Bill whistled.", None)
    _, data = read(tmp_path, "rte", "index\tsentence1\tsentence2\n0\tA\tB\n", needs_label=False)
    assert (data.examples[0].pair, data.examples[0].label) == ("B", None)
    with pytest.raises(DataError, match="no label column"):
        read(tmp_path, "rte", "index\tsentence1\tsentence2\n0\tA\tB\n")


def test_scores_outside_the_scale_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"line 2: label out of range: 6.0, expected 0.0 to 5.0"):
        read(tmp_path, "sts-b", FILES["sts-b"].replace("5.000", "6.000"))


def test_wrong_column_count_in_cola(tmp_path):
    with pytest.raises(DataError, match="line 2: wrong number of fields: 3, expected 4"):
        read(tmp_path, "cola", "gj04\t1\t\tA b.\ngj04\t1\tA b.\n")


def test_names_of_the_catalog():
    assert catalog_row("glue:rte") is catalog_row("RTE") is CATALOG["glue:rte"]
    with pytest.raises(ConfigError, match="'squad' is not in the catalog"):
        catalog_row("squad")
    assert catalog_row("mnli").labels == ("contradiction", "entailment", "neutral")
    assert catalog_row("cola").primary == "matthews"


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "file", "num_rows"),
    [
        ("cola", "CoLA/train.tsv", 8551),
        ("cola", "CoLA/dev.tsv", 1043),
        ("cola", "CoLA/test.tsv", 1063),
        ("sst-2", "SST-2/dev.tsv", 872),
        ("mrpc", "MRPC/train.tsv", 3668),
        ("mrpc", "MRPC/dev.tsv", 408),
        ("mrpc", "MRPC/msr_paraphrase_train.txt", 4076),
        ("sts-b", "STS-B/dev.tsv", 1500),
        ("sts-b", "STS-B/train.tsv", 5749),
        ("qqp", "QQP/train_subset8999.tsv", 8999),
        ("mnli", "MNLI/dev_matched.tsv", 9815),
        ("mnli", "MNLI/train_subset8999.tsv", 8999),
        ("qnli", "QNLI/dev.tsv", 5463),
        ("rte", "RTE/train.tsv", 2490),
        ("rte", "RTE/test.tsv", 3000),
        ("wnli", "WNLI/dev.tsv", 71),
    ],
)
def test_real_files_are_read_whole(data_folder, name, file, num_rows):
    row = catalog_row(name)
    options = ReadingOptions(format=name)
    data = KINDS[row.kind].read(data_folder / "glue" / file, options, needs_label="test" not in file)
    assert (data.report.num_kept, data.report.dropped) == (num_rows, {})
    labels = encode_labels(data, row.kind, row.labels)
    assert (labels is None) == ("test" in file)
