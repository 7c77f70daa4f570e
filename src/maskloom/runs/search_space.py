"""The space of a search: recipe keys with lists or ranges of values, and the published grids."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.errors import ConfigError
from maskloom.recipe_files import put_value
from maskloom.runs.display import formatted

GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    # BERT paper, A.3: the values that worked well across all tasks; every combination is tried.
    "paper": {
        "training.batch_size": [16, 32],
        "training.learning_rate": [5e-5, 3e-5, 2e-5],
        "training.epochs": [2.0, 3.0, 4.0],
    },
    # BERT paper, 4.1: the values from which its GLUE results were selected.
    "small": {
        "training.batch_size": [32],
        "training.learning_rate": [5e-5, 4e-5, 3e-5, 2e-5],
        "training.epochs": [3.0],
    },
    # The values with which the published models smaller than base were fine-tuned.
    "minis": {
        "training.batch_size": [8, 16, 32, 64, 128],
        "training.learning_rate": [3e-4, 1e-4, 5e-5, 3e-5],
        "training.epochs": [4.0],
    },
    "none": {},
}


class ValueRange(TypedDict):
    """All numbers from `low` to `high`: integers if both ends are, else floats drawn log-uniformly."""

    low: int | float
    high: int | float


Space = Mapping[str, Sequence[Any] | ValueRange]
"""Recipe keys with their values, a list or a range, as search.json stores them."""


def parse_space(arguments: Sequence[str]) -> dict[str, Sequence[Any] | ValueRange]:
    """Return recipe keys with their values from arguments such as `training.batch_size=16,32` or a grid's name.

    `low..high` is a range. An explicit key overrides the same key of a named grid. Raises ConfigError for anything
    else, for a key without values or given twice, and for a value that appears twice.
    """
    named, given = dict[str, Sequence[Any]](), dict[str, Sequence[Any] | ValueRange]()
    for argument in arguments:
        key, separator, text = (part.strip() for part in argument.partition("="))
        if not separator and key in GRIDS:
            named = {**GRIDS[key], **named}
            continue
        if not key or not text:
            expected = "expected key=value,value such as training.batch_size=16,32, or a name"
            raise ConfigError(f"--grid {argument!r:.200}: {expected}: {', '.join(GRIDS)}")
        if key in given:
            raise ConfigError(f"--grid {argument!r:.200}: {key} was already given; list all of its values together")
        given[key] = _parse_values(argument, text)
    return {**named, **given}


def grid_settings(space: Space) -> list[dict[str, Any]]:
    """Return all combinations of a grid, the last key changing fastest, or one empty one for {}; refuses a range."""
    choices = []
    for key, values in space.items():
        if isinstance(values, dict):
            span = f"{values['low']}..{values['high']}"
            raise ConfigError(f"{key} = {span}: a grid needs a list of values; ranges need optuna")
        choices.append(values)
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*choices)]


def recipe_with(base: FinetuneRecipe, settings: Mapping[str, Any], *, source: str) -> FinetuneRecipe:
    """Return a recipe with some keys changed; raises ConfigError for a key or value that a search cannot have."""
    values = base.model_dump(exclude_none=True)
    for key, value in settings.items():
        put_value(values, key, value, f"{source}: {key:.200}")
    recipe = validate_recipe(FinetuneRecipe, values, source=source)
    if recipe.training.minutes is not None:
        raise ConfigError(f"{source}: training.minutes: set epochs or steps instead, for trials that can be repeated")
    if "training.epochs" in settings and (steps := recipe.training.steps) is not None:
        raise ConfigError(f"{source}: training.epochs: training.steps = {steps} is also set; use only one of them")
    return recipe


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings in readable form: `batch_size 16, learning_rate 3e-05`."""
    texts = (f"{key.rpartition('.')[2]} {formatted(value)}" for key, value in settings.items())
    return ", ".join(texts) or "recipe settings"


def _parse_values(argument: str, text: str) -> Sequence[Any] | ValueRange:
    low, dots, high = text.partition("..")
    if dots and "," not in text:
        return _parse_range(argument, low, high)
    try:
        values = tomllib.loads(f"values = [{text}]")["values"]
    except (ValueError, RecursionError):
        values = [part.strip() for part in text.split(",")]
    if not values or "" in values:
        raise ConfigError(f"--grid {argument!r:.200}: a value is empty")
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ConfigError(f"--grid {argument!r:.200}: {value!r:.60} appears twice")
    return values


def _parse_range(argument: str, low: str, high: str) -> ValueRange:
    try:
        # in brackets, a line break cannot end the value, and a # cannot hide the rest
        (first,), (last,) = (tomllib.loads(f"ends = [{end}]")["ends"] for end in (low, high))
    except (ValueError, RecursionError):
        first = last = math.nan
    if not {type(first), type(last)} <= {int, float} or not -math.inf < first < last < math.inf:
        raise ConfigError(f"--grid {argument!r:.200}: a range is two numbers, the lower one first: 1e-5..1e-4")
    if float in (type(first), type(last)) and first <= 0:
        raise ConfigError(f"--grid {argument!r:.200}: a range of fractions is logarithmic, so it must begin above 0")
    return {"low": first, "high": last}
