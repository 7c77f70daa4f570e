"""Installation without a checkout: the source archive, and the wheel built from it."""

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_file_of_the_package(wheel):
    source = ROOT / "src" / "maskloom"
    files = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    expected = {path for path in files if "__pycache__" not in path.parts}
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        metadata, scripts = (
            archive.read(name).decode()
            for part in ("METADATA", "entry_points.txt")
            for name in names
            if name.endswith(f".dist-info/{part}")
        )
    held = {Path(name).relative_to("maskloom") for name in names if name.startswith("maskloom/")}
    assert held == expected
    assert Path("recipes/squad-v1.toml") in held
    assert Path("reproduce/report.html") in held
    assert scripts.split() == ["[console_scripts]", "maskloom", "=", "maskloom.__main__:main"]
    assert "Requires-Python: >=3.11\n" in metadata
    versions = re.findall(r"Classifier: Programming Language :: Python :: (\S+)", metadata)
    assert versions == ["3.11", "3.12", "3.13", "3.14"]  # the versions that the tests were run on
    assert f"**Python** {versions[0]} to {versions[-1]}, " in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "Project-URL: BERT paper, https://arxiv.org/abs/1810.04805" in metadata


@pytest.mark.slow
def test_commands_run_in_an_empty_folder(environment_of_wheel, tmp_path):
    def run(line):
        how = {"cwd": tmp_path, "env": environment_of_wheel, "capture_output": True, "text": True}
        return subprocess.run(line.split(), **how)

    done = run("maskloom --version")
    assert (done.returncode, done.stdout) == (0, "maskloom 0.1.0\n"), done.stderr
    assert "* data.max_length = 384 " in run("maskloom recipes show squad-v1").stdout
    # the shipped recipe is found by name: only the model is refused
    done = run("maskloom finetune --recipe squad-v1 --model bert --train train.json --dev dev.json --out run")
    assert (done.returncode, done.stderr.partition(";")[0]) == (3, "error: bert: there is no such folder")
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
