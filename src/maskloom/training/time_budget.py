"""Training by the clock: how much of its time a run has used, told to the schedule and written down."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from maskloom.training.ranks import ONE_RANK, Ranks
from maskloom.training.schedules import Name, clock_factor

_DIGITS = 6
# Evaluations and saves in a run, where the recipe does not say how often.
_PARTS = 10


class TimeBudget:
    """The time of a run, from the start of its first step, evaluations and saves included.

    The fraction used is the same on all `ranks`: the first one's clock counts. Every step's fraction is kept until it
    is logged, so that the learning rate of each step is known afterwards. Time between a stop and its resume does not
    count, nor do steps that a kill took back.
    """

    def __init__(
        self,
        seconds: float,
        *,
        schedule: Name,
        warmup_ratio: float,
        ranks: Ranks = ONE_RANK,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._schedule: Name = schedule
        self._warmup_ratio, self._ranks, self._now = warmup_ratio, ranks, now
        self._before, self._started = 0.0, None
        self._fractions: list[float] = []
        self.fraction, self._part = 0.0, 0

    def start(self) -> None:
        """Begin to count."""
        self._started = self._now()

    def used(self) -> float:
        """Return the seconds used by this process's clock, those before a resume included."""
        return self._before + (0.0 if self._started is None else self._now() - self._started)

    def factor(self, _step: int) -> float:
        """Return the factor on the peak learning rate for the step that begins now, and note its fraction."""
        self._look()
        self._fractions.append(self.fraction)
        return clock_factor(self.fraction, name=self._schedule, warmup_ratio=self._warmup_ratio)

    def is_used_up(self) -> bool:
        """Tell, the same on all ranks, whether no time is left for another step."""
        self._look()
        return self.fraction >= 1.0

    def enters_new_part(self) -> bool:
        """Tell whether the step that ended now is the first to end in another tenth of the time."""
        before, self._part = self._part, int(self.fraction * _PARTS)
        return self._part > before

    def taken(self) -> list[float]:
        """Return the fractions at the steps since the last call, in order."""
        fractions, self._fractions = self._fractions, []
        return fractions

    def as_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"seconds": self.used(), "fractions": list(self._fractions)}

    def restore(self, values: dict[str, Any]) -> None:
        """Go on from what a checkpoint kept."""
        self._before, self._fractions = values["seconds"], list(values["fractions"])
        self._part = int(min(1.0, self._before / self.seconds) * _PARTS)

    def _look(self) -> None:
        mine = min(1.0, round(self.used() / self.seconds, _DIGITS)) if self._ranks.is_first else 0.0
        self.fraction = self._ranks.sum_({"fraction": mine})["fraction"]
