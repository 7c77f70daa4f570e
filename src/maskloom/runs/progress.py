"""What a person sees while a run works: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from maskloom.runs.display import printable


class Progress:
    """Follows what a run does, and shows nothing; subclasses show it."""

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Start a stage of `total` units (0: not known), of which `done` were done before."""

    def advance(self, done: int, **figures: float) -> None:
        """Say how many units of the stage are done, with figures to show beside."""

    def say(self, message: str) -> None:
        """Show one line that stays."""

    def end(self) -> None:
        """Finish the stage."""


class LineProgress(Progress):
    """Plain lines on standard error, at most one a minute beside the names of stages: for logs and pipes."""

    def __init__(self, every_seconds: float = 60.0) -> None:
        self._every = every_seconds
        self._what, self._total, self._last = "", 0, 0.0

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Print the name of the stage."""
        self._what, self._total, self._last = what, total, time.monotonic()
        of = f" of {total}" if total else ""
        self.say(what if not done else f"{what}: continuing at {done}{of}")

    def advance(self, done: int, **figures: float) -> None:
        """Print one line when the last is old enough."""
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            of = f"/{self._total}" if self._total else ""
            self.say(f"{self._what}: {done}{of}  {_format(figures)}".rstrip())

    def say(self, message: str) -> None:
        """Print one line."""
        print(printable(message, keep="\n"), file=sys.stderr, flush=True)


class BarProgress(Progress):
    """A rich progress bar with the rate, the remaining time and the newest figures."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=12),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("left"),
            progress.TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self._task = None

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Show a new bar."""
        self.end()
        self._task = self._bar.add_task(printable(what), total=total or None, completed=done, figures="")
        self._bar.start()

    def advance(self, done: int, **figures: float) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bar.update(self._task, completed=done)
            if figures:
                self._bar.update(self._task, figures=_format(figures))

    def say(self, message: str) -> None:
        """Print one line above the bar."""
        self._bar.console.print(printable(message, keep="\n"), highlight=False, markup=False)

    def end(self) -> None:
        """Leave the finished bar on the screen."""
        if self._task is not None:
            self._bar.stop()
            self._bar.remove_task(self._task)
            self._task = None


def terminal_progress() -> Progress:
    """Return a bar when standard error is a terminal, else plain lines."""
    return BarProgress() if sys.stderr.isatty() else LineProgress()


def heard(wanted: bool) -> Progress:
    """Return what a person follows a run by, or silence."""
    return terminal_progress() if wanted else Progress()


def stage_callback(progress: Progress) -> Callable[[str, int, int], None]:
    """Return a callback (stage, done, total) that drives a progress display, for vocabularies and corpora."""
    current = [""]

    def report(stage: str, done: int, total: int) -> None:
        if stage != current[0]:
            current[0] = stage
            progress.begin(stage, total, 0)
        progress.advance(done)
        if total and done >= total:
            progress.end()

    return report


def _format(figures: dict[str, float]) -> str:
    rate = figures.get("tokens_per_s")
    parts = [f"{name} {value:.3g}" for name, value in figures.items() if name != "tokens_per_s"]
    return "  ".join([*parts, *([] if rate is None else [f"{rate:,.0f} tokens/s"])])
