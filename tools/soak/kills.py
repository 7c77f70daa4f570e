"""R1 and R3: a run killed by `kill -9` at any moment resumes to the bits of the undisturbed run."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.checking import fresh_folder
from tools.soak.processes import CommandLine, ForkServer, Running
from tools.soak.rows import Budget, Row, Trial
from tools.soak.subjects import (
    RUN,
    Subject,
    differences,
    finetuning,
    grid_search,
    outcome,
    prepare,
    pretraining,
    run_whole,
)

# The number of kills of each kind in each command of R1; "clock" is any moment of the run's time, "interpreter" the
# same in a command line that starts its own interpreter.
PLANS = {
    "pretrain": {"save": 12, "evaluation": 6, "start-up": 6, "step": 6, "interpreter": 2, "clock": 18},
    "finetune": {"save": 6, "evaluation": 4, "start-up": 3, "step": 3, "interpreter": 1, "clock": 8},
    "search": {"save": 6, "evaluation": 4, "start-up": 3, "step": 3, "interpreter": 1, "clock": 8},
}
# The kinds of the kills in a row. The evaluation comes early: a run resumed at its end does not evaluate again.
_KINDS_IN_A_ROW = ("start-up", "evaluation", "step", "save", "start-up", "step", "save", "step", "step", "save")
# The activity at the fault points of a family, once training has begun.
_KIND_OF = {"files": "save", "model": "save", "checkpoints": "save", "evaluation": "evaluation"}


@dataclass(frozen=True)
class LeftAlone:
    """An undisturbed run of a subject: its results, the points it passed in order, and the seconds it took."""

    subject: Subject
    outcome: dict[str, str]
    passes: list[str]
    seconds: float

    def passes_of(self, kind: str) -> dict[str, list[int]]:
        """Return the points of one kind of moment with the numbers (from 1) of their passes that belong to it.

        Start-up ends with the first batch; later passes of file points belong to saves, whatever the file.
        """
        counts: dict[str, int] = {}
        found: dict[str, list[int]] = {}
        has_begun = False
        for name in self.passes:
            counts[name] = counts.get(name, 0) + 1
            family = name.partition(".")[0]
            has_begun = has_begun or family == "training"
            of = _KIND_OF.get(family, "step") if has_begun else "start-up"
            if of == kind:
                found.setdefault(name, []).append(counts[name])
        return found


@dataclass(frozen=True)
class Kill:
    """When a process is killed: at a pass of a fault point, or some seconds after its start."""

    kind: str
    rule: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return the moment as text."""
        return f"{self.kind} {self.rule or f'{self.seconds:.2f} s'}"


def leave_alone(server: ForkServer, subject: Subject, folder: Path) -> LeftAlone:
    """Run a subject to its end while it logs its points, and return the expected results."""
    folder.mkdir(parents=True)
    log, started = folder / "passes.txt", time.monotonic()
    run_whole(server, subject.arguments, folder, MASKLOOM_FAULT_LOG=str(log))
    seconds = time.monotonic() - started
    return LeftAlone(subject, outcome(folder / RUN), log.read_text(encoding="utf-8").split(), seconds)


def kills_of(alone: LeftAlone, plan: dict[str, int], budget: Budget) -> list[Kill]:
    """Return a plan's kills, drawn from the budget's seed; every point of a kind is equally likely."""
    kills = []
    for kind, number in plan.items():
        draw = budget.draw("kills", alone.subject.name, kind)
        points = alone.passes_of(kind)
        for _ in range(number):
            if kind in ("clock", "interpreter"):
                kills.append(Kill(kind, seconds=draw.uniform(0.0, 0.97 * alone.seconds)))
            else:
                name = draw.choice(sorted(points))
                kills.append(Kill(kind, rule=f"kill@{name}#{draw.choice(points[name])}"))
    return kills


