"""State carried across batches by several processes: each has its rows, and any number of processes can resume."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
# Reads jobs from standard input, one a line, and runs each rank as a fork that has imported everything.
PROGRAM = """
import json, os, sys
from pathlib import Path
import numpy as np
import torch._dynamo  # or every rank imports it, when it makes its optimizer
from tests.contract.added_carrying import Remembering
from tests.unit.training.tiny_sessions import run_session, tiny_session
from maskloom.data.batch import PretrainingBatch
from maskloom.training.state import TrainState
from maskloom.training.ranks.ranks import joined_ranks

def train(folder, steps, parallel):
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

def fork(environment, *job):
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.environ.update(environment)
            train(*job)
            code = 0
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(code)
    return process

for line in sys.stdin:
    environments, folder, *job = json.loads(line)
    processes = [fork(each, Path(folder), *job) for each in environments]
    print([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes], flush=True)
"""


@pytest.fixture(scope="module")
def ranks():
    """Return a function that trains in a folder with some ranks, and returns the folder of its checkpoints."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, **pipes) as process:

        def run(folder: Path, size: int, steps: int = 6, parallel: str = "ddp") -> Path:
            folder.mkdir(exist_ok=True)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environments = [{**shared, "RANK": str(rank)} if size > 1 else {} for rank in range(size)]
            process.stdin.write(json.dumps([environments, str(folder), steps, parallel]) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{[0] * size}\n"
            return folder / "checkpoints"

        yield run


def _carry(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"step-{step:08d}" / "carry.safetensors")


@pytest.fixture(scope="module")
def alone(ranks, tmp_path_factory) -> Path:
    return ranks(tmp_path_factory.mktemp("alone"), 1)


@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_ranks_carry_what_one_process_does(ranks, alone, tmp_path, parallel):
    found = ranks(tmp_path / "two", 2, parallel=parallel)
    for step in (3, 6):
        torch.testing.assert_close(_carry(found, step), _carry(alone, step), rtol=1e-5, atol=1e-6)
    assert _carry(found, 6)["1"].tolist() == [6, 6, 6, 6]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_another_number_of_processes_goes_on(ranks, alone, tmp_path, first, then):
    ranks(tmp_path / "run", first, steps=3)
    assert not (tmp_path / "run" / "checkpoints" / "step-00000006").exists()
    found = ranks(tmp_path / "run", then)
    torch.testing.assert_close(_carry(found, 6), _carry(alone, 6), rtol=1e-5, atol=1e-6)
