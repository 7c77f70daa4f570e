"""R21: runs with two threads whose matrix products are large enough for oneDNN's wide kernels, killed and repeated."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tools.soak.kills import kills_of, leave_alone, try_kill
from tools.soak.processes import CommandLine, ForkServer
from tools.soak.rows import Budget, Row, Trial
from tools.soak.subjects import RUN, Subject, differences, finetuning, outcome, prepare, pretraining, run_whole, sets

_KILLS = {"save": 4, "evaluation": 2, "start-up": 1, "step": 3, "clock": 2}
_PRETRAINING = (
    *("model.config.hidden_size=128", "model.config.intermediate_size=512", "data.max_length=128"),
    *("training.batch_size=16", "training.num_threads=2", "training.max_evaluation_instances=64"),
)
_FINETUNING = ("training.batch_size=64", "training.num_threads=2")
_NUM_CHECKS = 3


def _widened(subject: Subject, *changes: str) -> Subject:
    return replace(subject, arguments=(*subject.arguments, *sets(*changes)))


def wide_runs(budget: Budget) -> Iterator[Trial]:
    """Show that oneDNN is used, then repeat each command, kill it at random moments, and compare to the bit."""
    with ForkServer() as server:
        data = prepare(server, budget.work / "data", num_topics=60)
        wide = _widened(pretraining(data, steps=30, save_every=7, evaluate_every=12), *_PRETRAINING)
        alone = leave_alone(server, wide, budget.work / "alone")
        yield _other_library(wide, alone.outcome, budget.work / "mkl")
        # fine-tuning starts from the model just trained, which is as wide and has the same vocabulary
        shutil.copytree(budget.work / "alone" / RUN / "model", data / "first" / "model", dirs_exist_ok=True)
        tuned = leave_alone(server, _widened(finetuning(data, epochs=6), *_FINETUNING), budget.work / "tuned")
        for one in (alone, tuned):
            folder = budget.work / f"{one.subject.name}-again"
            folder.mkdir()
            run_whole(server, one.subject.arguments, folder)
            problems = differences(outcome(folder / RUN), one.outcome)
            yield Trial(f"{one.subject.name}, again", not problems, "; ".join(problems[:4]))
            for kill in kills_of(one, _KILLS, budget):
                yield try_kill(server, one, kill, budget.work / "killed")


def _other_library(subject: Subject, expected: dict[str, str], folder: Path) -> Trial:
    """Run with products by MKL: different bits show that the undisturbed run used oneDNN."""
    from maskloom.layers.processor.onednn import library_of_products

    folder.mkdir()
    running = CommandLine(subject.arguments, folder, folder / "output.txt", MASKLOOM_PRODUCTS="mkl")
    if code := running.wait():
        return Trial("products by MKL", False, f"exit code {code}")
    name = "model/model.safetensors"
    differs = outcome(folder / RUN)[name] != expected[name]
    if not library_of_products().startswith("oneDNN"):
        return Trial("products by MKL", not differs, f"both runs are by one library: {library_of_products()}")
    return Trial("products by MKL", differs, "other bits, as they should be" if differs else "the same bits")


ROWS = (
    Row(
        "R21",
        "pre-training and fine-tuning on 2 threads with products large enough for oneDNN's wide kernels: repeated, and "
        "kill -9 at 12 moments of each; resume",
        "as R1; repeats bit-identical; different bits with MKL, which shows that oneDNN was used",
        _NUM_CHECKS + 2 * sum(_KILLS.values()),
        wide_runs,
    ),
)
