"""Options of the commands that train, and completions of recipe keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from maskloom.cli.options import Device, with_options


def complete_key(context: typer.Context, incomplete: str) -> list[str]:
    """Return recipe keys that begin with what was typed, or the values of the one that stands before "="."""
    from maskloom.config import FinetuneRecipe, PretrainRecipe
    from maskloom.recipe_files import recipe_keys

    keys = list(recipe_keys(PretrainRecipe if context.info_name == "pretrain" else FinetuneRecipe))
    key, separator, value = incomplete.partition("=")
    if not separator:
        return [f"{known.path}=" for known in keys if known.path.startswith(incomplete) and ".N." not in known.path]
    choices = next((known.choices for known in keys if known.path == key), ())
    return [f"{key}={choice}" for choice in choices if str(choice).startswith(value)]


Size = Annotated[
    Literal["tiny", "mini", "small", "medium", "base", "large"] | None,
    typer.Option("--size", help="Published size of the model; the recipe's by default."),
]
Task = Annotated[
    Literal["single", "pair", "regression", "multilabel", "span", "tagging", "choice"] | None,
    typer.Option("--task", help="Kind of task; single by default, or as in the recipe or --format."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Override a recipe key, such as training.steps=1000. Repeatable.", autocompletion=complete_key
    ),
]
Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, help="Optimiser steps; with --resume, another number extends or shortens the run."),
]
Minutes = Annotated[
    float | None,
    typer.Option("--minutes", help="Minutes to train, instead of steps or epochs; the schedule follows the clock."),
]
Epochs = Annotated[float | None, typer.Option("--epochs", help="Passes over the training data.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", min=1, help="Sequences or examples per step.")]
LearningRate = Annotated[float | None, typer.Option("--learning-rate", help="Peak learning rate.")]
SequenceLength = Annotated[int | None, typer.Option("--max-length", min=3, help="Maximum sequence length in tokens.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Random seed.")]
Restarts = Annotated[int | None, typer.Option("--restarts", min=1, help="Runs with different seeds per trial.")]
Metric = Annotated[str | None, typer.Option("--metric", help="The dev score that selects the best weights.")]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        help="A recipe key with its values, such as training.batch_size=16,32 (repeatable), or a published grid: "
        "paper (18 trials), small (the paper's for GLUE, 4), minis (20), none.",
    ),
]
_FLAGS = {
    "size": Size,
    "epochs": Epochs,
    "steps": Steps,
    "minutes": Minutes,
    "batch_size": BatchSize,
    "learning_rate": LearningRate,
    "max_length": SequenceLength,
    "seed": Seed,
    "device": Device,
    "restarts": Restarts,
}


def trains(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the flags of these names to a command, which gets their values by name in its parameter `flags`."""
    return with_options("flags", {name: _FLAGS[name] for name in names})


def space_beside(grid: list[str] | None, flags: dict[str, Any]) -> Any:
    """Return the space of a grid, None for none given; raises ConfigError for a flag whose key it goes through."""
    if grid is None:
        return None
    from maskloom.errors import ConfigError
    from maskloom.runs.search_space import parse_space
    from maskloom.runs.training_flags import FLAG_KEYS

    space = parse_space(grid)
    for name, value in flags.items():
        if value is not None and (key := FLAG_KEYS[name]) in space:
            flag = f"--{name.replace('_', '-')} {value}"
            raise ConfigError(f"{flag}: the grid goes through {key}; give --grid {key}={value}")
    return space