def kills_one_after_another(alone: LeftAlone, budget: Budget) -> list[Kill]:
    """Return the kills of one run in a row, each at a point that the run passes however fast the machine is.

    From where it resumes, a run is killed in its start-up or, if that writes nothing, in its first save; in its first
    evaluation; after a tenth to a fifth of all steps; or in its first checkpoint: ten of these do not reach its end.
    """
    most = 1 + alone.passes.count("training.step") // 5
    points = {
        "start-up": dict.fromkeys(("files.write", "files.sync", "files.rename"), (1, 1)),
        "evaluation": {"evaluation.batch": (1, 1)},
        "step": dict.fromkeys(("training.micro_batch", "training.step"), (most // 2, most)),
        # after the first step, and as often as any checkpoint passes them
        "save": {
            f"training.step>files.{name}": (1, last) for name, last in (("write", 40), ("sync", 5), ("rename", 1))
        },
    }
    draw, kills = budget.draw("in a row", alone.subject.name), list[Kill]()
    for kind in _KINDS_IN_A_ROW:
        name = draw.choice(sorted(points[kind]))
        kills.append(Kill(kind, rule=f"kill@{name}#{draw.randint(*points[kind][name])}"))
    return kills


def kill_once(server: ForkServer, subject: Subject, kill: Kill, folder: Path, *, resume: bool = False) -> None:
    """Start or resume a subject, and kill it; raises RuntimeError when it fails or ends before reaching the point."""
    arguments = subject.resumed() if resume else subject.arguments
    output = folder / "killed.txt"
    running: Running
    if kill.kind == "interpreter":
        running = CommandLine(arguments, folder, output)
        running.kill_at(kill.seconds + 2.0)  # an interpreter's start-up time, which a fork has behind it
    elif kill.rule:
        running = server.start(arguments, folder, output, MASKLOOM_FAULTS=kill.rule)
    else:
        running = server.start(arguments, folder, output)
        running.kill_at(kill.seconds)
    code = running.wait()
    if code not in (-9, 0):
        raise RuntimeError(f"exit code {code} before the kill: {output.read_text(encoding='utf-8')[-1500:]}")
    if code == 0 and kill.rule:
        raise RuntimeError(f"the run ended before it passed {kill.rule}")


def try_kill(server: ForkServer, alone: LeftAlone, kill: Kill, folder: Path) -> Trial:
    """Kill one run, resume it to its end, and compare with the undisturbed run."""
    fresh_folder(folder)
    name = f"{alone.subject.name}, {kill}"
    try:
        kill_once(server, alone.subject, kill, folder)
        before = _last_step(folder / RUN)
        under_way = _save_under_way(folder / RUN)
        done = [int(path.stem.rpartition("-")[2]) for path in (folder / RUN / "trials").glob("trial-*.json")]
        said = run_whole(server, alone.subject.resumed(), folder)
        problems = differences(outcome(folder / RUN), alone.outcome)
        problems += _lost_too_much(alone.subject, before, under_way, said)
        problems += [f"trial {number} was repeated" for number in done if f"trial {number} of " in said]
    except (RuntimeError, TimeoutError) as error:
        problems = [str(error)]
    return Trial(name, not problems, "; ".join(problems[:4]))


def _last_step(run: Path) -> tuple[str, int]:
    """Return the stage and number of the last logged step of a killed run; 0 if there is none."""
    from maskloom.training.events import read_events

    log = run / "events.jsonl"
    events = read_events(log) if log.exists() else []  # without a line truncated by the kill
    steps = [(event["stage"], event["step"]) for event in events if event["event"] == "step"]
    return steps[-1] if steps else ("", 0)


def _save_under_way(run: Path) -> int | None:
    """Return the step of the save that the kill interrupted, if any."""
    steps = [int(path.name[5:].partition(".")[0]) for path in run.rglob("step-*.tmp-*")]
    return max(steps, default=None)


def _lost_too_much(subject: Subject, before: tuple[str, int], under_way: int | None, said: str) -> list[str]:
    """Return a complaint when the resumed run went back by more than the save interval.

    Training continues during a save: after a kill during a save, the steps since its beginning are also allowed.
    """
    stage, step = before
    begun = re.search(rf"^({subject.stages})(?:: continuing at (\d+) of \d+)?$", said, re.MULTILINE)
    if subject.name == "search" or begun is None or not _is_stage(begun[1], stage):
        return []  # the log of one trial, or of a finished stage
    lost = step - int(begun[2] or 0)
    allowed = subject.save_every + (step - under_way if under_way is not None else 0)
    return [f"went back {lost} steps from {step}, more than {allowed}"] if lost > allowed else []


def _is_stage(shown: str, stage: str) -> bool:
    return shown.startswith(f"{stage},") or shown == f"fine-tuning, seed {stage.removeprefix('seed-')}"


@contextmanager
def _prepared(budget: Budget) -> Iterator[tuple[ForkServer, list[Subject]]]:
    with ForkServer() as server:
        data = prepare(server, budget.work / "data")
        yield server, [pretraining(data), finetuning(data), grid_search(data)]


def resume_to_the_bit(budget: Budget) -> Iterator[Trial]:
    """Kill each command at all of its planned moments, one run per kill, with commands and kinds in random order."""
    with _prepared(budget) as (server, subjects):
        planned = []
        for subject in subjects:
            alone = leave_alone(server, subject, budget.work / f"{subject.name}-alone")
            planned += [(alone, kill) for kill in kills_of(alone, PLANS[subject.name], budget)]
        budget.draw("order").shuffle(planned)
        for alone, kill in planned:
            yield try_kill(server, alone, kill, budget.work / "killed")


def kills_in_a_row(budget: Budget) -> Iterator[Trial]:
    """Kill one run of each command ten times, most often while it resumes, and let the eleventh start finish it."""
    with _prepared(budget) as (server, subjects):
        for subject in subjects:
            alone = leave_alone(server, subject, budget.work / f"{subject.name}-alone")
            yield _try_many(server, alone, budget)


def _try_many(server: ForkServer, alone: LeftAlone, budget: Budget) -> Trial:
    folder = budget.work / f"{alone.subject.name}-killed"
    folder.mkdir()
    for number, kill in enumerate(kills_one_after_another(alone, budget)):
        try:
            kill_once(server, alone.subject, kill, folder, resume=number > 0)
        except RuntimeError as error:
            return Trial(alone.subject.name, False, f"kill {number + 1}, {kill}: {error}")
    try:
        run_whole(server, alone.subject.resumed(), folder)
    except RuntimeError as error:
        return Trial(alone.subject.name, False, str(error))
    problems = differences(outcome(folder / RUN), alone.outcome)
    return Trial(alone.subject.name, not problems, "; ".join(problems[:4]))


ROWS = (
    Row(
        "R1",
        "kill -9 at 50 seeded moments of pre-training for 200 steps (12 in a save, 6 in evaluation, 6 in start-up, "
        "6 in a step, 20 by the clock), 25 of a fine-tuning run from two seeds, 25 of a grid search; resume. Of these "
        "4 are new interpreters, 96 are forks of one that has imported everything",
        "all files, optimiser and event log bit-identical to an undisturbed run; lost work at most the save interval, "
        "plus the steps taken while a save was being written when the kill came",
        sum(sum(plan.values()) for plan in PLANS.values()),
        resume_to_the_bit,
    ),
    Row(
        "R3",
        "one run killed 10 times in a row, also while resuming: pre-training, fine-tuning, grid search",
        "as R1; the same files and no others",
        3,
        kills_in_a_row,
    ),
)
