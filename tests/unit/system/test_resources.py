"""Threads follow the cores that a process may use."""

import os
import subprocess
import sys

import pytest

from maskloom.system import resources
from maskloom.system.resources import follow_quota, usable_cores


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": ""}, None),
        ({}, None),
    ],
)
def test_the_quota_of_either_version_is_read(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert resources._quota(tmp_path) == expected


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"), [(8, None, 8), (8, 2.0, 2), (8, 1.2, 2), (2, 4.0, 2), (4, 0.1, 1)]
)
def test_the_smaller_of_affinity_and_quota_counts(monkeypatch, affinity, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    monkeypatch.setattr(resources, "_quota", lambda: quota)
    assert usable_cores() == expected


@pytest.mark.parametrize(("quota", "given", "expected"), [(2.0, None, "2"), (2.0, "5", "5"), (None, None, None)])
def test_threads_are_bound_by_a_quota_alone_and_what_is_set_stays(monkeypatch, quota, given, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(resources, "_quota", lambda: quota)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    follow_quota()
    assert os.environ.get("OMP_NUM_THREADS") == expected


def test_torch_takes_the_number(tmp_path):
    """The quota is followed before torch is loaded, from the command line and from Python."""
    code = (
        "import os; os.sched_getaffinity = lambda _: {0, 1, 2}; import maskloom.system.resources as cores; "
        "cores._quota = lambda: 1.0; cores.follow_quota(); "
        "import torch; print(torch.get_num_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, str(resources._SPINS)), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
)
def test_threads_that_wait_sleep_soon_unless_the_user_says_otherwise(given, expected):
    """libgomp itself shows what it took."""
    environment = {name: value for name, value in os.environ.items() if name not in resources._SAY_HOW_TO_WAIT}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **given}
    command = [sys.executable, "-c", "import maskloom, torch"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("this torch comes with another OpenMP library")
    assert f"GOMP_SPINCOUNT = '{expected}'" in done.stderr
