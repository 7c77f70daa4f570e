"""An impossible pre-training recipe is refused before anything is read."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from maskloom.config import PretrainRecipe, load_recipe
from maskloom.data.corruption import num_predictions
from maskloom.errors import ConfigError
from maskloom.models.bert_config import BertConfig
from maskloom.runs.pretraining_plan import (
    check_model,
    heads_of,
    ignored_settings,
    model_config,
    phase_plans,
    pretraining_data,
)


def test_the_initial_models_sizes_count_in_place_of_the_recipes():
    recipe = load_recipe(PretrainRecipe, None, ["data.max_length=64", "model.config.max_position_embeddings=32"])
    check_model(recipe, BertConfig(max_position_embeddings=64))
    with pytest.raises(ConfigError, match=r"data\.max_length = 64: it may not exceed \[model\.config\] max_pos"):
        check_model(recipe)
    with pytest.raises(ConfigError, match=r"64: it may not exceed the initial model's max_position_embeddings = 63"):
        check_model(recipe, BertConfig(max_position_embeddings=63))
    with pytest.raises(ConfigError, match="the initial model's type_vocab_size = 1"):
        check_model(recipe, BertConfig(type_vocab_size=1))


def test_pairs_may_be_read_without_learning_whether_they_follow():
    for changes, heads in (([], ("mlm", "nsp")), (["data.next_sentence_loss=false"], ("mlm",))):
        recipe = load_recipe(PretrainRecipe, None, changes)
        assert pretraining_data(recipe).pairs == "nsp"
        assert heads_of(recipe, BertConfig()) == heads


def test_a_phase_has_its_own_settings_and_those_of_training_where_it_names_none():
    first = "{max_length=32, steps=30, batch_size=8, learning_rate=2e-3, warmup_steps=7}"
    more = ["training.batch_size=4", "training.learning_rate=1e-3", "training.warmup_steps=2"]
    recipe = load_recipe(PretrainRecipe, None, [f"phases=[{first}, {{max_length=64, steps=3}}]", *more])
    taken = [
        (plan.data.max_length, plan.training.steps, plan.training.batch_size, plan.training.learning_rate)
        for plan in phase_plans(recipe)
    ]
    assert taken == [(32, 30, 8, 2e-3), (64, 3, 4, 1e-3)]
    assert [plan.training.resolved_warmup_steps() for plan in phase_plans(recipe)] == [7, 2]


def test_what_does_not_count_is_said():
    assert ignored_settings(PretrainRecipe(), has_init=True) == []
    changes = ["model.size=tiny", "model.config.hidden_size=8", "training.steps=40"]
    recipe = load_recipe(PretrainRecipe, None, [*changes, "phases=[{max_length=32, steps=3}]"])
    assert ignored_settings(recipe, has_init=True) == [
        "model.size, model.config: ignored, the initial model has its own sizes",
        "training.steps = 40: ignored, every phase has its own steps",
    ]
    assert ignored_settings(load_recipe(PretrainRecipe, None, changes), has_init=False) == []
    recipe = load_recipe(PretrainRecipe, None, ["span_corruption.noise_density=0.3"])
    said = "[span_corruption]: ignored, objective = 'masked_lm' does not read it"
    assert ignored_settings(recipe, has_init=False) == [said]
    phases = "phases=[{max_length=32, steps=3, batch_size=4}, {max_length=32, steps=3, batch_size=8, warmup_steps=1}]"
    recipe = load_recipe(PretrainRecipe, None, ["training.batch_size=16", "training.warmup_steps=2", phases])
    said = ["training.batch_size = 16: ignored, every phase has its own batch_size"]
    assert ignored_settings(recipe, has_init=False) == said


def test_a_length_or_cap_that_phases_do_not_take_is_said():
    phases = "phases=[{max_length=32, steps=3}, {max_length=64, steps=3}]"
    recipe = load_recipe(PretrainRecipe, None, [phases, "data.max_length=32", "data.max_predictions_per_seq=3"])
    assert [plan.data.resolved_max_predictions() for plan in phase_plans(recipe)] == [3, 10]
    assert ignored_settings(recipe, has_init=False) == [
        "data.max_predictions_per_seq = 3: applies only to length 32 (data.max_length); phases of length 64 predict "
        "as many tokens as data.masked_lm_prob asks for"
    ]
    for length in (48, 64):
        recipe = load_recipe(PretrainRecipe, None, [phases, f"data.max_length={length}"])
        said = f"data.max_length = {length}: ignored, every phase has its own length"
        assert ignored_settings(recipe, has_init=False) == [said]
    recipe = load_recipe(PretrainRecipe, None, ["phases=[{max_length=256, steps=3}]", "data.max_length=128"])
    assert ignored_settings(recipe, has_init=False) == [
        "data.max_length = 128: ignored, every phase has its own length"
    ]
    recipe = load_recipe(PretrainRecipe, None, ["phases=[{max_length=256, steps=3}]"])
    assert ignored_settings(recipe, has_init=False) == []
    resolved = PretrainRecipe.model_validate(recipe.model_dump())  # as a run stores its recipe
    assert ignored_settings(resolved, has_init=False) == []


def test_phases_share_the_minutes_as_their_tokens_and_the_last_one_has_the_extensions():
    phases = "phases=[{max_length=32, steps=90}, {max_length=64, steps=10, batch_size=64}]"
    timed = phase_plans(load_recipe(PretrainRecipe, None, [phases, "training.minutes=11.0"]))
    assert [plan.training.minutes for plan in timed] == pytest.approx([11 * 90 / 130, 11 * 40 / 130])
    extended = phase_plans(load_recipe(PretrainRecipe, None, [phases, "training.extensions=[{at=5, steps=5}]"]))
    assert [len(plan.training.extensions) for plan in extended] == [0, 1]


def test_the_quick_start_masks_the_share_that_its_recipe_states():
    path = Path(str(files("maskloom"))) / "quickstart" / "pretrain.toml"
    recipe = load_recipe(PretrainRecipe, path)
    for plan in phase_plans(recipe):
        (predicted,) = num_predictions(np.array([plan.data.max_length]), plan.data)
        assert predicted == round(recipe.data.masked_lm_prob * plan.data.max_length)


def test_one_segment_is_enough_without_next_sentences():
    changes = ["data.next_sentence=false", "model.config.type_vocab_size=1", "model.config.pad_token_id=70"]
    recipe = load_recipe(PretrainRecipe, None, changes, check=check_model)
    assert model_config(recipe, vocab_size=71).type_vocab_size == 1
    with pytest.raises(ConfigError, match="pad_token_id 70 is not below vocab_size 70"):
        model_config(recipe, vocab_size=70)


@pytest.mark.parametrize("key", ["source_vocab_size", "num_source_layers"])
def test_sizes_of_sources_are_no_settings_of_a_model(key):
    recipe = load_recipe(PretrainRecipe, None, ["objective=denoising", "model.architecture=bart"])
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"config": {key: 10}})})
    with pytest.raises(ConfigError, match=rf"model\.config\.{key} = 10: .* determines it; leave it out"):
        model_config(recipe, vocab_size=50)


def test_the_command_refuses_without_torch_and_without_looking_for_the_corpus(tmp_path):
    code = (
        "import sys; from maskloom.cli import main\n"
        "sys.argv = ['maskloom', 'pretrain', '--corpus', 'absent', '--out', 'run', "
        "'--set', 'model.config.hidden_size=9', '--set', 'model.config.num_attention_heads=2']\n"
        "try: main()\nfinally: print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 3
    changes = "--set 'model.config.hidden_size=9', --set 'model.config.num_attention_heads=2'"
    problem = "[model.config] hidden_size 9 is not divisible by num_attention_heads 2"
    assert ended.stderr == f"error: recipe with {changes}: {problem}\n"
    assert ended.stdout == "False\n"
    assert not list(tmp_path.iterdir())
