"""One run or build at a time in a folder: a lock that names its holder and does not outlive it."""

from __future__ import annotations

import errno
import fcntl
import functools
import inspect
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import ParamSpec, TypeVar

from maskloom.errors import RunFailedError
from maskloom.system.files import WRITE_CHECKS, is_running
from maskloom.system.foreign_files import check_regular, read_json_object
from maskloom.system.launch import is_first_process
from maskloom.system.resources import process_fields, system_text

LOCK = ".run.lock"
_NO_FLOCK = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
# How long to retry a lock without a readable holder, which may be writing its name or exiting.
_PATIENCE = 1.0
# On a disk without locks, the last of several simultaneous writers holds the lock; they may take this long.
_SETTLING = 0.3
# Interval at which the holder touches the file. A holder on another machine that misses it is gone.
_HEARTBEAT = 30.0

Given = ParamSpec("Given")
Result = TypeVar("Result")


class FolderInUseError(OSError):
    """Another run works in the folder; the message names its machine and process."""


class FolderLostError(RunFailedError):
    """Another run has taken over the folder of this one; the message names its machine and process."""


@dataclass(frozen=True)
class _Holder:
    """The holder of a lock; `start` is its process's start time in ticks, `boot` identifies the machine's last boot."""

    host: str
    pid: int
    start: str
    boot: str
    since: str
    command: str

    @classmethod
    def this_process(cls) -> _Holder:
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        command = " ".join(["maskloom", *sys.argv[1:]])
        return cls(socket.gethostname(), os.getpid(), _start_of(os.getpid()) or "", _boot(), since, command)

    @classmethod
    def read(cls, path: Path) -> _Holder | None:
        """Return the holder that a file names, or None if it names none."""
        try:
            return cls(**read_json_object(path))
        except (OSError, ValueError, TypeError):
            return None

    def why_gone(self) -> str | None:
        """Return why the holder is known to be gone, or None if it is running or on another machine."""
        if self.host != socket.gethostname():
            return None
        if self.boot != _boot():
            return "this machine has been restarted since"
        start = _start_of(self.pid)
        if start is None:
            return "that process no longer exists"
        return None if start == self.start else "another process has its PID now"

    def __str__(self) -> str:
        return f"PID {self.pid} on {self.host}, since {self.since} ({self.command})"


