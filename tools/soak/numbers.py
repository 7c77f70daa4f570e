"""R9, R10, R12: non-finite numbers, losses that jump or freeze, and memory that runs out."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from tools.soak.fleets import Fleet
from tools.soak.processes import ROOT, environment
from tools.soak.rows import Budget, Row, Trial
from tools.soak.subjects import RUN, prepare, pretraining

PLACES, VALUES = ("loss", "gradient", "embedding"), ("nan", "inf")
RULES, PRECISIONS = ("stop", "skip", "rewind"), ("float32", "float64", "bfloat16")
_BAD = 5  # the index of the bad batch: step 6, two steps after a save


def planted_session(folder: Path, place: str, value: str, *, precision: str = "float32", **settings: Any) -> Any:
    """Return a session of 8 steps in which only the sixth batch meets a non-finite number.

    `place` is the location of the number: the loss, a gradient in the backward pass, the row of the position table that
    only the bad batch reads, or "none".
    """
    import torch
    from tests.unit.training.tiny_sessions import tiny_session

    from maskloom.objectives.masked_lm import MaskedLanguageModeling

    class Backwards(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, loss: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return loss.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * float(value)

    class Planted(MaskedLanguageModeling):
        def loss_sums(self, model: Any, batch: Any) -> dict[str, Any]:
            sums = super().loss_sums(model, batch)
            if place == "loss" and _is_bad(batch):
                sums["mlm"] = sums["mlm"] * float(value)
            if place == "gradient" and _is_bad(batch):
                sums["nsp"] = Backwards.apply(sums["nsp"])
            return sums

    session = tiny_session(folder, next_batch=_stream(), **settings)
    session.objective = Planted()
    session.state.model.to(getattr(torch, precision))
    if place == "embedding":
        with torch.no_grad():
            session.state.model.encoder.embeddings.position.weight[7, 0] = float(value)
    return session


def _is_bad(batch: Any) -> bool:
    return 8 in batch.lengths


def _stream(left_out: frozenset[int] = frozenset()) -> Any:
    """Return batches 0, 1, 2 ... except some; the bad one has a sequence of 8 tokens, the others have 5 and 7."""
    from dataclasses import replace

    import numpy as np
    from tests.unit.training.tiny_sessions import draw_batch

    def next_batch(position: dict[str, int]) -> tuple[Any, dict[str, int]]:
        number = position.get("number", 0)
        while number in left_out:
            number += 1
        batch, after = draw_batch({"number": number})
        return (replace(batch, lengths=np.array([4, 8])) if number == _BAD else batch), after

    return next_batch


def try_bad_number(folder: Path, place: str, value: str, rule: str, precision: str) -> Trial:
    """Train over a bad batch and check weights, log and dump."""
    from maskloom.training.events import read_events
    from maskloom.training.faults.nonfinite import NumericalError

    shutil.rmtree(folder, ignore_errors=True)
    title, problems = f"{value} in the {place}, {rule}, {precision}", []
    session = planted_session(folder, place, value, precision=precision, on_nonfinite=rule)
    try:
        with session.log:
            session.run()
        if rule == "stop":
            problems.append("the run went on")
    except NumericalError as error:
        if rule != "stop":
            problems.append(f"the run stopped: {error}")
    steps = {"stop": 5, "skip": 8, "rewind": 8}[rule]
    left_out = frozenset({"stop": set(), "skip": {_BAD}, "rewind": {4, _BAD}}[rule])
    clean = planted_session(folder / "clean", place, value, precision=precision, steps=8)
    clean.next_batch = _stream(left_out)
    with clean.log:
        _run_to(clean, steps)
    if not _same(session.state, clean.state):
        problems.append("the weights are not those of a run that never met the batch")
    events = [event for event in read_events(folder / "events.jsonl") if event["event"] == "nonfinite"]
    if [(event["step"], event["action"]) for event in events] != [(6, rule)]:
        problems.append(f"the log tells {events}")
    problems += _replay_problems(folder, place, value, precision)
    return Trial(title, not problems, "; ".join(problems))


def _run_to(session: Any, steps: int) -> None:
    """Train a session up to a step, without saves."""
    from maskloom.training.loop import train_steps

    for report in train_steps(
        session.state, session.objective, session.next_batch, settings=session.settings, seed=session.seed
    ):
        if report.step == steps:
            return


def _same(first: Any, second: Any) -> bool:
    import torch
    from tests.unit.training.tiny_sessions import weights_of

    pairs = zip(weights_of(first), weights_of(second), strict=True)
    return all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in pairs)


def _replay_problems(folder: Path, place: str, value: str, precision: str) -> list[str]:
    from maskloom.training.faults.nonfinite import REPORT
    from tools.replaying import replay_dump

    (dump,) = (folder / "dumps" / "train").iterdir()
    report = json.loads((dump / REPORT).read_text(encoding="utf-8"))
    fresh = planted_session(folder / "replay", place, value, precision=precision)
    fresh.log.close()
    replay = replay_dump(dump, fresh.state.model, fresh.objective)
    found = ({name: _plain(loss) for name, loss in replay.losses.items()}, _plain(replay.gradient_norm))
    told = (report["losses"], report["gradient_norm"])
    is_bad = not (math.isfinite(sum(replay.losses.values())) and math.isfinite(replay.gradient_norm))
    return [] if found == told and is_bad else [f"replayed to {found}, the dump tells {told}"]


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def bad_numbers(budget: Budget) -> Iterator[Trial]:
    """Try every place, value, rule and precision, and a bad number on one of two ranks."""
    for place, value, rule, precision in product(PLACES, VALUES, RULES, PRECISIONS):
        yield try_bad_number(budget.work / "planted", place, value, rule, precision)
    with Fleet(1) as fleet:
        data = prepare(fleet.first, budget.work / "data", num_topics=25)
    for rule in RULES:
        yield try_one_rank(data, rule, budget.work / f"ranks-{rule}")


# The second of two ranks turns its ninth loss into NaN. That is step 8, because before the first step the model runs
# once to find parameters on which no loss depends.
_ON_ONE_RANK = """
import os
from maskloom.training import loop
from maskloom.training.ranks.distributed import LossesOf
calls, forward = [0], LossesOf.forward
def planted(self, *given):
    total, means = forward(self, *given)
    calls[0] += 1
    if os.environ["RANK"] == "1" and calls[0] == 9:
        total, means = total * float("nan"), {name: mean * float("nan") for name, mean in means.items()}
    return total, means
