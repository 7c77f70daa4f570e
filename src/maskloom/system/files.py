"""Atomic writing of files and folders: a reader finds the old version, the new one or none, never half of one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO, Any, Literal

from maskloom.errors import ConfigError
from maskloom.system.fault_points import fault_point

# Errors of a full, broken or lost disk, or of a limit on files (`ulimit -f`): not the program's fault, and gone when
# there is room or a connection again.
DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.ESTALE, errno.ETIMEDOUT}
)
_CHUNK = 4 * 2**20
_LONGEST_STEM = 255 - len(".") - len(".1234567.12345678.tmp")
# Standard output and other files inherited from a shell. Reopening such a name would truncate a file opened by >>.
_STANDARD_FILES = {"/dev/stdout": 1, "/dev/stderr": 2}
_OPEN_FILES = re.compile("(?:/dev|/proc/self)/fd/([0-9]{1,6})")

WRITE_CHECKS: list[Callable[[], object]] = []
"""Each raises an error if another process now works where this one writes (see `folder_lock`)."""


def be_alone() -> None:
    """Raise the error of the `WRITE_CHECKS`, if any; called before a file or folder takes its place."""
    for check in [*WRITE_CHECKS]:
        check()


DISK_CALLS: dict[int, float] = {}
"""The threads of this process that wait for a disk, and since when (`time.monotonic`)."""


@contextmanager
def disk_call() -> Iterator[None]:
    """Within, this thread is one of those in `DISK_CALLS`."""
    DISK_CALLS[threading.get_ident()] = time.monotonic()
    try:
        yield
    finally:
        DISK_CALLS.pop(threading.get_ident(), None)


@contextmanager
def naming_disk(path: Path) -> Iterator[None]:
    """Add a path to an OSError that names none: a full disk does not say which one it is."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: str | Path, mode: Literal["wb", "w"] = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file in the same folder; at the end, fsync it and rename it into place.

    Text is UTF-8 with line ends unchanged. On an error nothing is left behind and an older file stays; leftovers of a
    killed process are removed when the same file is written again.
    """
    encoding, newline = (None, None) if mode == "wb" else ("utf-8", "")
    path = Path(path)
    name = os.fsencode(path.name)  # a temporary name is longer, and must not exceed 255 bytes either
    start = f".{path.name if len(name) <= _LONGEST_STEM else hashlib.sha256(name).hexdigest()}."
    with suppress(OSError):
        for left in path.parent.glob(f"{escape(start)}*.tmp"):
            process = left.name.removeprefix(start).partition(".")[0]
            if process.isdigit() and not is_running(int(process)):
                left.unlink()
    temporary = path.parent / f"{start}{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, mode.replace("w", "x"), encoding=encoding, newline=newline) as file:
            yield file
            fault_point("files.write")
            file.flush()
            fault_point("files.sync")
            os.fsync(file.fileno())
        be_alone()
        fault_point("files.rename")
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # the first error is the one to report
            fault_point("files.unlink")
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise OSError(error.errno, f"{error.strerror}; the file was not written", str(path)) from None
        if isinstance(error, OSError) and str(error.filename) == str(temporary):
            error.filename = str(path)
        raise
    sync(path.parent)


def output_file(path: str | Path, mode: Literal["wb", "w"] = "wb") -> AbstractContextManager[IO[Any]]:
    """Open the file that the user names for a result, as `replacing` does.

    A link stays, and its target is replaced. A pipe, a device or /dev/stdout is written to directly.
    """
    if not is_stream(path):
        return replacing(Path(path).resolve() if os.path.islink(path) else path, mode)
    encoding, newline = (None, None) if mode == "wb" else ("utf-8", "")
    number = open_file_number(path)
    return open(path if number is None else os.dup(number), mode, encoding=encoding, newline=newline)


def is_stream(path: str | Path) -> bool:
    """Tell whether a path is a pipe, a device or a file that this process was started with, such as /dev/stdout."""
    if open_file_number(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def open_file_number(path: str | Path) -> int | None:
    """Return the file descriptor that a path such as /dev/stdout or /dev/fd/3 names; None for other paths."""
    match = _OPEN_FILES.fullmatch(str(path))
    return int(match[1]) if match else _STANDARD_FILES.get(str(path))


@contextmanager
def replacing_folder(final: Path) -> Iterator[Path]:
    """Yield a new folder next to `final` that takes its name at the end; after an error, it is removed.

    An older folder of that name stays until the last moment. A link stays, and its target is replaced. Raises
    ConfigError for a path without a name, such as ".".
    """
    final = final.resolve() if final.is_symlink() else final
    if final.name in ("", ".."):
        raise ConfigError(f"{final}: this folder is replaced as a whole, so it needs a name; choose another --out")
    temporary, former = (final.with_name(f".{final.name}.{what}-{os.getpid()}") for what in ("tmp", "tmp-old"))
    for left in final.parent.glob(f".{escape(final.name)}.tmp-*"):
        process = left.name.rpartition("-")[2]
        if process.isdigit() and (int(process) == os.getpid() or not is_running(int(process))):
            remove_left(left)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    with taking_the_place(temporary, final, former):
        yield temporary
    if former.exists():
        remove_tree(former)


@contextmanager
def taking_the_place(temporary: Path, final: Path, former: Path) -> Iterator[None]:
    """Create the folder `temporary`, which is renamed to `final` at the end; an existing `final` becomes `former`.

    On an error the new folder is removed, and the old one gets its name back.
    """
    try:
        temporary.mkdir()
        yield
        sync(temporary)
        be_alone()
        if final.exists():
            rename(final, former)
        rename(temporary, final)
        sync(final.parent)
    except BaseException as error:
        with suppress(OSError):  # the first error is the one to report
            if former.exists() and not final.exists():
                rename(former, final)
        with suppress(OSError):
            if temporary.exists():
                remove_tree(temporary)
        if isinstance(error, OSError) and str(error.filename) == str(temporary):
            error.filename = str(final)
        raise


def remove_left(left: Path) -> None:
    """Remove what a killed process was writing; if it had already renamed the older folder, that gets its name back."""
    name, is_older, _ = left.name.removeprefix(".").rpartition(".tmp-old-")
    if is_older and name and not left.with_name(name).exists():
        rename(left, left.with_name(name))
    else:
        remove_tree(left)


def copy_files(source: Path, target: Path) -> None:
    """Copy a folder's files and folders into another, except links to folders; raises OSError as `replacing` does."""
    for path in sorted(source.iterdir()):
        if path.is_dir() and not path.is_symlink():
            (target / path.name).mkdir()
            copy_files(path, target / path.name)
        elif not path.is_dir() and not is_stream(path):  # a pipe might never end
            with path.open("rb") as file, replacing(target / path.name) as copy:
                while chunk := file.read(_CHUNK):
                    fault_point("files.copy")
                    copy.write(chunk)


