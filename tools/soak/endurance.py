"""R18: a long run must not accumulate memory, threads, open files or checkpoints; by steps, and for two hours."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.soak.processes import CommandLine, ForkServer, Running
from tools.soak.rows import Budget, Row, Trial
from tools.soak.subjects import RUN, prepare, run_whole, sets

STEPS, SAVES, KEPT = 100_000, 500, 2
MINUTES = 120
_BLOCK = 1000
# Excluded shares of the time: the warm-up, and the end with the export of the model.
_WARM_UP, _END = 0.2, 0.05
_LONG_HOURS = 1.0
_COUNTED = ("resident", "threads", "files")


@dataclass(frozen=True)
class Sample:
    """The resources of a process at one moment."""

    seconds: float
    resident: int
    threads: int
    files: int
    checkpoints: int


def _sample(running: Running, started: float, checkpoints: Path) -> Sample | None:
    try:
        pages = int(Path(f"/proc/{running.pid}/statm").read_text(encoding="ascii").split()[1])
        threads, files = (len(os.listdir(f"/proc/{running.pid}/{name}")) for name in ("task", "fd"))
    except (OSError, IndexError):
        return None  # the process has ended
    whole = [path for path in checkpoints.glob("step-*") if ".tmp-" not in path.name]
    return Sample(time.monotonic() - started, pages * os.sysconf("SC_PAGE_SIZE"), threads, files, len(whole))


def watch(running: Running, checkpoints: Path, every: float, longest: float) -> list[Sample]:
    """Return samples of a process from its start to its end; raises TimeoutError after `longest` seconds."""
    started, samples = time.monotonic(), []
    while not running.has_ended():
        sample = _sample(running, started, checkpoints)
        samples += [sample] if sample is not None else []
        if time.monotonic() - started > longest:
            running.kill()
            raise TimeoutError(f"the run took longer than {longest:.0f} s")
        time.sleep(every)
    return samples


def slope_per_hour(samples: list[Sample]) -> float:
    """Return the least-squares slope of resident memory, in MB per hour."""
    times = [sample.seconds / 3600 for sample in samples]
    sizes = [sample.resident / 2**20 for sample in samples]
    mean_time, mean_size = sum(times) / len(times), sum(sizes) / len(sizes)
    spread = sum((at - mean_time) ** 2 for at in times)
    return sum((at - mean_time) * (size - mean_size) for at, size in zip(times, sizes, strict=True)) / max(
        spread, 1e-12
    )


def complaints(samples: list[Sample]) -> tuple[list[str], str]:
    """Return the signs of a leak, and the figures.

    Threads and files are compared by their median, since a save briefly has a file open.
    """
    end = samples[-1].seconds
    steady = [sample for sample in samples if _WARM_UP * end <= sample.seconds <= (1 - _END) * end] or samples
    quarter = max(1, len(steady) // 4)
    first, last = ({name: _median(part, name) for name in _COUNTED} for part in (steady[:quarter], steady[-quarter:]))
    slope, hours = slope_per_hour(steady), (steady[-1].seconds - steady[0].seconds) / 3600
    growth = (last["resident"] - first["resident"]) / 2**20
    found = []
    if slope >= 1.0 if hours >= _LONG_HOURS else growth >= 1.0:
        found.append(f"memory grew by {growth:.1f} MB, {slope:.1f} MB/h")
    for name in ("threads", "files"):
        if last[name] > first[name]:
            found.append(f"{name}: {first[name]} at first, {last[name]} at last")
    most = max(sample.checkpoints for sample in samples)
    if most > KEPT + 1:  # the new one is complete before the oldest is removed
        found.append(f"{most} checkpoints at once, {KEPT} were to be kept")
    figures = (
        f"resident {last['resident'] / 2**20:.0f} MB, growth {growth:+.2f} MB, slope {slope:+.2f} MB/h over "
        f"{hours * 60:.1f} min after warm-up, {last['threads']} threads, {last['files']} files"
    )
    return found, figures


def _median(samples: list[Sample], name: str) -> int:
    return sorted(getattr(sample, name) for sample in samples)[len(samples) // 2]


def long_run(budget: Budget) -> Iterator[Trial]:
    """Pre-train a tiny BERT in one process for as many steps as time allows; every thousand steps are a trial."""
    with ForkServer() as server:
        data = prepare(server, budget.work / "data")
        steps = STEPS if budget.seconds is None else _affordable(server, data, budget)
    num_blocks = max(1, steps // _BLOCK)
    yield from _watched(budget, _arguments(data, steps), [f"thousand {number + 1}" for number in range(num_blocks)])


def run_by_the_clock(budget: Budget) -> Iterator[Trial]:
    """Pre-train a tiny BERT in one process with `--minutes`; every minute is a trial."""
    with ForkServer() as server:
        data = prepare(server, budget.work / "data")
    minutes = MINUTES if budget.seconds is None else max(1, int(0.9 * budget.seconds / 60))
    arguments = [*_arguments(data, STEPS, has_steps=False), "--minutes", str(minutes)]
    yield from _watched(budget, arguments, [f"minute {number + 1}" for number in range(minutes)])


def _watched(budget: Budget, arguments: list[str], names: list[str]) -> Iterator[Trial]:
    """Watch one run and yield trials with these names; the last one carries the result of all."""
    output, out = budget.work / "output.txt", budget.work / RUN
    running = CommandLine(arguments, budget.work, output)
    try:
        samples = watch(running, out / "checkpoints" / "phase-1", every=0.25, longest=6 * 3600)
    finally:
        running.kill()
    problems, figures = complaints(samples)
    code = running.wait()
    if code:
        problems.append(f"exit code {code}: {output.read_text(encoding='utf-8')[-1000:]}")
    events = [json.loads(line) for line in (out / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    saved = [event["step"] for event in events if event["event"] == "checkpoint"]
    kept = sorted(path.name for path in (out / "checkpoints" / "phase-1").iterdir())
    if len(kept) != KEPT or kept[-1] != f"step-{saved[-1]:08d}":
        problems.append(f"kept {kept}")
    if len(saved) < SAVES:
        problems.append(f"{len(saved)} saves, {SAVES} were asked for")
    for name in names[:-1]:
        yield Trial(name, True)
    detail = f"{saved[-1]:,} steps, {len(saved)} saves in {samples[-1].seconds:.0f} s; {figures}"
    yield Trial(names[-1], not problems, "; ".join([*problems, detail]))


def _arguments(data: Path, steps: int, *, has_steps: bool = True) -> list[str]:
    """Return the command; without `has_steps`, saves and evaluations stay the same, but something else ends the run."""
    settings = {
        "data.max_length": 32,
        "data.held_out_fraction": 0.1,
        "training.batch_size": 8,
        **({"training.steps": steps} if has_steps else {}),
        "training.save_every": max(1, steps // SAVES),
        "training.evaluate_every": max(1, steps // 50),
        "training.max_evaluation_instances": 128,
        "training.keep_checkpoints": KEPT,
        "training.num_threads": 1,
        "model.config.hidden_size": 64,
        "model.config.num_attention_heads": 2,
        "model.config.intermediate_size": 128,
    }
    overrides = sets(*(f"{key}={value}" for key, value in settings.items()))
    return ["pretrain", "--corpus", str(data / "corpus"), "--out", RUN, "--size", "tiny", *overrides]


def _affordable(server: ForkServer, data: Path, budget: Budget) -> int:
    """Return the steps, in whole thousands, that fit in nine tenths of the time at the pace of a short run."""
    assert budget.seconds is not None
    folder, pilot = budget.work / "pilot", _BLOCK
    folder.mkdir()
    started = time.monotonic()
    run_whole(server, tuple(_arguments(data, pilot)), folder)
    each = (time.monotonic() - started) / pilot
    left = 0.9 * budget.seconds - (time.monotonic() - started)
    return max(_BLOCK, min(STEPS, int(left / each) // _BLOCK * _BLOCK))


ROWS = (
    Row(
        "R18",
        "a run of 100,000 steps with 500 saves and 50 evaluations in one process; every thousand steps is a trial",
        "memory grows by less than 1 MB/h after warm-up (by less than 1 MB if shorter, as here); threads "
        "and open files do not grow; the requested number of checkpoints is kept",
        STEPS // _BLOCK,
        long_run,
    ),
    Row(
        "R18 two hours",
        f"the same for {MINUTES} minutes of wall time, with a save every 200 steps; every minute is a trial",
        "as R18",
        MINUTES,
        run_by_the_clock,
    ),
)
