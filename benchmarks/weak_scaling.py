"""Data parallelism on one machine: two processes of one thread, DDP or FSDP2 over gloo, against one with two threads.

All sides take the same steps on the same batches and cores, so the page shows what splitting the work costs. They must
produce the same losses. Each side is restarted in every round. The page is weak_scaling.md.

    python benchmarks/weak_scaling.py
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
from full_rows import VOCABULARY, full_rows
from rounds import MIN_ROUNDS, in_turn, order_said, quiet_load, reached
from surroundings import processor, versions

LENGTH, NUM_SEQUENCES = 128, 32
WARM_UP, STEPS = 2, 8
ONE = "one process, two threads"
# Targets for the time of one process divided by the time of two: floor, target, stretch.
AIMS = {"ddp": (0.85, 0.92, 0.97), "fsdp": (0.70, 0.80, 0.88)}
SIDES = (ONE, *AIMS)
SIZES = ("mini", "small", "medium")


def main() -> None:
    """Measure and write the page; `--report` only rewrites it from the stored figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="only write the page from weak_scaling.json")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--sizes", nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--rank", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        print(json.dumps(train(options.rank, options.sizes[0])))
        return
    place = Path(__file__).with_suffix(".json")
    if not options.report:
        figures = {"load": quiet_load(), "processor": processor(), "versions": versions(), "rounds": options.rounds}
        figures["sizes"] = {size: measured(size, options.rounds) for size in options.sizes}
        place.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    place.with_suffix(".md").write_text(page(json.loads(place.read_text(encoding="utf-8"))), encoding="utf-8")


def measured(size: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per step of each side, one figure per round; raises SystemExit when losses differ."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    expected: list[float] = []
    for number in range(rounds):
        for side in in_turn(SIDES, number):
            found = started(side, size)
            expected = expected or found["losses"]
            difference = max(abs(a / b - 1) for a, b in zip(expected, found["losses"], strict=True))
            if difference > 1e-5:
                raise SystemExit(f"{size}: losses of {side} differ by {difference:.1e}")
            seconds[side].append(found["seconds"])
            print(f"{size}, round {number + 1}, {side}: {found['seconds']:.3f} s a step", flush=True)
    return seconds


def started(side: str, size: str) -> dict[str, Any]:
    """Start the processes of a side and return the figures of rank 0."""
    num_ranks = 1 if side == ONE else 2
    command = [sys.executable, __file__, "--rank", side, "--sizes", size]
    output = first_of_ranks(command, num_ranks=num_ranks, threads=3 - num_ranks)
    return json.loads(output.splitlines()[-1])


def train(side: str, size: str) -> dict[str, Any]:
    """Train as one rank of a side; return the seconds per step and the loss of every step."""
    from maskloom.models.assembled import build_model
    from maskloom.models.bert import BertConfig
    from maskloom.objectives.masked_lm import MaskedLanguageModeling
    from maskloom.training.loop import train_steps
    from maskloom.training.ranks.ranks import joined_ranks
    from maskloom.training.settings import TrainingSection
    from maskloom.training.state import TrainState

    settings = TrainingSection(steps=WARM_UP + STEPS, micro_batch_size=NUM_SEQUENCES // 2)
    with joined_ranks("ddp" if side == ONE else side, limit=600.0) as ranks:
        model = build_model(BertConfig.of_size(size, vocab_size=VOCABULARY), seed=0)
        ranks.spread(model)
        state = TrainState.fresh(model, settings)

        def next_batch(position: dict[str, int]) -> tuple[Any, dict[str, int]]:
            number = position.get("number", 0)
            whole = full_rows(NUM_SEQUENCES, LENGTH, seed=number)
            mine = whole if side == ONE else whole.split(NUM_SEQUENCES // 2)[ranks.rank]
            return mine, {"number": number + 1}

        losses, started_at = [], 0.0
        steps = train_steps(state, MaskedLanguageModeling(), next_batch, settings=settings, seed=0, ranks=ranks)
        for report in steps:
            losses.append(report.loss)
            if report.step == WARM_UP:
                ranks.barrier()
                started_at = time.perf_counter()
        ranks.barrier()
        return {"losses": losses, "seconds": (time.perf_counter() - started_at) / STEPS}


def page(figures: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    sizes = "" if (*figures["sizes"],) == SIZES else f" --sizes {' '.join(figures['sizes'])}"
    lines = [
        "# Data parallelism on one machine: two processes compared with one",
        "",
        f"Generated by `python benchmarks/weak_scaling.py{sizes}`. Pre-training steps of "
        f"{NUM_SEQUENCES} sequences of {LENGTH} tokens in two micro-batches, optimiser included. The batches and the "
        "cores are the same on all sides, so efficiency shows what splitting the work costs: it is the "
        "time of one process with two threads divided by that of two processes with one thread each, which send "
        "gradients (DDP) or shards of weights and gradients (FSDP2) through gloo over the loopback device. In every "
        "run, the losses of all sides agree within 1e-5. More than two processes are not measured here; "
        "[communication.md](communication.md) shows how much they send.",
        "",
        "| size | side | ms per step | efficiency | range | reached (floor / target / stretch) |",
        "|---|---|---:|---:|---|---|",
    ]
    for size, seconds in figures["sizes"].items():
        for side in SIDES:
            ratios = sorted(one / own for one, own in zip(seconds[ONE], seconds[side], strict=True))
            found = "| - | - | - |"
            if side != ONE:
                level = reached(median(ratios), AIMS[side])
                found = f"| **{median(ratios):.2f}** | {ratios[0]:.2f}-{ratios[-1]:.2f} | {level} |"
            lines.append(f"| {size} | {side} | {1000 * median(seconds[side]):.0f} {found}")
    lines += [
        "",
        f"{order_said(figures['rounds'])} {figures['processor']}; load before the start "
        f"{figures['load']:.1f}. {figures['versions']}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
