"""The log of a run, and its copy for TensorBoard where the recipe asks for one."""

from __future__ import annotations

import importlib.util
import io
import math
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from maskloom.errors import ConfigError
from maskloom.training.events import EventLog, NoLog, read_events

FOLDER = "tensorboard"
_SINGLE = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")


def check_log_targets(log_to: Sequence[str]) -> None:
    """Raise ConfigError when a target of `training.log_to` needs a package that is not installed."""
    if "tensorboard" in log_to and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            'training.log_to = ["tensorboard"]: the package tensorboard is not installed; '
            "install it with: pip install 'maskloom[tensorboard]'"
        )


def open_run_log(path: Path, *, is_first: bool, log_to: Sequence[str] = ()) -> EventLog:
    """Return the event log of a process: of several ranks the first one logs, for TensorBoard too if that is wanted."""
    if not is_first:
        return NoLog(path)
    return TensorBoardLog(path) if "tensorboard" in log_to else EventLog(path)


class TensorBoardLog(EventLog):
    """An event log that copies steps and evaluations to `tensorboard/STAGE/` beside it.

    The copy is made of the log: when a run goes on, the files of TensorBoard are written anew from the events that
    still count, so that no step stands in them twice. A disk that takes no more of it ends the copy, not the run.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._copying = threading.Lock()
        self._copies: dict[str, BinaryIO] = {}
        self._is_broken = False
        self._copy_all()

    def forget_after(self, stage: str, step: int) -> None:
        """Drop what a resumed run does again from the log and its copy."""
        size = self.path.stat().st_size
        super().forget_after(stage, step)
        if self.path.stat().st_size != size:
            self._copy_all()

    def write(self, event: str, **values: Any) -> None:
        """Append one event to the log and its copy."""
        super().write(event, **values)
        with self._copying:
            problem = self._tried({"event": event, **values})
        if problem is not None:
            super().write("warning", kind="tensorboard", text=f"no more is written for TensorBoard: {problem}")

    def close(self) -> None:
        """Close the log and its copy."""
        super().close()
        self._close_copy()

    def _copy_all(self) -> None:
        with self._copying:
            self._close_copy()
            for old in (self.path.parent / FOLDER).glob("*/events.out.tfevents.*"):
                old.unlink(missing_ok=True)
            for event in read_events(self.path):
                self._tried(event)

    def _close_copy(self) -> None:
        while self._copies:
            self._copies.popitem()[1].close()

    def _tried(self, event: dict[str, Any]) -> OSError | None:
        """Copy an event, and return what kept the disk from taking it the first time that it did."""
        if self._is_broken:
            return None
        try:
            self._copy(event)
        except OSError as error:
            self._is_broken = True
            return error
        return None

    def _copy(self, event: dict[str, Any]) -> None:
        scalars = _scalars(event)
        if scalars:
            values = [{"tag": tag, "simple_value": value} for tag, value in scalars.items()]
            self._file_of(str(event.get("stage", "train"))).write(
                _record(step=event["step"], summary={"value": values})
            )

    def _file_of(self, stage: str) -> BinaryIO:
        """Return the open file of a stage; a new one says that what was there before counts no more."""
        if stage not in self._copies:
            folder = self.path.parent / FOLDER / stage
            folder.mkdir(parents=True, exist_ok=True)
            # the name begins with the time, so that a TensorBoard that is looking takes it for the next one
            name = f"events.out.tfevents.{time.time_ns() // 1000:017d}.{socket.gethostname()}.{os.getpid()}"
            file = self._copies[stage] = (folder / name).open("wb", buffering=0)
            file.write(_record(file_version="brain.Event:2") + _record(step=0, session_log={"status": "START"}))
        return self._copies[stage]


def _scalars(event: dict[str, Any]) -> dict[str, float]:
    """Return what TensorBoard shows of an event by tag; numbers that are not finite stand as null in a log."""
    if event.get("event") == "step":
        values = {name: event.get(name) for name in _SINGLE}
        values |= {f"losses/{name}": value for name, value in event.get("losses", {}).items()}
    elif event.get("event") == "evaluation":
        values = {f"evaluation/{name}": value for name, value in event.get("metrics", {}).items()}
    else:
        return {}
    return {tag: value for tag, value in values.items() if isinstance(value, (int, float)) and math.isfinite(value)}


def _record(**values: Any) -> bytes:
    """Return one event as it stands in a file of TensorBoard."""
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore
    from tensorboard.summary.writer.record_writer import RecordWriter  # pyright: ignore

    buffer = io.BytesIO()
    RecordWriter(buffer).write(Event(wall_time=time.time(), **values).SerializeToString())
    return buffer.getvalue()
