"""Real `maskloom` command lines that a row can watch and kill."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tools" / "faults"
LONGEST_SECONDS = 300


def environment(**more: str) -> dict[str, str]:
    """Return the environment of command lines under test: one thread, and no faults except those in `more`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MASKLOOM_FAULT")}
    path = filter(None, [str(FAULTS), os.environ.get("PYTHONPATH")])
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path), **more}


def processor_time(call: Callable[[], object]) -> float:
    """Return the processor seconds that a call takes in this process."""
    started = time.process_time()
    call()
    return time.process_time() - started


class Running(ABC):
    """A running command line; its output is in the file `output`."""

    pid: int
    output: Path

    @abstractmethod
    def wait(self, seconds: float = LONGEST_SECONDS) -> int:
        """Return the exit code (the negative signal number if killed); raises TimeoutError."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Tell whether the process has ended."""

    def ended(self) -> tuple[int, str]:
        """Return the exit code and the output once the process has ended; raises TimeoutError."""
        return self.wait(), self.output.read_text(encoding="utf-8", errors="replace")

    def send(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if not self.has_ended():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill as `kill -9` does."""
        self.send(signal.SIGKILL)

    def pause(self, seconds: float) -> None:
        """Return after some seconds, or when the process has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.has_ended():
            time.sleep(min(0.002, max(0.0, end - time.monotonic())))

    def kill_at(self, seconds: float) -> None:
        """Kill the process after some seconds, unless it ends before."""
        self.pause(seconds)
        self.kill()

    def wait_until(self, happened: Callable[[], Any], seconds: float = 120) -> Any:
        """Return the first true result of `happened`; raises TimeoutError, and RuntimeError if the process ends."""
        end = time.monotonic() + seconds
        while not (found := happened()):
            if self.has_ended():
                raise RuntimeError(f"the process ended before: {self.output.read_text(encoding='utf-8')[-2000:]}")
            if time.monotonic() > end:
                raise TimeoutError(f"waited {seconds} s in vain")
            time.sleep(0.002)
        return found


class CommandLine(Running):
    """`python -m maskloom` in a new interpreter, in its own session."""

    def __init__(self, arguments: Sequence[object], folder: Path, output: Path, **more: str) -> None:
        command = [sys.executable, "-m", "maskloom", *map(str, arguments)]
        self.output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment(**more),
                start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def wait(self, seconds: float = LONGEST_SECONDS) -> int:
        """Return the exit code, as the base class says."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"pid {self.pid} ran longer than {seconds} s") from None

    def has_ended(self) -> bool:
        """Tell whether the process has ended."""
        return self._process.poll() is not None


class ForkServer:
    """Context that starts command lines, one at a time, as forks of one interpreter that has imported all of maskloom.

    `source` is prepended to the import path, to test another copy of the package.
    """

    def __init__(self, source: Path | None = None) -> None:
        path = {"PYTHONPATH": os.pathsep.join([str(source), str(FAULTS)])} if source else {}
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-m", "tools.soak.fork_server"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env=environment(**path),
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._begin(self._process.stdin, self._process.stdout)

    def _begin(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests, self._answers = requests, answers
        self._current: _Forked | None = None
        if self.answer() != {"ready": True, "threads": 1}:
            raise RuntimeError("the fork server has threads, and a fork would lose them")

    def twin(self) -> ForkServer:
        """Return another server, forked from this one, which saves its imports; no command line may be running here."""
        other = object.__new__(ForkServer)
        other._process = None
        with tempfile.TemporaryDirectory() as folder:
            pipes = [Path(folder) / name for name in ("requests", "answers")]
            for pipe in pipes:
                os.mkfifo(pipe)
            self._requests.write((json.dumps({"pipes": list(map(str, pipes))}) + "\n").encode())
            other._begin(pipes[0].open("wb", buffering=0), pipes[1].open("rb", buffering=0))
        return other

    def start(self, arguments: Sequence[object], folder: Path, output: Path, **more: str) -> Running:
        """Start one command line in `folder`; the previous one is killed if it has not ended."""
        if self._current is not None:
            self._current.kill()
            self._current.wait()
        request = {
            "arguments": list(map(str, arguments)), "folder": str(folder), "output": str(output), "environment": more,
        }  # fmt: skip
        output.write_bytes(b"")
        self._requests.write((json.dumps(request) + "\n").encode())
        self._current = _Forked(self, self.answer()["pid"], output)
        return self._current

    def answer(self) -> dict[str, Any]:
        """Return the next line from the server, parsed as JSON."""
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the fork server ended")
        return json.loads(line)

    def has_answer(self, seconds: float) -> bool:
        """Tell whether the server has written a line, waiting up to `seconds` for it."""
        return bool(select.select([self._answers], [], [], seconds)[0])

    def __enter__(self) -> ForkServer:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and the command line that is still running."""
        self._requests.close()
        if self._process is None:
            self._answers.read()  # until it has ended
        else:
            self._process.wait(60)
        self._answers.close()


class _Forked(Running):
    def __init__(self, server: ForkServer, pid: int, output: Path) -> None:
        self._server, self.pid, self.output = server, pid, output
        self._code: int | None = None

    def wait(self, seconds: float = LONGEST_SECONDS) -> int:
        if self._code is None:
            if not self._server.has_answer(seconds):
                os.kill(self.pid, signal.SIGKILL)
                self._code = int(self._server.answer()["code"])
                raise TimeoutError(f"pid {self.pid} ran longer than {seconds} s")
            self._code = int(self._server.answer()["code"])
        return self._code

    def has_ended(self) -> bool:
        if self._code is None and self._server.has_answer(0):
            self.wait()
        return self._code is not None
