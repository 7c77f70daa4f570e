"""Timing of every comparison: sides in alternating order (A B B A), five rounds or more, on an idle machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, TypeVar, cast

MIN_ROUNDS = 5
_HIGHEST_LOAD = 0.5
_PATIENCE = 600.0
_LEVELS = ("floor", "target", "stretch")
OWN, KEEPING = "maskloom", ", keeping memory"
KEEPING_SAID = (
    "A run of maskloom keeps the memory that a step frees, because the kernel zeroes every page that it gives out; a "
    "plain Python program returns it. A peer named *keeping memory* keeps it too."
)
Side = TypeVar("Side")


def in_turn(sides: Sequence[Side], number: int) -> list[Side]:
    """Return the sides in the order of a round: forwards in even rounds, backwards in odd ones."""
    return list(sides) if number % 2 == 0 else list(sides)[::-1]


def quiet_load() -> float:
    """Return the load average once it is low, after waiting up to ten minutes for that.

    Raises SystemExit when other programs keep running; MASKLOOM_BENCH_BUSY=1 measures anyway, and the page shows it.
    """
    until = time.monotonic() + _PATIENCE
    while (load := os.getloadavg()[0]) > _HIGHEST_LOAD and not os.environ.get("MASKLOOM_BENCH_BUSY"):
        if time.monotonic() > until:
            raise SystemExit(
                f"other programs are running (load {load:.1f}); MASKLOOM_BENCH_BUSY=1 measures all the same"
            )
        time.sleep(5)
    return load


def rates_of_processes(
    given: Mapping[str, Sequence[str]], num_rounds: int, *, before_each: Callable[[], object] = lambda: None
) -> dict[str, list[float]]:
    """Return the rates of each side by name, one per round, after an additional warm-up round.

    Each side is a process that runs the current script with `--side`, its name and its arguments in `given`. For every
    line of its input, it measures once and prints a rate. `before_each` is called before every round.
    """
    sides = {
        name: subprocess.Popen(
            [sys.executable, sys.argv[0], "--side", name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, arguments in given.items()
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-1, num_rounds):
        before_each()
        for name in in_turn(list(sides), number):
            print("go", file=sides[name].stdin, flush=True)
            rate = float(cast(IO[str], sides[name].stdout).readline())
            if number >= 0:
                rates[name].append(rate)
    for side in sides.values():
        side.communicate()
    return rates


def memory_of(side: str) -> AbstractContextManager[None]:
    """Return a context in which our side, and a peer whose name says so, keeps the memory that a step frees."""
    from maskloom.system.freed_memory import kept_memory

    return kept_memory() if side.startswith(OWN) or side.endswith(KEEPING) else nullcontext()


def order_said(num_rounds: int) -> str:
    """Describe the order of the rounds for a page; fewer than five rounds are called a trial."""
    trial = "" if num_rounds >= MIN_ROUNDS else f" Fewer than {MIN_ROUNDS} rounds: a trial, no result."
    return f"{num_rounds} rounds, the sides in alternating order (A B B A).{trial}"


def reached(value: float, aims: tuple[float, ...] | None, *, smaller: bool = False) -> str:
    """Return the highest level that a value reaches, followed by all three targets."""
    if aims is None:
        return "-"
    met = [name for name, aim in zip(_LEVELS, aims, strict=True) if (value <= aim if smaller else value >= aim)]
    return f"{met[-1] if met else 'below floor'} ({' / '.join(f'{aim:.4g}' for aim in aims)})"
