"""Communication between ranks compared with computation: a table for every size, checked with two processes.

`python benchmarks/communication.py` writes communication.md and .json. The check trains with two processes that
communicate by gloo over the loopback device, and compares the bytes sent and the seconds with the table's prediction.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from child_processes import first_of_ranks
from communication_report import SIZES, bytes_per_step, page, size_facts
from full_rows import LENGTH, PREDICTED, VOCABULARY, full_rows
from rounds import MIN_ROUNDS, in_turn, quiet_load

_MODES = ("ddp", "fsdp")
_STEPS, _ROUNDS = 4, MIN_ROUNDS


def main() -> None:
    """Measure and write the page; `--report` only rewrites it from the stored figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="only write the page from communication.json")
    parser.add_argument("--rank", choices=_MODES, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini"], choices=SIZES)
    options = parser.parse_args()
    if options.rank:
        print(json.dumps(_rank(options.rank, options.sizes)))
        return
    place = Path(__file__).with_suffix(".json")
    if not options.report:
        from surroundings import processor, versions

        load = quiet_load()
        checks = {mode: _two_processes(mode, options.sizes) for mode in _MODES}
        facts = {size: size_facts(size, length=LENGTH, predicted=PREDICTED) for size in SIZES}
        about = {"processor": processor(), "versions": versions(), "load_before": load}
        figures = {**about, "sizes": facts, "checks": checks}
        place.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    place.with_suffix(".md").write_text(page(json.loads(place.read_text(encoding="utf-8"))), encoding="utf-8")


def _two_processes(mode: str, sizes: list[str]) -> list[dict[str, Any]]:
    """Return the figures of steps by two ranks, as reported by rank 0."""
    command = [sys.executable, __file__, "--rank", mode, "--sizes", *sizes]
    return json.loads(first_of_ranks(command, num_ranks=2, threads=1).splitlines()[-1])


def _rank(mode: str, sizes: list[str]) -> list[dict[str, Any]]:
    """Train as one of two ranks, and return the bytes sent and the seconds per step for each size."""
    from maskloom.training.ranks.ranks import joined_ranks

    with joined_ranks(mode, limit=600.0) as ranks:
        return [_measured(size, mode, ranks) for size in sizes]


def _measured(size: str, mode: str, ranks: Any) -> dict[str, Any]:
    import torch

    from maskloom.models.assembled import build_model
    from maskloom.models.bert import BertConfig
    from maskloom.objectives.masked_lm import MaskedLanguageModeling
    from maskloom.training.loop import accumulate_gradients
    from maskloom.training.settings import TrainingSection
    from maskloom.training.state import TrainState

    model = build_model(BertConfig.of_size(size, vocab_size=VOCABULARY), seed=0)
    ranks.spread(model)
    state = TrainState.fresh(model, TrainingSection())
    objective = MaskedLanguageModeling()
    batch = full_rows(8, LENGTH, seed=ranks.rank)

    def step(**options: Any) -> None:
        state.optimizer.zero_grad(set_to_none=True)
        accumulate_gradients(model, objective, batch, None, **options)

    step(ranks=ranks)
    if mode == "ddp":
        step()  # the same work by one process alone, which sends nothing; impossible with sharded weights
    alone, together, sent = [], [], 0.0
    for number in range(_ROUNDS):
        for is_alone in in_turn((True, False), number):
            ranks.barrier()
            if not is_alone:
                before = _loopback_bytes()
                together.append(_seconds(lambda: [step(ranks=ranks) for _ in range(_STEPS)]) / _STEPS)
                ranks.barrier()
                sent += (_loopback_bytes() - before) / (_ROUNDS * _STEPS) / 2
            elif mode == "ddp":
                alone.append(_seconds(step))
    num_bytes = bytes_per_step(size_facts(size, length=LENGTH, predicted=PREDICTED), mode, 2)
    buffer = torch.zeros(num_bytes // 4)
    plain = []
    for _ in range(_ROUNDS):
        ranks.barrier()
        plain.append(_seconds(lambda: torch.distributed.all_reduce(buffer)))
    return {
        "size": size,
        "tokens": len(batch.token_ids),
        "predicted_bytes": num_bytes,
        "measured_bytes": sent,
        "alone": median(alone) if alone else None,
        "together": median(together),
        "plain": median(plain),
    }


def _seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _loopback_bytes() -> int:
    """Return the number of bytes that all processes have sent over the loopback device so far."""
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, values = line.partition(":")
        if name.strip() == "lo":
            return int(values.split()[8])
    raise SystemExit("this machine counts no bytes of its loopback device")


if __name__ == "__main__":
    main()
