"""Every command of docs/TUTORIAL.md, run in an empty folder with maskloom from a wheel."""

import json
import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "TUTORIAL.md"
# Replacements that make the commands take seconds; every key must occur in the page.
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


def test_the_page_holds_what_is_made_smaller() -> None:
    shell = "\n".join(blocks("sh"))
    assert [part for part in SMALLER if part not in shell] == []


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["smaller", "whole"])
def test_every_command_of_the_tutorial_works(installed, environment_of_wheel, tmp_path, is_whole) -> None:
    def run(*command: str) -> str:
        how = {"cwd": tmp_path, "env": environment_of_wheel, "capture_output": True, "text": True}
        done = subprocess.run(command, **how, timeout=1200)
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    place = Path(run("python", "-c", "import maskloom; print(maskloom.__file__)").strip())
    assert place.is_relative_to(installed)
    assert Path(run("bash", "-c", "command -v maskloom").strip()).is_relative_to(installed)
    assert not list(tmp_path.iterdir())
    for block in blocks("sh"):
        run("bash", "-e", "-c", block if is_whole else smaller(block))
    answers = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [answer["text"] for answer in answers] == ["Remove a directory tree.", "Send a request to the server."]
    assert {answer["label"] for answer in answers} <= {"files", "network", "numbers"}
    if is_whole:
        scores = json.loads(run("maskloom", "evaluate", "--model", "classifier", "--data", "test.csv", "--json"))
        assert scores["accuracy"] > scores["reference"]
    assert "examples from dev" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for block in blocks("python"):
        printed = run("python", "-c", block).split()
        assert printed[0] in ("files", "network", "numbers")
