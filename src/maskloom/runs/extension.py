"""Giving a run of pre-training another number of steps: its recipe then tells the whole schedule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from maskloom.config import ConfigError, DataError, Extension, PretrainRecipe, PretrainTraining, load_recipe
from maskloom.runs.run_folder import RECIPE, run_id
from maskloom.training.checkpoints import check_checkpoint, step_folders
from maskloom.training.schedules import extended_factor

CHANGES = ("training.steps", "training.extensions")
"""The keys of a recipe that an extension changes."""


def extended_recipe(recipe: PretrainRecipe, out: Path) -> PretrainRecipe:
    """Return a recipe as the run in `out` goes on with it: with the extensions that it has, and a new one if need be.

    A recipe that asks for another number of steps than the run's own extends or shortens it from its newest whole
    checkpoint on. Raises ConfigError when there is none, or when the run is beyond the new number of steps.
    """
    if not (out / RECIPE).exists():
        return recipe
    stored, training = load_recipe(PretrainRecipe, out / RECIPE), recipe.training
    extensions, planned = stored.training.extensions, stored.training.steps
    if training.steps != planned and not recipe.phases and training.minutes is None:
        done = _newest_step(out)
        if done == 0:
            raise ConfigError(
                f"{out}: it has no whole checkpoint, so that there is nothing to extend; begin a run with --steps "
                f"{training.steps} in another --out"
            )
        if training.steps <= done:
            raise ConfigError(
                f"--steps {training.steps}: {out} has made {done} steps already; `maskloom export` makes a model of "
                "any checkpoint"
            )
        first = extensions[0].steps if extensions else planned
        warmup = training.model_copy(update={"steps": first}).resolved_warmup_steps()
        if training.steps <= warmup:
            raise ConfigError(
                f"--steps {training.steps}: the run warms up for {warmup} steps, so it would end at a high learning "
                "rate; `maskloom export` makes a model of any checkpoint"
            )
        for number, extension in enumerate(extensions):
            if extension.at >= done:  # no step was made on it
                extensions, planned = extensions[:number], extension.steps
                break
        extensions = [*extensions, Extension(at=done, steps=planned)]
    return recipe.model_copy(update={"training": training.model_copy(update={"extensions": extensions})})


def extension_line(training: PretrainTraining) -> str:
    """Return what the last extension of a run makes of its learning rate."""
    last = training.extensions[-1]
    warmup = min(_first_warmup(training), training.steps - last.at)
    return (
        f"extended: planned for {last.steps:,} steps, {training.steps:,} from step {last.at:,} on; within {warmup:,} "
        f"steps the learning rate goes on a line to that of a run of {training.steps:,} steps"
    )


def factor_of(training: PretrainTraining) -> Callable[[int], float] | None:
    """Return the factor on the peak learning rate of a run that was extended; None for one that was not."""
    if not training.extensions:
        return None
    return partial(
        extended_factor,
        name=training.schedule,
        warmup_steps=_first_warmup(training),
        steps=training.steps,
        extensions=[(extension.at, extension.steps) for extension in training.extensions],
    )


def _first_warmup(training: PretrainTraining) -> int:
    """Return the warm-up steps of the first plan, which extensions keep."""
    return training.model_copy(update={"steps": training.extensions[0].steps}).resolved_warmup_steps()


def _newest_step(out: Path) -> int:
    own = run_id(out, "phase-1")
    for folder in step_folders(out / "checkpoints" / "phase-1"):
        try:
            check_checkpoint(folder, run=own)
        except DataError:
            continue
        return int(folder.name.removeprefix("step-").partition(".")[0])
    return 0
