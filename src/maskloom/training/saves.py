"""What a training session asks of whoever saves its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Self

from maskloom.files import DISK_ERRORS
from maskloom.training.loop import TrainState


class Saves:
    """A context that saves the checkpoints of one state; this one, of a rank whose state another saves, does nothing.

    The ranks of a run all ask, each of its own. Checkpoints of the `pinned` steps are kept.
    """

    def start(self, state: TrainState, extra: dict[str, Any], pinned: Collection[int] = ()) -> None:
        """Save the state as it stands, perhaps while training goes on."""

    def save(self, state: TrainState, extra: dict[str, Any], pinned: Collection[int] = ()) -> object:
        """Return when the state is saved."""

    def check(self) -> None:
        """Raise what a save that has ended failed with."""

    def wait(self) -> None:
        """Return when no save is under way; raises what it failed with."""

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the save under way."""


class DiskTroubles:
    """Forgives one failed save for the disk's sake, and says so; the second in a row is raised."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._failures = say, 0

    def outlive(self, work: Callable[[], object]) -> None:
        """Do what may fail for the disk's sake."""
        try:
            work()
        except OSError as error:
            if error.errno not in DISK_ERRORS or self._failures:
                raise
            self._failures += 1
            self._say(f"WARNING: {error}. Training continues; if the next save fails too, it stops")

    def end(self) -> None:
        """Forget what failed, as a save has succeeded."""
        self._failures = 0
