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
        assert f"--recipe {path.stem} " in path.read_text(encoding="utf-8")


def test_recipes_as_published_differ_from_the_best_in_optimiser_and_schedule_alone():
    published = [path for path in RECIPES if path.stem.endswith("-as-published")]
    assert len(published) == 4
    for path in published:
        best = load_recipe(FinetuneRecipe, path.with_stem(path.stem.removesuffix("-as-published")))
        own = load_recipe(FinetuneRecipe, path)
        assert (own.training.optimizer, own.training.schedule) == ("bert_adam", "google")
        assert (best.training.optimizer, best.training.schedule) == ("adamw", "linear")
        assert (own.task, own.data, own.span, own.tune_on_dev) == (best.task, best.data, best.span, best.tune_on_dev)
        assert own.training.batch_size == best.training.batch_size
        assert own.training.epochs == best.training.epochs
        assert own.training.adam_epsilon == 1e-6
