"""Learning-rate schedules: the factor on the peak rate at each step, counted from 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal


def linear_factor(step: int, *, warmup_steps: int, steps: int) -> float:
    """Return s/W during warm-up, then a straight line from 1 at W to 0 at N (the form that transformers uses)."""
    if step < warmup_steps:
        return step / warmup_steps
    return max(0.0, (steps - step) / max(1, steps - warmup_steps))


def google_factor(step: int, *, warmup_steps: int, steps: int) -> float:
    """Return s/W during warm-up, then 1 - s/N: the published BERT code, whose decay line starts at step 0.

    The first update therefore has rate 0 and the rate jumps at the end of warm-up.
    """
    if step < warmup_steps:
        return step / warmup_steps
    return max(0.0, 1.0 - step / steps)


def make_schedule(name: Literal["linear", "google"], *, warmup_steps: int, steps: int) -> Callable[[int], float]:
    """Return the schedule of that name as a function from step (from 0) to the factor on the peak learning rate."""
    schedules = {"linear": linear_factor, "google": google_factor}
    return partial(schedules[name], warmup_steps=warmup_steps, steps=steps)
