"""Run one side of a comparison, or several ranks of it, in child processes."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Measured:
    """The cost of a command from start to end, and its output.

    `processor` is the processor time of all its processes. `peak` is the highest sum of their resident memory in bytes,
    sampled from /proc; shared pages are counted once per process.
    """

    seconds: float
    processor: float
    peak: int
    output: str


def measured(command: list[str], environment: dict[str, str] | None = None) -> Measured:
    """Run a command in its own session; raises SystemExit with the command's output when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    peak, streams = 0, None
    while streams is None:
        peak = max(peak, resident_memory(process.pid))
        with suppress(subprocess.TimeoutExpired):  # reads meanwhile: a child waits once a pipe holds 64 KiB
            streams = process.communicate(timeout=0.02)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    output, errors = streams
    if process.returncode:
        raise SystemExit(f"{command} failed:\n{output}\n{errors}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(seconds, used, peak, output)


def first_of_ranks(command: list[str], *, num_ranks: int, threads: int) -> str:
    """Start a command once per rank, with rendezvous over the loopback device, and return the output of rank 0."""
    common = {"OMP_NUM_THREADS": str(threads)}
    if num_ranks > 1:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        common |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
    outputs = [subprocess.PIPE, *[subprocess.DEVNULL] * (num_ranks - 1)]  # pipes that nobody reads would fill up
    ranks = [
        subprocess.Popen(command, env={**os.environ, **common, **mine}, stdout=output, text=True)
        for mine, output in zip(own, outputs, strict=True)
    ]
    said = ranks[0].communicate()[0]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise SystemExit(f"{command} failed with {num_ranks} ranks")
    return said


def resident_memory(session: int) -> int:
    """Return the resident memory of all processes of a session in bytes; shared pages are counted once per process."""
    num_pages = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        # indices count from the field after the name: 3 is the session, 21 the number of resident pages
        if int(fields[3]) == session:
            num_pages += int(fields[21])
    return num_pages * os.sysconf("SC_PAGE_SIZE")
