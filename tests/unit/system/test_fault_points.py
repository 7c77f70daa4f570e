import errno
import subprocess
import sys

import pytest

from maskloom.system.fault_points import fault_point
from tools.faults.fault_rules import arm
from tools.soak.processes import environment


@pytest.fixture(autouse=True)
def _silence():
    yield
    arm()


def test_nothing_happens_unless_asked():
    fault_point("files.write")


def test_acts_once_at_the_pass_that_was_asked_for():
    arm("enospc@files.write#2")
    fault_point("files.write")
    fault_point("files.rename")
    with pytest.raises(OSError) as caught:
        fault_point("files.write")
    assert caught.value.errno == errno.ENOSPC
    fault_point("files.write")


def test_a_plus_makes_the_trouble_stay():
    arm("eio@files.*#2+")
    fault_point("files.write")
    for name in ("files.write", "files.sync", "files.rename"):
        with pytest.raises(OSError):
            fault_point(name)
    fault_point("checkpoints.manifest")


def test_passes_count_after_the_place_that_comes_first():
    arm("exception@training.*>files.write#2")
    for name in ("files.write", "files.write", "training.step", "files.write", "files.sync"):
        fault_point(name)
    with pytest.raises(RuntimeError, match=r"fault point files\.write"):
        fault_point("files.write")
    fault_point("files.write")


def test_the_log_holds_every_pass_in_order(tmp_path):
    arm(log=str(tmp_path / "log"))
    for name in ("a.b", "c", "a.b"):
        fault_point(name)
    assert (tmp_path / "log").read_text() == "a.b\nc\na.b\n"


@pytest.mark.parametrize("rule", ["burn@files.write#1", "kill", "kill@#1", "kill@a#x"])
def test_a_rule_that_is_none_is_named(rule):
    with pytest.raises(ValueError, match="MASKLOOM_FAULTS"):
        arm(rule)


def test_the_environment_arms_a_process_and_kill_is_a_real_one():
    code = (
        "from maskloom.system.fault_points import fault_point\n"
        "for _ in 'abc': fault_point('x'); print('passed', flush=True)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(MASKLOOM_FAULTS="kill@x#3"),
        capture_output=True,
        check=False,
    )
    assert ended.returncode == -9
    assert ended.stdout == b"passed\npassed\n"
