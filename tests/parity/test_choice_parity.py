"""Multiple choice from file to scores compared with transformers: tokenizer, padding, BertForMultipleChoice."""

import csv
import json

import numpy as np
import pytest
import torch
from tests.unused_tensors import unused_tensors
from transformers import AutoModelForMultipleChoice, AutoTokenizer, BertForMultipleChoice
from transformers import BertConfig as PeerConfig

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.tasks.kinds import CHOICE, make_task
from maskloom.tasks.task import model_outputs
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

pytestmark = pytest.mark.parity

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ran", "she", "he", "walk", "##s", "##ed", ".", ","]
SIZES = {
    "vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 24, "initializer_range": 0.3,
}  # fmt: skip
ENDINGS = [f"ending{number}" for number in range(4)]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]), max_length=24)


@pytest.fixture(scope="module")
def rows():
    draw = np.random.default_rng(3)
    words = [word for word in WORDS if not word.startswith("##")] + ["walks", "walked", "Unknown"]

    def text(most):
        return " ".join(draw.choice(words, size=draw.integers(1, most)))

    return [
        {"sent1": text(9), "sent2": text(3), **{name: text(12) for name in ENDINGS}, "label": int(draw.integers(4))}
        for _ in range(12)
    ]


@pytest.fixture
def data(rows, tmp_path):
    with (tmp_path / "swag.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return CHOICE.read(tmp_path / "swag.csv")


def peer_scores(peer, folder, rows):
    """Return scores and loss as transformers' own example computes them: contexts repeated, everything padded."""
    first = [row["sent1"] for row in rows for _ in ENDINGS]
    second = [f"{row['sent2']} {row[name]}" for row in rows for name in ENDINGS]
    peer_tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = peer_tokenizer(first, second, truncation=True, max_length=24, padding=True, return_tensors="pt")
    shaped = {name: values.view(len(rows), len(ENDINGS), -1) for name, values in inputs.items()}
    labels = torch.tensor([row["label"] for row in rows])
    with torch.inference_mode():
        outputs = peer.eval()(**shaped, labels=labels)
    return outputs.logits.numpy(), float(outputs.loss)


@pytest.mark.parametrize("direction", ["theirs opened here", "ours opened there"])
def test_scores_and_loss_of_a_file(data, rows, tokenizer, tmp_path, direction):
    folder = tmp_path / "model"
    if direction == "theirs opened here":
        torch.manual_seed(5)
        peer = BertForMultipleChoice(PeerConfig(**SIZES))
        peer.save_pretrained(folder)
        tokenizer.save(folder)
        model, report = load_model(folder)
        assert report.new_parameters == unused_tensors(folder, report) == ()
    else:
        model = build_model(BertConfig(**SIZES), ("choice",), seed=5)
        save_model(model, folder)
        tokenizer.save(folder)
        assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForMultipleChoice"]
        peer = AutoModelForMultipleChoice.from_pretrained(folder)
    task = make_task("choice")
    outputs = model_outputs(model, task.objective, task.encode(data, tokenizer, 24))
    expected, loss = peer_scores(peer, folder, rows)
    ours = np.stack([scores[:, 0] for scores in outputs.rows])
    assert ours.std() > 0.05
    np.testing.assert_allclose(ours, expected, atol=2e-6, rtol=1e-5)
    assert outputs.loss_sum / outputs.weight == pytest.approx(loss, rel=1e-5)
