"""What a person installs without a checkout: the source archive, and the wheel that is built from it."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Build the source archive from this checkout, the wheel from that, and unpack it."""
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
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_every_file_of_the_package(installed):
    source = ROOT / "src" / "maskloom"
    expected = {path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    held = {path.relative_to(installed / "maskloom") for path in (installed / "maskloom").rglob("*") if path.is_file()}
    assert held == expected
    assert Path("recipes/squad-v1.toml") in held
    assert Path("runs/quickstart/report.html") in held


def test_commands_run_in_an_empty_folder(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    program = (
        "import maskloom, sys; from maskloom.cli import app; "
        "assert maskloom.__file__.startswith(sys.argv.pop(1)), maskloom.__file__; app()"
    )
    command = [sys.executable, "-c", program, str(installed)]
    done = subprocess.run([*command, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "maskloom 0.1.0\n"), done.stderr
    metadata = next(installed.glob("*.dist-info/METADATA")).read_text(encoding="utf-8")
    assert "Classifier: Programming Language :: Python :: 3.14" in metadata
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_quick_start_installs_nothing_that_only_tests_need(tmp_path):
    planned = {}
    for target in ("quickstart", "test"):
        command = ["make", "-n", target, f"VENV={tmp_path}"]
        planned[target] = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "install -q -c constraints.txt -e .\n" in planned["quickstart"]
    assert "[test" not in planned["quickstart"]
    assert "-e '.[test,check]'" in planned["test"]
