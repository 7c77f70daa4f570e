"""Where GLUE's files are looked for, and how its test files are counted."""

import json

import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.runs.glue.files import SUBMISSION, TASKS, check_genres, chosen_tasks, count_test_rows, diagnostic_file
from maskloom.runs.glue.run import MAJORITY, answer_by_majority
from maskloom.tasks.catalog import catalog_row


def put(path, text="x\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_tasks_that_are_there_and_those_that_are_not(tmp_path):
    for name in ("RTE/train.tsv", "RTE/dev.tsv", "MNLI/train.tsv", "MNLI/dev_matched.tsv", "CoLA/train.tsv"):
        put(tmp_path / name)
    found, absent = chosen_tasks(tmp_path, None)
    assert [task.name for task in found] == ["mnli", "rte"]
    assert absent["cola"] == str(tmp_path / "CoLA" / "dev.tsv")
    assert absent["sts-b"] == f"{tmp_path / 'STS-B' / 'train.tsv'}, {tmp_path / 'STS-B' / 'dev.tsv'}"
    assert len(found) + len(absent) == 9
    found, absent = chosen_tasks(tmp_path, ["RTE", "glue:mnli", "rte"])
    assert ([task.name for task in found], absent) == (["rte", "mnli"], {})


def test_what_is_asked_for_must_be_there(tmp_path):
    put(tmp_path / "RTE" / "train.tsv")
    with pytest.raises(DataError, match=r"files of the requested tasks are missing: rte: .*RTE/dev\.tsv"):
        chosen_tasks(tmp_path, ["rte"])
    with pytest.raises(DataError, match=r"no GLUE task found; looked for .*CoLA/train\.tsv"):
        chosen_tasks(tmp_path, None)
    with pytest.raises(ConfigError, match="'squad' is not a task of GLUE; known: cola, sst-2"):
        chosen_tasks(tmp_path, ["squad"])
    with pytest.raises(DataError, match="no such folder"):
        chosen_tasks(tmp_path / "no", None)


def test_the_diagnostic_set_is_found_where_it_is_distributed(tmp_path):
    assert diagnostic_file(tmp_path) is None
    for name in ("AX/AX.tsv", "diagnostic.tsv", "diagnostic/diagnostic.tsv", "MNLI/diagnostic.tsv"):
        assert diagnostic_file(tmp_path / name.replace("/", "-")) is None
        path = put(tmp_path / name.replace("/", "-") / name)
        assert diagnostic_file(tmp_path / name.replace("/", "-")) == path
    assert diagnostic_file(tmp_path / "MNLI-diagnostic.tsv", labelled=True) is None
    path = put(tmp_path / "MNLI" / "diagnostic-full.tsv")
    assert diagnostic_file(tmp_path, labelled=True) == path
    assert diagnostic_file(tmp_path) is None


def test_a_mix_up_of_matched_and_mismatched_is_seen(tmp_path):
    rows = "index\tpromptID\tpairID\tgenre\tsentence1\n0\t1\t2\tfiction\tA\n1\t1\t2\tslate\tB\n"
    matched = put(tmp_path / "dev_matched.tsv", rows)
    check_genres(matched, matched=True)
    with pytest.raises(DataError, match="line 2: the genre 'fiction' belongs to the matched set, this file to the mis"):
        check_genres(matched, matched=False)
    mismatched = put(tmp_path / "m.tsv", rows.replace("fiction", "n/a").replace("slate", "letters"))
    check_genres(mismatched, matched=False)
    with pytest.raises(DataError, match="line 3: the genre 'letters' belongs to the mismatched set"):
        check_genres(mismatched, matched=True)
    check_genres(put(tmp_path / "plain.tsv", "sentence1\tsentence2\na\tb\n"), matched=True)


def test_rows_to_answer_are_counted_from_zero(tmp_path):
    path = tmp_path / "test.tsv"
    assert count_test_rows(put(path, 'index\tsentence\n0\t"a\n1\tb"\n2\tc\n')) == 3
    assert count_test_rows(put(path, "id\tquestion1\tquestion2\n0\ta\tb\n1\tshort\n\n")) == 2
    for text, message in [
        ("sentence\nhello\n", "line 1: the first column is 'sentence'"),
        ("index\tsentence\n1\ta\n", "line 2: index '1', expected 0"),
        ("index\tsentence\n0\ta\n2\tb\n", "line 3: index '2', expected 1"),
        ("index\tsentence\n0\ta\n\n1\tb\n", "line 3: a blank line within the file"),
        ("index\tsentence\n", "no rows"),
    ]:
        with pytest.raises(DataError, match=message):
            count_test_rows(put(path, text))


def test_every_task_is_part_of_a_submission_and_the_diagnostic_set_has_the_labels_of_mnli():
    assert [task.name for task in TASKS if not any(file.task == task.name for file in SUBMISSION)] == []
    for name in ("ax", "ax-full"):
        assert (catalog_row(name).labels, catalog_row(name).primary) == (catalog_row("mnli").labels, "matthews")


def test_wnli_is_answered_by_the_commonest_label_of_train(tmp_path):
    header = "index\tsentence1\tsentence2\tlabel\n"
    train = put(tmp_path / "train.tsv", header + "0\ta\tb\t1\n1\ta\tb\t0\n2\ta\tb\t1\n")
    dev = put(tmp_path / "dev.tsv", header + "0\ta\tb\t0\n1\ta\tb\t1\n2\ta\tb\t0\n3\ta\tb\t0\n")
    outcome = answer_by_majority(train, dev, tmp_path / "WNLI")
    assert (outcome["label"], outcome["columns"]) == ("1", {"WNLI": {"accuracy": 0.25}})
    assert json.loads((tmp_path / "WNLI" / MAJORITY).read_text())["label"] == "1"
    put(train, header + "0\ta\tb\tentailment\n")
    with pytest.raises(DataError, match="line 2: the label 'entailment' is not one of the task's labels"):
        answer_by_majority(train, dev, tmp_path / "WNLI")


@pytest.mark.realdata
def test_real_test_files_have_the_published_lengths(data_folder):
    rows = {file.column: file.num_rows for file in SUBMISSION}
    for folder in ("CoLA", "QNLI", "RTE", "WNLI"):
        assert count_test_rows(data_folder / "glue" / folder / "test.tsv") == rows[folder]
    check_genres(data_folder / "glue" / "MNLI" / "dev_matched.tsv", matched=True)


@pytest.mark.realdata
def test_the_majority_of_real_wnli(data_folder, tmp_path):
    folder = data_folder / "glue" / "WNLI"
    outcome = answer_by_majority(folder / "train.tsv", folder / "dev.tsv", tmp_path)
    assert outcome["label"] == "0"
    assert outcome["columns"]["WNLI"]["accuracy"] == pytest.approx(40 / 71)
