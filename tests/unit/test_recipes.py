"""Every recipe of the package is one that the commands take."""

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.tasks.kinds import KINDS

RECIPES = sorted(Path(str(files("maskloom"))).glob("recipes/*.toml"))


def test_there_are_recipes():
    assert len(RECIPES) >= 6


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_hold_known_keys(path):
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    recipe = load_recipe({"pretrain": PretrainRecipe, "finetune": FinetuneRecipe}[values["kind"]], path)
    if isinstance(recipe, FinetuneRecipe):
        assert recipe.task in KINDS
        # a key that another kind of task reads would be read by nobody
        sections = {name for name, value in values.items() if isinstance(value, dict)}
        assert sections <= {"data", "training", "features", recipe.task}
        assert f"recipes/{path.name}" in path.read_text(encoding="utf-8")
