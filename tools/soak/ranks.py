"""R14 and R15: runs with several processes, resumed with other numbers of processes, or with one that dies or hangs."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.soak.fleets import Fleet
from tools.soak.processes import environment
from tools.soak.rows import Budget, Row, Trial
from tools.soak.subjects import RUN, finetuning, prepare, pretraining

STEPS = 50
_DDP, _FSDP = (("--set", f"training.parallel={mode}") for mode in ("ddp", "fsdp"))
_MICRO = ("--set", "training.micro_batch_size=2")
# The step at which a journey's first stage is killed; later stages are killed after half as many steps.
_KILLED_AT = {"pretrain": 18, "finetune": 6}

# Each stage of a journey is a number of processes and their parallel mode; all but the last are killed on the way.
_JOURNEYS: tuple[tuple[tuple[int, tuple[str, ...]], ...], ...] = (
    ((1, _DDP), (2, _DDP), (4, _DDP), (1, _DDP)),
    ((1, _DDP), (2, _FSDP), (4, _FSDP), (1, _DDP)),
    ((2, _DDP), (4, _FSDP), (2, _DDP)),
    ((4, _FSDP), (2, _DDP), (4, _FSDP)),
    ((4, _DDP), (1, _DDP), (2, _FSDP)),
    ((2, _FSDP), (1, _DDP), (4, _DDP)),
)
_SIZES = ((1, _DDP), (2, _DDP), (4, _DDP), (2, _FSDP), (4, _FSDP))


def _r14(budget: Budget) -> Iterator[Trial]:
    with Fleet(4) as fleet:
        data = prepare(fleet.first, budget.work / "data", num_topics=25)
        yield from (_same_samples(data, size) for size in (2, 4))
        jobs = {"pretrain": (*pretraining(data, steps=STEPS, save_every=5, evaluate_every=25).arguments, *_MICRO)}
        jobs["finetune"] = (*finetuning(data, epochs=3, restarts=1).arguments, *_MICRO)
        for name, arguments in jobs.items():
            alone = _Folder(budget.work / f"{name}-alone", arguments)
            alone.run(fleet, 1, _DDP)
            for number, (size, mode) in enumerate(_SIZES):
                first, again = (_Folder(budget.work / f"{name}-{number}{which}", arguments) for which in "ab")
                problem = first.run(fleet, size, mode) or again.run(fleet, size, mode)
                problem = problem or first.difference(again, 0.0) or first.difference(alone, 1e-5)
                yield Trial(f"{name}, {size} {mode[1]} twice", not problem, problem)
            for number, journey in enumerate(_JOURNEYS):
                folder, problem = _Folder(budget.work / f"{name}-journey-{number}", arguments), ""
                for stage, (size, mode) in enumerate(journey):
                    is_last = stage == len(journey) - 1
                    fault = "" if is_last else f"kill@training.step#{_KILLED_AT[name] // (1 + (stage > 0))}"
                    problem = problem or folder.run(fleet, size, mode, resume=stage > 0, fault=fault)
                problem = problem or folder.difference(alone, 1e-5)
                way = " -> ".join(f"{size} {mode[1].rpartition('=')[2]}" for size, mode in journey)
                yield Trial(f"{name}, {way}", not problem, problem)
            yield _refused(fleet, budget.work / f"{name}-refused", arguments)


def _same_samples(data: Path, size: int) -> Trial:
    """Compare the hash of all token ids of 50 batches, created whole and in parts."""
    from maskloom.data.corpus.opening import Corpus
    from maskloom.data.settings import PretrainingData
    from maskloom.objectives.pretraining import PRETRAINING
    from maskloom.training.ranks.ranks import Ranks
    from maskloom.training.settings import TrainingSection

    def digest(world_size: int) -> str:
        corpus, sums = Corpus.open(data / "corpus"), hashlib.sha256()
        settings = TrainingSection(batch_size=8, micro_batch_size=2)
        loaders = [
            PRETRAINING["masked_lm"].loader(
                corpus, None, PretrainingData(max_length=32, max_predictions_per_seq=20), batch_size=8, seed=0,
                rows=Ranks(rank=rank, world_size=world_size).rows(settings),
            )
            for rank in range(world_size)
        ]  # fmt: skip
        position: dict[str, int] = {}
        for _ in range(STEPS):
            parts = [loader.next_batch(position) for loader in loaders]
            for batch, _after in parts:
                sums.update(batch.token_ids.tobytes())
            for batch, _after in parts:
                sums.update(batch.mlm_labels.tobytes())
            position = parts[0][1]
        return sums.hexdigest()

    is_same = digest(size) == digest(1)
    return Trial(f"samples of {size} ranks", is_same, "" if is_same else "the hash of the ids differs")


@dataclass(frozen=True)
class _Folder:
    """A folder in which one run is started and resumed."""

    place: Path
    arguments: Sequence[str]

    def run(self, fleet: Fleet, size: int, mode: Sequence[str], *, resume: bool = False, fault: str = "") -> str:
        """Run a job to its end, and return the problem, if any."""
        self.place.mkdir(exist_ok=True)
        arguments = [*self.arguments, *mode, *(["--resume"] if resume else [])]
        own = {"MASKLOOM_FAULTS": fault}
        if size == 1:
            code, said = fleet.first.start(arguments, self.place, self.place / "output.txt", **own).ended()
            codes = [code]
        else:
            ended = fleet.run(size, arguments, self.place, own=dict.fromkeys(range(size), own))
            codes, said = [each.code for each in ended], "\n".join(each.said for each in ended)
        # the others may learn of one rank's kill before they reach their own
        is_right = -9 in codes and {*codes} <= {-9, 1} if fault else not any(codes)
        return "" if is_right else f"exit codes {codes}: {said[-1500:]}"

    def difference(self, other: _Folder, most: float) -> str:
        """Return the gap if weights differ by more than `most` or losses by `most` / 10 (relative), else ''."""
        from safetensors.torch import load_file

        from maskloom.training.events import read_events

        own, others = (load_file(each.place / RUN / "model" / "model.safetensors") for each in (self, other))
        gap = max(float((own[name] - others[name]).abs().max()) for name in others)
        steps = [
            {event["step"]: event["loss"] for event in read_events(each.place / RUN / "events.jsonl")
             if event["event"] == "step"}
            for each in (self, other)
        ]  # fmt: skip
        relative = max(abs(steps[0][step] / loss - 1.0) for step, loss in steps[1].items())
        is_far = gap > most or relative > most / 10 or steps[0].keys() != steps[1].keys()
        return f"weights differ by {gap:.1e}, losses by {relative:.1e}" if is_far else ""


def _refused(fleet: Fleet, folder: Path, arguments: Sequence[str]) -> Trial:
    ended = fleet.run(3, arguments, folder)
    is_right = all(each.code == 3 and "numbers of processes that work: 1, 2, 4" in each.said for each in ended)
    is_right = is_right and not (folder / RUN).exists()
    return Trial(f"{arguments[0]}, 3 processes", is_right, "" if is_right else ended[0].said[-500:])


# The fault point and the rank that meets it. Only rank 0 evaluates and writes.
_KILLED = (
    (1, "training.micro_batch#1"),
    (0, "training.micro_batch#9"),
    (1, "training.micro_batch#40"),
    (1, "training.step#5"),
    (0, "training.step#13"),
    (1, "training.step#25"),
    (0, "evaluation.batch#2"),
    (0, "files.write#30"),
    (0, "files.rename#5"),
    (0, "files.sync#20"),
)
_HUNG = (*_KILLED, (0, "training.micro_batch#61"), (1, "training.step#37"), (0, "evaluation.batch#3"))
_MOST_SECONDS = 60.0


def _r15(budget: Budget) -> Iterator[Trial]:
    with Fleet(1) as fleet:
        data = prepare(fleet.first, budget.work / "data", num_topics=25)
    job = (*pretraining(data, steps=STEPS, save_every=5, evaluate_every=20).arguments, *_MICRO)
    for mode in (_DDP, _FSDP):
        alone = _Folder(budget.work / f"alone-{mode[1]}", job)
        code, said, _seconds = _torchrun(alone.place, (*job, *mode), rank=0, fault="", restarts=0)
        if code:
            raise RuntimeError(said[-2000:])
        few = slice(3, 7) if mode == _FSDP else slice(None)
        name = mode[1].rpartition("=")[2]
        for rank, point in _KILLED[few]:
            yield _elastic(alone, budget.work / "elastic", mode, rank, point, f"{name}, rank {rank}, {point}")
        for action, points in (("kill", _KILLED[few]), ("hang", _HUNG[few])):
            for rank, point in points:
                where = f"{name}, rank {rank}, {point}"
                yield _ends(budget.work / "ends", (*job, *mode), action, rank, point, where)


def _ends(place: Path, job: Sequence[str], action: str, rank: int, point: str, name: str) -> Trial:
    """Make one rank die or hang, and check how soon all have ended, their output, and the checkpoints."""
    from maskloom.training.checkpointing.checkpoints import step_folders
    from tools.checking import verify_checkpoint

    shutil.rmtree(place, ignore_errors=True)
    code, said, seconds = _torchrun(place, job, rank=rank, fault=f"{action}@{point}", restarts=0)
    problems = [] if code else ["exit code 0"]
    if seconds > _MOST_SECONDS:
        problems.append(f"{seconds:.0f} s until all had ended")
    if f"rank {rank} was lost" not in said and f"rank {rank} hangs" not in said:
        problems.append(f"rank {rank} is not named: {said[-1500:]}")
    half = [verify_checkpoint(path) for path in step_folders(place / RUN / "checkpoints" / "phase-1")]
    problems += [problem for problem in half if problem]
    return Trial(f"{action}: {name}", not problems, "; ".join(problems) or f"{seconds:.0f} s")


def _elastic(alone: _Folder, place: Path, mode: Sequence[str], rank: int, point: str, name: str) -> Trial:
    """Make one rank die, let torchrun restart all ranks, and compare the result of the run."""
    shutil.rmtree(place, ignore_errors=True)
    folder = _Folder(place, alone.arguments)
    code, said, _seconds = _torchrun(place, (*alone.arguments, *mode), rank=rank, fault=f"kill@{point}", restarts=1)
    if f"rank {rank} was lost" not in said:
        problem = f"rank {rank} was not killed: {said[-1500:]}"
    else:
        problem = said[-1500:] if code else folder.difference(alone, 0.0)
    return Trial(f"elastic restart: {name}", not problem, problem)


def _torchrun(place: Path, job: Sequence[str], *, rank: int, fault: str, restarts: int) -> tuple[int, str, float]:
    """Run a job of two ranks under torchrun, one of which meets a fault on its first start.

    Returns the exit code, the output, and the seconds from the fault until torchrun ended.
    """
    place.mkdir(parents=True, exist_ok=True)
    log, output = place / "passes.txt", place / "output.txt"
    faulty = f"export MASKLOOM_FAULTS={shlex.quote(fault)} MASKLOOM_FAULT_LOG={shlex.quote(str(log))}" if fault else ""
    own = f'if [ "$RANK$TORCHELASTIC_RESTART_COUNT" = {rank}0 ]; then {faulty or ":"}; fi; '
    line = f"{own}exec {shlex.join([sys.executable, '-m', 'maskloom', *job])}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), "--no-python", "bash", "-c", line]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=place, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment(),
            start_new_session=True,
        )  # fmt: skip
    try:
        code = process.wait(600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
    seconds = time.time() - log.stat().st_mtime if log.exists() else 0.0
    return code, output.read_text(encoding="utf-8", errors="replace"), seconds


ROWS = (
    Row(
        "R14",
        "the same run on 1, 2 and 4 processes, with DDP and FSDP2, continued on other numbers of processes",
        "same samples; losses within 1e-6 relative, weights within 1e-5; same number: bit-identical; else rejected",
        2 + 2 * (len(_SIZES) + len(_JOURNEYS) + 1),
        _r14,
    ),
    Row(
        "R15",
        "one of two ranks killed or hung at a given point, under torchrun, with and without elastic restart",
        "all end within 60 s, the rank is named, no partial checkpoint; a restarted run is bit-identical",
        2 * (len(_KILLED) + 4) + len(_HUNG) + 4,
        _r15,
    ),
)
