"""How much of their rate training and embedding keep next to other work: busy loops, and copies of themselves.

The fair share of a side is the rate that equal time for every runnable thread would leave it. Each run is a separate
process with the number of threads that it chooses itself, loaded once and idle between its turns. It is timed while the
others run; sides and loads alternate. Eight processes are loaded at once: with base, about 20 GiB of memory.

    python benchmarks/busy.py [--jobs tiny mini base embed] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rounds import MIN_ROUNDS, in_turn, order_said, quiet_load, reached
from surroundings import minilm_folder, noted, processor, versions

JOBS, SIDES = ("tiny", "mini", "base", "embed"), ("maskloom", "transformers")
BATCH_SIZES = {"tiny": 32, "mini": 16, "base": 4}
LOOPS, RUNS = (0, 1, 2, 4), (1, 2, 3)
SECONDS = 6.0
AIMS = (0.8, 0.9, 1.0)
PEERS = ("transformers", "sentence-transformers")
LOOP = """
import os
parent = os.getppid()
while os.getppid() == parent:  # a loop ends with this script, however that ends
    for _ in range(10**6):
        pass
"""


def main() -> None:
    """Measure and write the page; jobs that are not selected keep figures of the same machine, versions and rounds.

    `--report` only rewrites the page from the stored figures.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="only write the page from busy.json")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--jobs", nargs="+", default=JOBS, choices=JOBS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        work(options.side, options.jobs[0])
        return
    place = Path(__file__).with_suffix(".json")
    if not options.report:
        same = {"processor": processor(), "versions": versions(*PEERS), "rounds": options.rounds}
        same["cores"] = len(os.sched_getaffinity(0))
        figures: dict[str, Any] = {"load": quiet_load(), **same}
        former = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
        figures["jobs"] = former["jobs"] if same.items() <= former.items() else {}
        for job in options.jobs:
            figures["jobs"][job] = measured(job, options.rounds)
            figures["summary"] = summary(figures)
            place.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    place.with_suffix(".md").write_text(page(json.loads(place.read_text(encoding="utf-8"))), encoding="utf-8")


