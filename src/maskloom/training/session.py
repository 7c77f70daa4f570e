"""The consumer of the training loop in all runs: it logs, evaluates, saves, resumes and handles requests to stop."""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maskloom.errors import ConfigError
from maskloom.objectives.carrying import with_carry
from maskloom.objectives.objective import Objective
from maskloom.system.freed_memory import kept_memory, release_free_memory
from maskloom.training.checkpointing.background_saves import BackgroundSaves
from maskloom.training.checkpointing.checkpoints import (
    Restored,
    drop_old_checkpoints,
    restore_checkpoint,
    step_folders,
    step_of,
)
from maskloom.training.events import EventLog
from maskloom.training.faults.interruption import STOP_SIGNALS, Interrupted, StopRequests, stop_requests
from maskloom.training.faults.loss_watch import LossWatch
from maskloom.training.faults.memory import (
    MemoryExhaustedError,
    fitting_micro_batch_size,
    note_micro_batch_size,
    noted_micro_batch_size,
)
from maskloom.training.faults.nonfinite import NonFiniteStepError, NumericalError, answer_bad_step
from maskloom.training.loop import train_steps
from maskloom.training.optimizers import TimeBudget
from maskloom.training.precision import fastest_precision, in_precision
from maskloom.training.ranks.ranks import ONE_RANK, Ranks
from maskloom.training.settings import TrainingSection
from maskloom.training.state import NextBatch, StepReport, TrainState

# Released memory has to be requested again page by page. At this interval, releasing costs a few hundredths of the time
# and bounds what batches of different sizes leave behind.
_SECONDS_BETWEEN_RELEASES = 10.0

Saves = BackgroundSaves | None
"""What saves this rank's part of the state; None if another rank saves it."""

# Key in a checkpoint for the session's own memory, next to the caller's `memory`.
_OWN = "session"


