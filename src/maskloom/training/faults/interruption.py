"""Signals that ask a run to stop: answered between steps, after a save, or at once where there is nothing to save."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

EXIT_QUEUE_AGAIN, EXIT_INTERRUPTED = 75, 130  # EX_TEMPFAIL of sysexits.h; 128 + SIGINT, as shells have it

# what a terminal (SIGINT, SIGHUP) and a scheduler (SIGTERM, SIGUSR1) send; Windows lacks some
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
STOP_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
RAISED: list[int] = []
"""Signals for which Interrupted was raised: a library that builds a class meanwhile makes an error of its own of it."""
_LEFT_AT_ONCE = b"\nstopped at once: the checkpoints that are whole stand, later steps are lost\n"


class Interrupted(BaseException):
    """The run stopped because it was asked to; all that a resumed run needs is saved.

    No `Exception`, as `KeyboardInterrupt` is none: it may rise anywhere, and nobody should take it for a failure.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, and 75 (queue me again) after what a scheduler sends."""
        return EXIT_INTERRUPTED if self.signal_number == signal.SIGINT else EXIT_QUEUE_AGAIN


class StopRequests:
    """Context in which SIGINT, SIGTERM, SIGHUP and SIGUSR1 raise Interrupted, or are noted down while `deferred`.

    Only the first signal counts, except that a second SIGINT ends the process at once with exit code 130, whatever it
    is doing. SIGHUP that is ignored, as nohup has it, stays so. Outside the main thread nothing is taken over.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._is_deferred = False
        self._before: dict[int, object] = {}
        self._watch: _SecondInterrupt | None = None

    def __enter__(self) -> StopRequests:
        """Take the signals over."""
        if threading.current_thread() is threading.main_thread():
            self._watch = _SecondInterrupt()
            for number in STOP_SIGNALS:
                if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
            _active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        if self._watch is not None:
            _active.remove(self)
            while self._before:
                number, handler = self._before.popitem()
                signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
            self._watch.close()
            self._watch = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, a signal is only noted in `received`; at the end it raises, if nothing else has."""
        with self._answering(is_deferred=True):
            yield
        self.raise_if_due()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within, a signal raises Interrupted, also one that was noted before."""
        with self._answering(is_deferred=False):
            self.raise_if_due()
            yield

    def raise_if_due(self) -> None:
        """Raise Interrupted for a signal that was noted, unless it is to wait."""
        if self.received is not None and not self._is_deferred:
            RAISED.append(self.received)
            raise Interrupted(self.received)

    @contextmanager
    def _answering(self, *, is_deferred: bool) -> Iterator[None]:
        before, self._is_deferred = self._is_deferred, is_deferred
        try:
            yield
        finally:
            self._is_deferred = before

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            self.raise_if_due()


_active: list[StopRequests] = []


@contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Yield the requests that this process listens for already, or listen for them within."""
    if _active and threading.current_thread() is threading.main_thread():
        _active[-1].raise_if_due()
        yield _active[-1]
        return
    with StopRequests() as requests:
        yield requests


def undisturbed() -> AbstractContextManager[None]:
    """Within, a signal to stop is only noted, and it does not raise at the end either: the run ends anyway."""
    listens = _active and threading.current_thread() is threading.main_thread()
    return _active[-1]._answering(is_deferred=True) if listens else nullcontext()


class _SecondInterrupt:
    """A thread that ends the process at the second SIGINT, also while the main thread is inside a long call.

    A handler alone would wait for the end of that call; the number of each signal comes through a pipe at once.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, name="second-interrupt", daemon=True)
        self._thread.start()

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def _run(self) -> None:
        count = 0
        while numbers := os.read(self._read, 64):
            count += numbers.count(signal.SIGINT)
            if count >= 2:
                os.write(2, _LEFT_AT_ONCE)
                os._exit(EXIT_INTERRUPTED)
