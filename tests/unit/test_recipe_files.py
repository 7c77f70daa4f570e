"""Recipes by name, the meaning of every key, and the hints for wrong keys."""

import re
from typing import get_args

import pytest

from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe, recipe_toml
from maskloom.errors import ConfigError
from maskloom.models.bert_config import BertConfig
from maskloom.recipe_files import MODEL_KEYS, OTHER_NAMES, SHIPPED, recipe_keys, recipe_path, shipped_recipes
from maskloom.rows import SizeName


@pytest.mark.parametrize("kind", [PretrainRecipe, FinetuneRecipe])
def test_every_key_says_what_it_means(kind):
    keys = list(recipe_keys(kind))
    assert len(keys) > 40
    assert [key.path for key in keys if not key.meaning.endswith(".")] == []
    assert len({key.path for key in keys}) == len(keys)


def test_keys_carry_their_defaults_and_choices():
    keys = {key.path: key for key in recipe_keys(FinetuneRecipe)}
    assert keys["training.learning_rate"].default == 5e-5
    assert keys["tagging.context"].choices == ("sentence", "document")
    assert keys["features.layers"].default == "concat_last_four"
    assert "phases.N.steps" in {key.path for key in recipe_keys(PretrainRecipe)}


@pytest.mark.parametrize("kind", [PretrainRecipe, FinetuneRecipe])
def test_a_recipe_file_can_say_what_a_recipe_says(kind, tmp_path):
    """TOML has no null: None may only be a default. Regression: a rerun clipped gradients at 1 if the run had not."""
    keys = [key.path for key in recipe_keys(kind) if key.default is not None and ".N." not in key.path]
    assert "training.max_grad_norm" in keys
    for key in keys:
        with pytest.raises(ConfigError, match=re.escape(f"{key} = None: it must be ")):
            load_recipe(kind, {key: None})
    recipe = load_recipe(kind, {"training.max_grad_norm": 0.0})
    (tmp_path / "recipe.toml").write_text(recipe_toml(recipe), encoding="utf-8")
    assert load_recipe(kind, tmp_path / "recipe.toml") == recipe


