"""Giving a run another number of steps: its recipe then tells the whole schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from maskloom.config import Extension, FinetuneRecipe, PretrainRecipe, TrainingSection
from maskloom.errors import ConfigError, DataError
from maskloom.foreign_files import read_json_value
from maskloom.recipe_files import load_recipe
from maskloom.runs.run_folder import METRICS, RECIPE, check_same_recipe, run_id
from maskloom.training.checkpoints import check_checkpoint, step_folders, step_of

BEST_STEP = "best.json"
"""Step, scores and checksum of the best weights that a seed of fine-tuning keeps, beside its checkpoints."""

RecipeT = TypeVar("RecipeT", PretrainRecipe, FinetuneRecipe)


def changes_of(recipe: PretrainRecipe | FinetuneRecipe) -> list[str]:
    """Return patterns of the keys that an extension changes, of phases the last one's; [] for a run by the clock."""
    if recipe.training.minutes is not None:
        return []
    last = len(recipe.phases) - 1 if isinstance(recipe, PretrainRecipe) else -1
    return ["training.steps", "training.epochs", "training.extensions*", f"phases.{last}.steps"]


def extended_recipe(
    recipe: RecipeT, out: Path, plan: Callable[[RecipeT], TrainingSection], checkpoints: Mapping[str, Path]
) -> RecipeT:
    """Return a recipe as the run in `out` goes on with it: with the extensions that it has, and a new one if need be.

    `plan` counts a recipe's steps; `checkpoints` are the folders of the last phase, or of all seeds, by stage. A recipe
    that asks for another number of steps than the run's own extends or shortens it from the last step that one of these
    has made. Raises ConfigError when the run is beyond the new number of steps, or the recipes differ in other keys.
    """
    if not (out / RECIPE).exists():
        return recipe
    check_same_recipe(out, recipe, changes_of(recipe))
    stored = load_recipe(type(recipe), out / RECIPE)
    before, steps = plan(stored), plan(recipe).steps
    extensions = before.extensions
    if steps != before.steps:
        done = max(_last_step(out, stage, folder) for stage, folder in checkpoints.items())
        if (out / METRICS).exists() and not (done and any(map(step_folders, checkpoints.values()))):
            asked = _asked(recipe, steps)
            raise ConfigError(f"{asked}: the checkpoints of {out} are gone; begin another run, in another --out")
        if done:
            _refuse(_asked(recipe, steps), steps, done, before.resolved_warmup_steps(), out)
        # what was planned when that step was made; on later plans no step was made
        planned = next((later.steps for later in extensions if later.at >= done), before.steps)
        extensions = [earlier for earlier in extensions if earlier.at < done]
        extensions += [Extension(at=done, steps=planned)] if done else []
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"extensions": extensions})})


def _refuse(asked: str, steps: int, done: int, warmup: int, out: Path) -> None:
    """Raise ConfigError for a number of steps that a run cannot go on to."""
    other = "`maskloom export` makes a model of any checkpoint"
    if steps <= done:
        raise ConfigError(f"{asked}: {out} has made {done} steps already; {other}")
    if steps <= warmup:
        raise ConfigError(
            f"{asked}: the run warms up for {warmup} steps, so it would end at a high learning rate; {other}"
        )


def extension_lines(training: TrainingSection) -> list[str]:
    """Return what the last extension of a run makes of its learning rate; [] for a run that has none."""
    if not training.extensions:
        return []
    last = training.extensions[-1]
    warmup = min(training.resolved_warmup_steps(), training.steps - last.at)
    how = f"moves linearly within {warmup:,} steps" if warmup else "moves at once"
    return [
        f"extended: planned for {last.steps:,} steps, {training.steps:,} from step {last.at:,} on; the learning rate "
        f"{how} to that of a run of {training.steps:,} steps"
    ]


def _asked(recipe: PretrainRecipe | FinetuneRecipe, steps: int) -> str:
    """Return the number of steps that a recipe asks for in the words of the flag for it."""
    if isinstance(recipe, FinetuneRecipe) and recipe.training.steps is None:
        return f"--epochs {recipe.training.epochs:g}, which are {steps} steps"
    if isinstance(recipe, PretrainRecipe) and recipe.phases:
        return f"{steps} steps of the last phase"
    return f"--steps {steps}"


def _last_step(out: Path, stage: str, folder: Path) -> int:
    """Return the last step that a stage is known to have made: of a whole checkpoint, or of its best weights."""
    kept = folder.with_name(BEST_STEP)
    best = read_json_value(kept, "step", int) if kept.exists() else 0
    for path in step_folders(folder):
        try:
            check_checkpoint(path, run=run_id(out, stage))
        except DataError:
            continue
        return max(best, step_of(path))
    return best
