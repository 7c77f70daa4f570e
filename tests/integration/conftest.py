"""Fixtures for tests of killed, stopped and broken runs, of an installed wheel, and of commands."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def server():
    """Start runs as forks of one process that has imported everything."""
    from tools.soak.processes import ForkServer  # imported here so that other tests do not need it

    with ForkServer() as running:
        yield running


@pytest.fixture(scope="module")
def budget(tmp_path_factory):
    """Return a budget for trials with a folder, the draws of seed 0 and no time limit."""
    from tools.soak.rows import Budget

    return Budget(0, tmp_path_factory.mktemp("trials"))


@pytest.fixture(scope="session")
def run_data(server, tmp_path_factory) -> Path:
    """Return a folder with the corpus, the model folder and the labelled data of `tools.soak.subjects`."""
    from tools.soak.subjects import prepare

    return prepare(server, tmp_path_factory.mktemp("run-data"), num_topics=40)


@pytest.fixture(scope="session")
def pretrained_alone(server, run_data, tmp_path_factory):
    """Return a pre-training run that nothing disturbs."""
    from tools.soak.kills import leave_alone
    from tools.soak.subjects import pretraining

    subject = pretraining(run_data, steps=50, evaluate_every=20)
    return leave_alone(server, subject, tmp_path_factory.mktemp("pretrained") / "alone")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """Build a source archive from this checkout, and return a wheel built from that archive."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("distribution")
    for target, source in (("sdist", ROOT), ("wheel", None)):
        if source is None:
            with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
                archive.extractall(folder / "source", filter="data")
            source = next((folder / "source").iterdir())
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """Return a virtual environment with the wheel; all other packages come from the test environment.

    The paths of the test environment come last, so a maskloom installed there from the checkout is not used.
    """
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    options = ["--no-index", "--no-deps", "--no-cache-dir", str(wheel)]
    done = subprocess.run([*pip, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    site = next(folder.glob("lib/python*/site-packages"))
    others = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site / "tests.pth").write_text("".join(f"{path}\n" for path in others), encoding="utf-8")
    return folder


@pytest.fixture
def environment_of_wheel(installed) -> dict[str, str]:
    """Return environment variables that select the wheel's `python` and `maskloom` and hide the checkout."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**others, "PATH": f"{installed / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    """Return a function that runs a command line in this process and returns the exit code and all output."""
    from maskloom.cli import main

    # --device sets it, and it would stay for the tests that follow
    monkeypatch.setenv("MASKLOOM_DEVICE", os.environ.get("MASKLOOM_DEVICE", ""))

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["maskloom", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run


@pytest.fixture
def run(command):
    """Return a function that runs a command line, checks its exit code (0 by default) and returns all output."""

    def said_by(*arguments: object, code: int = 0) -> str:
        found, said = command(*arguments)
        assert found == code, said
        return said

    return said_by
