"""The event log of a run: one JSON object a line, appended as things happen."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any


class EventLog:
    """Append-only JSONL file of a run's steps, evaluations and saves; non-finite numbers are written as null.

    Several threads may write: lines stay whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")

    def forget_after(self, stage: str, step: int) -> None:
        """Drop a stage's events after a step, so that a resumed run's log holds each step once."""
        kept = [e for e in read_events(self.path) if e.get("stage") != stage or e.get("step", 0) <= step]
        self._file.close()
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.write_text("".join(json.dumps(event) + "\n" for event in kept), encoding="utf-8")
        temporary.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, event: str, **values: Any) -> None:
        """Append one event and flush it, so that a killed run keeps what it logged."""
        line = json.dumps({"event": event, **_finite(values)}) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        """Sync the log to disk and close it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> EventLog:
        """Return the log itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the log."""
        self.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log in order; a line cut short by a kill is passed over."""
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return events


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
