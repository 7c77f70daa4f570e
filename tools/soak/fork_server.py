"""A process that has imported everything and forks for each command line that it receives, or into a second server.

A fork is an ordinary process with its own memory, files and threads, and SIGKILL ends it like any other; it only saves
the seconds for importing torch. Requests and answers are JSON lines on standard input and output.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from typing import Any


def main() -> None:
    """Import, report readiness, and serve one command line after the other until standard input ends."""
    _import_everything()
    gc.collect()
    gc.freeze()  # otherwise a child's garbage collector would copy every page that it visits
    _answer(ready=True, threads=len(os.listdir("/proc/self/task")))
    with open(0, "rb", buffering=0) as requests:  # unbuffered, so that select sees unread requests
        for line in requests:
            request = json.loads(line)
            if "pipes" in request:
                _split(request["pipes"])
            else:
                _serve(request)


def _split(pipes: list[str]) -> None:
    """Fork a second server that reads its requests from one named pipe and answers on another.

    It has its own session and no parent that waits for it, like a server that was started on its own.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for target, (pipe, flags) in enumerate(zip(pipes, (os.O_RDONLY, os.O_WRONLY), strict=True)):
        opened = os.open(pipe, flags)
        os.dup2(opened, target)
        os.close(opened)
    _answer(ready=True, threads=len(os.listdir("/proc/self/task")))


def _import_everything() -> None:
    """Import what the commands import, including their slowest deferred imports.

    Optional packages that start a thread on import are left to the children.
    """
    for name in ("corpus", "finetune", "pretrain", "search"):
        importlib.import_module(f"maskloom.runs.{name}")
    sys.modules["pyarrow"] = None  # type: ignore[assignment]
    for name in ("maskloom.cli", "torch._dynamo", "scipy.optimize", "sklearn.metrics", "jinja2", "rich.progress"):
        importlib.import_module(name)
    del sys.modules["pyarrow"]


def _serve(request: dict[str, Any]) -> None:
    child = os.fork()
    if child == 0:
        _become(request)
    watched = os.pidfd_open(child)
    _answer(pid=child)
    ready, _, _ = select.select([watched, sys.stdin], [], [])
    if watched not in ready:  # the client is gone: it writes nothing while a child runs
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(watched)
    _answer(code=os.waitstatus_to_exitcode(status))


def _become(request: dict[str, Any]) -> None:
    """Run the command line in this child like a new interpreter, and end with its exit code; never returns."""
    code = 1
    try:
        from maskloom.cli import main as maskloom_main
        from tools.faults.fault_rules import arm

        os.setpgid(0, 0)
        # background jobs and nohup leave these ignored in their children
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.chdir(request["folder"])
        silent, output = os.open(os.devnull, os.O_RDONLY), os.open(request["output"], os.O_WRONLY | os.O_APPEND)
        for source, target in ((silent, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.environ.update(request["environment"])
        arm(os.environ.get("MASKLOOM_FAULTS", ""), os.environ.get("MASKLOOM_FAULT_LOG"))
        sys.argv = ["maskloom", *request["arguments"]]
        maskloom_main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a new interpreter would have ended by now
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _answer(**values: Any) -> None:
    try:
        os.write(1, (json.dumps(values) + "\n").encode())
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
