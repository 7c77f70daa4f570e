"""Flags of commands that train, `--steps` and the like, as changes of a recipe, and what they cannot change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from maskloom.config import ConfigError, FinetuneRecipe, PretrainRecipe

FLAG_KEYS = {
    "size": "model.size",
    "task": "task",
    "steps": "training.steps",
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "learning_rate": "training.learning_rate",
    "max_length": "data.max_length",
    "seed": "seed",
    "restarts": "restarts",
    "keep_restarts": "keep_restarts",
}
"""The recipe key that each flag sets, by the flag's name with underscores."""


def flag_changes(flags: dict[str, Any]) -> list[str]:
    """Return flags in the form that `--set` takes; those that are None were not given."""
    return [f"{FLAG_KEYS[name]}={json.dumps(value)}" for name, value in flags.items() if value is not None]


def check_flags(recipe: PretrainRecipe | FinetuneRecipe, flags: dict[str, Any]) -> None:
    """Raise ConfigError for a given flag that would change nothing, because the recipe decides it elsewhere."""
    given = {name for name, value in flags.items() if value is not None}
    if isinstance(recipe, FinetuneRecipe):
        if "epochs" in given and recipe.training.steps is not None:
            raise ConfigError(f"--epochs: training.steps = {recipe.training.steps} decides; give one of the two")
        return
    for number, phase in enumerate(recipe.phases):
        for name in sorted(given & phase.model_fields_set):
            key = f"phases.{number}.{name}"
            raise ConfigError(f"--{name.replace('_', '-')}: {key} decides; change it with --set {key}=VALUE")


def refuse_epochs(recipe: PretrainRecipe, epochs: float, corpus: Path) -> None:
    """Raise ConfigError that says how many steps make so many epochs of a corpus: pre-training counts steps."""
    from maskloom.data.corpus import Corpus  # here, so that fine-tuning starts without it

    tokens = recipe.training.batch_size * recipe.data.max_length
    steps = max(1, round(Corpus.open(corpus, verify=False).num_tokens / tokens * epochs))
    raise ConfigError(
        f"--epochs: pre-training counts steps; {epochs:g} epochs of {corpus} are about {steps:,} steps of "
        f"{recipe.training.batch_size} sequences of {recipe.data.max_length} tokens: --steps {steps}"
    )
