"""Signals that ask a run to stop: handled between steps after a save, or immediately if there is nothing to save."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FrameType

from maskloom.system.launch import is_one_of_several

EXIT_QUEUE_AGAIN, EXIT_INTERRUPTED = 75, 130  # EX_TEMPFAIL of sysexits.h; 128 + SIGINT, as in shells

# sent by a terminal (SIGINT, SIGHUP) or a scheduler (SIGTERM, SIGUSR1)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
RAISED: list[int] = []
"""Signals for which Interrupted was raised: a library that is creating a class then replaces it by its own error."""
_LEFT_AT_ONCE = b"\nstopped immediately: only what is complete is kept\n"


class Interrupted(BaseException):
    """The run stopped on request; everything that a resumed run needs is saved.

    Like `KeyboardInterrupt`, it is not an `Exception`: it may be raised anywhere and must not be handled as a failure.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C (SIGINT), and 75 (queue me again) after the other signals."""
        return EXIT_INTERRUPTED if self.signal_number == signal.SIGINT else EXIT_QUEUE_AGAIN


class StopRequests:
    """Context in which SIGINT, SIGTERM, SIGHUP and SIGUSR1 raise Interrupted, or are only noted while `deferred`.

    Only the first signal counts, except that a second SIGINT ends the process immediately with exit code 130, whatever
    it is doing. Ignored signals other than SIGINT stay ignored (SIGHUP under nohup). Other threads install no handlers.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._is_deferred = False
        self._undo = ExitStack()
        self._hook = sys.unraisablehook

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            self._undo.enter_context(_ending_at_second_interrupt())
            for number in STOP_SIGNALS:
                if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                    self._undo.callback(signal.signal, number, signal.signal(number, self._handle))
            self._hook, sys.unraisablehook = sys.unraisablehook, self._raise_again
            self._undo.callback(setattr, sys, "unraisablehook", self._hook)
            _active.append(self)
            self._undo.callback(_active.remove, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, only note a signal in `received`; the end raises Interrupted for it, if nothing else was raised."""
        with self._answering(is_deferred=True):
            yield
        self.raise_if_due()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within, a signal raises Interrupted immediately, even one noted before."""
        with self._answering(is_deferred=False):
            self.raise_if_due()
            yield

    def raise_if_due(self) -> None:
        """Raise Interrupted for a noted signal, unless signals are deferred.

        While one of several processes handles an error, the signal waits: the loss of a process fails the others' calls
        and makes torchrun send them SIGTERM, and the loss is what they must report.
        """
        if self.received is None or self._is_deferred:
            return
        if is_one_of_several() and isinstance(sys.exception(), Exception):
            self._try_again()
            return
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

    def _raise_again(self, lost: sys.UnraisableHookArgs) -> None:
        """Raise an Interrupted again a moment later if Python lost it in a callback, such as those of imports."""
        if isinstance(lost.exc_value, Interrupted):
            self._try_again()
        else:
            self._hook(lost)

    def _try_again(self) -> None:
        signal.signal(signal.SIGALRM, lambda *_: self in _active and self.raise_if_due())
        signal.setitimer(signal.ITIMER_REAL, 0.01)


_active: list[StopRequests] = []


def stop_requests() -> AbstractContextManager[StopRequests]:
    """Return a context with the requests that this process already listens for, or that listens for them within."""
    if _active and threading.current_thread() is threading.main_thread():
        _active[-1].raise_if_due()
        return nullcontext(_active[-1])
    return StopRequests()


def undisturbed() -> AbstractContextManager[None]:
    """Within, only note a signal to stop, and do not raise it at the end either: the run ends anyway."""
    listens = _active and threading.current_thread() is threading.main_thread()
    return _active[-1]._answering(is_deferred=True) if listens else nullcontext()


@contextmanager
def _ending_at_second_interrupt() -> Iterator[None]:
    """Within, a thread ends the process at the second SIGINT, even while the main thread is inside a long call.

    A Python handler would run only after that call; a pipe delivers the number of each signal immediately.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def watch() -> None:
        count = 0
        while numbers := os.read(read, 64):
            count += numbers.count(signal.SIGINT)
            if count >= 2:
                os.write(2, _LEFT_AT_ONCE)
                os._exit(EXIT_INTERRUPTED)

    thread = threading.Thread(target=watch, name="second-interrupt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write)
        thread.join()
        os.close(read)
