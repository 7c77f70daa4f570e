"""Named places at which tests can kill or disturb a run; inactive unless the environment asks for a fault.

`MASKLOOM_FAULTS` holds comma-separated rules `ACTION@NAME#COUNT`: at the COUNT-th pass through places whose name
matches NAME (a shell pattern such as `files.*`), ACTION happens once, or at every later pass too for `#COUNT+`.
Actions: `kill` (SIGKILL to this process), `eio`, `enospc`, `erofs`, `edquot` (an `OSError` with that number), `hang`,
`exception` (a `RuntimeError`), `enomem` (a `MemoryError`). `MASKLOOM_FAULT_LOG` names a file to which every pass
appends its name as a line.
"""

import errno
import fnmatch
import os
import signal
import threading
import time
from dataclasses import dataclass

DISK_ERRORS = {"eio": errno.EIO, "enospc": errno.ENOSPC, "erofs": errno.EROFS, "edquot": errno.EDQUOT}
ACTIONS = ("kill", *DISK_ERRORS, "hang", "exception", "enomem")


@dataclass
class _Rule:
    action: str
    pattern: str
    at: int
    stays: bool
    passed: int = 0

    def is_due(self, name: str) -> bool:
        if not fnmatch.fnmatchcase(name, self.pattern):
            return False
        self.passed += 1
        return self.passed == self.at or (self.stays and self.passed > self.at)


def _act(action: str, name: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action in DISK_ERRORS:
        raise OSError(DISK_ERRORS[action], os.strerror(DISK_ERRORS[action]), f"fault point {name}")
    if action == "exception":
        raise RuntimeError(f"fault point {name}")
    if action == "enomem":
        raise MemoryError(f"fault point {name}")
    while True:
        time.sleep(3600)


def _read_rule(text: str) -> _Rule:
    action, _, place = text.strip().partition("@")
    pattern, _, at = place.partition("#")
    number = at.removesuffix("+") or "1"
    if action not in ACTIONS or not pattern or not number.isdigit():
        raise ValueError(f"MASKLOOM_FAULTS: {text!r} is not ACTION@NAME#COUNT with an action of {', '.join(ACTIONS)}")
    return _Rule(action, pattern, int(number), at.endswith("+"))


_rules: list[_Rule] = []
_log: str | None = None
_lock = threading.Lock()


def arm(faults: str = "", log: str | None = None) -> None:
    """Use these rules and this log instead of the environment's; raises `ValueError` for an invalid rule."""
    global _rules, _log
    _rules, _log = [_read_rule(text) for text in faults.split(",") if text.strip()], log


def fault_point(name: str) -> None:
    """Mark a place where tests can inject a fault by `name`, dotted as in `files.rename`; otherwise do nothing."""
    if not _rules and not _log:
        return
    with _lock:
        if _log:
            descriptor = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.write(descriptor, f"{name}\n".encode())
            os.close(descriptor)
        due = [rule.action for rule in _rules if rule.is_due(name)]
    for action in due:
        _act(action, name)


arm(os.environ.get("MASKLOOM_FAULTS", ""), os.environ.get("MASKLOOM_FAULT_LOG"))
