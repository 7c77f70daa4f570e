"""R7: disks that are full, read-only or broken while a run writes checkpoints, its best weights and its model."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.checking import fresh_folder
from tools.soak.kills import LeftAlone, leave_alone
from tools.soak.processes import ForkServer
from tools.soak.rows import Budget, Row, Trial
from tools.soak.saves import NUM_DISK_POINTS, failing_disks
from tools.soak.subjects import RUN, differences, finetuning, grid_search, outcome, prepare, pretraining, run_whole

NUM_SIZES = 3
_ENOUGH = "256m"
# The commands that write model folders, with the fault points at which the disk can be full.
MODEL_PLACES = {
    "pretrain": ("model.write",),
    "finetune": ("model.write", "files.copy"),
    "search": ("model.write", "files.copy"),
}


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a tmpfs on a folder, yield whether this machine permits it, and unmount it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = _mount(f"size={_ENOUGH}", "-t", "tmpfs", "none", str(folder))
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def _mount(options: str, *arguments: str) -> bool:
    program = shutil.which("mount")
    return bool(program) and subprocess.run([program, "-o", options, *arguments], capture_output=True).returncode == 0


def _resize(folder: Path, size: str) -> None:
    if not _mount(f"remount,size={size}", str(folder)):
        raise RuntimeError(f"{folder}: its size cannot be changed to {size}")


def _used(folder: Path) -> int:
    return shutil.disk_usage(folder).used


def _started(server: ForkServer, alone: LeftAlone, folder: Path, *, resume: bool = False, **environment: str) -> Trial:
    """Run the subject into the full disk, and check that it ends with exit code 74 and one error line."""
    arguments = alone.subject.resumed() if resume else alone.subject.arguments
    output = folder.parent / "output.txt"  # not on the full disk
    code, said = server.start(arguments, folder, output, **environment).ended()
    is_told = code == 74 and "Traceback" not in said and said.count("error: ") == 1
    return Trial(alone.subject.name, is_told, "" if is_told else f"exit code {code}: {said[-300:]}")


def _resumed(server: ForkServer, alone: LeftAlone, folder: Path) -> str:
    try:
        run_whole(server, alone.subject.resumed(), folder)
    except RuntimeError as error:
        return str(error)[-400:]
    return "; ".join(differences(outcome(folder / RUN), alone.outcome)[:3])


def model_places(alone: LeftAlone) -> list[str]:
    """Return rules that fill the disk from the first or the last pass of each fault point of a model folder."""
    places = MODEL_PLACES[alone.subject.name]
    return [f"enospc@{place}#{count}+" for place in places for count in sorted({1, alone.passes.count(place)})]


def try_full_disk(server: ForkServer, alone: LeftAlone, rule: str, folder: Path) -> Trial:
    """Run with a disk that is full according to a rule, which must end the run; resume when there is space again."""
    fresh_folder(folder)
    ended = _started(server, alone, folder, MASKLOOM_FAULTS=rule)
    detail = ended.detail or _resumed(server, alone, folder)
    return Trial(f"{alone.subject.name}, {rule}", not detail, detail)


def end_on_small_disk(server: ForkServer, alone: LeftAlone, folder: Path, size: int, *, resume: bool = False) -> str:
    """Run with `size` bytes on a small disk, resume with enough space, and return the problem, if any."""
    _resize(folder, str(size))
    ended = _started(server, alone, folder, resume=resume)
    _resize(folder, _ENOUGH)
    return ended.detail or _resumed(server, alone, folder)


def _small_disks(server: ForkServer, alone: LeftAlone, budget: Budget) -> Iterator[Trial]:
    """Run on a real file system that is too small, then on a larger one."""
    draw, name = budget.draw("small disks", alone.subject.name), alone.subject.name
    for number in range(NUM_SIZES):
        with small_disk(budget.work / "small" / "disk") as mounted:
            if not mounted:
                return
            folder = budget.work / "small" / "disk"
            whole = sum(path.stat().st_size for path in (budget.work / f"{name}-alone").rglob("*") if path.is_file())
            size = draw.randrange(64 << 10, whole * 3 // 4)
            detail = end_on_small_disk(server, alone, folder, size)
            yield Trial(f"{name}, a disk of {size >> 10} KiB, trial {number}", not detail, detail)
    for place in MODEL_PLACES[name]:
        with small_disk(budget.work / "small" / "disk") as mounted:
            if not mounted:
                return
            folder = budget.work / "small" / "disk"
            server.start(
                alone.subject.arguments, folder, folder.parent / "killed.txt", MASKLOOM_FAULTS=f"kill@{place}#1"
            ).wait()
            detail = end_on_small_disk(server, alone, folder, _used(folder) + (24 << 10), resume=True)
            yield Trial(f"{name}, a disk that is full at {place}", not detail, detail)


def full_disks(budget: Budget) -> Iterator[Trial]:
    """Try injected failures at any point and at the points of model folders, and real full file systems."""
    yield from failing_disks(Budget(budget.seed, budget.work / "injected", budget.seconds))
    with ForkServer() as server:
        data = prepare(server, budget.work / "data", num_topics=40)
        for subject in (
            pretraining(data, steps=21, save_every=5, evaluate_every=10),
            finetuning(data, epochs=2),
            grid_search(data, epochs=1),
        ):
            alone = leave_alone(server, subject, budget.work / f"{subject.name}-alone")
            for rule in model_places(alone):
                yield try_full_disk(server, alone, rule, budget.work / "places" / "run")
            yield from _small_disks(server, alone, budget)


ROWS = (
    Row(
        "R7",
        "a disk that fills up, becomes read-only or fails at a random point of pre-training; that is full when "
        "pre-training, fine-tuning and search write model folders; real file systems that are too small",
        "exit 74 with one line; the resumed run is bit-identical",
        NUM_DISK_POINTS + 1 + 10 + 3 * NUM_SIZES + 5,
        full_disks,
    ),
)
