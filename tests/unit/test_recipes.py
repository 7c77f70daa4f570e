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
        assert sections <= {"data", "training", "features", "model", recipe.task}
        assert f"--recipe {path.stem} " in path.read_text(encoding="utf-8")


def test_recipes_as_published_differ_from_the_best_in_optimiser_and_schedule_alone():
    published = [path for path in RECIPES if path.stem.endswith("-as-published") and "bert" not in path.stem]
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


def test_bert_is_pre_trained_as_in_the_paper():
    base, large = (
        load_recipe(PretrainRecipe, next(path for path in RECIPES if path.stem == f"bert-{size}-as-published"))
        for size in ("base", "large")
    )
    assert (base.model.size, large.model.size) == ("base", "large")
    assert base.training == large.training
    assert base.phases == large.phases
    assert [(phase.max_length, phase.steps) for phase in base.phases] == [(128, 900_000), (512, 100_000)]
    assert (base.data.masked_lm_prob, base.data.mask_prob, base.data.keep_prob) == (0.15, 0.8, 0.1)
    training = base.training
    assert (training.batch_size, training.learning_rate, training.warmup_steps) == (256, 1e-4, 10_000)
    assert (training.adam_beta1, training.adam_beta2, training.weight_decay) == (0.9, 0.999, 0.01)
