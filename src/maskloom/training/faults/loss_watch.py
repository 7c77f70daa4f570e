"""Warnings of losses that jump or freeze."""

from __future__ import annotations

import statistics
from collections import deque

_WINDOW = 100
_FEWEST = 20
_SIGMAS = 10.0
_FROZEN_STEPS = 50
_FROZEN_SPREAD = 1e-7


class LossWatch:
    """Tracks the loss over a window of 100 steps and reports when it spikes or is frozen.

    A spike lies more than 10 standard deviations above the mean of the window, which must hold 20 losses. A frozen loss
    stays the same, within a relative 1e-7, for 50 steps. Each is reported at most once in 100 steps.
    """

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_WINDOW)
        self._said: dict[str, int] = {}

    def look(self, step: int, loss: float) -> dict[str, str]:
        """Record the loss of a step and return any warnings as texts by `spike` and `frozen`."""
        found = {}
        # none of n numbers lies more than sqrt(n - 1) deviations above their mean, so a spike exceeds the whole window
        if self._may_say("spike", step) and len(self._losses) >= _FEWEST and loss > max(self._losses):
            mean, deviation = statistics.fmean(self._losses), statistics.pstdev(self._losses)
            if deviation > 0.0 and loss > mean + _SIGMAS * deviation:
                found["spike"] = (
                    f"step {step}: loss {loss:.4g} is {(loss - mean) / deviation:.0f} standard deviations above the "
                    f"mean of the previous {len(self._losses)} steps, {mean:.4g}"
                )
        self._losses.append(loss)
        if self._may_say("frozen", step) and len(self._losses) >= _FROZEN_STEPS:
            limit = _FROZEN_SPREAD * abs(loss)  # a changing loss ends this at the first comparison
            if all(abs(self._losses[-number] - loss) <= limit for number in range(2, _FROZEN_STEPS + 1)):
                lasted = f"{loss:.6g} for {_FROZEN_STEPS} steps"
                found["frozen"] = f"step {step}: the loss has been {lasted}; the model is not learning"
        self._said.update(dict.fromkeys(found, step))
        return found

    def _may_say(self, what: str, step: int) -> bool:
        return what not in self._said or step - self._said[what] >= _WINDOW
