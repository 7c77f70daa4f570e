"""The fast part of R4, R7b and R13 of the soak: interrupted builds of vocabularies and corpora give the same bytes."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tools.soak.corpora import folder_bytes, prepare, try_disk_fault, try_kill
from tools.soak.workers import kill, on_ray, try_worker

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes through /proc")


@pytest.fixture(scope="module")
def builds(server, budget):
    return prepare(server, budget.work / "left-alone", megabytes=1.2)


@pytest.mark.parametrize("number", range(3))
def test_a_killed_build_is_finished_by_the_same_command(server, builds, budget, number):
    trial = try_kill(server, builds[number], budget.draw("killed", number), budget.work / "killed")
    assert trial.passed, f"{trial.name}: {trial.detail}"


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (0, "enospc@files.write#1"),
        (0, "erofs@vocabulary.new#1"),
        (1, "enospc@shards.write#3"),
        (1, "eio@corpus.sync#2"),
        (2, "edquot@shards.record#1"),
    ],
)
def test_a_full_or_broken_disk_ends_a_build_with_one_line(server, builds, budget, number, fault):
    trial = try_disk_fault(server, builds[number], fault, budget.work / "broken")
    assert trial.passed, f"{trial.name}: {trial.detail}"


def test_an_earlier_vocabulary_is_refused_and_a_killed_training_begins_anew(server, builds, tmp_path):
    vocabulary = builds[0]
    other = tuple("150" if word == "200" else word for word in vocabulary.arguments)
    assert server.start(other, tmp_path, tmp_path / "output").wait() == 0
    earlier = folder_bytes(tmp_path / "out")
    assert server.start(vocabulary.arguments, tmp_path, tmp_path / "output").wait() == 3
    assert folder_bytes(tmp_path / "out") == earlier
    shutil.rmtree(tmp_path / "out")
    faults = {"MASKLOOM_FAULTS": "kill@vocabulary.new#1"}
    assert server.start(vocabulary.arguments, tmp_path, tmp_path / "output", **faults).wait() == -9
    assert not (tmp_path / "out").exists()
    assert server.start(vocabulary.arguments, tmp_path, tmp_path / "output").wait() == 0
    assert folder_bytes(tmp_path / "out") == vocabulary.files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "output"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'maskloom[ray]'")
def test_ray_builds_the_same_bytes_though_a_worker_is_killed(server, budget, tmp_path):
    """Ray's own processes open its sockets, which are bound to 127.0.0.1."""
    build = prepare(server, tmp_path / "left-alone", megabytes=12)[2]
    trial = try_worker(on_ray(build), kill, "", budget.draw("ray"), tmp_path / "on-ray")
    assert trial.passed, f"{trial.name}: {trial.detail}"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'maskloom[ray]'")
def test_ray_counts_words_to_the_same_vocabulary(builds, tmp_path):
    from tools.soak.processes import CommandLine

    running = CommandLine((*builds[0].arguments, "--engine", "ray", "--workers", "2"), tmp_path, tmp_path / "output")
    assert running.wait() == 0, (tmp_path / "output").read_text()
    assert folder_bytes(tmp_path / "out") == builds[0].files
    shutil.rmtree(tmp_path / "out")
