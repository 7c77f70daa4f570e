"""Every command of docs/TUTORIAL.md, run in an empty folder with less training than the page asks for."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "TUTORIAL.md"
# What makes the same commands take seconds: every one of these stands in the page.
SMALLER = {
    "--steps 1000": "--steps 6",
    "--epochs 5": "--epochs 0.1",
    "--restarts 3": "--restarts 1",
    "--size 4000": "--size 600",
    "rows[400:]": "rows[400:560]",
    "topics.values()]": "list(topics.values())[:8]]",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def smaller(text: str) -> str:
    for long, short in SMALLER.items():
        text = text.replace(long, short)
    return text


def run(command: list[str], folder: Path) -> str:
    """Run a command in which `python` and `maskloom` are those of this test."""
    tools = folder.with_name("tools")
    tools.mkdir(exist_ok=True)
    for name, arguments in (("python", ""), ("maskloom", "-m maskloom ")):
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n', encoding="utf-8")
        tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_page_holds_what_is_made_smaller() -> None:
    shell = "\n".join(blocks("sh"))
    assert [part for part in SMALLER if part not in shell] == []


@pytest.mark.slow
def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    for block in blocks("sh"):
        run(["bash", "-e", "-c", smaller(block)], folder)
    answers = [json.loads(line) for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [answer["text"] for answer in answers] == ["Remove a directory tree.", "Send a request to the server."]
    assert {answer["label"] for answer in answers} <= {"files", "network", "numbers"}
    assert "examples from dev" in (folder / "report.html").read_text(encoding="utf-8")
    for block in blocks("python"):
        printed = run(["python", "-c", block], folder).split()
        assert printed[0] in ("files", "network", "numbers")
