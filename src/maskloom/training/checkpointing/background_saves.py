"""Checkpoints written by a thread while training continues: a step waits for a copy in memory, not for the disk."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from maskloom.system.files import DISK_ERRORS
from maskloom.system.resources import available_memory
from maskloom.training.checkpointing.checkpoints import Snapshot, write_checkpoint
from maskloom.training.ranks.ranks import own_shard
from maskloom.training.state import TrainState

# A copy that needs a larger fraction of the free memory is not made: training waits for the disk instead.
_LARGEST_FRACTION = 0.5


class BackgroundSaves(AbstractContextManager["BackgroundSaves", None]):
    """Context that saves a state's checkpoints in a folder, one at a time; leaving it waits for the one in progress.

    `start` copies weights and moments into reused buffers (12 bytes per parameter with Adam in fp32), which a thread
    writes as `write_checkpoint` does; `save` writes directly from the state while training waits. After a failed write,
    the next `check`, `wait`, `start` or `save` warns and training continues; a second failure in a row is raised, as is
    every failure of `save`. `on_whole(step, path)` is called in the thread that wrote, once a checkpoint is on disk.
    `run` is written into the checkpoints; those of the steps `pinned` are kept as well as the newest `keep`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        on_whole: Callable[[int, Path], None],
        say: Callable[[str], None] = print,
        run: str | None = None,
    ) -> None:
        self._folder, self._keep, self._on_whole, self._say, self._run = folder, keep, on_whole, say, run
        self._has_failed = False
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None
        self._buffers: dict[str, torch.Tensor] = {}
        self._copies = True

    def start(self, state: TrainState, extra: dict[str, Any], pinned: Collection[int] = ()) -> None:
        """Copy the current state and write it while the caller continues; waits for a write in progress."""
        self.wait()
        snapshot = Snapshot.of(state, extra)
        if not self._buffers and self._copies:
            self._copies = self._has_room(snapshot)
        if self._copies:
            self._pending = self._pool.submit(self._write, self._copied(snapshot), pinned)
        else:
            self._outlive(lambda: self._write(snapshot, pinned))

    def save(self, state: TrainState, extra: dict[str, Any], pinned: Collection[int] = ()) -> Path:
        """Write the state, and return its folder once it is on disk."""
        self.wait()
        return self._write(Snapshot.of(state, extra), pinned)

    def check(self) -> None:
        """Report a finished write that failed; costs nothing while none has finished."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def _outlive(self, work: Callable[[], object]) -> None:
        """Do work that may fail because of the disk, and report a failure; the second in a row is raised."""
        try:
            work()
        except OSError as error:
            if error.errno not in DISK_ERRORS or self._has_failed:
                raise
            self._has_failed = True
            self._say(f"warning: {error}. Training continues; if the next save fails too, it stops")

    def wait(self) -> None:
        """Return once no write is in progress, and report one that failed."""
        self._outlive(self._finish)

    def _finish(self) -> None:
        if self._pending is not None:
            self._pending.exception()  # an interrupted wait leaves it pending
            pending, self._pending = self._pending, None
            pending.result()

    def __enter__(self) -> Self:
        """Create the folder with its parents, which later saves do not recreate if the run was removed."""
        with suppress(OSError):  # the first save reports it
            self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the write in progress; its error does not replace another one."""
        try:
            self._finish()
        except Exception as error:
            if kind is None:
                raise
            self._say(f"warning: {error}")
        finally:
            self._pool.shutdown()
            self._buffers.clear()

    def _write(self, snapshot: Snapshot, pinned: Collection[int]) -> Path:
        path = self._put(snapshot, keep=self._keep, pinned=pinned, run=self._run)
        self._has_failed = False
        self._on_whole(snapshot.step, path)
        return path

    def _put(self, snapshot: Snapshot, **settings: Any) -> Path:
        return write_checkpoint(snapshot, self._folder, **settings)

    def _copied(self, snapshot: Snapshot) -> Snapshot:
        model = {name: self._copy(f"model.{name}", tensor) for name, tensor in snapshot.model.items()}
        moments = {name: self._copy(f"optimizer.{name}", tensor) for name, tensor in snapshot.optimizer.items()}
        for device in {tensor.device for tensor in snapshot.model.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)  # not always the current one
        return replace(snapshot, model=model, optimizer=moments)

    def _copy(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        if key not in self._buffers:
            self._buffers[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return self._buffers[key].copy_(tensor, non_blocking=tensor.is_cuda)  # only CUDA is waited for

    def _has_room(self, snapshot: Snapshot) -> bool:
        needed, available = sum(own_shard(t).nbytes for t in snapshot.tensors().values()), available_memory()
        if available is None or needed <= _LARGEST_FRACTION * available:
            return True
        self._say(
            "training waits until each save is on disk: a copy of weights and moments takes "
            f"{needed / 2**20:,.0f} MiB, but only {available / 2**20:,.0f} MiB of memory is free"
        )
        return False
