"""GLUE's files compared with Google's own processors (CoLA, MRPC, MNLI), and for all tasks with fixed columns."""

import json
import subprocess
import sys

import numpy as np
import pytest

from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.labels import encode_labels
from maskloom.tasks.tables import ReadingOptions

pytestmark = pytest.mark.parity

# The processors import TensorFlow only for flags and files; a stand-in lets them run without it.
_ORACLE = """
import json, sys
from unittest.mock import MagicMock
tf = MagicMock()
tf.gfile.Open = lambda name, mode: open(name, mode, encoding="utf-8", newline="\\n")
for name in ("tensorflow", "tensorflow.compat", "tensorflow.compat.v1", "absl", "absl.flags", "six",
             "tensorflow.contrib", "tensorflow.python", "tensorflow.python.framework", "tensorflow.python.ops"):
    sys.modules[name] = MagicMock()
sys.modules["tensorflow"] = sys.modules["tensorflow.compat.v1"] = tf
tf.compat.v1 = tf
sys.modules["six"].PY2, sys.modules["six"].PY3 = False, True
from bert import run_classifier
task, folder, split = sys.argv[1:]
processor = {"cola": run_classifier.ColaProcessor, "mrpc": run_classifier.MrpcProcessor,
             "mnli": run_classifier.MnliProcessor}[task]()
examples = {"train": processor.get_train_examples, "dev": processor.get_dev_examples,
            "test": processor.get_test_examples}[split](folder)
ids = {label: number for number, label in enumerate(processor.get_labels())}
is_test = split == "test"
print(json.dumps([[e.text_a, e.text_b, None if is_test else ids[e.label]] for e in examples]))
"""
# Columns, from 0, of text, second text and label: of train and dev, then of test. -1 is the last column.
POSITIONS = {
    "cola": ((3, None, 1), (1, None)),
    "sst-2": ((0, None, 1), (1, None)),
    "mrpc": ((3, 4, 0), (3, 4)),
    "sts-b": ((7, 8, -1), (7, 8)),
    "qqp": ((3, 4, 5), (1, 2)),
    "mnli": ((8, 9, -1), (8, 9)),
    "qnli": ((1, 2, 3), (1, 2)),
    "rte": ((1, 2, 3), (1, 2)),
    "wnli": ((1, 2, 3), (1, 2)),
}
IDS = {
    "mnli": {"contradiction": 0, "entailment": 1, "neutral": 2},
    "qnli": {"entailment": 0, "not_entailment": 1},
    "rte": {"entailment": 0, "not_entailment": 1},
}
MNLI_COLUMNS = ["index", "promptID", "pairID", "genre", "b1", "b2", "p1", "p2", "sentence1", "sentence2"]


def ours(name, path, *, is_test=False):
    row = catalog_row(name)
    data = KINDS[row.kind].read(path, ReadingOptions(format=name), needs_label=not is_test)
    labels = [None] * len(data.examples) if is_test else encode_labels(data, row.kind, row.labels).tolist()
    return [[example.text, example.pair, label] for example, label in zip(data.examples, labels, strict=True)]


def by_position(name, path, *, is_test=False):
    """Return columns by position in lines split at tabs; no quoting, and CoLA's train and dev have no header."""
    lines = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n").split("\n")
    text, pair, *label = POSITIONS[name][is_test]
    found = []
    for line in lines[is_test or name != "cola" :]:
        fields = line.split("\t")
        value = None
        if not is_test:
            value = (
                float(np.float32(fields[label[0]]))
                if name == "sts-b"
                else IDS.get(name, {"0": 0, "1": 1})[fields[label[0]]]
            )
        found.append([fields[text], None if pair is None else fields[pair], value])
    return found


