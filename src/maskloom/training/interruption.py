"""Signals that ask a run to stop are answered between steps, after a save."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupted(Exception):  # noqa: N818 - it is a normal way to end, not an error
    """The run stopped because it was asked to; its state is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class StopRequests:
    """Context in which the first SIGINT or SIGTERM only sets a flag; a second one has its usual effect."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequests:
        """Take over both signals, when in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        self._restore()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
