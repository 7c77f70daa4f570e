"""Output for people: results as lines, and during a run a bar on a terminal or plain lines elsewhere."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from maskloom.errors import amount

Item = TypeVar("Item")
_SECONDS = 5.0  # from which the time of a stage is estimated
# Control characters, lone surrogates (bytes of a file name that are not UTF-8), line separators and invisible
# bidirectional controls.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, keep: str = "") -> str:
    """Return a text with characters that move a terminal's cursor, or hide, escaped; characters in `keep` stay."""
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0] in keep else repr(match[0])[1:-1], text)


def printable_json(text: str) -> str:
    """Return JSON text with the same characters as JSON's own escapes."""
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


@contextmanager
def to_standard_error() -> Iterator[None]:
    """Within, print to standard error; work goes on without a line that cannot be printed, as on a closed terminal."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EIO, errno.EPIPE):  # its reader is gone for good
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def lines_of(result: dict[str, Any], indent: str = "", *, keeps_keys: bool = False) -> list[str]:
    """Return one aligned line per key; nested results are indented, long lists are shown by their length.

    Absent or empty values have no line. Keys that are tokens or labels stay as they are; with `keeps_keys` all do.
    """
    names = {key: key if keeps_keys else _in_words(key, result) for key, value in result.items() if not _is_none(value)}
    width = max(map(len, names.values()), default=0)
    lines = []
    for key, name in names.items():
        value = result[key]
        if isinstance(value, dict):
            lines += [f"{indent}{name}:", *lines_of(value, indent + "  ", keeps_keys="token" in key or "label" in key)]
        else:
            lines.append(f"{indent}{name:<{width}}  {_in_line(value, key)}")
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line for each row, a name and texts, with its cells aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [(name.replace("_", " "), *texts) for name, *texts in rows]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def wrapped(lines: Sequence[str]) -> list[str]:
    """Return lines with their last column wrapped at words to a terminal's width, as they are for a pipe.

    Indented lines without columns, which are commands to copy, stay whole.
    """
    if not sys.stdout.isatty():
        return [*lines]
    width, found = shutil.get_terminal_size().columns, list[str]()
    for line in lines:
        before, gap, _ = line.rpartition("  ")
        indent = " " * min(len(before + gap), width - 24)
        folded = textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)
        found += folded if folded and (before.strip() or not gap) else [line]
    return found


def screen_of(result: dict[str, Any], *, width: int = 80, height: int = 22) -> list[str]:
    """Return a result on one screen: a line for each key, nested values inline; the JSON has what is cut off."""
    names = {key: _in_words(key, result) for key, value in result.items() if not _is_none(value)}
    width_of_names = max(map(len, names.values()), default=0)
    whole = [printable(f"{name:<{width_of_names}}  {_in_line(result[key], key)}") for key, name in names.items()]
    is_long = [len(line) > width and not line.startswith("command ") for line in whole]
    lines = [f"{line[: width - 4]} ..." if cut else line for line, cut in zip(whole, is_long, strict=True)]
    return [*lines[:height], "(--json shows all of it)"] if len(lines) > height or any(is_long) else lines


def in_words(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 90:
        return amount(round(seconds), "second")
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def three_digits(number: float) -> str:
    """Return a number with three digits; a larger one as a whole number, never with an exponent."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def shown_count(number: float) -> str:
    """Return a large number with three digits and its unit in words."""
    for unit, name in ((1e9, "billion"), (1e6, "million")):
        if number >= unit:
            return f"{three_digits(number / unit)} {name}"
    return f"{number:,.0f}"


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | dict) and not value)


def _in_words(key: str, result: dict[str, Any]) -> str:
    """Return a key as words; "num" is dropped, or spelled out if the counted things have a key of their own."""
    thing = key.removeprefix("num_")
    counts = "number of " if thing != key and not _is_none(result.get(thing)) else ""
    return counts + thing.replace("_", " ")


def _in_line(value: Any, key: str = "") -> str:
    if key == "command" and isinstance(value, list):
        return shlex.join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_in_line(held)}" for key, held in value.items() if not _is_none(held))
    return formatted(value)


def formatted(value: Any) -> str:
    """Return a value as text: four digits of a float, truth as in a recipe, a long list by its length."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return f"{len(value)} entries" if len(value) > 12 else ", ".join(map(formatted, value))
    return str(value)


class Progress:
    """Follows the progress of a run and shows nothing; subclasses show it."""

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Start a stage of `total` units (0: unknown), of which `done` are already done."""

    def advance(self, done: int, **figures: float) -> None:
        """Report how many units of the stage are done, with figures to show alongside."""

    def say(self, message: str) -> None:
        """Show one persistent line."""

    def end(self) -> None:
        """Finish the stage."""

    def each(self, what: str, items: Sequence[Item]) -> Iterator[Item]:
        """Yield items as the units of a stage."""
        self.begin(what, len(items))
        for number, item in enumerate(items, start=1):
            yield item
            self.advance(number)
        self.end()


SILENT = Progress()


class LineProgress(Progress):
    """Plain lines on standard error, for logs and pipes: stage names, and how far each is and how long it will take."""

    def __init__(self) -> None:
        self._what, self._total, self._next = "", 0, 0.0
        self._first: tuple[float, int] | None = None

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Print the name of the stage."""
        self._what, self._total, self._first = what, total, None
        of = f" of {total}" if total else ""
        self.say(what if not done else f"{what}: continuing at {done}{of}")

    def advance(self, done: int, **figures: float) -> None:
        """Print one line a few seconds after the first call, which may have been slow, then one per minute."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._next = (now, done), now + _SECONDS
        if now < self._next:
            return
        self._next = now + 60.0
        started, first = self._first
        of = f"/{self._total}" if self._total else ""
        if self._total and done > first:
            of += f", {in_words((self._total - done) * (now - started) / (done - first))} left"
        self.say(f"{self._what}: {done}{of}  {_format(figures)}".rstrip())

    def say(self, message: str) -> None:
        """Print one line."""
        with to_standard_error():
            print(printable(message, keep="\n"), file=sys.stderr, flush=True)


class _Bar(Progress):
    """A rich progress bar with the rate, the remaining time and the newest figures, where the line has room for them.

    On a narrow terminal the bar shrinks first, then the last figures are left out; steps and time are always whole.
    """

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=12),
            progress.MofNCompleteColumn(table_column=Column(no_wrap=True)),
            progress.TimeRemainingColumn(table_column=Column(no_wrap=True)),
            progress.TextColumn("left"),
            progress.TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self._task, self._taken = None, 0

    def begin(self, what: str, total: int, done: int = 0) -> None:
        self.end()
        self._taken = len(what) + 2 * len(str(total)) + len("/") + len("12:34:56") + len("left") + 6  # 5 gaps, a bar
        self._task = self._bar.add_task(printable(what), total=total or None, completed=done, figures="")
        with to_standard_error():
            self._bar.start()

    def advance(self, done: int, **figures: float) -> None:
        if self._task is not None:
            text = _format(figures)
            while text and len(text) > self._bar.console.width - self._taken:
                text = text.rpartition("  ")[0]
            self._bar.update(self._task, completed=done, figures=text)

    def say(self, message: str) -> None:
        with to_standard_error():
            self._bar.console.print(printable(message, keep="\n"), highlight=False, markup=False)

    def end(self) -> None:
        if self._task is not None:
            with to_standard_error():
                self._bar.stop()
            self._bar.remove_task(self._task)
            self._task = None


def terminal_progress() -> Progress:
    """Return a bar when standard error is a terminal, else plain lines."""
    return _Bar() if sys.stderr.isatty() else LineProgress()


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
