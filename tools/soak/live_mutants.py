"""Planted bugs as live code: real command lines of a mutated copy of the source, compared as in the other rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.soak.kills import Kill, leave_alone, try_kill
from tools.soak.mutants import MUTANTS, planted
from tools.soak.processes import ForkServer
from tools.soak.rows import Budget, Row, Trial
from tools.soak.subjects import RUN, differences, outcome, prepare, pretraining, run_whole, sets

_PLAIN = sets("model.config.hidden_dropout_prob=0.0", "model.config.attention_probs_dropout_prob=0.0")


def _short(data: Path):
    return pretraining(data, steps=12, save_every=5, evaluate_every=6)


def killed(server: ForkServer, data: Path, work: Path) -> str:
    """Kill a run in a step, resume it, and return how it differs from the undisturbed run."""
    alone = leave_alone(server, _short(data), work / "alone")
    trial = try_kill(server, alone, Kill("step", rule="kill@training.step#9"), work / "killed")
    return "" if trial.passed else trial.detail.splitlines()[-1]  # for an error, the last line of the command's output


def damaged(server: ForkServer, data: Path, work: Path) -> str:
    """Flip a bit of the newest checkpoint, resume the run, and return how it differs from the undisturbed run."""
    subject = _short(data)
    alone = leave_alone(server, subject, work / "alone")
    folder = work / "damaged"
    shutil.copytree(work / "alone", folder)
    (folder / RUN / "metrics.json").unlink()
    shutil.rmtree(folder / RUN / "model")
    weights = max((folder / RUN / "checkpoints" / "phase-1").glob("step-*")) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    try:
        run_whole(server, subject.resumed(), folder)
    except RuntimeError as error:
        return str(error)[-300:]
    return "; ".join(differences(outcome(folder / RUN), alone.outcome)[:4])


def in_parts(server: ForkServer, data: Path, work: Path) -> str:
    """Train on whole batches and on micro-batches, without dropout, and return a message if the losses differ."""
    losses = []
    for name, more in (("whole", ()), ("parts", sets("training.micro_batch_size=3"))):
        folder = work / name
        folder.mkdir(parents=True)
        run_whole(server, (*_short(data).arguments, *_PLAIN, *more), folder)
        events = [json.loads(line) for line in (folder / RUN / "events.jsonl").read_text(encoding="utf-8").splitlines()]
        losses.append([event["loss"] for event in events if event["event"] == "step"])
    gap = max(abs(a / b - 1) for a, b in zip(*losses, strict=True))
    return f"losses differ by {gap:.1e}" if gap > 1e-5 else ""


_SEEN_BY: dict[str, Callable[[ForkServer, Path, Path], str]] = {
    "dropout does not follow the step": killed,
    "lock by existence": killed,
    "no hash": damaged,
    "mean of means": in_parts,
}


def live_mutants(budget: Budget) -> Iterator[Trial]:
    """Test each bug with the comparison that must detect it, and the unmodified source with all comparisons."""
    chosen = [mutant for mutant in MUTANTS if mutant.name in _SEEN_BY]
    with ForkServer(planted(None, budget.work / "sound")) as server:
        data = prepare(server, budget.work / "data", num_topics=40)
        for check in dict.fromkeys(_SEEN_BY.values()):
            problem = check(server, data, budget.work / "sound-runs" / check.__name__)
            yield Trial(f"no mutant, {check.__name__}", not problem, problem)
    for number, mutant in enumerate(chosen):
        work = budget.work / f"mutant-{number}"
        with ForkServer(planted(mutant, work / "copy")) as server:
            problem = _SEEN_BY[mutant.name](server, data, work).replace(str(budget.work), "WORK")
        yield Trial(mutant.name, bool(problem), f"seen: {problem}"[:300] if problem else "not seen")


ROWS = (
    Row(
        "mutants live",
        f"{len(_SEEN_BY)} of the planted bugs in real runs of the changed copy, killed, damaged or split into "
        "micro-batches; and an unchanged copy",
        "the comparisons with an undisturbed run detect each bug, and nothing in the unchanged copy",
        len(_SEEN_BY) + len(set(_SEEN_BY.values())),
        live_mutants,
    ),
)