@pytest.mark.parametrize(
    ("kind", "override", "hint"),
    [
        (FinetuneRecipe, "learning_rate=1e-4", "'learning_rate'; did you mean 'training.learning_rate'?"),
        (FinetuneRecipe, "learning_rat=1e-4", "'learning_rat'; did you mean 'training.learning_rate'?"),
        (FinetuneRecipe, "training.lr=1e-4", "did you mean 'training.learning_rate'?"),
        (FinetuneRecipe, "num_train_epochs=2", "did you mean 'training.epochs'?"),
        (PretrainRecipe, "epochs=2", "did you mean 'training.steps' or the flag --epochs?"),
        (PretrainRecipe, "data.mlm_probability=0.3", "did you mean 'data.masked_lm_prob'?"),
        (PretrainRecipe, "training.max_length=64", "did you mean 'data.max_length'?"),
        (PretrainRecipe, "training.stpes=64", "did you mean 'training.steps'?"),
        (PretrainRecipe, "model.hidden_size=64", "did you mean 'model.config.hidden_size'?"),
        (PretrainRecipe, "num_layers=3", "did you mean 'model.config.num_hidden_layers'?"),
        (PretrainRecipe, "data.zzzz=64", "known keys: held_out_fraction, "),
    ],
)
def test_a_wrong_key_points_to_the_right_one(kind, override, hint):
    with pytest.raises(ConfigError) as caught:
        load_recipe(kind, None, [override])
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "former", "key"),
    [
        (PretrainRecipe, "training.warmup_share", "training.warmup_ratio"),
        (FinetuneRecipe, "training.warmup_share", "training.warmup_ratio"),
        (PretrainRecipe, "training.clip_norm", "training.max_grad_norm"),
        (FinetuneRecipe, "training.clip_norm", "training.max_grad_norm"),
        (PretrainRecipe, "data.masking_rate", "data.masked_lm_prob"),
        (PretrainRecipe, "data.mask_share", "data.mask_prob"),
        (PretrainRecipe, "data.keep_share", "data.keep_prob"),
        (PretrainRecipe, "data.short_sequence_rate", "data.short_seq_prob"),
        (PretrainRecipe, "data.max_predictions", "data.max_predictions_per_seq"),
        (PretrainRecipe, "data.held_out_share", "data.held_out_fraction"),
        (PretrainRecipe, "data.whole_word", "data.whole_word_masking"),
    ],
)
def test_a_former_key_is_refused_with_its_new_name(tmp_path, kind, former, key):
    section, _, name = former.partition(".")
    path = tmp_path / "former.toml"
    path.write_text(f"[{section}]\n{name} = 0.5\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recipe(kind, path, [])
    assert f"former.toml: unknown key '{former}'; did you mean '{key}'" in str(caught.value)


def test_other_names_lead_to_keys_that_there_are():
    leaves = {key.path.rpartition(".")[2] for kind in (PretrainRecipe, FinetuneRecipe) for key in recipe_keys(kind)}
    assert {name for names in OTHER_NAMES.values() for name in names} <= leaves | {"patience", *MODEL_KEYS}
    assert set(MODEL_KEYS) == BertConfig.model_fields.keys() - {
        "bilstm",
        "vocab_size",
        "pad_token_id",
        "classifier_dropout",
        "causal",
    }


def test_a_key_of_a_phase_can_be_set_by_its_number(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text("[[phases]]\nmax_length = 8\nsteps = 3\n[[phases]]\nmax_length = 16\nsteps = 4\n", encoding="utf-8")
    recipe = load_recipe(PretrainRecipe, path, ["phases.1.steps=9"])
    assert [phase.steps for phase in recipe.phases] == [3, 9]
    for override in ("phases.2.steps=9", "phases.x.steps=9", "phases.0=3"):
        with pytest.raises(ConfigError, match="--set"):
            load_recipe(PretrainRecipe, path, [override])


def test_keys_of_the_chosen_size_apply_unless_an_override_gives_them(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(
        "training.learning_rate = 4e-3\nmodel.size = 'tiny'\n[[phases]]\nmax_length = 8\nsteps = 3\n[sizes.mini]\n"
        "training.learning_rate = 2e-3\nmodel.config.rotary = true\nphases.0.steps = 5\n",
        encoding="utf-8",
    )
    tiny, mini = load_recipe(PretrainRecipe, path), load_recipe(PretrainRecipe, path, ["model.size=mini"])
    assert (tiny.training.learning_rate, tiny.phases[0].steps, tiny.model.config) == (4e-3, 3, {})
    assert (mini.training.learning_rate, mini.phases[0].steps, mini.model.config) == (2e-3, 5, {"rotary": True})
    own = load_recipe(PretrainRecipe, path, ["model.size=mini", "training.learning_rate=1e-3"])
    assert (own.training.learning_rate, own.phases[0].steps) == (1e-3, 5)
    within = load_recipe(PretrainRecipe, path, ["model.size=mini", "model.config={initializer_range=0.1}"])
    assert within.model.config == {"initializer_range": 0.1}
    assert "sizes" not in mini.model_dump()


def test_without_a_size_the_table_of_the_default_applies():
    values = {"sizes": {"mini": {"training": {"learning_rate": 2e-3}}}}
    assert load_recipe(PretrainRecipe, values).training.learning_rate == 2e-3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[sizes.mni]\nseed = 1\n", r"r\.toml: \[sizes\]: 'mni' is not one of .*did you mean mini"),
        ("[model]\nsize = 'mini'\n[sizes.mini]\ntraining.lr = 1\n", r"unknown key 'training\.lr'"),
        ("[sizes]\nmini = 3\n", r"sizes\.mini = 3"),
        ("model.size = ['mini']\n[sizes.mini]\nseed = 1\n", r"model\.size = \['mini'\]"),
        ("sizes = 3\n", "unknown key 'sizes'"),
    ],
)
def test_a_wrong_table_of_sizes_is_refused(tmp_path, text, reason):
    path = tmp_path / "r.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=reason):
        load_recipe(PretrainRecipe, path)


def test_sizes_without_a_new_model_are_refused():
    with pytest.raises(ConfigError, match=r"\[sizes\] needs \[model\]"):
        load_recipe(FinetuneRecipe, {"sizes": {"mini": {"seed": 1}}})


def test_one_hour_has_the_first_weights_and_rate_of_each_size():
    path = recipe_path("one-hour")
    rates, weights = [], []
    for size in get_args(SizeName):
        recipe = load_recipe(PretrainRecipe, path, [f"model.size={size}"])
        rates.append(recipe.training.learning_rate)
        weights.append(recipe.model.config["initializer_range"])
    assert (rates[:3], weights[:3]) == ([2e-3, 1e-3, 5e-4], [0.05, 0.03, 0.02])


def test_recipes_are_found_by_name_and_files_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_path("squad-v1") == recipe_path("squad-v1.toml") == SHIPPED / "squad-v1.toml"
    assert "squad-v1" in shipped_recipes()
    (tmp_path / "squad-v1").mkdir()  # perhaps the folder of a run
    assert recipe_path("squad-v1") == SHIPPED / "squad-v1.toml"
    (tmp_path / "squad-v1.toml").write_text("kind = 'finetune'\n", encoding="utf-8")
    assert str(recipe_path("squad-v1.toml")) == "squad-v1.toml"
    with pytest.raises(ConfigError, match=r"there is no such recipe; did you mean the shipped recipe squad-v2\?"):
        recipe_path("squad-v22")
    with pytest.raises(ConfigError, match="did you mean the shipped recipe squad-v2"):
        recipe_path("recipes/squad-v2.toml")
    with pytest.raises(ConfigError, match=r"the shipped recipes are bart-mini, "):
        recipe_path("zzz")


def test_a_recipe_of_another_command_names_that_command(tmp_path):
    pretraining = tmp_path / "mine.toml"
    pretraining.write_text("kind = 'pretrain'\n[data]\nnext_sentence = false\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"squad-v1\.toml: kind = 'finetune': a recipe for maskloom finetune, not"):
        load_recipe(PretrainRecipe, recipe_path("squad-v1"))
    with pytest.raises(
        ConfigError, match=r"mine\.toml: kind = 'pretrain': a recipe for maskloom pretrain, not maskloom"
    ):
        load_recipe(FinetuneRecipe, pretraining)


@pytest.mark.parametrize(
    ("override", "lines"),
    [
        ("class_weights.a=-1.0", ["class_weights.a = -1.0: it must be greater than 0"]),
        ("class_weights={a=-1.0, b=0.0, c=1.0}", ["class_weights.a = -1.0: ", "class_weights.b = 0.0: "]),
        ("class_weights=[1.0,2.0]", ["class_weights = [1.0, 2.0]: it must be 'none' or 'balanced', or a table"]),
        ("class_weights=balancd", ["class_weights = 'balancd' is not one of none, balanced; did you mean balanced?"]),
        ("card.language=English", ["card.language = 'English': not a valid value of this"]),
        ("card.language=['en', 'English']", ["card.language.1 = 'English': not a valid value of this"]),
        ("card.language=3", ["card.language = 3: "]),
    ],
)
def test_a_value_that_may_be_of_several_types_is_one_problem(override, lines):
    with pytest.raises(ConfigError) as caught:
        load_recipe(FinetuneRecipe, None, [override])
    said = str(caught.value).splitlines()
    assert [
        line.removeprefix(f"--set {override!r}: ")[: len(start)] for line, start in zip(said, lines, strict=True)
    ] == lines


def test_only_a_key_that_a_reason_names_is_blamed():
    changes = ["phases.0.steps=5", "phases.1.warmup_steps=20"]
    with pytest.raises(ConfigError, match=r"^recipe with --set 'phases.1.warmup_steps=20': phases.1.warmup_steps = 20"):
        load_recipe(PretrainRecipe, {"phases": [{"max_length": 9, "steps": 3}, {"max_length": 9, "steps": 9}]}, changes)


def test_a_key_that_has_to_be_there_is_named():
    with pytest.raises(ConfigError, match=r"phases\.0\.max_length is missing$"):
        load_recipe(PretrainRecipe, None, ["phases=[{steps=3}]"])
