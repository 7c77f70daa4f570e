"""The consumer of the loop that runs share: it logs, evaluates, saves, resumes and answers requests to stop."""

from __future__ import annotations

import math
import signal
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
from maskloom.training.interruption import Interrupted, StopRequests, stop_requests
from maskloom.training.loop import NextBatch, StepReport, TrainState, train_steps
from maskloom.training.memory import release_free_memory
from maskloom.training.ranks import ONE_RANK, Ranks

# What is given back has to be asked for again, page by page: every so many seconds that costs a few hundredths of the
# time, and it bounds what batches of different sizes leave behind.
_SECONDS_BETWEEN_RELEASES = 10.0

# Where a checkpoint keeps what a session itself has to remember, beside the `memory` of its caller.
_OWN = "session"

OnStep = Callable[[StepReport], None]


@dataclass
class TrainingSession:
    """One stretch of training with its own optimiser and schedule: a fine-tuning run or a phase of pre-training.

    `evaluate` returns metrics of the current weights; `memory` is a JSON-able dictionary that is saved with every
    checkpoint and restored on resume (the best score so far, say). With several `ranks` each runs its own session;
    they stop together, and only the first logs, speaks and saves. Where `settings.keep_best` says so, the checkpoint
    whose metrics have the highest `score` is kept beside the newest. `run_id` tells this run's checkpoints from others.
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
    ranks: Ranks = ONE_RANK
    score: Callable[[dict[str, float]], float] | None = None
    run_id: str | None = None
    _evaluation_is_due: bool = field(default=False, init=False)

    def resume(self) -> int:
        """Load the newest whole checkpoint, if any, and return the step to continue from; refused ones are named."""
        restored = restore_checkpoint(self.state, self.checkpoints, run=self.run_id)
        if restored is None:
            return 0
        for problem in restored.refused:
            self._tell(f"warning: checkpoint passed over: {problem}")
        self.memory.clear()
        self.memory.update(restored.extra)
        own = self.memory.pop(_OWN, {})
        self._evaluation_is_due = own.get("evaluation_is_due", False)
        self.state.micro_batch_size = own.get("micro_batch_size")
        return restored.step

    def run(self) -> None:
        """Train to the last step, and return when its checkpoint is on disk.

        Checkpoints on the way are written while training goes on. Raises Interrupted, after a save, when a signal asks
        to stop, and OSError at the next step when a checkpoint could not be written.
        """
        settings = self.settings
        if self.state.step >= settings.steps and not self._evaluation_is_due:
            return
        released = time.monotonic()
        with stop_requests() as stop, stop.deferred(), self._saves() as saves:
            if self._evaluation_is_due:
                self._finish_step(self.state.step, stop, saves)
            steps = train_steps(
                self.state, self.objective, self.next_batch, settings=settings, seed=self.seed, ranks=self.ranks
            )
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
        every = settings.evaluate_every
        self._evaluation_is_due = is_last or bool(every and report.step % every == 0)
        self._finish_step(report.step, stop, saves)

    def _finish_step(self, step: int, stop: StopRequests, saves: BackgroundSaves) -> None:
        """Evaluate if that is due, and save; when a signal comes in between, the resumed run evaluates."""
        settings = self.settings
        is_best = self._evaluate(step, stop) if self._evaluation_is_due and not self._is_asked(stop) else False
        if self._is_asked(stop):
            number = stop.received or signal.SIGTERM
            self._tell(f"{signal.Signals(number).name} received: saving step {step}")
            self._save(saves)
            raise Interrupted(number)
        if step == settings.steps:
            self._save(saves)
        elif self.ranks.is_first and (is_best or (settings.save_every and step % settings.save_every == 0)):
            saves.start(self.state, self._remembered(), self._pinned())

    def _evaluate(self, step: int, stop: StopRequests) -> bool:
        """Evaluate, and tell whether the checkpoint of this step is to be kept as the best so far.

        A signal ends it, and it stays due; several ranks go to its end together.
        """
        if self.evaluate is None:
            self._evaluation_is_due = False
            return False
        try:
            if self.ranks.world_size > 1:
                metrics = self.evaluate()
            else:
                with stop.at_once():
                    metrics = self.evaluate()
        except Interrupted:
            return False
        self._evaluation_is_due = False
        self._write("evaluation", step=step, metrics=metrics)
        if self.on_metrics is not None and self.ranks.is_first:
            self.on_metrics(step, metrics)
        score = self.score(metrics) if self.settings.keep_best and self.score is not None else None
        if score is None or not math.isfinite(score):
            return False
        is_best = "kept" not in self.memory or score > self.memory["kept"]["score"]
        if is_best:
            self.memory["kept"] = {"step": step, "score": score}
        return is_best

    def _is_asked(self, stop: StopRequests) -> bool:
        return self.ranks.any_(stop.received is not None)

    def _save(self, saves: BackgroundSaves) -> None:
        if self.ranks.is_first:
            saves.save(self.state, self._remembered(), self._pinned())
        self.ranks.barrier()

    def _remembered(self) -> dict[str, Any]:
        """Return the caller's memory and, where there is any, the session's own."""
        own: dict[str, Any] = {}
        if self._evaluation_is_due:
            own["evaluation_is_due"] = True
        if self.state.micro_batch_size is not None:
            own["micro_batch_size"] = self.state.micro_batch_size
        return {**self.memory, _OWN: own} if own else self.memory

    def _pinned(self) -> list[int]:
        """Return the steps whose checkpoints are kept whatever comes after."""
        return [self.memory["kept"]["step"]] if "kept" in self.memory else []

    def _saves(self) -> BackgroundSaves:
        def on_whole(step: int, path: Path) -> None:
            self._write("checkpoint", step=step, folder=path.name)

        return BackgroundSaves(
            self.checkpoints,
            keep=self.settings.keep_checkpoints,
            on_whole=on_whole,
            say=self._tell,
            run=self.run_id,
        )

    def _log_step(self, report: StepReport) -> None:
        self._write(
            "step",
            step=report.step,
            loss=report.loss,
            losses=report.losses,
            learning_rate=report.learning_rate,
            gradient_norm=report.gradient_norm,
            tokens_per_second=report.num_tokens / report.seconds,
        )

    def _write(self, event: str, **values: Any) -> None:
        if self.ranks.is_first:
            self.log.write(event, stage=self.name, **values)

    def _tell(self, message: str) -> None:
        if self.ranks.is_first:
            self.say(message)
