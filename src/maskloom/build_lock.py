"""One build at a time in a folder: a lock that the system drops when its process ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from maskloom.errors import ConfigError

_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})

_log = logging.getLogger(__name__)


@contextmanager
def held_alone(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock file `path`, whose folder is made; both may be removed while the lock is held.

    Raises ConfigError that says what another process is `doing`, with its number and machine.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("a+", encoding="utf-8")
        except FileNotFoundError:
            continue  # whoever held it before removed the folder in between
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                who = file.read(200).strip() or "another process"
                raise ConfigError(f"{path.parent}: {who} is {doing} there") from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                _log.warning("%s: no locks on this disk (%s); start no second build there", path.parent, error.strerror)
            if _is_at(file, path):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
                file.flush()
                yield
                return


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