def measured(job: str, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the rates of a job by side and load, one per round; with several runs, the rate is their mean."""
    found: dict[str, dict[str, list[float]]] = {side: {} for side in SIDES}
    loads = [("loops", number) for number in LOOPS] + [("runs", number) for number in RUNS]
    workers = {side: [_started(side, job) for _ in range(1 + max(RUNS))] for side in SIDES}
    try:
        for worker in (worker for side in SIDES for worker in workers[side]):
            worker.stdout.readline()  # ready
        for number in range(rounds):
            for kind, count in in_turn(loads, number):
                for side in in_turn(SIDES, number):
                    rate = beside(workers[side], kind, count)
                    found[side].setdefault(f"{count} {kind}", []).append(rate)
                    print(f"{job}, round {number + 1}, beside {count} {kind}, {side}: {rate:.1f}", flush=True)
    finally:
        for worker in (worker for side in SIDES for worker in workers[side]):
            worker.kill()
            worker.wait()
    return found


def beside(workers: list[Any], kind: str, count: int) -> float:
    """Return the rate of the first worker beside busy loops, or the mean rate of several that run at once."""
    runs = workers[: 1 + (count if kind == "runs" else 0)]
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count if kind == "loops" else 0)]
    try:
        rates = _answers(runs, "go")
        _answers(runs, "rest")  # each has kept running until the last one was measured
    finally:
        for process in loops:
            process.kill()
            process.wait()
    return sum(map(float, rates)) / len(rates)


def _answers(runs: list[Any], request: str) -> list[str]:
    for run in runs:
        print(request, file=run.stdin, flush=True)
    return [run.stdout.readline() for run in runs]


def _started(side: str, job: str) -> Any:
    command = [sys.executable, __file__, "--side", side, "--jobs", job]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def work(side: str, job: str) -> None:
    """Load, report readiness and, whenever told to go, print tokens or texts per second, and run until told to rest."""
    step, size = _embedding(side) if job == "embed" else _training(side, job)
    for _ in range(2):
        step()
    print("ready", flush=True)
    while sys.stdin.readline():
        step()  # meanwhile the others begin
        started, num_steps = time.perf_counter(), 0
        while time.perf_counter() - started < SECONDS:
            step()
            num_steps += 1
        print(num_steps * size / (time.perf_counter() - started), flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            step()
        sys.stdin.readline()
        print("resting", flush=True)


def _training(side: str, size: str) -> tuple[Callable[[], Any], int]:
    import torch
    from full_rows import VOCABULARY, full_rows
    from step_sides import Ours, Peer

    from maskloom.checkpoints.huggingface import save_model
    from maskloom.models.assembled import build_model
    from maskloom.models.bert import BertConfig
    from maskloom.system.devices import chosen_device

    config = BertConfig.of_size(size, vocab_size=VOCABULARY)
    device = chosen_device("cpu") if side == "maskloom" else torch.device("cpu")  # ours is configured as in a run
    batches = [full_rows(BATCH_SIZES[size], seed=seed) for seed in range(4)]
    if side == "maskloom":
        return Ours(config, device, batches, "fp32").step, batches[0].num_tokens
    with tempfile.TemporaryDirectory() as folder:
        save_model(build_model(config, seed=0), folder)
        return Peer(Path(folder), device, batches, "fp32").step, batches[0].num_tokens


def _embedding(side: str) -> tuple[Callable[[], Any], int]:
    texts = ["a sentence of eleven words stands here for all of them"] * 64
    if side == "maskloom":
        import maskloom

        model = maskloom.load(minilm_folder(), device="cpu")
    else:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(minilm_folder()), device="cpu")
    return lambda: model.encode(texts), len(texts)


def fair_share(load: str, cores: int) -> float:
    """Return the fraction of the solo rate that equal time per thread would leave; a run uses one thread per core."""
    count, kind = load.split()
    if kind == "runs":
        return 1.0 / (1 + int(count))
    return min(1.0, cores / (cores + int(count)))


def kept_shares(figures: dict[str, Any], job: str, side: str, load: str) -> list[float]:
    """Return the rates under a load divided by the fair share of the solo rate, one per round, sorted."""
    found, share = figures["jobs"][job][side], fair_share(load, figures["cores"])
    return sorted(rate / (share * alone) for rate, alone in zip(found[load], found["0 loops"], strict=True))


def summary(figures: dict[str, Any]) -> list[dict[str, str]]:
    """Return the README's row on training next to one and next to three other runs, if any size was trained."""
    sizes, loads = [job for job in figures["jobs"] if job != "embed"], ("1 runs", "3 runs")
    if not sizes:
        return []
    medians = {
        side: ", ".join(
            f"{size} " + " / ".join(f"{median(kept_shares(figures, size, side, load)):.2f}" for load in loads)
            for size in sizes
        )
        for side in SIDES
    }
    job = f"training next to one / three other runs, as a fraction of its fair share of {figures['cores']} cores"
    return [{"job": job, "beside": f"transformers: {medians['transformers']}", "result": medians["maskloom"]}]


def page(figures: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    rows = ", ".join(f"{size} {count} rows" for size, count in BATCH_SIZES.items() if size in figures["jobs"])
    training = f"tokens per second in pre-training steps (full rows of 128 tokens; {rows}), in which the peer is "
    training += "transformers' `BertForPreTraining` with sdpa and its MLM head on predicted positions only"
    rates = [training] if rows else []
    if "embed" in figures["jobs"]:
        rates.append("texts per second in embedding with MiniLM, for which the peer is sentence-transformers")
    lines = [
        "# Next to other work",
        "",
        f"Generated by `python benchmarks/busy.py`. Rates are {'; '.join(rates)}. Loops are busy loops; runs are more "
        "processes of the same side, and the rate is the mean of all. Each side uses its default number of threads; "
        "the peer's threads wait in libgomp's default way. The fair share is the rate that a side would have if every "
        "runnable thread got equal time; *kept* is the measured rate divided by the fair share.",
        "",
        *noted(figures),
        "| job | next to | side | rate | kept | range | reached (floor / target / stretch) |",
        "|---|---|---|---:|---:|---|---|",
    ]
    for job, sides in figures["jobs"].items():
        for load in next(iter(sides.values())):
            beside_what = load.removesuffix("s") if load.startswith("1 ") else load
            for side, found in sides.items():
                kept = kept_shares(figures, job, side, load)
                level = reached(median(kept), AIMS) if side == "maskloom" and load != "0 loops" else "-"
                lines.append(
                    f"| {job} | {beside_what} | {side} | {median(found[load]):,.0f} | **{median(kept):.2f}** | "
                    f"{kept[0]:.2f}-{kept[-1]:.2f} | {level} |"
                )
    lines += [
        "",
        f"{order_said(figures['rounds'])} {figures['processor']}; load before the start {figures['load']:.1f}. "
        f"{figures['versions']}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