LossesOf.forward = planted
from maskloom.cli import main
main()
"""


def try_one_rank(data: Path, rule: str, folder: Path) -> Trial:
    """Train on two ranks, one of which meets a non-finite number."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = pretraining(data, steps=20, save_every=4, evaluate_every=20)
    arguments = [*plan.arguments, "--set", f'training.on_nonfinite="{rule}"']
    port, ended = str(29000 + os.getpid() % 2000), []
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _ON_ONE_RANK, *arguments], cwd=folder, text=True, stderr=subprocess.PIPE,
            env=environment(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
            ),
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in started:
        _, said = process.communicate(timeout=300)
        ended.append((process.returncode, said))
    codes = [code for code, _ in ended]
    log = (folder / RUN / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [event for event in map(json.loads, log) if event["event"] == "nonfinite"]
    told = [(event["step"], event["action"]) for event in events]
    dumps = sorted(path.name for path in (folder / RUN).glob("dumps/*/*"))
    is_right = codes == ([1, 1] if rule == "stop" else [0, 0]) and told == [(8, rule)]
    is_right = is_right and [name[:20] for name in dumps] == [f"step-{told[0][0]:08d}-rank-{rank}" for rank in range(2)]
    detail = f"exit codes {codes}, log {told}, dumps {dumps}; {ended[0][1][-800:]}"
    return Trial(f"nan on one of two ranks, {rule}", is_right, "" if is_right else detail)


def loss_warnings(budget: Budget) -> Iterator[Trial]:
    """Make the loss of real steps jump once, or stay constant from some step on."""
    from tests.unit.training.tiny_sessions import tiny_session

    from maskloom.objectives.masked_lm import MaskedLanguageModeling
    from maskloom.training.events import read_events

    class Changed(MaskedLanguageModeling):
        def loss_sums(self, model: Any, batch: Any) -> dict[str, Any]:
            sums = super().loss_sums(model, batch)
            self.__dict__["calls"] = step = self.__dict__.get("calls", 0) + 1
            if kind == "spike":
                return {name: value * 100.0 if step == at else value for name, value in sums.items()}
            return {name: value * 0.0 + 3.0 if step >= at else value for name, value in sums.items()}

    for number in range(20):
        kind, draw = ("spike", "frozen")[number % 2], budget.draw("loss", number)
        at, folder = draw.randint(25, 150), budget.work / f"loss-{number}"
        session = tiny_session(folder, steps=260, learning_rate=1e-5, save_every=None)
        session.objective = Changed()
        with session.log:
            session.run()
        found = [(e["kind"], e["step"]) for e in read_events(folder / "events.jsonl") if e["event"] == "warning"]
        is_right = bool(found) and all(what == kind for what, _ in found) and 0 <= found[0][1] - at < 100
        is_right = is_right and session.state.step == 260
        yield Trial(f"{kind} at step {at}", is_right, f"warned {found}")


def hungry_run(folder: Path, *, most: int | None, from_step: int = 1) -> tuple[list[float], list[str], int]:
    """Train 12 steps without dropout, with memory for `most` sequences; return losses, messages, micro-batch size."""
    from tests.unit.training.tiny_sessions import VOCABULARY, tiny_session

    from maskloom.models.assembled import build_model
    from maskloom.models.bert import BertConfig
    from maskloom.objectives.masked_lm import MaskedLanguageModeling
    from maskloom.training.events import read_events
    from maskloom.training.settings import TrainingSection
    from maskloom.training.state import TrainState

    class Hungry(MaskedLanguageModeling):
        def loss_sums(self, model: Any, batch: Any) -> dict[str, Any]:
            sums = super().loss_sums(model, batch)
            if most is not None and session.state.step + 1 >= from_step and batch.num_sequences > most:
                sum(sums.values()).backward()  # pyright: ignore[reportAttributeAccessIssue]
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
            return sums

    session = tiny_session(folder, steps=12, save_every=None)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "num_hidden_layers": 1}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig.of_size("tiny", vocab_size=VOCABULARY, **sizes, **rates)
    session.state = TrainState.fresh(build_model(config, seed=0), TrainingSection())
    session.objective, said = Hungry(), []
    session.say = said.append
    with session.log:
        session.run()
    losses = [event["loss"] for event in read_events(folder / "events.jsonl") if event["event"] == "step"]
    return losses, [text for text in said if "memory ran out" in text], session.state.micro_batch_size or 0


