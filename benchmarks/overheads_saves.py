"""How long a save stalls training, and its other costs, for one size of BERT in a separate process; prints JSON."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from full_rows import LENGTH, VOCABULARY, full_rows

from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.checkpointing.background_saves import BackgroundSaves
from maskloom.training.loop import train_steps
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState


def measure(size: str, batch_size: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Time steps without a save, background saves with the steps during them, and synchronous saves."""
    settings = TrainingSection(steps=1_000_000, batch_size=batch_size, warmup_steps=0)
    state = TrainState.fresh(build_model(BertConfig.of_size(size, vocab_size=VOCABULARY), seed=0), settings)
    batch = full_rows(batch_size)
    steps = train_steps(state, MaskedLanguageModeling(), lambda p: (batch, p), settings=settings, seed=0)
    whole: list[float] = []

    def step() -> float:
        started = time.perf_counter()
        next(steps)
        return time.perf_counter() - started

    for _ in range(2):
        step()
    before = _peak()
    found: dict[str, list[float]] = {name: [] for name in ("step", "stall", "lost", "write", "waited", "beside")}
    with BackgroundSaves(folder, keep=2, on_whole=lambda *_: whole.append(time.perf_counter())) as saves:
        for _ in range(rounds):
            plain = statistics.median(step() for _ in range(3))
            began, count = time.perf_counter(), len(whole)
            saves.start(state, {})
            stall, beside = time.perf_counter() - began, []
            while len(whole) == count:
                beside.append(step())
            saves.wait()
            again = time.perf_counter()
            saves.save(state, {})
            found["waited"].append(time.perf_counter() - again)
            found["step"].append(plain)
            found["stall"].append(stall / plain)
            found["beside"].append(statistics.fmean(beside) / plain if beside else 1.0)
            found["lost"].append((stall + sum(beside) - len(beside) * plain) / plain)
            found["write"].append(whole[count] - began - stall)
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    return {
        "size": size,
        "batch_size": batch_size,
        "length": LENGTH,
        "parameters": parameters,
        "copy_mib": 12 * parameters / 2**20,
        "peak_mib_before": before,
        "peak_mib_after": _peak(),
        **found,
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(measure(options.size, options.batch_size, options.rounds, Path(temporary))))
