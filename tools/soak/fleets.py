"""Several command lines that train together as if started by torchrun, each forked from a server of its own."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.soak.processes import LONGEST_SECONDS, ForkServer, Running


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code (the negative signal number if killed), and all its output."""

    code: int
    said: str


class Fleet:
    """Context that starts command lines as the ranks of one job; `size` is the maximum number of ranks.

    `source` is an idle server to fork those of the ranks from; without it, one is started and ended with the context.
    """

    def __init__(self, size: int, source: ForkServer | None = None) -> None:
        self._servers = [source.twin()] if source else [ForkServer()]
        self._servers += [self._servers[0].twin() for _ in range(size - 1)]

    @property
    def first(self) -> ForkServer:
        """The server of the first rank, for command lines without other ranks."""
        return self._servers[0]

    def start(
        self,
        size: int,
        arguments: Sequence[object],
        folder: Path,
        *,
        own: Mapping[int, Mapping[str, str]] | None = None,
    ) -> list[Running]:
        """Start a job of `size` ranks in `folder`; `own` holds environment variables of individual ranks."""
        common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        job = []
        for rank, server in enumerate(self._servers[:size]):
            mine = {"RANK": str(rank), "LOCAL_RANK": str(rank), **common, **(own or {}).get(rank, {})}
            job.append(server.start(arguments, folder, folder / f"output-{rank}.txt", **mine))
        return job

    def run(
        self,
        size: int,
        arguments: Sequence[object],
        folder: Path,
        *,
        own: Mapping[int, Mapping[str, str]] | None = None,
    ) -> list[Ended]:
        """Run a job to its end, and return how its ranks ended."""
        folder.mkdir(parents=True, exist_ok=True)
        return wait_all(self.start(size, arguments, folder, own=own))

    def __enter__(self) -> Fleet:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the servers and their running command lines."""
        for server in self._servers:
            server.__exit__()


def wait_all(job: list[Running], seconds: float = LONGEST_SECONDS) -> list[Ended]:
    """Return how all ranks ended; ranks that exceed the time limit are killed and count as killed."""
    end, ended = time.monotonic() + seconds, []
    for running in job:
        try:
            code = running.wait(max(1.0, end - time.monotonic()))
        except TimeoutError:
            code = -signal.SIGKILL
        ended.append(Ended(code, running.output.read_text(encoding="utf-8", errors="replace")))
    return ended


def free_port() -> int:
    """Return a port that no process of this machine uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
