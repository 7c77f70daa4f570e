"""Model cards, as the hub's own reader sees them."""

import math

import pytest
from huggingface_hub import ModelCard

from maskloom.config import ConfigError, FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.runs.model_card import Card, finetuning_card, model_name, pretraining_card

SCORES = {"accuracy": 0.75, "loss": math.nan}


def written(card, folder):
    card.write(folder)
    return ModelCard.load(folder / "README.md")


def test_a_fine_tuned_model_tells_task_base_and_scores(tmp_path):
    recipe = load_recipe(
        FinetuneRecipe, None, ["task='tagging'", "card.license=apache-2.0", "card.language=['en', 'de']"]
    )
    what = "seed 3, epoch 2.0: the best on dev by accuracy"
    card = finetuning_card(recipe, what=what, scores=SCORES, base=tmp_path / "my: base", dev='a/dev "1".txt')
    found = written(card, tmp_path)
    assert found.data.license == "apache-2.0"
    assert found.data.language == ["en", "de"]
    assert found.data.base_model == "my: base"
    assert found.data.pipeline_tag == "token-classification"
    assert found.data.library_name == "transformers"
    (result,) = found.data.eval_results
    assert (result.task_type, result.metric_type, result.metric_value) == ("token-classification", "accuracy", 0.75)
    assert result.dataset_name == 'dev "1".txt'
    assert "seed 3, epoch 2.0: the best on dev by accuracy." in found.text


def test_nothing_is_claimed_that_nobody_said(tmp_path):
    found = written(pretraining_card(PretrainRecipe(), {}, None), tmp_path)
    assert found.data.pipeline_tag == "fill-mask"
    for key in ("license", "language", "base_model", "eval_results"):
        assert getattr(found.data, key) is None
    assert found.text.count("```toml") == 1


def test_a_continued_model_names_what_it_continues(tmp_path):
    found = written(pretraining_card(PretrainRecipe(), {"mlm_loss": 2.5}, tmp_path / "run" / "model"), tmp_path)
    assert found.data.base_model == "run"
    assert found.data.eval_results[0].metric_value == 2.5
    cached = tmp_path / "models--google--bert-base" / "snapshots" / "0123"
    assert model_name(cached) == "google/bert-base"
    assert written(Card("Title", "Summary"), tmp_path).data.pipeline_tag is None


@pytest.mark.parametrize(
    "override", ["card.license=My Licence", "card.language=English", "card.base_model=a/b/c", "card.licence=mit"]
)
def test_words_that_no_hub_knows_are_refused(override):
    with pytest.raises(ConfigError, match="card"):
        load_recipe(FinetuneRecipe, None, [override])
