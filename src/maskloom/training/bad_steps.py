"""What follows a step whose loss or gradient is not finite: the rule `training.on_nonfinite`."""

from __future__ import annotations

from typing import Literal

from maskloom.config import TrainingSection

Action = Literal["stop", "skip", "rewind"]


class BadSteps:
    """Counts the bad steps of a run and says what follows each; `rewinds` is what a checkpoint has to remember."""

    def __init__(self, settings: TrainingSection) -> None:
        self._rule: Action = settings.on_nonfinite
        self._most = settings.max_skips
        self._step, self._skips = 0, 0
        self.rewinds = 0

    def action_after(self, step: int) -> Action:
        """Return what follows a bad step of that number: its batch is skipped, the run goes back, or it stops.

        A skipped batch leaves the number of the step as it is, so skips in a row are those at one number.
        """
        if self._rule == "skip":
            self._skips = self._skips + 1 if step == self._step else 1
            self._step = step
            return "skip" if self._skips <= self._most else "stop"
        if self._rule == "rewind":
            self.rewinds += 1
            return "rewind" if self.rewinds <= self._most else "stop"
        return "stop"
