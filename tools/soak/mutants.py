"""The planted bugs: each is a small change of the source that the named tests must not survive."""

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


@dataclass(frozen=True)
class Mutant:
    """One planted bug: `old`, which a file of `src/maskloom` holds once, becomes `new`; and the tests that see it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS: tuple[Mutant, ...] = ()


def planted(mutant: Mutant | None, folder: Path) -> Path:
    """Return a copy of the source with a mutant in it; raises ValueError when its place is not there exactly once."""
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
    """Return the exit code of the tests with a copy of the source, and the last lines that they print."""
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
    """Run the tests of every mutant with it planted, which must fail, and all of them without any, which must pass."""
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
        "ten planted bugs, each in a copy of the source, tried by the fast tests; and the copy without any",
        "the tests fail with each and pass without",
        len(MUTANTS) + 1,
        kill_all,
    ),
)
