"""Exit codes and messages of the command line."""

import json
import subprocess
import sys

import pytest


def test_help_names_every_command_without_heavy_imports(run) -> None:
    code = "import sys; from maskloom.cli import app; print(sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
    shown = run("--help")
    names = (
        "vocab",
        "corpus",
        "pretrain",
        "finetune",
        "evaluate",
        "predict",
        "fill-mask",
        "fill-spans",
        "embed",
        "info",
        "quickstart",
    )
    assert all(name in shown for name in names)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["nonsense"], 2, "nonsense"),
        (["vocab", "train"], 2, "Missing"),
        (["vocab", "train", "x.txt", "--size", "0", "--out", "v"], 2, "--size"),
        (["vocab", "train", "x.txt", "--size", "9", "--out", "v", "--score", "bpe"], 2, "frequency"),
        (["vocab", "train", "absent.txt", "--size", "99", "--out", "v"], 3, "absent.txt"),
        (["vocab", "train", "x.txt", "--size", "99", "--out", "v", "--workers", "1000000"], 2, "--workers"),
        (["vocab", "inspect", "absent"], 3, "absent"),
        (["corpus", "build", "absent.txt", "--vocab", "absent", "--out", "c"], 3, "absent"),
        (["corpus", "stats", "absent"], 3, "absent"),
        (["corpus", "lint", "absent"], 3, "absent"),
        (["pretrain", "--corpus", "absent", "--out", "r"], 3, "absent"),
        (["finetune", "--model", "absent", "--train", "t", "--dev", "d", "--out", "r"], 3, "absent"),
        (["finetune", "--model", "m", "--train", "t", "--dev", "d", "--out", "r", "--task", "x"], 2, "multilabel"),
        (["evaluate", "--model", "absent", "--data", "d.csv"], 3, "absent"),
        (["predict", "--model", "absent", "--input", "i.csv", "--output", "o.csv"], 3, "absent"),
        (["fill-mask", "--model", "absent", "a [MASK]"], 3, "absent"),
        (["fill-spans", "--model", "absent", "a <X>"], 3, "absent"),
        (["embed", "--model", "absent", "--input", "i.csv", "--output", "o.npy"], 3, "absent"),
        (["info", "absent"], 3, "absent"),
    ],
)
def test_wrong_use_is_answered_by_name(
    command, arguments: list[str], code: int, expected: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found, said = command(*arguments)
    assert found == code, said
    assert expected in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_object_and_the_only_output(run, minilm_folder) -> None:
    info = json.loads(run("info", minilm_folder, "--json"))
    assert info["kind"] == "model"
    assert info["parameters"]["encoder"] == 22_713_216
    assert info["hidden_size"] == 384


def test_a_folder_that_is_a_link_to_itself_is_one_line(run, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "text.txt").write_text("some words\n", encoding="utf-8")
    said = run("vocab", "train", tmp_path / "text.txt", "--size", 50, "--out", tmp_path / "loop", code=1)
    assert "Symlink loop" in said or "symbolic links" in said
    assert len(said.strip().splitlines()) == 1
