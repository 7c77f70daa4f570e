"""What a training session asks of whoever saves its checkpoints."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol, Self

from maskloom.training.loop import TrainState


class Saves(Protocol):
    """A context that saves the checkpoints of one state; the ranks of a run all ask, each of its own."""

    def start(self, state: TrainState, extra: dict[str, Any], pinned: Collection[int] = ()) -> None:
        """Save the state as it stands, perhaps while training goes on; checkpoints of the `pinned` steps are kept."""
        ...

    def save(self, state: TrainState, extra: dict[str, Any], pinned: Collection[int] = ()) -> object:
        """Return when the state is saved."""
        ...

    def check(self) -> None:
        """Raise what a save that has ended failed with."""
        ...

    def wait(self) -> None:
        """Return when no save is under way; raises what it failed with."""
        ...

    def __enter__(self) -> Self:
        """Return the object itself."""
        ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the save under way."""
        ...


class NoSaves:
    """The saves of a rank whose state another one saves."""

    def start(self, state: TrainState, extra: dict[str, Any], pinned: Collection[int] = ()) -> None:
        """Do nothing."""

    def save(self, state: TrainState, extra: dict[str, Any], pinned: Collection[int] = ()) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Do nothing."""

    def __enter__(self) -> NoSaves:
        """Return the object itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for nothing."""
