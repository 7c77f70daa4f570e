"""Runs cases in a child process and counts their outcomes: accepted, refused, or finding."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from maskloom.system.resources import process_fields
from tools.fuzzing.targets import Surroundings, Target, all_targets

ROOT = Path(__file__).resolve().parents[2]
MAX_SECONDS = 5.0
"""Limit of processor time per case; a wall-clock limit would mistake slow answers on a loaded machine for hangs."""
_MAX_WAIT = 60.0
_START_WAIT = 300.0
_CASES_AT_ONCE = 50


@dataclass(frozen=True)
class Case:
    """The outcome of one case; `--only KEY` with its `key` runs it again."""

    group: str
    key: str
    outcome: str
    what: str = ""
    num_bytes: int = 0
    grown: int = 0

    @property
    def passed(self) -> bool:
        """Whether the file was read, or refused with a message that names the place."""
        return self.outcome in ("accepted", "refused")


class _Child:
    """A child process that answers requests; replaced after a case has ended it."""

    def __init__(self, work: Path, seed: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.errors = (work / "errors.txt").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools.fuzzing.child", str(work), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            cwd=ROOT,
        )
        self._held, self._hangs = b"", False
        if self.answer(_START_WAIT) is None:
            self.end()
            raise RuntimeError(f"the child does not start: {Path(self.errors.name).read_text()[-2000:]}")

    def ask(self, number: int, first: int, last: int) -> None:
        _pipe(self.process.stdin).write(f"{number} {first} {last}\n".encode())
        _pipe(self.process.stdin).flush()

    def answer(self, wait: float) -> dict[str, Any] | None:
        """Return the next line, or None when the child has ended or exceeds its time limit."""
        started, used = time.monotonic(), self.processor_time()
        while b"\n" not in self._held:
            ready = select.select([self.process.stdout], [], [], 0.2)[0]
            if ready:
                part = os.read(_pipe(self.process.stdout).fileno(), 1 << 16)
                if not part:
                    return None
                self._held += part
            elif time.monotonic() - started > wait or (
                wait < _START_WAIT and self.processor_time() - used > MAX_SECONDS
            ):
                self._hangs = True
                return None
        line, self._held = self._held.split(b"\n", 1)
        return json.loads(line)

    def processor_time(self) -> float:
        """Return the processor seconds that the child has used."""
        fields = process_fields(self.process.pid)
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0

    def end(self) -> int:
        """Kill the child if it is still running; return its own exit code, or -9."""
        try:
            code = self.process.wait(timeout=0 if self._hangs else 10)
        except subprocess.TimeoutExpired:
            code = None
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                pipe.close()
        return -9 if code is None else code


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def run_cases(
    work: Path, *, seed: int, num_cases: int, first: int = 0, seconds: float | None = None, only: str | None = None
) -> Iterator[Case]:
    """Yield the outcome of each case, in rounds that spread over all targets, until the number or the time is reached.

    `only` is the key of a case, or a prefix of keys.
    """
    work.mkdir(parents=True, exist_ok=True)
    targets = all_targets(Surroundings(work / "good"))
    chosen = [number for number, target in enumerate(targets) if only is None or _matches(only, number, target)]
    started, done, child = time.monotonic(), 0, None
    try:
        at_once = max(1, min(_CASES_AT_ONCE, num_cases // len(chosen)))
        begin = int(only.rsplit(":", 1)[1]) if only is not None and only.count(":") == 2 else first
        while done < num_cases:
            for number in chosen:
                end = begin + (1 if only is not None and only.count(":") == 2 else at_once)
                end = min(end, begin + num_cases - done)
                at = begin
                while at < end:
                    if seconds is not None and time.monotonic() - started > seconds:
                        return
                    child = child or _Child(work, seed)
                    for case in _answers(child, targets[number], number, at, end):
                        yield case
                        at, done = at + 1, done + 1
                    if child.process.poll() is not None:
                        child = None
                if done >= num_cases:
                    return
            begin += at_once
    finally:
        if child is not None:
            child.process.kill()
            child.end()


def _matches(only: str, number: int, target: Target) -> bool:
    return f"{number}:{target.name}:".startswith(only) or only.startswith(f"{number}:{target.name}:")


def _answers(child: _Child, target: Target, number: int, first: int, last: int) -> Iterator[Case]:
    """Yield the cases that the child answers; the last one may be the case that ended it."""
    child.ask(number, first, last)
    index, size = first, 0
    while True:
        found = child.answer(_MAX_WAIT)
        if found is None:
            code = child.end()
            what = f"more than {MAX_SECONDS:g} s" if code == -9 else f"the process ended with {code}"
            yield Case(target.group, f"{number}:{target.name}:{index}", "finding", f"{what}; {_tail(child)}", size)
            return
        if not found:
            return
        if "bytes" in found:
            index, size = found["index"], found["bytes"]
            continue
        yield _judged(target, number, found, size)


def _tail(child: _Child) -> str:
    return Path(child.errors.name).read_text(encoding="utf-8", errors="replace")[-200:]


def _judged(target: Target, number: int, found: dict[str, Any], size: int) -> Case:
    outcome, what = found["outcome"], found.get("what", "")
    allowed = 20 * size + 200 * 2**20
    if found["grown"] > allowed and outcome != "finding":
        outcome, what = "finding", f"memory grew by {found['grown']:,} bytes, {allowed:,} are allowed"
    return Case(target.group, f"{number}:{target.name}:{found['index']}", outcome, what, size, found["grown"])


def table_of(cases: list[Case]) -> str:
    """Return the counts per group as a Markdown table."""
    groups: dict[str, Counter[str]] = {}
    for case in cases:
        groups.setdefault(case.group, Counter())[case.outcome] += 1
    largest = {group: max(case.grown for case in cases if case.group == group) for group in groups}
    lines = ["| files | cases | accepted | refused | findings | most memory |", "|---|--:|--:|--:|--:|--:|"]
    for group, counts in groups.items():
        numbers = (sum(counts.values()), counts["accepted"], counts["refused"], counts["finding"])
        lines.append(
            f"| {group} | {' | '.join(f'{number:,}' for number in numbers)} | {largest[group] / 2**20:.0f} MiB |"
        )
    return "\n".join(lines)
