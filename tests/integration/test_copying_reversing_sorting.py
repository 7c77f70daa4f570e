"""A Transformer trained from scratch learns to copy, reverse and sort ten digits."""

import json
import random

import pytest
from tests.fine_tuning import finetune

from maskloom.config import FinetuneRecipe
from maskloom.inference import Predictor
from maskloom.recipe_files import validate_recipe
from maskloom.runs.corpus import train_vocabulary_from_files
from maskloom.text.vocabulary_training import VocabularySettings

RULES = {"copy": list, "reverse": lambda digits: digits[::-1], "sort": sorted}
RECIPE = {
    "task": "seq2seq",
    "model": {"size": "tiny", "config": {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4}},
    "data": {"max_length": 16},
    "seq2seq": {"beam": 1, "max_target_length": 16},
    "training": {
        "steps": 600,
        "batch_size": 80,
        "learning_rate": 2e-3,
        "schedule": "inverse_sqrt",
        "warmup_ratio": 0.2,
        "adam_beta2": 0.98,
        "weight_decay": 0.0,
        "evaluate_every": 600,
        "num_threads": 1,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_ten_digits_are_copied_reversed_and_sorted(name, tmp_path):
    draw = random.Random(name)
    for part, size in (("train", 8000), ("dev", 200)):
        rows = ([draw.choice("0123456789") for _ in range(10)] for _ in range(size))
        lines = [json.dumps({"source": " ".join(row), "target": " ".join(RULES[name](row))}) for row in rows]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
    (tmp_path / "digits.txt").write_text("0 1 2 3 4 5 6 7 8 9\n" * 2)
    train_vocabulary_from_files([tmp_path / "digits.txt"], VocabularySettings(60), out=tmp_path / "vocab")
    recipe = validate_recipe(FinetuneRecipe, RECIPE, source=name)
    files = {"train": tmp_path / "train.jsonl", "dev": tmp_path / "dev.jsonl"}
    result = finetune(recipe, model=tmp_path / "vocab", out=tmp_path / "run", **files)
    assert result["best"]["scores"]["exact_match"] >= 99.0
    (text,) = Predictor.load(tmp_path / "run" / "model").generate(["1 2 3 4 5 6 7 8 9 0"])
    assert text["text"].split() == list(RULES[name](list("1234567890")))
