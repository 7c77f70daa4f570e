"""The event log of a run, one JSON object per line, with a copy for TensorBoard if the recipe asks for one."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from maskloom.errors import ConfigError
from maskloom.system.fault_points import fault_point
from maskloom.system.files import DISK_ERRORS, be_alone, write_text
from maskloom.system.foreign_files import check_regular

_SHOWN = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
# Problems stay in the log even if the steps around them are repeated.
_NEVER_FORGOTTEN = frozenset({"nonfinite", "warning", "out_of_memory", "lost_events"})


class EventLog(AbstractContextManager["EventLog", None]):
    """Append-only JSONL file of a run's steps, evaluations and saves; non-finite numbers are written as null.

    Thread-safe. A disk error does not end the run: the number of lost lines is logged once the disk works again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._num_lost = 0
        self._open()

    def forget_after(self, stage: str, step: int, *, evaluates: bool = False) -> None:
        """Drop a stage's steps, evaluations and saves after a step, so that a resumed run logs each step once.

        With `evaluates`, the run evaluates that step again, so its evaluation is dropped as well. Lines that are not
        events (see `read_events`) are dropped too, and their number is logged.
        """
        with self._lock:
            found = _events_or_none(self.path)
            known = (event for event in found if event is not None)
            kept = [event for event in known if not _is_logged_again(event, stage, step, evaluates=evaluates)]
            if num_lost := found.count(None):
                kept.append({"event": "lost_events", "number": num_lost})
            if num_lost or len(kept) < len(found):
                write_text(self.path, "".join(json.dumps(event) + "\n" for event in kept))
                self._file.close()  # only now: a disk error leaves the log open as it was
                self._open()

    def write(self, event: str, **values: Any) -> None:
        """Append one event immediately, so that a killed run keeps what it logged."""
        with self._lock:
            if self._num_lost and self._append({"event": "lost_events", "number": self._num_lost}):
                self._num_lost = 0
            self._num_lost += not self._append({"event": event, **_finite(values)})

    def _open(self) -> None:
        if self.path.exists():
            check_regular(self.path)
        self._file = self.path.open("a+b", buffering=0)
        # a killed run may have left half a line, which must not spoil the next one
        end = self._file.seek(0, os.SEEK_END)
        self._is_cut = end > 0 and os.pread(self._file.fileno(), 1, end - 1) != b"\n"

    def _append(self, event: dict[str, Any]) -> bool:
        line = (b"\n" if self._is_cut else b"") + json.dumps(event).encode() + b"\n"
        be_alone()
        try:
            fault_point("events.write")
            written = self._file.write(line)
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            return False
        self._is_cut = 0 < written < len(line) or (self._is_cut and not written)
        return written == len(line)

    def close(self) -> None:
        """Sync the log to disk, if possible, and close it."""
        with suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class NoLog(EventLog):
    """A log that records nothing, for a process next to one that logs."""

    def __init__(self, path: Path) -> None:
        """Open nothing; `path` is where the other process logs."""
        self.path = path

    def forget_after(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    write = close = forget_after


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log in order.

    An event is a JSON object that has `event`; `event` and `stage` are text and `step` is an integer, where present.
    Any other line is skipped. Raises DataError if `path` is not a regular file.
    """
    return [event for event in _events_or_none(path) if event is not None]


def _events_or_none(path: Path) -> list[dict[str, Any] | None]:
    check_regular(path)
    return [_event(line) for line in path.read_bytes().splitlines()]


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_sound = isinstance(event, dict) and all(
        isinstance(event[key], str if key != "step" else int) for key in ("event", "stage", "step") if key in event
    )
    return event if is_sound and "event" in event else None


def _is_logged_again(event: dict[str, Any], stage: str, step: int, *, evaluates: bool) -> bool:
    """Tell whether a stage that continues after a step, which it `evaluates` again or not, logs an event again."""
    if event.get("stage") != stage or event["event"] in _NEVER_FORGOTTEN:
        return False
    return event.get("step", 0) > step or (evaluates and (event["event"], event.get("step")) == ("evaluation", step))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_log_targets(log_to: Sequence[str]) -> None:
    """Raise ConfigError when a target of `training.log_to` needs a package that is not installed."""
    if "tensorboard" in log_to and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            'training.log_to = ["tensorboard"]: the package tensorboard is not installed; '
            "install it with: pip install 'maskloom[tensorboard]'"
        )


def open_run_log(path: Path, *, is_first: bool, log_to: Sequence[str] = ()) -> EventLog:
    """Return the event log of a process: only the first rank logs, also for TensorBoard if requested."""
    if not is_first:
        return NoLog(path)
    return TensorBoardLog(path) if "tensorboard" in log_to else EventLog(path)


class TensorBoardLog(EventLog):
    """An event log with a copy in `tensorboard/STAGE/`; a disk error ends the copy, not the run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._copies: dict[str, Any] = {}
        self._is_broken = False

    def forget_after(self, stage: str, step: int, *, evaluates: bool = False) -> None:
        """Drop from the log what a resumed run repeats, and make TensorBoard drop later steps too."""
        with self._lock:
            super().forget_after(stage, step, evaluates=evaluates)
            self._copy(stage, step=step + 1, session_log={"status": "START"})

    def write(self, event: str, **values: Any) -> None:
        """Append one event to the log and its copy."""
        with self._lock:
            super().write(event, **values)
            if shown := [{"tag": tag, "simple_value": value} for tag, value in _scalars(event, values).items()]:
                self._copy(values["stage"], step=values["step"], summary={"value": shown})

    def close(self) -> None:
        """Close the log and its copy."""
        super().close()
        while self._copies:
            self._copies.popitem()[1].close()

    def _copy(self, stage: str, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore
        from tensorboard.summary.writer.record_writer import RecordWriter  # pyright: ignore

        if self._is_broken:
            return
        events = [Event(wall_time=time.time(), **content)]
        try:
            if stage not in self._copies:
                folder = self.path.parent / "tensorboard" / stage
                folder.mkdir(parents=True, exist_ok=True)
                # the name begins with the time: TensorBoard reads files in the order of their names
                name = f"events.out.tfevents.{time.time_ns() // 1000:017d}.{os.getpid()}"
                self._copies[stage] = RecordWriter((folder / name).open("wb", buffering=0))
                events.insert(0, Event(wall_time=time.time(), file_version="brain.Event:2"))
            for event in events:
                self._copies[stage].write(event.SerializeToString())
        except OSError as error:
            self._is_broken = True
            super().write("warning", kind="tensorboard", text=f"writing for TensorBoard stopped: {error}")


def _scalars(event: str, values: dict[str, Any]) -> dict[str, float]:
    """Return the finite numbers of an event that TensorBoard shows, by tag."""
    shown = {}
    if event == "step":
        shown = {name: values.get(name) for name in _SHOWN}
        shown |= {f"losses/{name}": value for name, value in values.get("losses", {}).items()}
    elif event == "evaluation":
        shown = {f"evaluation/{name}": value for name, value in values.get("metrics", {}).items()}
    return {tag: value for tag, value in shown.items() if isinstance(value, (int, float)) and math.isfinite(value)}
