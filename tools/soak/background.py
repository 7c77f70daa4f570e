"""R19: saves by a background thread during training; weights change immediately after the call, and writes fail."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tools.soak.rows import Budget, Row, Trial

ROUNDS, _PATIENCE = 50, 120
_FAULTS, _SHARE_OF_FAULTS = ("eio", "enospc", "exception"), 0.25


@dataclass
class _Writer:
    """Wraps the real function that writes checkpoints: delays it until released, and records how each write ended."""

    write: Callable[..., Path]
    faults: dict[int, str] = field(default_factory=dict)
    gates: dict[int, threading.Event] = field(default_factory=dict)
    ends: dict[int, Exception | None] = field(default_factory=dict)
    inside: int = 0
    most: int = 0

    def __call__(self, snapshot: Any, *given: Any, **named: Any) -> Path:
        """Write a snapshot, or fail as planned for its step."""
        from tools.faults.fault_rules import arm

        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            assert self.gates[snapshot.step].wait(_PATIENCE)
            arm(self.faults[snapshot.step])
            path = self.write(snapshot, *given, **named)
            self.ends[snapshot.step] = None
            return path
        except Exception as error:
            self.ends[snapshot.step] = error
            raise
        finally:
            arm()
            self.inside -= 1

    def let_go(self) -> None:
        """Release all delayed writes."""
        for gate in self.gates.values():
            gate.set()


@dataclass
class _Round:
    """One round: a state that every step changes completely, the messages and exceptions, and the expected files."""

    folder: Path
    draw: random.Random
    state: Any
    writer: _Writer
    said: list[str] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    expected: dict[int, Any] = field(default_factory=dict)
    raised: Exception | None = None
    late: set[int] = field(default_factory=set)

    def train(self, saves: Any) -> None:
        """Run some steps and request saves at some of them, or at all."""
        share, release = self.draw.choice((0.4, 1.0)), ""
        try:
            with saves, ExitStack() as last:
                last.callback(self.writer.let_go)
                for step in range(1, self.draw.randint(6, 12)):
                    self._change(step)
                    if release == "after the change":
                        self.writer.let_go()
                    self._look(saves, saves.check)
                    if step == 1 or self.draw.random() < share:
                        self.writer.let_go()
                        release = self.draw.choice(("at once", "after the change", "at the next save"))
                        self._look(saves, partial(self._ask, saves, release))
        except Exception as error:
            self.raised = error

    def _change(self, step: int) -> None:
        import torch

        for parameter in self.state.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.state.optimizer.step()
        with torch.no_grad():
            for parameter in self.state.model.parameters():
                parameter.add_(1.0)
        self.state.step, self.state.position = step, {"number": step}

    def _ask(self, saves: Any, release: str) -> None:
        """Request a save of the current state."""
        from maskloom.training.checkpointing.checkpoints import Snapshot

        step, extra = self.state.step, {"best": [self.state.step]}
        seen = Snapshot.of(self.state, extra)
        copies = [{name: tensor.clone() for name, tensor in part.items()} for part in (seen.model, seen.optimizer)]
        self.expected[step] = replace(seen, model=copies[0], optimizer=copies[1])
        fault = f"{self.draw.choice(_FAULTS)}@files.*#{self.draw.randint(1, 12)}"
        self.writer.faults[step] = fault if self.draw.random() < _SHARE_OF_FAULTS else ""
        self.writer.gates[step] = threading.Event()
        if release == "at once":
            self.writer.let_go()
        saves.start(self.state, extra)
        extra["best"].append(-1)

    def _look(self, saves: Any, call: Callable[[], object]) -> None:
        """Make a call that must report the failure of a finished write, by a message or by raising it."""
        pending, may_end = saves._pending, all(gate.is_set() for gate in self.writer.gates.values())
        if pending is not None and may_end and self.draw.random() < 0.5:
            wait([pending], _PATIENCE)
        has_ended = pending is None or pending.done()
        failed = [step for step, error in self.writer.ends.items() if error and has_ended]
        call()  # the exception is the report, and ends the round
        self.late |= {step for step in failed if not self._is_said(step)}

    def _is_said(self, step: int) -> bool:
        return any(f"checkpoint of step {step} was not saved" in text for text in self.said)

    def problems(self) -> list[str]:
        """Return all problems after the round."""
        ends = self.writer.ends
        found = [f"the failure of step {step} was told late" for step in self.late]
        found += [f"{self.writer.most} saves at once"] * (self.writer.most != 1)
        if self.raised is not None and self.raised not in ends.values():
            return [*found, repr(self.raised)]
        if self.whole != [step for step, error in ends.items() if error is None]:
            found.append(f"called whole: {self.whole}; ends: {ends}")
        for before, (step, error) in zip((None, *ends.values()), ends.items(), strict=False):
            may_be_said = isinstance(error, OSError) and before is None and self._is_said(step)
            if error is not None and self.raised is not error and not may_be_said:
                found.append(f"step {step}: {error!r} was not raised")
        return found + self._problems_on_disk()

    def _problems_on_disk(self) -> list[str]:
        import torch
        from safetensors.torch import load_file

        from maskloom.training.checkpointing.checkpoints import MODEL, OPTIMIZER, REST
        from tools.checking import verify_checkpoint

        names = {path.name for path in self.folder.iterdir()}
        found = [f"step {step} is missing" for step in self.whole if f"step-{step:08d}" not in names]
        for name in sorted(names):
            snapshot = self.expected.get(int(name[5:])) if name[5:].isdigit() else None
            problem = "left behind" if snapshot is None else verify_checkpoint(self.folder / name)
            if snapshot is None or problem:
                found.append(f"{name}: {problem}")
                continue
            for file, tensors in ((MODEL, snapshot.model), (OPTIMIZER, snapshot.optimizer)):
                saved = load_file(self.folder / name / file)
                if saved.keys() != tensors.keys() or not all(torch.equal(saved[key], tensors[key]) for key in saved):
                    found.append(f"{name}: {file} is not of that step")
            if (self.folder / name / REST).read_text(encoding="utf-8") != snapshot.rest:
                found.append(f"{name}: {REST} is not of that step")
        return found


def try_round(folder: Path, draw: random.Random) -> tuple[list[str], str]:
    """Train and save in a folder that is emptied first; return the problems and a short summary."""
    from tests.unit.training.tiny_sessions import tiny_state

    from maskloom.training.checkpointing import background_saves as tried

    shutil.rmtree(folder, ignore_errors=True)
    state = tiny_state(draw.randrange(100), hidden_size=2 * draw.randint(2, 40))
    running = _Round(folder, draw, state, _Writer(tried.write_checkpoint))
    with mock.patch.object(tried, "write_checkpoint", running.writer):
        on_whole, say = (lambda step, _: running.whole.append(step)), running.said.append
        running.train(tried.BackgroundSaves(folder, keep=99, on_whole=on_whole, say=say))
    num_saves, end = len(running.writer.ends), "stopped" if running.raised else "went on"
    return running.problems(), f"{num_saves} saves, {num_saves - len(running.whole)} failed, {end}"


def background_saves(budget: Budget) -> Iterator[Trial]:
    """Yield a trial per round, each with a different model size and different times of saves, releases and faults."""
    for number in range(ROUNDS):
        found, what = try_round(budget.work / "round", budget.draw("round", number))
        yield Trial(f"round {number}", not found, "; ".join(found)[:500] or what)


ROWS = (
    Row(
        "R19",
        "saves in a thread: everything being saved changes right after the call; writes are delayed and fail",
        "bit-exact for the requested step; failures reported by the next call; never two at once; no partial files",
        ROUNDS,
        background_saves,
    ),
)