def memory_runs_out(budget: Budget) -> Iterator[Trial]:
    """Let memory run out at ten steps in turn, permanently, and under a real system limit."""
    from maskloom.training.faults.memory import MemoryExhaustedError

    alone, _, _ = hungry_run(budget.work / "alone", most=None)
    for step in range(1, 11):
        losses, said, size = hungry_run(budget.work / f"from-{step}", most=1, from_step=step)
        worst = max(abs(a - b) / b for a, b in zip(losses, alone, strict=True))
        is_right = worst <= 1e-6 and len(said) == 1 and size == 1
        yield Trial(f"memory runs out at step {step}", is_right, f"loss differs by {worst:.1e}, said {len(said)} times")
    try:
        hungry_run(budget.work / "for-good", most=0)
        yield Trial("one sequence does not fit", False, "the run went on")
    except MemoryExhaustedError as error:
        yield Trial("one sequence does not fit", "one sequence" in str(error), str(error))
    yield from (try_real_limit(megabytes) for megabytes in (60, 45, 30))


# Trains a model whose wide layers need memory per token, with the address space limited to the current usage and some
# additional megabytes. Freed blocks are returned to the system, since mallopt's threshold is fixed.
_LIMITED = """
import json, re, resource, sys
from pathlib import Path
import numpy as np, torch
from maskloom.training.settings import TrainingSection
from maskloom.data.batch import PretrainingBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.loop import train_steps
from maskloom.training.state import TrainState
torch.set_num_threads(1)
def batch(position):
    number = position.get("number", 0)
    draw = np.random.default_rng(number)
    tokens, places = draw.integers(5, 800, 2048), np.sort(draw.choice(2048, 128, replace=False))
    return PretrainingBatch(tokens, np.zeros(2048, dtype=np.int64), np.full(32, 64), places,
                            draw.integers(5, 800, 128), draw.integers(0, 2, 32)), {"number": number + 1}
config = BertConfig.of_size("tiny", vocab_size=800, hidden_size=32, num_attention_heads=2, intermediate_size=4096,
                            num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
def train(steps, **more):
    settings = TrainingSection(steps=steps, learning_rate=1e-3, **more)
    state = TrainState.fresh(build_model(config, seed=0), settings)
    reports = train_steps(state, MaskedLanguageModeling(), batch, settings=settings, seed=0)
    return [report.loss for report in reports], state.micro_batch_size
train(1, micro_batch_size=1)  # what torch makes once
if sys.argv[1] != "0":
    used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]) * 2**20,) * 2)
print(json.dumps(train(2)))
"""


def try_real_limit(megabytes: int) -> Trial:
    """Train with an address-space limit that is too small for the whole batch."""
    fixed = environment(MALLOC_MMAP_THRESHOLD_="65536", MALLOC_ARENA_MAX="1")
    found = []
    for limit in (0, megabytes):
        command = [sys.executable, "-c", _LIMITED, str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=fixed, cwd=ROOT)
        if done.returncode:
            said = f"exit code {done.returncode}: {done.stderr[-1500:]}"
            return Trial(f"a real limit of {megabytes} MiB", False, said)
        found.append(json.loads(done.stdout))
    (expected, whole), (losses, size) = found
    worst = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
    is_right = whole is None and size is not None and size < 32 and worst <= 1e-6
    detail = f"micro-batches of {size}, loss differs by {worst:.1e}"
    return Trial(f"a real limit of {megabytes} MiB", is_right, detail)


ROWS = (
    Row(
        "R9",
        "NaN and infinity in the loss, in a gradient and in the position table, under stop, skip and rewind, in fp32, "
        "fp64 and bf16 weights; NaN on one of two ranks",
        "the step leaves the weights bit-identical, the dump replays to the same numbers, the event is logged, "
        "each rule behaves as documented, the ranks agree",
        len(PLACES) * len(VALUES) * len(RULES) * len(PRECISIONS) + len(RULES),
        bad_numbers,
    ),
    Row(
        "R10",
        "a loss that jumps a hundredfold for one step, or stops changing, at seeded steps",
        "a warning within 100 steps; the run continues",
        20,
        loss_warnings,
    ),
    Row(
        "R12",
        "memory runs out at each of ten steps, under a real address-space limit, and for a single sequence",
        "the micro-batch is halved, the loss agrees to 1e-6, one message; for a single sequence, a clear error",
        14,
        memory_runs_out,
    ),
)
