"""The commands accept every recipe of the package."""

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.models.architectures import config_of
from maskloom.runs.search_space import GRIDS
from maskloom.tasks.kinds import KINDS
from maskloom.training.optimizers import make_schedule

RECIPES = sorted(Path(str(files("maskloom"))).glob("recipes/*.toml"))


def test_there_are_recipes():
    assert len(RECIPES) >= 6


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_hold_known_keys(path):
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    recipe = load_recipe({"pretrain": PretrainRecipe, "finetune": FinetuneRecipe}[values["kind"]], path)
    if isinstance(recipe, FinetuneRecipe):
        assert recipe.task in KINDS
        # a section for another kind of task would never be read
        sections = {name for name, value in values.items() if isinstance(value, dict)}
        assert sections <= {"data", "training", "features", "model", recipe.task}
        assert f"--recipe {path.stem} " in path.read_text(encoding="utf-8")


def test_recipes_as_published_differ_from_the_best_in_optimiser_and_schedule_alone():
    published = [
        path for path in RECIPES if path.stem.endswith("-as-published") and path.stem[:4] not in ("bert", "tran")
    ]
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
    assert (training.optimizer, training.adam_epsilon, training.max_grad_norm) == ("bert_adam", 1e-6, 1.0)
    assert (training.schedule, base.objective, base.data.pair_task) == ("google", "masked_lm", "nsp")
    for recipe, sizes in ((base, (12, 768, 12)), (large, (24, 1024, 16))):
        config = config_of(recipe.model, vocab_size=30_522)
        assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == sizes
        assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
        assert (config.hidden_act, config.max_position_embeddings) == ("gelu", 512)


@pytest.mark.parametrize(
    ("name", "batch_size", "rate", "epochs", "length"),
    [
        ("finetune-glue", 32, 2e-5, 3, 128),
        ("squad-v1", 12, 3e-5, 2, 384),
        ("squad-v2", 48, 5e-5, 2, 384),
        ("swag", 16, 2e-5, 3, 80),
    ],
)
def test_bert_is_fine_tuned_as_published(name, batch_size, rate, epochs, length):
    recipe = load_recipe(FinetuneRecipe, next(path for path in RECIPES if path.stem == f"{name}-as-published"))
    training = recipe.training
    assert (training.batch_size, training.learning_rate, training.epochs) == (batch_size, rate, epochs)
    assert (training.warmup_ratio, training.weight_decay, recipe.data.max_length) == (0.1, 0.01, length)
    if recipe.task == "span":
        assert (recipe.span.stride, recipe.span.max_answer_length) == (128, 30)


def test_grids_of_the_paper_have_its_values():
    keys = ("training.batch_size", "training.learning_rate", "training.epochs")
    of_v2, of_v1 = ([16, 32], [5e-5, 3e-5, 2e-5], [2, 3, 4]), ([32], [5e-5, 4e-5, 3e-5, 2e-5], [3])
    assert GRIDS["paper"] == dict(zip(keys, of_v2, strict=True))  # A.3
    assert GRIDS["small"] == dict(zip(keys, of_v1, strict=True))  # 4.1


def test_a_day_is_spent_as_by_izsak_et_al():
    recipe = load_recipe(PretrainRecipe, next(path for path in RECIPES if path.stem == "one-day"))
    training, config = recipe.training, config_of(recipe.model, vocab_size=30_522)
    assert (training.minutes, training.schedule, training.warmup_ratio) == (24 * 60, "linear", 0.06)
    assert (training.batch_size, training.learning_rate, training.adam_beta2) == (4096, 1e-3, 0.98)
    assert (recipe.data.max_length, recipe.data.next_sentence, config.pre_norm) == (128, False, True)


@pytest.mark.parametrize(("architecture", "objective"), [("bart", "denoising"), ("t5", "span_corruption")])
def test_small_models_that_restore_texts_have_recipes(architecture, objective):
    recipe = load_recipe(PretrainRecipe, next(path for path in RECIPES if path.stem == f"{architecture}-mini"))
    config = config_of(recipe.model, vocab_size=8_000)
    assert (recipe.objective, recipe.model.architecture) == (objective, architecture)
    assert (config.num_hidden_layers, config.hidden_size, config.hidden_dropout_prob) == (4, 256, 0.0)


@pytest.mark.parametrize(("size", "steps", "dropout", "number"), [("base", 100_000, 0.1, 5), ("big", 300_000, 0.3, 20)])
def test_the_transformer_is_trained_as_in_the_paper(size, steps, dropout, number):
    recipe = load_recipe(
        FinetuneRecipe, next(path for path in RECIPES if path.stem == f"transformer-{size}-as-published")
    )
    config, training = config_of(recipe.model, vocab_size=37_000), recipe.training
    assert (config.hidden_dropout_prob, recipe.seq2seq.label_smoothing) == (dropout, 0.1)
    assert (recipe.seq2seq.beam, recipe.seq2seq.length_penalty) == (4, 0.6)
    assert (training.steps, training.average_checkpoints, training.weight_decay) == (steps, number, 0)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    factor = make_schedule(training.schedule, warmup_steps=training.warmup_steps, steps=steps)
    for step in (1, 100, 3_999, 4_000, 4_001, steps):  # equation 3
        rate = config.hidden_size**-0.5 * min(step**-0.5, step * 4_000**-1.5)
        assert training.learning_rate * factor(step) == pytest.approx(rate, rel=1e-6)
