"""Learning-rate schedules: the factor on the peak rate at each step, counted from 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from maskloom.config import TrainingSection

Name = Literal["linear", "google"]


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


def make_schedule(name: Name, *, warmup_steps: int, steps: int) -> Callable[[int], float]:
    """Return the schedule of that name as a function from step (from 0) to the factor on the peak learning rate."""
    schedules = {"linear": linear_factor, "google": google_factor}
    return partial(schedules[name], warmup_steps=warmup_steps, steps=steps)


def extended_factor(
    step: int, *, name: Name, warmup_steps: int, steps: int, extensions: Sequence[tuple[int, int]]
) -> float:
    """Return the factor of a run of `steps` steps that was planned for others before.

    `extensions` are pairs: until step `at` the run was planned for so many steps. From `at` on the factor is that of a
    run of the new number of steps with the same warm-up. In the first `warmup_steps` after `at`, or in all that are
    left where those are fewer, it goes there on a line from where it stood: a rate that had fallen to 0 rises as gently
    as at the start, and one that is high has fallen by the end.
    """
    factor = make_schedule(name, warmup_steps=warmup_steps, steps=steps)(step)
    if not extensions:
        return factor
    *earlier, (at, planned) = extensions

    def before(place: int) -> float:
        return extended_factor(place, name=name, warmup_steps=warmup_steps, steps=planned, extensions=earlier)

    if step < at:
        return before(step)
    length = min(warmup_steps, steps - at)
    if step >= at + length:
        return factor
    start = before(at)
    return start + (factor - start) * (step - at) / length


def factor_of(settings: TrainingSection) -> Callable[[int], float]:
    """Return the factor on the peak learning rate at each step, of a run that was extended or not."""
    name, steps, warmup_steps = settings.schedule, settings.steps, settings.resolved_warmup_steps()
    extensions = [(extension.at, extension.steps) for extension in settings.extensions]
    if not extensions:
        return make_schedule(name, warmup_steps=warmup_steps, steps=steps)
    return partial(extended_factor, name=name, warmup_steps=warmup_steps, steps=steps, extensions=extensions)


def clock_factor(fraction: float, *, name: Name, warmup_ratio: float) -> float:
    """Return the factor when a fraction of the time is used: the schedule of that name with time in place of steps."""
    if fraction < warmup_ratio:
        return fraction / warmup_ratio
    whole = 1.0 if name == "google" else max(1.0 - warmup_ratio, 1e-9)
    return max(0.0, (1.0 - fraction) / whole)
