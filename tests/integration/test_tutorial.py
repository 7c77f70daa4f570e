"""Every command of docs/TUTORIAL.md, run in an empty folder with maskloom from a wheel."""

import json
import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "TUTORIAL.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_every_command_of_the_tutorial_works(installed, environment_of_wheel, tmp_path) -> None:
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
        run("bash", "-e", "-c", block)
    answers = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [answer["text"] for answer in answers] == ["Remove a directory tree.", "Send a request to the server."]
    assert {answer["label"] for answer in answers} <= {"files", "network", "numbers"}
    scores = json.loads(run("maskloom", "evaluate", "--model", "classifier", "--data", "test.csv", "--json"))
    assert scores["accuracy"] > scores["reference"]
    assert "examples from dev" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for block in blocks("python"):
        printed = run("python", "-c", block).split()
        assert printed[0] in ("files", "network", "numbers")
