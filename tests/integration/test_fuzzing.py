"""A few of the malformed files that `benchmarks/fuzz.py` generates by the thousand, and a check of its judge."""

from pathlib import Path

from maskloom.errors import DataError
from tools.fuzzing.child import outcome_of
from tools.fuzzing.runner import run_cases
from tools.fuzzing.targets import Target

NUM_CASES = 500


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
