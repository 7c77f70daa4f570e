"""A few of the malformed files that `benchmarks/fuzz.py` generates by the thousand, and a check of its judge."""

from pathlib import Path

from maskloom.errors import DataError
from tools.fuzzing.child import outcome_of
from tools.fuzzing.runner import run_cases
from tools.fuzzing.targets import Surroundings, Target, all_targets, prepared

NUM_CASES = 250


def test_malformed_files_are_read_or_refused_with_a_place(tmp_path):
    cases = list(run_cases(tmp_path, seed=0, num_cases=NUM_CASES))
    assert len(cases) == NUM_CASES
    assert [case for case in cases if not case.passed] == []
    assert len({case.group for case in cases}) > 15
    assert {case.outcome for case in cases} == {"accepted", "refused"}


def judged(read):
    return outcome_of(Target("test", "d.csv", lambda: [b""], read), Path("case") / "d.csv")["outcome"]


def test_what_is_no_refusal_is_a_finding():
    class PanicError(BaseException):
        pass

    def raising(error):
        def read(path):
            raise error

        return read

    assert judged(lambda path: 1) == "accepted"
    assert judged(raising(DataError("d.csv: line 3: empty text"))) == "refused"
    for error in (DataError("something is wrong"), DataError("d.csv: " + "x" * 30_000), KeyError("a"), PanicError()):
        assert judged(raising(error)) == "finding"


def test_the_good_files_that_malformed_ones_are_made_of_are_accepted(tmp_path):
    surroundings = Surroundings(tmp_path / "good")
    for target in all_targets(surroundings):
        for content in target.good():
            path = prepared(target, surroundings, tmp_path / "case", content)
            assert outcome_of(target, path) == {"outcome": "accepted"}, target.name
