"""The consumer of the loop that runs share: it logs, evaluates, saves, resumes and answers requests to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maskloom.config import TrainingSection
from maskloom.objectives.objective import Objective
from maskloom.training.background_saves import BackgroundSaves
from maskloom.training.checkpoints import restore_checkpoint
from maskloom.training.events import EventLog
from maskloom.training.interruption import Interrupted, StopRequests
from maskloom.training.loop import NextBatch, StepReport, TrainState, train_steps
from maskloom.training.memory import release_free_memory

# What is given back has to be asked for again, page by page: every so many seconds that costs a few hundredths of the
# time, and it bounds what batches of different sizes leave behind.
_SECONDS_BETWEEN_RELEASES = 10.0

OnStep = Callable[[StepReport], None]


@dataclass
class TrainingSession:
    """One stretch of training with its own optimiser and schedule: a fine-tuning run or a phase of pre-training.

    `evaluate` returns metrics of the current weights; `memory` is a JSON-able dictionary that is saved with every
    checkpoint and restored on resume (the best score so far, say).
    """

    state: TrainState
    objective: Objective
    next_batch: NextBatch
    settings: TrainingSection
    seed: int
    checkpoints: Path
    log: EventLog
    evaluate: Callable[[], dict[str, float]] | None = None
    on_step: OnStep | None = None
    on_metrics: Callable[[int, dict[str, float]], None] | None = None
    say: Callable[[str], None] = print
    memory: dict[str, Any] = field(default_factory=dict)
    name: str = "train"

    def resume(self) -> int:
        """Load the newest whole checkpoint, if any, and return the step to continue from; refused ones are named."""
        restored = restore_checkpoint(self.state, self.checkpoints)
        if restored is None:
            return 0
        for problem in restored.refused:
            self.say(f"warning: checkpoint passed over: {problem}")
        self.memory.clear()
        self.memory.update(restored.extra)
        return restored.step

    def run(self) -> None:
        """Train to the last step, and return when its checkpoint is on disk.

        Checkpoints on the way are written while training goes on. Raises Interrupted, after a save, when a signal asks
        to stop, and OSError at the next step when a checkpoint could not be written.
        """
        if self.state.step >= self.settings.steps:
            return
        released = time.monotonic()
        with StopRequests() as stop, self._saves() as saves:
            steps = train_steps(self.state, self.objective, self.next_batch, settings=self.settings, seed=self.seed)
            for report in steps:
                saves.check()
                if time.monotonic() - released >= _SECONDS_BETWEEN_RELEASES:
                    release_free_memory()
                    released = time.monotonic()
                self._after_step(report, stop, saves)

    def _after_step(self, report: StepReport, stop: StopRequests, saves: BackgroundSaves) -> None:
        """Log, evaluate and save as the settings say; raises Interrupted, with all on disk, when asked to stop."""
        settings = self.settings
        is_last = report.step == settings.steps
        if report.step % settings.log_every == 0 or is_last or report.step == 1:
            self._log_step(report)
        if self.on_step is not None:
            self.on_step(report)
        if is_last or (settings.evaluate_every and report.step % settings.evaluate_every == 0):
            self._evaluate(report.step)
        if is_last or stop.received:
            saves.save(self.state, self.memory)
        elif settings.save_every and report.step % settings.save_every == 0:
            saves.start(self.state, self.memory)
        if stop.received and not is_last:
            saves.wait()
            raise Interrupted(stop.received)

    def _saves(self) -> BackgroundSaves:
        def on_whole(step: int, path: Path) -> None:
            self.log.write("checkpoint", stage=self.name, step=step, folder=path.name)

        return BackgroundSaves(self.checkpoints, keep=self.settings.keep_checkpoints, on_whole=on_whole, say=self.say)

    def _log_step(self, report: StepReport) -> None:
        self.log.write(
            "step",
            stage=self.name,
            step=report.step,
            loss=report.loss,
            losses=report.losses,
            learning_rate=report.learning_rate,
            gradient_norm=report.gradient_norm,
            tokens_per_second=report.num_tokens / report.seconds,
        )

    def _evaluate(self, step: int) -> None:
        if self.evaluate is None:
            return
        metrics = self.evaluate()
        self.log.write("evaluation", stage=self.name, step=step, metrics=metrics)
        if self.on_metrics is not None:
            self.on_metrics(step, metrics)
