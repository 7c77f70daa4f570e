"""A pipe in place of any file that resuming or repeating a run reads is refused; nothing blocks on it."""

import os
import shutil
from pathlib import Path

import pytest

from tools.soak.subjects import RUN, finetuning, grid_search, pretraining, run_whole


@pytest.fixture(scope="module")
def finished(server, run_data, tmp_path_factory):
    """Return, by the name of each command, its subject and the folder of its finished run."""
    subjects = (
        pretraining(run_data, steps=4, save_every=2, evaluate_every=4),
        finetuning(run_data, epochs=0.25),
        grid_search(run_data, epochs=0.25),
    )
    found = {}
    for subject in subjects:
        folder = tmp_path_factory.mktemp(subject.name)
        run_whole(server, subject.arguments, folder)
        found[subject.name] = (subject, folder)
    return found


def _answer(server, finished, folder: Path, name: str, what: str, place: str, *, is_finished: bool) -> tuple[int, str]:
    subject, source = finished[name]
    shutil.copytree(source, folder, dirs_exist_ok=True)
    if not is_finished:
        (folder / RUN / "metrics.json").unlink()
    (folder / RUN / place).unlink()
    os.mkfifo(folder / RUN / place)
    arguments = subject.resumed() if what == "resume" else (what, RUN, *(("--out", "again") if what == "rerun" else ()))
    running = server.start(arguments, folder, folder / "output.txt")
    return running.wait(60), running.output.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "what", "place", "is_finished"),
    [
        ("pretrain", "resume", "recipe.toml", True),
        ("pretrain", "resume", "run.json", True),
        ("pretrain", "resume", "events.jsonl", False),
        ("pretrain", "rerun", "run.json", True),
        ("pretrain", "rerun", "recipe.toml", True),
        ("pretrain", "info", "metrics.json", True),
        ("finetune", "resume", "metrics.json", True),
        ("finetune", "resume", "restarts/seed-0/result.json", False),
        ("finetune", "rerun", "model/model.safetensors", True),
        ("search", "resume", "search.json", True),
        ("search", "resume", "trials/trial-001.json", True),
        ("search", "rerun", "trials/trial-001/run.json", True),
    ],
)
def test_a_pipe_in_a_run_is_refused(server, finished, tmp_path, name, what, place, is_finished) -> None:
    code, said = _answer(server, finished, tmp_path, name, what, place, is_finished=is_finished)
    assert code == 3, said
    assert "error: " in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "state.json"])
def test_a_checkpoint_with_a_pipe_is_damaged_and_the_one_before_is_taken(server, finished, tmp_path, name) -> None:
    place = f"checkpoints/phase-1/step-00000004/{name}"
    code, said = _answer(server, finished, tmp_path, "pretrain", "resume", place, is_finished=False)
    assert code == 0, said
    assert f"step-00000004/{name}: is a pipe; expected a regular file" in said
