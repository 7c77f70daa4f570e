"""Zip files with one fault each; the valid one has the lengths of the real test files."""

import zipfile

import pytest

from maskloom.runs.glue.files import SUBMISSION, problems_of

LINES = {
    "AX": 1105, "CoLA": 1064, "MNLI-m": 9797, "MNLI-mm": 9848, "MRPC": 1726, "QNLI": 5464, "QQP": 390_966,
    "RTE": 3001, "SST-2": 1822, "STS-B": 1380, "WNLI": 147,
}  # fmt: skip
WORDS = {"AX": "entailment", "MNLI-m": "neutral", "MNLI-mm": "contradiction", "QNLI": "not_entailment"}
WORDS |= {"RTE": "entailment", "STS-B": "4.25"}


@pytest.fixture(scope="module")
def contents():
    return {
        f"{name}.tsv": "index\tprediction\n"
        + "".join(f"{index}\t{WORDS.get(name, '1')}\n" for index in range(lines - 1))
        for name, lines in LINES.items()
    }


def write(path, contents, **changes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, text in {**contents, **changes}.items():
            if text is not None:
                archive.writestr(name, text)
    return path


def check_submission(path):
    with zipfile.ZipFile(path) as archive:
        return problems_of(archive)


def faults(tmp_path, contents, **changes):
    """Return the problems of a zip file with only the small files, one of them changed."""
    small = {name: text for name, text in contents.items() if name in ("WNLI.tsv", "STS-B.tsv", "RTE.tsv")}
    found = check_submission(write(tmp_path / "s.zip", small, **changes))
    return [problem for problem in found if not problem.startswith("missing: ")]


def test_a_whole_submission_is_sound(tmp_path, contents):
    assert check_submission(write(tmp_path / "s.zip", contents)) == []
    assert {file.column: file.num_rows + 1 for file in SUBMISSION} == LINES


def test_absent_files_are_named(tmp_path, contents):
    assert faults(tmp_path, contents) == []
    (problem,) = check_submission(tmp_path / "s.zip")
    names = "AX.tsv, CoLA.tsv, MNLI-m.tsv, MNLI-mm.tsv, MRPC.tsv, QNLI.tsv, QQP.tsv, SST-2.tsv"
    assert problem == f"missing: {names}"


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("WNLI.tsv", lambda text: text.replace("index\tprediction", "id\tlabel"), "line 1: the header is 'id\\tlabel'"),
        ("WNLI.tsv", lambda text: text.removeprefix("index\tprediction\n"), "line 1: the header is '0\\t1'"),
        ("WNLI.tsv", lambda text: text.replace("\n5\t1", "\n6\t1"), "line 7: '6\\t1', expected index 5"),
        ("WNLI.tsv", lambda text: text.replace("\n0\t", "\n1\t"), "line 2: '1\\t1', expected index 0"),
        ("WNLI.tsv", lambda text: text + "146\t1\n", "has 148 lines including its header, expected 147"),
        ("WNLI.tsv", lambda text: text[: text.rindex("145")], "has 146 lines including its header, expected 147"),
        ("WNLI.tsv", lambda text: text.replace("3\t1\n", "3\tentailment\n", 1), "'3\\tentailment', expected index 3"),
        ("WNLI.tsv", lambda text: text.replace("3\t1\n", "3 1\n", 1), "line 5: '3 1', expected index 3"),
        ("WNLI.tsv", lambda text: text + "\n", "line 148: '', expected index 146"),
        ("WNLI.tsv", lambda text: "", "line 1: the header is ''"),
        ("RTE.tsv", lambda text: text.replace("9\tentailment", "9\t1", 1), "line 11: '9\\t1', expected index 9"),
        ("RTE.tsv", lambda text: text.replace("entailment", "Entailment", 1), "'0\\tEntailment', expected index 0"),
        ("STS-B.tsv", lambda text: text.replace("7\t4.25", "7\t5.01", 1), "line 9: '7\\t5.01', expected index 7"),
        ("STS-B.tsv", lambda text: text.replace("7\t4.25", "7\t-0.1", 1), "'7\\t-0.1', expected"),
        ("STS-B.tsv", lambda text: text.replace("7\t4.25", "7\tnan", 1), "'7\\tnan', expected"),
        ("STS-B.tsv", lambda text: text.replace("7\t4.25", "7\tinf", 1), "'7\\tinf', expected"),
    ],
)
def test_every_fault_is_named_with_its_line(tmp_path, contents, name, change, problem):
    found = faults(tmp_path, contents, **{name: change(contents[name])})
    assert any(line.startswith(f"{name}: ") and problem in line for line in found), found


def test_only_the_first_fault_of_a_file_is_told(tmp_path, contents):
    found = faults(tmp_path, contents, **{"WNLI.tsv": contents["WNLI.tsv"].replace("\t1", "\tx")})
    assert found == ["WNLI.tsv: line 2: '0\\tx', expected index 0 and a prediction: 0, 1"]


def test_names_of_files(tmp_path, contents):
    found = faults(tmp_path, contents, **{"glue/CoLA.tsv": "x", "notes.txt": "x"})
    assert found == ["glue/CoLA.tsv: not a submission file", "notes.txt: not a submission file"]


def test_a_name_that_stands_twice(tmp_path, contents):
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.writestr("WNLI.tsv", contents["WNLI.tsv"])
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("WNLI.tsv", contents["WNLI.tsv"])
    assert check_submission(tmp_path / "s.zip")[0] == "WNLI.tsv: occurs 2 times in the zip"