def numbered_folders(parent: Path, name: str) -> list[Path]:
    """Return the folders `name`-0, `name`-1 and so on of a folder, by number; copies of a user have other names."""
    found = {path: path.name.removeprefix(f"{name}-") for path in parent.glob(f"{name}-*")}
    numbers = {path: int(number) for path, number in found.items() if re.fullmatch("[0-9]{1,18}", number)}
    return sorted(numbers, key=numbers.__getitem__)


def is_running(process: int) -> bool:
    """Return whether a process with that number exists on this machine, whoever owns it."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # it belongs to another user
    return True


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file atomically; missing parent folders are created."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically, with the line ends of `text` unchanged."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def write_hashed(path: str | Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write a new file and hash it in the same pass, fsync it, and return its `bytes` and `sha256`.

    Writing, hashing and syncing release the GIL, so other threads run meanwhile.
    """
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", buffering=0) as file:
        for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), _CHUNK):
                chunk = view[start : start + _CHUNK]
                digest.update(chunk)
                size += len(chunk)
                while len(chunk):  # a nearly full disk writes a part, and fails only at the next call
                    fault_point("files.write")
                    with disk_call():
                        chunk = chunk[file.write(chunk) :]
        fault_point("files.sync")
        with disk_call():
            os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def file_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: str | Path) -> None:
    """Fsync a file, or a folder's list of names."""
    fault_point("files.sync")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with disk_call():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder within a file system; `sync` its parent folder afterwards."""
    fault_point("files.rename")
    with disk_call():
        os.rename(source, target)


def remove_tree(path: Path) -> None:
    """Remove a folder with its content, or a file; links are removed, not followed."""
    is_folder = path.is_dir() and not path.is_symlink()
    for held in [*path.iterdir()] if is_folder else ():
        remove_tree(held)
    fault_point("files.unlink")
    if is_folder:
        path.rmdir()
    else:
        path.unlink()
