"""The cores and the memory that a process may use, and the number of threads that follows from them."""

import os
import subprocess
import sys

import pytest

from maskloom.system import resources
from maskloom.system.resources import follow_quota, usable_cores, wait_briefly


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Returns a function that puts this process into control groups with the given files."""

    def make(files: dict[str, str], own: str = "0::/\n") -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(resources, "_ROOT", str(tmp_path))
        read = resources.system_text
        told = {"/proc/self/cgroup": own, "/proc/meminfo": "MemAvailable:       1000 kB\n"}
        monkeypatch.setattr(resources, "system_text", lambda path: told[path] if path in told else read(path))

    return make


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "1:cpu,cpuacct:/\n0::/\n", 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "1:cpu:/\n", None),
        ({"cpu.max": ""}, "0::/\n", None),
        ({}, "", None),
        ({"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}, "0::/a/b\n", 1.5),
        ({"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "50000 100000\n"}, "0::/a/b\n", 0.5),
        ({"b/cpu.max": "150000 100000\n"}, "0::/a\n", None),
    ],
)
def test_the_smallest_quota_of_either_version_is_found(groups, files, own, expected):
    groups(files, own)
    assert resources._quota() == expected


_JOB = "system.slice/slurmstepd.scope/job_7"


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "0::/\n", 1000 << 10),
        ({"memory.max": "max\n", "memory.current": "5\n"}, "0::/\n", 1000 << 10),
        (
            {
                "memory.max": "900\n",
                "memory.current": "500\n",
                "memory.stat": "file 170\nshmem 70\ninactive_anon 70\nactive_file 60\ninactive_file 40\n",
            },
            "0::/\n",
            500,
        ),
        ({f"{_JOB}/memory.max": "900\n", f"{_JOB}/memory.current": "500\n"}, f"0::/{_JOB}/step_0/user\n", 400),
        (
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "500\n",
                "memory/job/memory.limit_in_bytes": "900\n",
                "memory/job/memory.usage_in_bytes": "500\n",
                "memory/job/memory.stat": "active_file 1\ntotal_active_file 20\ntotal_inactive_file 30\n",
            },
            "4:memory:/job/step\n1:cpu:/other\n0::/\n",
            450,
        ),
    ],
)
def test_the_memory_of_every_control_group_around_the_process_counts(groups, files, own, expected):
    """A batch system limits a job in a group of its own, of which the root says nothing."""
    groups(files, own)
    assert resources.available_memory() == expected


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


@pytest.fixture(scope="module")
def torch_with_a_quota() -> "subprocess.CompletedProcess[str]":
    """What torch and its OpenMP library say that were loaded by a process with a quota of one core of three."""
    set_here = ("OMP_NUM_THREADS", *resources._SAY_HOW_TO_WAIT)
    environment = {name: value for name, value in os.environ.items() if name not in set_here}
    code = (
        "import os; os.sched_getaffinity = lambda _: {0, 1, 2}; import maskloom.system.resources as cores; "
        "cores._quota = lambda: 1.0; cores.follow_quota(); cores.wait_briefly(); "
        "import torch; print(torch.get_num_threads())"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )


def test_torch_takes_the_number(torch_with_a_quota):
    """The quota takes effect before torch is loaded, from the command line and from Python."""
    assert torch_with_a_quota.stdout.strip() == "1"


@pytest.mark.parametrize(
    ("quota", "told", "given", "expected"),
    [
        (None, "5 6 7\n", {}, None),
        (None, "0 0 0\n", {}, str(resources._SPINS)),
        (None, "", {}, str(resources._SPINS)),
        (2.0, "5 6 7\n", {}, str(resources._SPINS)),
        (2.0, "", {"GOMP_SPINCOUNT": "77"}, "77"),
        (2.0, "", {"OMP_WAIT_POLICY": "PASSIVE"}, None),
    ],
)
def test_threads_sleep_soon_where_nothing_tells_of_others(monkeypatch, quota, told, given, expected):
    for name in resources._SAY_HOW_TO_WAIT:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(resources, "_quota", lambda: quota)
    monkeypatch.setattr(resources, "system_text", lambda path: {"/proc/self/schedstat": told}[path])
    wait_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == expected
    os.environ.pop("GOMP_SPINCOUNT", None)


def test_torch_takes_how_threads_wait(torch_with_a_quota):
    """libgomp itself reports the settings that it uses."""
    if "GOMP_SPINCOUNT" not in torch_with_a_quota.stderr:
        pytest.skip("this torch comes with another OpenMP library")
    assert f"GOMP_SPINCOUNT = '{resources._SPINS}'" in torch_with_a_quota.stderr
