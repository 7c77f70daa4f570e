"""The cost of options that are off: torch operations and function calls per step; prints JSON."""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from full_rows import full_rows
from rounds import in_turn
from torch.profiler import ProfilerActivity, profile

from maskloom.models.assembled import EncoderWithHeads, build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.events import EventLog
from maskloom.training.loop import StepDraws, accumulate_gradients
from maskloom.training.session import TrainingSession
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

NEVER = 10**9
OFF: dict[str, Any] = {"max_grad_norm": 0.0, "log_every": NEVER, "warmup_steps": 0, "batch_size": 8}
# Each is switched on separately; "progress" is the progress display of a command.
ON: dict[str, dict[str, Any]] = {
    "max_grad_norm = 1.0": {"max_grad_norm": 1.0},
    "micro_batch_size = 4": {"micro_batch_size": 4},
    "head_learning_rate": {"head_learning_rate": 1e-3},
    "log_every = 1": {"log_every": 1},
    "evaluate_every = 1": {"evaluate_every": 1},
    "save_every = 1": {"save_every": 1},
    "progress": {"progress": True},
}
BATCH = full_rows(8, 32, vocabulary=1200)


def model() -> EncoderWithHeads:
    """Return a model small enough to expose the overhead around it."""
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2}
    return build_model(BertConfig.of_size("tiny", vocab_size=1200, **sizes), seed=0)


def bare_steps(steps: int) -> Callable[[], None]:
    """Return a plain loop without any options: the minimum that training requires."""
    settings = TrainingSection(**{**OFF, "steps": NEVER})
    state, objective = TrainState.fresh(model(), settings), MaskedLanguageModeling()
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]

    def run() -> None:
        state.model.train()
        for step in range(steps):
            state.optimizer.zero_grad(set_to_none=True)
            accumulate_gradients(state.model, objective, BATCH, None, draws=StepDraws(0, step))
            gradients = [p.grad for p in parameters if p.grad is not None]
            float(torch.nn.utils.get_total_norm(gradients, foreach=True))  # the check for finite gradients
            state.optimizer.step()

    return run


def session_steps(steps: int, folder: Path, **on: Any) -> Callable[[], None]:
    """Return a session of `steps` steps with only the options `on`; it saves once, at the last step."""
    progress = on.pop("progress", False)
    settings = TrainingSection(**{**OFF, **on, "steps": steps})
    state = TrainState.fresh(model(), settings)
    session = TrainingSession(
        state=state,
        objective=MaskedLanguageModeling(),
        next_batch=lambda position: (BATCH, position),
        settings=settings,
        seed=0,
        checkpoints=folder / "checkpoints",
        log=EventLog(folder / "events.jsonl"),
        evaluate=(lambda: {"loss": 0.0}) if settings.evaluate_every else None,
        on_step=(lambda report: None) if progress else None,
    )
    return session.run


def operations(run: Callable[[], None]) -> int:
    """Return the number of torch operations that a run executes in this thread."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return sum(event.count for event in seen.key_averages() if event.key.startswith("aten::"))


def calls(run: Callable[[], None]) -> int:
    """Return the number of function calls that a run makes in this thread."""
    profiler = cProfile.Profile()
    profiler.runcall(run)
    return pstats.Stats(profiler).total_calls  # pyright: ignore[reportAttributeAccessIssue]


def per_step(make: Callable[[int], Callable[[], None]]) -> dict[str, float]:
    """Return operations and calls per step: the difference between twelve and four steps, divided by eight."""
    make(2)()  # one-time work of the process
    counted = {
        name: [count(make(steps)) for steps in (4, 12)] for name, count in (("ops", operations), ("calls", calls))
    }
    return {name: (many - few) / 8 for name, (few, many) in counted.items()}


def measure(pairs: int, folder: Path) -> dict[str, Any]:
    """Count for the bare loop, a session with all options off, and each option on; then time the first two in turn."""
    counted = {"bare loop": per_step(bare_steps), "all off": per_step(lambda steps: session_steps(steps, folder))}
    for name, on in ON.items():
        counted[name] = per_step(lambda steps, on=on: session_steps(steps, folder, **on))
    ratios = []
    for number in range(pairs + 1):
        seconds = {}
        sides = [("bare", bare_steps(200)), ("off", session_steps(200, folder))]
        for name, run in in_turn(sides, number):
            started = time.process_time()
            run()
            seconds[name] = time.process_time() - started
        ratios.append(seconds["off"] / seconds["bare"])
    return {"counted": counted, "ratios": ratios[1:], "median": statistics.median(ratios[1:])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(measure(parser.parse_args().pairs, Path(temporary))))
