"""Model cards, as the hub's own reader sees them."""

import json
import math

import pytest
from huggingface_hub import ModelCard

from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.errors import ConfigError
from maskloom.models.architectures import config_of
from maskloom.models.bert_config import BertConfig
from maskloom.models.model_config import ModelSection
from maskloom.runs.model_writing import Card, finetuning_card, hub_metric, hub_name, pretraining_card

BERT = BertConfig()
SCORES = {"accuracy": 0.75, "loss": math.nan}


def written(card, folder):
    card.write(folder)
    return ModelCard.load(folder / "README.md")


def base_folder(folder, *, config):
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_fine_tuned_model_tells_task_base_and_scores(tmp_path):
    recipe = load_recipe(
        FinetuneRecipe, None, ["task='tagging'", "card.license=apache-2.0", "card.language=['en', 'de']"]
    )
    what = "seed 3, epoch 2.0: the best on dev by accuracy"
    card = finetuning_card(
        recipe, what=what, scores=SCORES, base=tmp_path / "my: base", dev='a/dev "1".txt', config=BERT
    )
    found = written(card, tmp_path)
    assert found.data.license == "apache-2.0"
    assert found.data.language == ["en", "de"]
    assert found.data.base_model is None
    assert found.data.pipeline_tag == "token-classification"
    assert found.data.library_name == "transformers"
    assert found.data.metrics == ["accuracy"]
    (result,) = found.data.eval_results
    assert (result.task_type, result.metric_type, result.metric_value) == ("token-classification", "accuracy", 0.75)
    assert result.dataset_name == 'dev "1".txt'
    assert "seed 3, epoch 2.0: the best on dev by accuracy. It was fine-tuned from my: base." in found.text


def test_nothing_is_claimed_that_nobody_said(tmp_path):
    found = written(pretraining_card(PretrainRecipe(), {}, None, config=BERT), tmp_path)
    assert found.data.pipeline_tag == "fill-mask"
    for key in ("license", "language", "base_model", "metrics", "eval_results"):
        assert getattr(found.data, key) is None
    assert found.text.count("```toml") == 1


@pytest.mark.parametrize(
    ("architecture", "spelled"),
    [("bert", "BERT"), ("transformer", "Transformer"), ("marian", "Marian"), ("t5", "T5"), ("lstm", "LSTM")],
)
def test_an_architecture_is_spelled_as_the_field_spells_it(architecture, spelled, tmp_path):
    config = config_of(ModelSection(architecture=architecture, size="tiny"))
    card = finetuning_card(FinetuneRecipe(), what="x", scores={}, base=tmp_path, dev="d.csv", config=config)
    assert card.title == f"Fine-tuned {spelled}"
    card = pretraining_card(PretrainRecipe(), {}, None, config=config)
    assert (card.title, card.summary.partition(" (")[0]) == (f"Pre-trained {spelled}", spelled)


def test_a_hub_gets_scores_alone_under_its_own_names(tmp_path):
    metrics = {
        "loss": 3.2, "mlm_loss": 2.5, "mlm_accuracy": 0.5, "mlm_perplexity": 12.2, "nsp_loss": 0.7, "nsp_accuracy": 0.6,
        "unigram_cross_entropy": 4.0, "num_predictions": 1_234_567.0, "nsp_majority_fraction": 0.51,
    }  # fmt: skip
    found = written(pretraining_card(PretrainRecipe(), metrics, None, config=BERT), tmp_path)
    assert found.data.metrics == ["accuracy", "perplexity"]
    results = [(result.metric_type, result.metric_name, result.metric_value) for result in found.data.eval_results]
    assert results == [
        ("accuracy", "mlm accuracy", 0.5),
        ("perplexity", "mlm perplexity", 12.2),
        ("accuracy", "nsp accuracy", 0.6),
    ]
    assert "| unigram_cross_entropy | 4 |\n| num_predictions | 1234567 |" in found.text  # shown to readers only


