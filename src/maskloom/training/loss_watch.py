"""Warnings about a loss that jumps or stands still; nothing is stopped for them."""

from __future__ import annotations

import statistics
from collections import deque

_WINDOW = 100
_FEWEST = 20
_SIGMAS = 10.0
_FROZEN_STEPS = 50
_FROZEN_SPREAD = 1e-7


class LossWatch:
    """Follows the loss of each step over a window of 100 and says when it spikes or is frozen.

    A spike lies more than 10 standard deviations above the mean of the window, which needs 20 losses; a frozen loss
    is the same, to 1e-7 of itself, in 50 steps. Each is said once in 100 steps.
    """

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_WINDOW)
        self._said: dict[str, int] = {}

    def look(self, step: int, loss: float) -> dict[str, str]:
        """Take in the loss of a step and return what to warn of, as texts by `spike` and `frozen`."""
        found = {}
        # none of n numbers lies more than sqrt(n - 1) deviations above their mean: a spike is above all of the window
        if self._may_say("spike", step) and len(self._losses) >= _FEWEST and loss > max(self._losses):
            mean, deviation = statistics.fmean(self._losses), statistics.pstdev(self._losses)
            if deviation > 0.0 and loss > mean + _SIGMAS * deviation:
                found["spike"] = (
                    f"step {step}: loss {loss:.4g} is {(loss - mean) / deviation:.0f} standard deviations above the "
                    f"{mean:.4g} of the {len(self._losses)} steps before"
                )
        self._losses.append(loss)
        if self._may_say("frozen", step) and len(self._losses) >= _FROZEN_STEPS and self._is_frozen(loss):
            found["frozen"] = f"step {step}: the loss has been {loss:.6g} for {_FROZEN_STEPS} steps; nothing is learned"
        self._said.update(dict.fromkeys(found, step))
        return found

    def _may_say(self, what: str, step: int) -> bool:
        return what not in self._said or step - self._said[what] >= _WINDOW

    def _is_frozen(self, loss: float) -> bool:
        for number in range(2, _FROZEN_STEPS + 1):  # a loss that moves ends this at its first look
            if abs(self._losses[-number] - loss) > _FROZEN_SPREAD * abs(loss):
                return False
        return True
