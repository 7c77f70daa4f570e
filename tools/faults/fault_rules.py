"""Faults at the named places of `maskloom.system.fault_points`, armed by `arm` or by the environment.

Faults are comma-separated rules `ACTION@NAME#COUNT`: at the COUNT-th pass through places whose name matches NAME (a
shell pattern such as `files.*`), ACTION happens once, or at every later pass too for `#COUNT+`. Actions: `kill`
(SIGKILL to this process), `eio`, `enospc`, `erofs`, `edquot` (an `OSError` with that number), `hang`, `exception` (a
`RuntimeError`), `enomem` (a `MemoryError`). In `ACTION@FIRST>NAME#COUNT`, only passes after one through FIRST count. A
log is a file to which every pass appends its name as a line.

An interpreter that starts with this folder on its path, as in the environment of `tools.soak.processes`, takes the
rules from `MASKLOOM_FAULTS` and the name of the log from `MASKLOOM_FAULT_LOG` (`sitecustomize.py`).
"""

import errno
import fnmatch
import os
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial

from maskloom.system import fault_points

DISK_ERRORS = {"eio": errno.EIO, "enospc": errno.ENOSPC, "erofs": errno.EROFS, "edquot": errno.EDQUOT}
ACTIONS = ("kill", *DISK_ERRORS, "hang", "exception", "enomem")


@dataclass
class _Rule:
    action: str
    pattern: str
    at: int
    stays: bool
    first: str = ""
    passed: int = 0

    def is_due(self, name: str) -> bool:
        if self.first:
            self.first = "" if fnmatch.fnmatchcase(name, self.first) else self.first
            return False
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
    names, _, at = place.partition("#")
    first, _, pattern = names.rpartition(">")
    number = at.removesuffix("+") or "1"
    if action not in ACTIONS or not pattern or not number.isdigit():
        raise ValueError(f"MASKLOOM_FAULTS: {text!r} is not ACTION@NAME#COUNT with an action of {', '.join(ACTIONS)}")
    return _Rule(action, pattern, int(number), at.endswith("+"), first)


_lock = threading.Lock()


def arm(faults: str = "", log: str | None = None) -> None:
    """Use these rules and this log from now on; raises `ValueError` for an invalid rule."""
    rules = [_read_rule(text) for text in faults.split(",") if text.strip()]
    fault_points.disturb = partial(_pass, rules, log)


def _pass(rules: list[_Rule], log: str | None, name: str) -> None:
    with _lock:
        if log:
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.write(descriptor, f"{name}\n".encode())
            os.close(descriptor)
        due = [rule.action for rule in rules if rule.is_due(name)]
    for action in due:
        _act(action, name)