def test_scores_of_texts_and_heads_of_both_directions_are_named_for_what_they_are(tmp_path):
    recipe = load_recipe(FinetuneRecipe, None, ["task=seq2seq"])
    scores = {"bleu": 37.3, "chrf": 58.0, "rouge1": 60.0, "rougeL": 55.0, "loss": 1.9}
    found = written(
        finetuning_card(recipe, what="x", scores=scores, base=tmp_path, dev="val.de", config=BERT), tmp_path
    )
    assert found.data.metrics == ["sacrebleu", "chrf", "rouge"]
    config = config_of(ModelSection(architecture="elmo", size="tiny"))
    card = pretraining_card(load_recipe(PretrainRecipe, None, ["objective=bidirectional_lm"]), {}, None, config=config)
    assert card.pipeline_tag is None
    assert card.summary == "ELMo (mini), trained with objective = 'bidirectional_lm'."


def test_the_names_of_scores_are_those_that_transformers_writes():
    from transformers.modelcard import METRIC_TAGS

    others = {"exact_match", "perplexity", "chrf"}  # metrics of the hub that no Trainer computes
    ours = ("nsp_accuracy", "f1_macro", "precision", "recall", "matthews", "pearson", "spearman", "bleu", "rouge1")
    assert {*map(hub_metric, [*ours, *others])} - others <= set(METRIC_TAGS)
    assert hub_metric("nsp_majority_fraction") is hub_metric("loss") is None


def test_a_model_in_a_local_folder_is_named_in_the_text_alone(tmp_path):
    (tmp_path / "run" / "model").mkdir(parents=True)
    found = written(pretraining_card(PretrainRecipe(), {}, tmp_path / "run" / "model", config=BERT), tmp_path)
    assert found.data.base_model is None
    assert "continued from run, trained with" in found.text


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"_name_or_path": "google/bert_uncased_L-2_H-128_A-2"}, "google/bert_uncased_L-2_H-128_A-2"),
        ({"_name_or_path": "bert-base-uncased"}, "bert-base-uncased"),
        ({"_name_or_path": "my-bert"}, None),
        ({"_name_or_path": "./runs/bert"}, None),
        ({"_name_or_path": "/home/me/bert"}, None),
        ({"_name_or_path": "models/bert"}, None),
        ({"_name_or_path": "bert-ft/checkpoint-500"}, None),
        ({"_name_or_path": ["a/b"]}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_base_model_is_one_that_a_hub_knows(tmp_path, config, expected):
    base = base_folder(tmp_path / "base", config=config)
    assert hub_name(base) == expected
    made = finetuning_card(FinetuneRecipe(), what="w", scores={}, base=base, dev="dev.csv", config=BERT)
    (tmp_path / "next").mkdir()
    assert written(made, tmp_path / "next").data.base_model == expected
    drawn = load_recipe(FinetuneRecipe, None, ["from_scratch=true"])
    found = written(finetuning_card(drawn, what="w", scores={}, base=base, dev="dev.csv", config=BERT), tmp_path)
    assert found.data.base_model is None
    assert "It started from random weights, in the sizes of base." in found.text


def test_a_person_knows_best(tmp_path):
    base = base_folder(tmp_path / "base", config={"_name_or_path": "a/b"})
    recipe = load_recipe(FinetuneRecipe, None, ["card.base_model=me/mine"])
    card = finetuning_card(recipe, what="w", scores={}, base=base, dev="dev.csv", config=BERT)
    assert written(card, tmp_path).data.base_model == "me/mine"
    assert written(Card("Title", "Summary"), tmp_path).data.pipeline_tag is None


@pytest.mark.parametrize(
    "override", ["card.license=My Licence", "card.language=English", "card.base_model=a/b/c", "card.licence=mit"]
)
def test_words_that_no_hub_knows_are_refused(override):
    with pytest.raises(ConfigError, match="card"):
        load_recipe(FinetuneRecipe, None, [override])


def test_a_name_with_line_breaks_writes_no_markdown(tmp_path):
    card = finetuning_card(
        FinetuneRecipe(), what="w", scores=SCORES, base=tmp_path, dev="de\nv: x\n---\n#H.csv", config=BERT
    )
    card.write(tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "Measured on de\\nv: x\\n---\\n#H.csv:" in text
    assert "#H.csv:" not in text.splitlines()
    assert text.splitlines().count("---") == 2