@dataclass
class TrainingSession:
    """One stretch of training with its own optimiser and schedule: a fine-tuning run or a phase of pre-training.

    `evaluate` returns metrics of the current weights; `memory` is a JSON-serialisable dictionary that is saved with
    every checkpoint and restored on resume (the best score so far, say). With several `ranks` each runs its own
    session; they stop together, and only the first logs, prints and, unless weights are sharded, saves. With
    `settings.keep_best`, the checkpoint whose metrics have the highest `score` is kept as well as the newest; the last
    `num_averaged` planned ones are kept in any case. `run_id` distinguishes this run's checkpoints from others. A
    session ends before its last step if the first rank's `is_enough` says so after an evaluation, or if the time of
    `settings.minutes` is used up; the clock then also sets the learning rate.
    """

    state: TrainState
    objective: Objective
    next_batch: NextBatch
    settings: TrainingSection
    seed: int
    checkpoints: Path
    log: EventLog
    evaluate: Callable[[], dict[str, float]] | None = None
    on_step: Callable[[StepReport], None] | None = None
    on_metrics: Callable[[int, dict[str, float]], None] | None = None
    say: Callable[[str], None] = print
    memory: dict[str, Any] = field(default_factory=dict)
    name: str = "train"
    ranks: Ranks = ONE_RANK
    score: Callable[[dict[str, float]], float] | None = None
    run_id: str | None = None
    is_enough: Callable[[], bool] | None = None
    num_averaged: int = 0

    def __post_init__(self) -> None:
        settings = self.settings
        self._watch, self.num_answers = LossWatch(), Counter[str | int]()  # to bad steps: rewinds, and skips by step
        self._told_size: int | None = None
        self._found_precision: str | None = None
        self._kept_before: dict[str, Any] = {}
        self._evaluation_is_due = self._has_ended = self._begins_part = False
        self._released = time.monotonic()
        self._ends = {settings.steps, *(plan.at for plan in settings.extensions if plan.at == plan.steps)}
        self.budget: TimeBudget | None = None
        if settings.minutes is not None:
            self.budget = TimeBudget(60.0 * settings.minutes, settings, self.ranks)

    def resume(self) -> int:
        """Load the newest valid checkpoint, if any, and return the step to continue from; warn of refused ones."""
        restored = self.restored()
        if restored is not None:
            self.memory.clear()
            self.memory.update(restored.extra)
        own = self.memory.pop(_OWN, {})
        self._evaluation_is_due = own.get("evaluation_is_due", False)
        self._has_ended = own.get("has_ended", False)
        if self.budget is not None and "budget" in own:
            self.budget.restore(own["budget"])
        self.state.micro_batch_size = self._told_size = own.get("micro_batch_size")
        if size := noted_micro_batch_size(self.log.path.parent, self.ranks):  # by a rank that ran out of memory
            self.state.micro_batch_size = min(size, self._told_size or size)
        self._found_precision = own.get("precision")
        self.num_answers["rewind"] = own.get("rewinds", 0)
        if restored is None:
            return 0
        if self.ranks.is_first:  # a kill between a save and this cleanup leaves one too many
            drop_old_checkpoints(self.checkpoints, restored.step, self.settings.keep_checkpoints, self._pinned())
        return restored.step

    def restored(self) -> Restored | None:
        """Load the newest valid checkpoint, if any, with loss scale and unlogged fractions; warn of refused ones."""
        restored = restore_checkpoint(self.state, self.checkpoints, run=self.run_id, ranks=self.ranks)
        if restored is None:
            return None
        for problem in restored.refused:
            self.tell(f"warning: checkpoint skipped: {problem}")
        own = restored.extra.get(_OWN, {})
        if "loss_scale" in own:
            self.state.loss_scale = tuple(own["loss_scale"])
        if self.budget is not None and "budget" in own:
            self.budget.fractions = [*own["budget"]["fractions"]]
        return restored

    def run(self) -> None:
        """Train to the last step, and return when its checkpoint is on disk.

        Earlier checkpoints are written while training continues. Raises Interrupted, after a save, when a signal asks
        to stop, and OSError when two such writes in a row fail, or a save that training waits for.
        """
        settings = self.settings
        if self.is_over() and not self._evaluation_is_due:
            return
        self.log.forget_after(self.name, self.state.step, evaluates=self._evaluation_is_due)  # what is repeated now
        if self.budget is not None:
            self.budget.start()
        self.objective = in_precision(self.objective, self._chosen_precision(), self.ranks.device)
        if settings.micro_batch_size == "auto" and self.state.micro_batch_size is None:
            self._require_whole_weights('micro_batch_size = "auto"')
            size = fitting_micro_batch_size(self.state.model, self.objective, self._coming_batch(), self.ranks)
            self.state.micro_batch_size = self._told_size = size
            self.tell(f"micro-batches of {size} sequences fit into memory")
        with (
            stop_requests() as stop, stop.deferred(), self._saves() as saves, self.ranks.at("step"), kept_memory()
        ):  # fmt: skip
            if self._evaluation_is_due:
                self._finish_step(self.state.step, stop, saves)
            elif settings.on_nonfinite == "rewind" and self.state.step == 0:
                self._save(saves)  # so that there is a checkpoint to go back to
            while not self.is_over():
                try:
                    self._train(stop, saves)
                except NonFiniteStepError as bad:
                    answer_bad_step(bad, self, saves)
                except MemoryExhaustedError as error:
                    note_micro_batch_size(self.log.path.parent, error.micro_batch_size)
                    raise

    def is_over(self) -> bool:
        """Return whether the last step has been taken, or the session ended before it."""
        return self._has_ended or self.state.step >= self.settings.steps

    def _chosen_precision(self) -> str:
        """Return the requested precision, or the one measured as fastest when training began."""
        if self.settings.precision != "fastest":
            return self.settings.precision
        if self.ranks.device.type != "cpu":
            return "auto"
        if self._found_precision is None:
            self._require_whole_weights('precision = "fastest"')
            batch = self._coming_batch()
            is_half = self.ranks.is_first and fastest_precision(self.state.model, self.objective, batch) == "bf16"
            self._found_precision = "bf16" if self.ranks.any_(is_half) else "fp32"
            self.tell(f"precision: {self._found_precision} is faster here")
        return self._found_precision

    def _coming_batch(self) -> Any:
        """Return the batch of the next step, for measurements."""
        batch, _ = self.next_batch(self.state.position)
        return with_carry(batch, self.objective, self.state.model, self.state.carry)

    def _require_whole_weights(self, setting: str) -> None:
        if self.ranks.is_sharded:
            raise ConfigError(
                f'training.{setting} cannot be combined with training.parallel = "{self.settings.parallel}"'
            )

    def _train(self, stop: StopRequests, saves: Saves) -> None:
        state, settings, factor = self.state, self.settings, None if self.budget is None else self.budget.factor
        for report in train_steps(
            state, self.objective, self.next_batch, settings=settings, seed=self.seed, ranks=self.ranks, factor=factor
        ):
            if saves is not None:
                saves.check()
            if time.monotonic() - self._released >= _SECONDS_BETWEEN_RELEASES:
                release_free_memory()
                self._released = time.monotonic()
            self._after_step(report, stop, saves)
            if self._has_ended:
                return

    def _after_step(self, report: StepReport, stop: StopRequests, saves: Saves) -> None:
        """Log, evaluate and save as the settings say; raises Interrupted, with all on disk, on a request to stop."""
        settings = self.settings
        is_last = report.step in self._ends  # of this plan, or of an earlier plan that the run completed
        if self.budget is not None:
            is_last = self._has_ended = is_last or self.budget.is_used_up()
            self._begins_part = self.budget.enters_new_part()
        if report.step % settings.log_every == 0 or is_last or report.step == 1:
            self._log_step(report)
        self._warn(report)
        if self.on_step is not None:
            self.on_step(report)
        every = settings.evaluate_every
        self._evaluation_is_due = is_last or (report.step % every == 0 if every else self._begins_part)
        self._finish_step(report.step, stop, saves)

    def _finish_step(self, step: int, stop: StopRequests, saves: Saves) -> None:
        """Evaluate if due, and save; if a signal comes in between, the resumed run evaluates."""
        settings = self.settings
        is_best = False
        if self._evaluation_is_due and not self._asked(stop):
            if settings.keep_best:
                self._settle(saves)  # a score is compared with that of weights that are on disk
            is_best = self._evaluate(step, stop)
            if self.is_enough is not None and not self._evaluation_is_due:
                self._has_ended = self.ranks.any_(self.ranks.is_first and self.is_enough())
        if number := self._asked(stop):
            self.tell(f"{signal.Signals(number).name} received: saving step {step}")
            self._save(saves, is_best=is_best)
            raise Interrupted(number)
        every, is_over = settings.save_every, self.is_over()
        if is_over or is_best or (step % every == 0 if every else self._begins_part):
            self._save(saves, is_best=is_best, is_awaited=is_over)

    def _evaluate(self, step: int, stop: StopRequests) -> bool:
        """Evaluate, and tell whether this step is the best so far; if a signal interrupts it, it stays due."""
        if self.evaluate is None:
            self._evaluation_is_due = False
            return False
        metrics, problem, is_cut_off = {}, None, False
        can_stop = self.ranks.is_first and not self.ranks.is_sharded  # collecting the shards needs all ranks
        try:
            with self.ranks.at("own"), stop.at_once() if can_stop else nullcontext():
                metrics = self.evaluate()
        except Interrupted:
            is_cut_off = True
        except NumericalError as error:  # on the first rank, which evaluates for all
            problem = error
        if self.ranks.any_(problem is not None):
            raise problem or NumericalError(f"step {step}: the evaluation produced numbers that are not finite")
        if self.ranks.any_(is_cut_off):
            return False
        self._evaluation_is_due = False
        return self.ranks.any_(self.ranks.is_first and self._note(step, metrics))

    def _note(self, step: int, metrics: dict[str, float]) -> bool:
        """Log metrics, and tell whether their score, which decides what is kept, is the best so far."""
        self.write("evaluation", step=step, metrics=metrics)
        if self.on_metrics is not None and metrics:
            self.on_metrics(step, metrics)
        score = self.score(metrics) if self.settings.keep_best and self.score is not None else None
        if score is None or not math.isfinite(score):
            return False
        is_best = "kept" not in self.memory or score > self.memory["kept"]["score"]
        if is_best:
            self._kept_before = {name: value for name, value in self.memory.items() if name == "kept"}
            self.memory["kept"] = {"step": step, "score": score}
        return is_best

    def _asked(self, stop: StopRequests) -> int:
        """Return the signal that asks this or another rank to stop, the same on all ranks, or 0."""
        asked = self.ranks.sum_({str(number): float(number == stop.received) for number in STOP_SIGNALS})
        return next((int(number) for number, count in asked.items() if count), 0)

    def _save(self, saves: Saves, *, is_best: bool = False, is_awaited: bool = True) -> None:
        """Save; `is_best` tells that no step before this one was as good."""
        with self.ranks.at("save"):
            if not is_best:
                self._settle(saves)
            carry = self.state.carry and self.ranks.rows_of_all(self.state.carry)
            state = replace(self.state, carry=carry)
            if saves is not None:
                (saves.save if is_awaited else saves.start)(state, self._remembered(), self._pinned())
            if is_awaited:
                self.ranks.barrier()

    def _settle(self, saves: Saves) -> None:
        """Wait for the save in progress; if that of the best step has failed, the previous best is kept."""
        with self.ranks.at("save"):
            if saves is not None:
                saves.wait()
        steps = map(step_of, step_folders(self.checkpoints))
        if "kept" in self.memory and self.memory["kept"]["step"] not in steps:
            del self.memory["kept"]
            self.memory.update(self._kept_before)

    def _remembered(self) -> dict[str, Any]:
        """Return the caller's memory and, if there is any, the session's own."""
        own = {
            "evaluation_is_due": self._evaluation_is_due or None,
            "micro_batch_size": self.state.micro_batch_size,
            "precision": self._found_precision,
            "loss_scale": self.state.loss_scale,
            "rewinds": self.num_answers["rewind"] or None,
            "has_ended": self._has_ended or None,
            "budget": None if self.budget is None else self.budget.as_dict(),
        }
        own = {name: value for name, value in own.items() if value is not None}
        return {**self.memory, _OWN: own} if own else self.memory

    def _pinned(self) -> list[int]:
        """Return the steps whose checkpoints are kept however old they are."""
        best = [self.memory["kept"]["step"]] if "kept" in self.memory else []
        return best + self.averaged_steps()

    def averaged_steps(self) -> list[int]:
        """Return the last planned checkpoint steps so far, in order, without saves for a signal."""
        every, step = self.settings.save_every, self.state.step
        if not self.num_averaged or not every:
            return []
        planned = [*range(every, step + 1, every), *([step] if step % every and self.is_over() else [])]
        return planned[-self.num_averaged :]

    def _saves(self) -> AbstractContextManager[Saves]:
        """Return a context with what saves this rank's shard or, on the first rank, the state that all ranks share."""

        def on_whole(step: int, path: Path) -> None:
            self.write("checkpoint", step=step, folder=path.name)

        keep, folder = self.settings.keep_checkpoints, self.checkpoints
        if self.ranks.is_sharded:
            from maskloom.training.checkpointing.sharded_checkpoints import ShardedSaves  # heavy, and needed only here

            return ShardedSaves(folder, self.ranks, keep=keep, on_whole=on_whole, say=self.tell, run=self.run_id)
        if not self.ranks.is_first:
            return nullcontext()
        return BackgroundSaves(folder, keep=keep, on_whole=on_whole, say=self.tell, run=self.run_id)

    def _warn(self, report: StepReport) -> None:
        """Warn, once per problem, about a step that was nevertheless taken."""
        for kind, text in self._watch.look(report.step, report.loss).items():
            self.write("warning", step=report.step, kind=kind, text=text)
            self.tell(f"warning: {text}")
        size = self.state.micro_batch_size
        if size != self._told_size:
            self._told_size = size
            self.write("out_of_memory", step=report.step, micro_batch_size=size)
            self.tell(
                f"warning: step {report.step}: memory ran out; from now on batches are computed in "
                f"micro-batches of {size}; the batch size stays the same"
            )

    def _log_step(self, report: StepReport) -> None:
        by_clock = {} if self.budget is None else {"fractions_of_time": self.budget.taken()}
        values = {name: getattr(report, name) for name in ("step", "loss", "losses", "learning_rate", "gradient_norm")}
        self.write("step", **by_clock, **values, tokens_per_second=report.num_tokens / report.seconds)

    def write(self, event: str, **values: Any) -> None:
        """Log an event of this session, on the first rank."""
        if self.ranks.is_first:
            self.log.write(event, stage=self.name, **values)

    def tell(self, message: str) -> None:
        """Print a message, on the first rank."""
        if self.ranks.is_first:
            self.say(message)