def google(name, folder, split):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ORACLE, name, str(folder), split],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def trapped(tmp_path):
    """Write files with stray quotes, disagreeing annotators' labels, and labels in no particular order."""
    (tmp_path / "cola.tsv").write_text('g\t1\t\tHe said "so.\ng\t0\t*\t"Odd\ng\t1\t\tFine " and "\n')
    names = "\t".join([*MNLI_COLUMNS, *(f"label{number}" for number in range(1, 6)), "gold_label"])
    others = ["neutral", "entailment", "contradiction", "neutral", "neutral"]
    rows = [
        "\t".join([str(index), *"pqg((((", f'"premise {index}', f"end {index}", *others, label])
        for index, label in enumerate(["neutral", "contradiction", "entailment", "contradiction"])
    ]
    (tmp_path / "mnli.tsv").write_text("\n".join([names, *rows]) + "\n")
    pairs = '1\t1\t2\t"A" b\tC "d\n0\t3\t4\tE\t"F\n'
    (tmp_path / "mrpc.tsv").write_text("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + pairs)
    return tmp_path


@pytest.mark.parametrize(("name", "file"), [("cola", "dev.tsv"), ("mnli", "dev_matched.tsv"), ("mrpc", "dev.tsv")])
def test_crafted_files_read_as_google_reads_them(trapped, name, file):
    (trapped / f"{name}.tsv").rename(trapped / file)
    expected = google(name, trapped, "dev")
    assert ours(name, trapped / file) == expected == by_position(name, trapped / file)


def test_rows_of_a_test_file_read_as_google_reads_them(tmp_path):
    (tmp_path / "test.tsv").write_text('index\tsentence\n0\t"Bill\n1\twhistled"\n')
    expected = google("cola", tmp_path, "test")
    assert ours("cola", tmp_path / "test.tsv", is_test=True) == expected
    assert expected == by_position("cola", tmp_path / "test.tsv", is_test=True)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "folder", "split"), [("cola", "CoLA", "dev"), ("cola", "CoLA", "test"), ("mrpc", "MRPC", "dev"),
                                  ("mrpc", "MRPC", "train"), ("mnli", "MNLI", "dev")],
)  # fmt: skip
def test_real_files_read_as_google_reads_them(data_folder, name, folder, split):
    file = "dev_matched" if name == "mnli" else split
    path = data_folder / "glue" / folder / f"{file}.tsv"
    assert ours(name, path, is_test=split == "test") == google(name, path.parent, split)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cola", "CoLA/train.tsv"), ("cola", "CoLA/test.tsv"), ("sst-2", "SST-2/train.tsv"), ("sst-2", "SST-2/dev.tsv"),
        ("mrpc", "MRPC/train.tsv"), ("sts-b", "STS-B/train.tsv"), ("sts-b", "STS-B/dev.tsv"),
        ("qqp", "QQP/train_subset8999.tsv"), ("mnli", "MNLI/train_subset8999.tsv"), ("mnli", "MNLI/dev_matched.tsv"),
        ("qnli", "QNLI/train_subset8999.tsv"), ("qnli", "QNLI/dev.tsv"), ("qnli", "QNLI/test.tsv"),
        ("rte", "RTE/train.tsv"), ("rte", "RTE/dev.tsv"), ("rte", "RTE/test.tsv"),
        ("wnli", "WNLI/train.tsv"), ("wnli", "WNLI/dev.tsv"), ("wnli", "WNLI/test.tsv"),
    ],
)  # fmt: skip
def test_real_files_hold_what_stands_at_the_published_positions(data_folder, name, file):
    path, is_test = data_folder / "glue" / file, "test" in file
    assert ours(name, path, is_test=is_test) == by_position(name, path, is_test=is_test)


@pytest.mark.realdata
def test_counts_of_labels_in_the_real_matched_set(data_folder):
    labels = [label for *_, label in ours("mnli", data_folder / "glue" / "MNLI" / "dev_matched.tsv")]
    assert [labels.count(number) for number in range(3)] == [3213, 3479, 3123]  # contradiction, entailment, neutral
