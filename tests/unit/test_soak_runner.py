import json
from pathlib import Path

import pytest

from tools.soak.rows import Row, Trial, all_rows, sort_key
from tools.soak.runner import page_of, run_rows, write_results

ROOT = Path(__file__).parents[2]


def _row(row_id, trials, full=2):
    return Row(row_id, f"test of {row_id}", "all", full, lambda budget: trials(budget))


def _run(rows, work, minutes=None):
    return run_rows(rows, work=work, seed=3, minutes=minutes, say=lambda _: None)


def test_a_row_counts_its_trials_and_says_what_failed(tmp_path):
    def trials(budget):
        yield Trial("one", budget.work.is_dir() and budget.seed == 3)
        yield Trial("two", False, "weights differ")

    (record,) = _run([_row("R1", trials)], tmp_path)
    assert (record["tried"], record["passed"], record["verdict"]) == (2, 1, "failed")
    assert record["failures"] == ["two: weights differ"]


def test_a_row_that_raises_fails_alone(tmp_path):
    def broken(budget):
        yield Trial("one", True)
        raise OSError("the disk is gone")

    records = _run([_row("R1", broken), _row("R2", lambda budget: iter([Trial("one", True)] * 2))], tmp_path)
    assert [record["verdict"] for record in records] == ["failed", "passed"]
    assert records[0]["failures"] == ["OSError: the disk is gone"]


def test_a_row_stops_when_its_time_is_over_and_cleans_up(tmp_path):
    ended = []

    def endless(budget):
        try:
            while True:
                yield Trial("again", True)
        finally:
            ended.append(True)

    (record,) = _run([_row("R1", endless, full=10**9)], tmp_path, minutes=1 / 3000)
    assert (record["verdict"], ended) == ("passed so far", [True])


def test_finished_rows_are_not_run_again_and_other_rows_of_the_table_stay(tmp_path):
    calls = []

    def trials(budget):
        calls.append(budget)
        yield from [Trial("one", True)] * 2

    rows = [_row("R1", trials), _row("R10", trials), _row("R2", trials)]
    _run(rows[:2], tmp_path / "work")
    records = _run(rows, tmp_path / "work")
    assert len(calls) == 3
    write_results(records[:2], tmp_path)
    write_results(records[2:], tmp_path)
    assert [record["id"] for record in json.loads((tmp_path / "soak.json").read_text())] == ["R1", "R2", "R10"]
    assert "| R2 | test of R2 | all | 2 of 2 | 2 | 0 | **passed** |" in (tmp_path / "soak.md").read_text()


def test_the_page_names_failures_and_keeps_its_table_whole():
    record = {
        "id": "H1", "test": "a|b", "mark": "all", "full": 3, "tried": 1, "passed": 0, "seconds": 2.0,
        "verdict": "failed", "failures": ["x: y"], "figures": [], "date": "2020-01-01", "seed": 0,
        "versions": {"python": "3"},
        "hardware": "h", "asked": {"code": "c"},
    }  # fmt: skip
    page = page_of([record])
    assert r"a\|b" in page
    assert "- H1, x: y" in page


def test_every_row_of_the_soak_is_whole_and_in_the_sheets_order():
    ids = [row.id for row in all_rows()]
    assert ids == sorted(ids, key=sort_key)
    assert sort_key("R2") < sort_key("R10") < sort_key("H1") < sort_key("mutants")
    assert all(row.full >= 1 and row.test and row.mark for row in all_rows())


def test_the_results_hold_every_row_passed_in_full():
    records = {record["id"]: record for record in json.loads((ROOT / "results" / "soak.json").read_text())}
    assert set(records) == {row.id for row in all_rows()} > {"R7", "R21", "R18 two hours", "mutants live"}
    assert [key for key, record in records.items() if record["verdict"] != "passed"] == []
    assert all(record["passed"] == record["tried"] >= record["full"] for record in records.values())


def test_draws_depend_on_seed_and_names_alone(tmp_path):
    from tools.soak.rows import Budget

    def number(seed, *names):
        return Budget(seed, tmp_path).draw(*names).random()

    assert number(0, "R1", 3) == number(0, "R1", 3)
    assert len({number(0, "R1", 3), number(1, "R1", 3), number(0, "R1", 4)}) == 3
    with pytest.raises(AttributeError):
        Budget(0, tmp_path).seed = 1  # type: ignore[misc]
