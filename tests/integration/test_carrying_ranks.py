"""State carried across batches by several processes: each has its rows, and any number of processes can resume."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from tests.unit.training.remembering import Remembering
from tests.unit.training.tiny_sessions import run_session, tiny_session
from maskloom.data.batch import PretrainingBatch
from maskloom.training.loop import TrainState
from maskloom.training.ranks.ranks import joined_ranks

folder, steps, parallel = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with joined_ranks(parallel, limit=60.0) as ranks:
    def next_batch(position):
        number = position.get("number", 0)
        rng = np.random.default_rng(number)
        batch = PretrainingBatch(
            token_ids=rng.integers(5, 23, 24), segment_ids=np.zeros(24, dtype=np.int64), lengths=np.full(4, 6),
            mlm_positions=np.arange(1, 24, 3), mlm_labels=rng.integers(5, 23, 8), nsp_labels=None)
        own = batch.split(4 // ranks.world_size)[ranks.rank]
        return own, {"number": number + 1}

    session = tiny_session(folder, next_batch=next_batch, objective=Remembering(), steps=6, save_every=3,
                           keep_checkpoints=4, parallel=parallel)
    ranks.spread(session.state.model)
    session.state = TrainState.fresh(session.state.model, session.settings)
    session.ranks = ranks
    session.resume()
    if steps < 6:
        session.on_step = lambda report: report.step == steps + 1 and sys.exit(0)
    run_session(session)
"""


def _run(folder: Path, size: int, steps: int = 6, parallel: str = "ddp") -> Path:
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", PROGRAM, str(folder), str(steps), parallel]
    running = [
        subprocess.Popen(
            command,
            env={**base, **({**shared, "RANK": str(rank)} if size > 1 else {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0] * size, "\n".join(said)
    return folder / "checkpoints"


def _carry(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"step-{step:08d}" / "carry.safetensors")


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    return _run(tmp_path_factory.mktemp("alone"), 1)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_ranks_carry_what_one_process_does(alone, tmp_path, parallel):
    found = _run(tmp_path / "two", 2, parallel=parallel)
    for step in (3, 6):
        torch.testing.assert_close(_carry(found, step), _carry(alone, step), rtol=1e-5, atol=1e-6)
    assert _carry(found, 6)["1"].tolist() == [6, 6, 6, 6]


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)])
def test_another_number_of_processes_goes_on(alone, tmp_path, first, then):
    _run(tmp_path / "run", first, steps=3)
    assert not (tmp_path / "run" / "checkpoints" / "step-00000006").exists()
    found = _run(tmp_path / "run", then)
    torch.testing.assert_close(_carry(found, 6), _carry(alone, 6), rtol=1e-5, atol=1e-6)
