"""The planted bugs: each is a small change to the source that must make the named tests fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.soak.processes import ROOT, environment
from tools.soak.rows import Budget, Row, Trial

_LONGEST_SECONDS = 900
_ALL_PASSED, _SOME_FAILED = 0, 1
_TRAINING = "tests/unit/training"


@dataclass(frozen=True)
class Mutant:
    """One planted bug: `old`, which occurs once in a file of `src/maskloom`, becomes `new`; `tests` must detect it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "rename before fsync",
        "system/files.py",
        """        sync(temporary)
        be_alone()
        if final.exists():
            rename(final, former)
        rename(temporary, final)
        sync(final.parent)
""",
        """        be_alone()
        if final.exists():
            rename(final, former)
        rename(temporary, final)
        sync(final)
        sync(final.parent)
""",
        (f"{_TRAINING}/checkpointing/test_write_order.py",),
    ),
    Mutant(
        # "RNG restored after fetch" in the sheet: here no generator is saved, so draws depend on the process
        "dropout does not follow the step",
        "training/loop.py",
        "self.seed, _DROPOUT_STREAM, self.step)) - 2**31",
        'self.seed, _DROPOUT_STREAM, setattr(torch, "_n", getattr(torch, "_n", 0) + 1) or torch._n)) - 2**31',
        (f"{_TRAINING}/test_loop.py::test_training_learns_and_is_the_same_twice",),
    ),
    Mutant(
        "dropout is the same at every step",
        "training/loop.py",
        "self.seed, _DROPOUT_STREAM, self.step)) - 2**31",
        "self.seed, _DROPOUT_STREAM)) - 2**31",
        (f"{_TRAINING}/test_loop.py::test_every_step_draws_dropout_of_its_own",),
    ),
    Mutant(
        "every rank renames",
        "training/session.py",
        "        if not self.ranks.is_first:\n            return nullcontext()\n",
        "",
        (f"{_TRAINING}/checkpointing/test_write_order.py",),
    ),
    Mutant(
        "check for NaN after the step",
        "training/loop.py",
        "        if is_finite:\n            if limit",
        "        if state.step >= 0:\n            if limit",
        (f"{_TRAINING}/test_loop.py::test_a_loss_that_is_not_finite_is_never_stepped",),
    ),
    Mutant(
        "manifest first",
        "training/checkpointing/checkpoints.py",
        """        files = {name: write_hashed(temporary / name, pieces) for name, pieces in contents.items()}
        facts = {"world_size": num_processes(), "run": run, "torch": torch.__version__}
        write_manifest(temporary, step=snapshot.step, files=files, facts=facts)
""",
        """        import hashlib

        whole = {name: b"".join(map(bytes, pieces)) for name, pieces in contents.items()}
        files = {n: {"bytes": len(c), "sha256": hashlib.sha256(c).hexdigest()} for n, c in whole.items()}
        facts = {"world_size": num_processes(), "run": run, "torch": torch.__version__}
        write_manifest(temporary, step=snapshot.step, files=files, facts=facts)
        for name, content in whole.items():
            write_hashed(temporary / name, [content])
""",
        (f"{_TRAINING}/checkpointing/test_write_order.py",),
    ),
    Mutant(
        "no hash",
        "training/checkpointing/checkpoints.py",
        """why_changed(folder / name, described["bytes"], str(described.get("sha256")))""",
        """why_changed(folder / name, described["bytes"], None)""",
        (
            f"{_TRAINING}/checkpointing/test_checkpoints.py::test_a_damaged_checkpoint_is_refused_by_name_and_the_older_one_taken",
        ),
    ),
    Mutant(
        "lock by existence",
        "system/folder_lock.py",
        "    reason = former.why_gone()\n    if reason is None and",
        "    reason = None\n    if reason is None and",
        ("tests/unit/system/test_folder_lock.py::test_a_stale_lock_is_taken_over_and_said",),
    ),
    Mutant(
        "saves without bound",  # instead of the sheet's "queue unbounded": there is no server yet
        "training/checkpointing/background_saves.py",
        "        self.wait()\n        snapshot = Snapshot.of(state, extra)\n        if not",
        "        snapshot = Snapshot.of(state, extra)\n        if not",
        (
            "tests/unit/training/checkpointing/test_background_saves.py::test_the_next_save_copies_nothing_until_the_one_before_is_on_disk",
        ),
    ),
    Mutant(
        "sorted batch loses ids",
        "tasks/task.py",
        "zip(batch.indices, np.split(finite(values), ends[:-1]), strict=True)",
        "zip(np.sort(batch.indices), np.split(finite(values), ends[:-1]), strict=True)",
        ("tests/unit/tasks/choice/test_choice_task.py",),
    ),
    Mutant(
        "mean of means",
        "training/loop.py",
        "ranks.add_gradients(model, objective, micro_batch, counts, is_last=is_last)",
        "ranks.add_gradients(\n            model,\n            objective,\n            micro_batch,\n"
        "            {k: len(parts) * v for k, v in objective.target_counts(micro_batch).items()},\n"
        "            is_last=is_last,\n        )",
        (f"{_TRAINING}/test_loop.py::test_micro_batches_with_uneven_counts_equal_one_batch",),
    ),
)


def planted(mutant: Mutant | None, folder: Path) -> Path:
    """Return a copy of the source with a mutant; raises ValueError unless `old` occurs exactly once."""
    copy = folder / "src"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        path = copy / "maskloom" / mutant.file
        source = path.read_text(encoding="utf-8")
        if source.count(mutant.old) != 1:
            raise ValueError(f"{mutant.file} holds its place {source.count(mutant.old)} times, not once")
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    return copy


def judged(tests: tuple[str, ...], source: Path) -> tuple[int, str]:
    """Return the exit code of the tests with a copy of the source, and the last lines of their output."""
    path = os.pathsep.join([str(source), str(ROOT)])
    seen = subprocess.run(
        [sys.executable, "-c", "import maskloom; print(maskloom.__file__)"],
        cwd=ROOT, env=environment(PYTHONPATH=path), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    if not seen.startswith(str(source)):
        raise RuntimeError(f"the tests would try {seen.strip()}, not the copy")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *tests],
        cwd=ROOT, env=environment(PYTHONPATH=path), capture_output=True, text=True, timeout=_LONGEST_SECONDS,
        check=False,
    )  # fmt: skip
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, " ".join(failed)[:300] or done.stdout[-300:]


def kill_all(budget: Budget) -> Iterator[Trial]:
    """Run the tests of every mutant, which must fail, and all tests on the unmodified source, which must pass."""
    for mutant in MUTANTS:
        try:
            code, said = judged(mutant.tests, planted(mutant, budget.work))
        except (ValueError, subprocess.TimeoutExpired) as error:
            yield Trial(mutant.name, False, str(error))
            continue
        yield Trial(mutant.name, code == _SOME_FAILED, f"{'killed by' if code == _SOME_FAILED else 'survived'} {said}")
    tests = tuple(dict.fromkeys(test for mutant in MUTANTS for test in mutant.tests))
    code, said = judged(tests, planted(None, budget.work))
    yield Trial("no mutant", code == _ALL_PASSED, "" if code == _ALL_PASSED else said)


ROWS = (
    Row(
        "mutants",
        "eleven planted bugs, each in a copy of the source, checked by the fast tests; and an unchanged copy",
        "the tests fail with each bug and pass without",
        len(MUTANTS) + 1,
        kill_all,
    ),
)
