"""The event log of a run: one JSON object a line, appended as things happen."""

from __future__ import annotations

import json
import math
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from maskloom.fault_points import fault_point
from maskloom.files import DISK_ERRORS, write_text
from maskloom.foreign_files import check_regular

# What went wrong stays in the log although the steps around it were done again.
_NEVER_FORGOTTEN = frozenset({"nonfinite", "warning", "out_of_memory", "lost_events"})


class EventLog:
    """Append-only JSONL file of a run's steps, evaluations and saves; non-finite numbers are written as null.

    Several threads may write: lines stay whole. A disk that takes no lines ends no run: they are counted, and the
    number is logged once there is room again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._num_lost = 0
        self._open()

    def forget_after(self, stage: str, step: int) -> None:
        """Drop a stage's steps, evaluations and saves after a step: a resumed run's log holds each step once.

        Lines that are no events (see `read_events`) are dropped too, and their number is logged.
        """
        with self._lock:
            self._file.close()
            found = _events_or_none(self.path)
            kept = [event for event in found if event is not None and _stays(event, stage, step)]
            if num_lost := found.count(None):
                kept.append({"event": "lost_events", "number": num_lost})
            if num_lost or len(kept) < len(found):
                write_text(self.path, "".join(json.dumps(event) + "\n" for event in kept))
            self._open()

    def write(self, event: str, **values: Any) -> None:
        """Append one event at once, so that a killed run keeps what it logged."""
        with self._lock:
            if self._num_lost and self._append({"event": "lost_events", "number": self._num_lost}):
                self._num_lost = 0
            self._num_lost += not self._append({"event": event, **_finite(values)})

    def _open(self) -> None:
        if self.path.exists():
            check_regular(self.path)
        self._file = self.path.open("a+b", buffering=0)
        # a killed run may have left half a line, which must not take the next one with it
        end = self._file.seek(0, os.SEEK_END)
        self._is_cut = end > 0 and os.pread(self._file.fileno(), 1, end - 1) != b"\n"

    def _append(self, event: dict[str, Any]) -> bool:
        line = (b"\n" if self._is_cut else b"") + json.dumps(event).encode() + b"\n"
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
        """Sync the log to disk, if it can be, and close it."""
        with suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> EventLog:
        """Return the log itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the log."""
        self.close()


class NoLog(EventLog):
    """A log that keeps nothing: that of a process beside which another one logs."""

    def __init__(self, path: Path) -> None:
        """Open nothing; `path` is where the other one logs."""
        self.path = path

    def forget_after(self, stage: str, step: int) -> None:
        """Do nothing."""

    def write(self, event: str, **values: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log in order.

    An event is a JSON object with text as its `event` and `stage` and a whole number as its `step`, where it has them.
    Any other line, cut short by a kill or changed by hand, is skipped. Raises DataError for what is no regular file.
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


def _stays(event: dict[str, Any], stage: str, step: int) -> bool:
    is_later = event.get("stage") == stage and event.get("step", 0) > step
    return not is_later or event["event"] in _NEVER_FORGOTTEN


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
