"""R8: signals from terminals and schedulers end a run with everything saved, and it resumes to the same bits."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tools.checking import fresh_folder, verify_checkpoint
from tools.soak.kills import LeftAlone, leave_alone
from tools.soak.processes import ForkServer, Running
from tools.soak.rows import Budget, Row, Trial
from tools.soak.subjects import RUN, differences, finetuning, grid_search, outcome, prepare, pretraining, run_whole

SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")
MOMENTS = {"pretrain": 10, "finetune": 5, "search": 5}
SECOND_INTERRUPTS = 20
_LONGEST_STOP, _LONGEST_LEAVE, _ATTEMPTS = 10.0, 1.0, 8


def try_signal(server: ForkServer, alone: LeftAlone, name: str, share: float, folder: Path) -> Trial:
    """Send a signal at a share of the run's time after it starts listening, check the results, and resume the run.

    If the run ends before the signal, it is tried again with an earlier one.
    """
    number, title = getattr(signal, name), f"{alone.subject.name} {name} at {share:.2f}"
    for _ in range(_ATTEMPTS):
        running = _started(server, alone, folder)
        running.pause(share * alone.seconds)
        begin = time.monotonic()
        running.send(number)
        code = running.wait()
        seconds = time.monotonic() - begin
        if code:
            break
        share *= 0.7
    else:
        return Trial(title, False, "the run always ended before the signal")
    problems = _problems_of_stop(running, code, 130 if name == "SIGINT" else 75, folder)
    if seconds > _LONGEST_STOP:
        problems.append(f"{seconds:.1f} s until the end")
    if alone.subject.name == "pretrain":
        problems += _lost_steps(folder / RUN)
    return _go_on(server, alone, folder, title, problems, f"{seconds:.2f} s")


def try_second_interrupt(server: ForkServer, alone: LeftAlone, draw_from: Budget, number: int, folder: Path) -> Trial:
    """Send SIGINT twice, while a save hangs in the disk or at any moment, and resume the run."""
    draw = draw_from.draw("second interrupt", number)
    hangs = number % 2 == 0
    title = f"{alone.subject.name} second SIGINT {'in a save' if hangs else 'at any moment'}"
    if hangs:
        passes = alone.passes_of("save")["files.sync"]
        at = draw.choice(passes)
        title += f", sync {at}"
        log = folder.with_name("passes.txt")
        log.unlink(missing_ok=True)
        rules = {"MASKLOOM_FAULTS": f"hang@files.sync#{at}", "MASKLOOM_FAULT_LOG": str(log)}
        running = _started(server, alone, folder, **rules)
        running.wait_until(lambda: log.exists() and log.read_text().split().count("files.sync") >= at)
    else:
        share = draw.uniform(0.0, 0.6)
        for later in (1.0, 0.5, 0.25):  # the run may be faster than the undisturbed one
            running = _started(server, alone, folder)
            running.pause(share * later * alone.seconds)
            if not running.has_ended():
                break
    running.send(signal.SIGINT)
    running.pause(0.05)
    begin = time.monotonic()
    running.send(signal.SIGINT)
    code = running.wait()
    seconds = time.monotonic() - begin
    problems = _problems_of_stop(running, code, 130, folder, says_how=False)
    if seconds > _LONGEST_LEAVE:
        problems.append(f"{seconds:.1f} s until the end")
    return _go_on(server, alone, folder, title, problems, f"{seconds:.2f} s")


def _started(server: ForkServer, alone: LeftAlone, folder: Path, **environment: str) -> Running:
    """Start the subject in a fresh folder, and return when it handles signals."""
    fresh_folder(folder)
    running = server.start(alone.subject.arguments, folder, folder / "stopped.txt", **environment)
    running.wait_until(lambda: _listens(running.pid))
    return running


def _listens(pid: int) -> bool:
    """Tell whether a process has a handler for SIGUSR1, which only a stoppable run installs."""
    try:
        caught = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def _problems_of_stop(running: Running, code: int, expected: int, folder: Path, *, says_how: bool = True) -> list[str]:
    """Return the problems with how a run ended and with the files that it left."""
    said = running.output.read_text(encoding="utf-8", errors="replace")
    problems = [] if code == expected else [f"exit code {code} instead of {expected}: {said[-500:]}"]
    if "Traceback" in said:
        problems.append(f"a traceback: {said[-1500:]}")
    if says_how and "--resume" not in said:
        problems.append("it does not say how to go on")
    for path in (folder / RUN).rglob("step-*"):
        if path.name[5:].isdigit() and (problem := verify_checkpoint(path)):
            problems.append(problem)
    end = time.monotonic() + 5.0
    while _group(running.pid) and time.monotonic() < end:
        time.sleep(0.01)
    return problems + [f"process {pid} is left" for pid in _group(running.pid)]


def _group(leader: int) -> list[int]:
    """Return the processes of a process group, except zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, group, *_ = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def _lost_steps(run: Path) -> list[str]:
    """Return a complaint when the newest checkpoint is not from the last logged step."""
    log = run / "events.jsonl"
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    last = max((event["step"] for event in events if event["event"] == "step"), default=0)
    saved = [int(path.name[5:]) for path in run.glob("checkpoints/*/step-*") if path.name[5:].isdigit()]
    return [] if max(saved, default=0) == last else [f"step {last} was made, {max(saved, default=0)} is saved"]


def _go_on(server: ForkServer, alone: LeftAlone, folder: Path, title: str, problems: list[str], measured: str) -> Trial:
    """Resume the run and compare the results; older checkpoints may be from other steps than the undisturbed run's."""
    try:
        run_whole(server, alone.subject.resumed(), folder)
    except RuntimeError as error:
        return Trial(title, False, "; ".join([*problems, str(error)]))
    found, expected = ({name: value for name, value in values.items() if _counts(name, alone)}
                       for values in (outcome(folder / RUN), alone.outcome))  # fmt: skip
    problems += differences(found, expected)
    return Trial(title, not problems, "; ".join(problems[:4]) or measured)


def _counts(name: str, alone: LeftAlone) -> bool:
    """Tell whether a file does not belong to a checkpoint, or belongs to the newest one."""
    newest = max((found[0] for other in alone.outcome if (found := re.findall(r"step-\d+", other))), default="")
    return "checkpoints/" not in name or newest in name


def stop_by_signals(budget: Budget) -> Iterator[Trial]:
    """Stop each command with each signal at its moments, and with a second SIGINT."""
    with ForkServer() as server:
        data = prepare(server, budget.work / "data")
        for subject in (pretraining(data), finetuning(data), grid_search(data)):
            alone = leave_alone(server, subject, budget.work / f"{subject.name}-alone")
            for name in SIGNALS:
                for number in range(MOMENTS[subject.name]):
                    share = budget.draw("signal", subject.name, name, number).uniform(0.0, 0.95)
                    yield try_signal(server, alone, name, share, budget.work / "stopped")
            if subject.name == "pretrain":
                for number in range(SECOND_INTERRUPTS):
                    yield try_second_interrupt(server, alone, budget, number, budget.work / "left")


ROWS = (
    Row(
        "R8",
        "SIGTERM, SIGINT, SIGUSR1, SIGHUP, each at 20 seeded moments of pre-training, fine-tuning and a grid search; a "
        "second SIGINT, 10 times in a save that hangs and 10 times at any moment; resume",
        "saved and ended within 10 s with exit code 75 or 130; within 1 s of a second SIGINT; no process left "
        "after 5 s; the resumed run bit-identical",
        len(SIGNALS) * sum(MOMENTS.values()) + SECOND_INTERRUPTS,
        stop_by_signals,
    ),
)