def alone_in_folder(
    *, beside: bool = False, ranks_share: bool = False
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Decorate a run with an argument `out` to hold that folder's lock while it runs; see `folder_lock`."""

    def decorate(run: Callable[Given, Result]) -> Callable[Given, Result]:
        signature = inspect.signature(run)

        @functools.wraps(run)
        def locked(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            out, say = given.arguments["out"], getattr(given.arguments.get("progress"), "say", _warn)
            with folder_lock(out, beside=beside, ranks_share=ranks_share, say=say):
                return run(*args, **kwargs)

        return locked

    return decorate


def _warn(message: str) -> None:
    print(message, file=sys.stderr)


@contextmanager
def folder_lock(
    out: str | Path, *, beside: bool = False, ranks_share: bool = False, say: Callable[[str], None] = _warn
) -> Iterator[None]:
    """Hold an exclusive lock on a folder within; if ranks share the folder, the first one holds it for all.

    The lock is the file `.run.lock` in the folder, which is created, or with `beside` a file next to a folder that is
    replaced as a whole. A kill frees it; the next run reports the takeover. Raises FolderInUseError if another run
    holds it. If one has taken it over from this process, `files.be_alone` raises FolderLostError.
    """
    out = Path(out)
    if (ranks_share and not is_first_process()) or (out.exists() and not out.is_dir()):
        yield  # the run itself refuses a path that is not a folder
        return
    path, is_new = _lock_path(out, beside=beside), not beside and not out.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    me, end = _Holder.this_process(), threading.Event()
    descriptor = _taken(path, out, me, say)

    def check() -> None:
        if (other := _Holder.read(path)) not in (None, me):
            raise FolderLostError(f"{out}: this process was suspended, and {other} has taken over; this one ends")

    def keep() -> None:
        with suppress(FolderLostError):
            while not end.wait(_HEARTBEAT):
                check()
                with suppress(OSError):
                    os.utime(descriptor)

    thread = threading.Thread(target=keep, name="folder-lock", daemon=True)
    thread.start()
    WRITE_CHECKS.append(check)
    try:
        yield
    finally:
        WRITE_CHECKS.remove(check)
        end.set()
        thread.join()
        with suppress(OSError, FolderLostError):
            check()
            os.unlink(path)  # while the lock is held: a waiting process finds another file there, or none
        os.close(descriptor)
        if is_new:
            with suppress(OSError):
                out.rmdir()  # succeeds only if the run left nothing


def _lock_path(out: Path, *, beside: bool = False) -> Path:
    out = out.resolve()
    return out.parent / f".{out.name[:200]}.lock" if beside else out / LOCK


def refuse_if_in_use(out: Path) -> None:
    """Raise FolderInUseError if a run on this machine works in a folder; quick, and takes no lock."""
    holder = _Holder.read(_lock_path(out)) if is_first_process() else None
    if holder is not None and holder.host == socket.gethostname() and holder.why_gone() is None:
        raise _in_use(out, holder)


def _taken(path: Path, out: Path, me: _Holder, say: Callable[[str], None]) -> int:
    """Acquire the lock, sign the file with this process's name, and return its descriptor."""
    deadline = time.monotonic() + _PATIENCE
    if path.exists():
        check_regular(path)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            is_free, former = _is_free(descriptor, path), _Holder.read(path)
            if is_free and (former is None or _may_be_taken_over(former, path, out, say)):
                if _is_signed(descriptor, path, me):
                    return descriptor
                former = _Holder.read(path)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if (former is not None and former.why_gone() is None) or time.monotonic() > deadline:
            if is_free:  # no locks on this disk: report the last of several simultaneous writers
                time.sleep(_SETTLING)
                former = _Holder.read(path) or former
            raise _in_use(out, former)
        time.sleep(0.01)


def _is_free(descriptor: int, path: Path) -> bool:
    """Lock the file if the disk supports locks; tell whether nobody else holds it and the path still leads to it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
    with suppress(FileNotFoundError):
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    return False


def _is_signed(descriptor: int, path: Path, me: _Holder) -> bool:
    """Write this process's name into the lock file, and tell whether it stays there."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(me), indent=1).encode(), 0)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        time.sleep(_SETTLING)
    return _Holder.read(path) == me


def _may_be_taken_over(former: _Holder, path: Path, out: Path, say: Callable[[str], None]) -> bool:
    """Tell whether the holder that a free lock names is gone, and report the takeover.

    On some network disks locks work only within a machine, so a holder on another machine is watched for a heartbeat.
    """
    reason = former.why_gone()
    if reason is None and former.host != socket.gethostname():
        say(f"{out}: waiting {1.2 * _HEARTBEAT:.0f} s for a heartbeat from {former}")
        touched = _touched(path)  # its age would mean nothing here: the clocks of two machines may differ
        deadline = time.monotonic() + 1.2 * _HEARTBEAT
        while time.monotonic() < deadline:
            time.sleep(min(1.0, _HEARTBEAT / 10))
            if _touched(path) != touched:
                raise _in_use(out, former)
        reason = "there is no heartbeat from its machine"
    if reason is not None:
        say(f"{out}: taking over from {former}, which did not finish: {reason}")
    return reason is not None


def _touched(path: Path) -> int:
    """Return when a file was last touched, 0 if it is gone; a network disk looks anew only when it is opened."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime_ns
    return 0


def _in_use(out: Path, holder: _Holder | None) -> FolderInUseError:
    who = holder or "a process that has not identified itself"
    return FolderInUseError(f"{out} is in use by {who}; wait until it ends or choose another --out")


def _boot() -> str:
    return system_text("/proc/sys/kernel/random/boot_id").strip()


def _start_of(process: int) -> str | None:
    """Return when a process started, in ticks since boot, or None if it has ended."""
    fields = process_fields(process)
    if not fields:
        return None if Path("/proc/self").exists() or not is_running(process) else ""
    return None if fields[0] in "ZX" else fields[19]
