"""BART from raw text only: byte-level BPE, corpus, denoising and a fine-tuned task; and GPT-2 on the same bytes."""

import json
import random

import pytest
import torch
import transformers

import maskloom
from maskloom.data.corpus.opening import Corpus

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "hidden_dropout_prob": 0.0, "max_position_embeddings": 64}
DENOISING = {
    "objective": "denoising", "model.architecture": "bart", "model.size": "tiny", "model.config": SIZES,
    "data.max_length": 48, "training.num_threads": 1, "training.warmup_ratio": 0.1,
}  # fmt: skip
ANIMALS = ["Anna's cat", "the DOG", "Zoë", "東京 🙂"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with text, and the vocabulary and corpus that the commands build from it."""
    from typer.testing import CliRunner

    from maskloom.cli import app

    folder, draw = tmp_path_factory.mktemp("bytes"), random.Random(0)
    texts = [
        " ".join(f"Today {draw.choice(ANIMALS)} sees {draw.choice(ANIMALS)}." for _ in range(3)) for _ in range(300)
    ]
    (folder / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    for command in (
        ("vocab", "train", folder / "text.txt", "--model", "byte-bpe", "--size", 310, "--out", folder / "vocab"),
        ("corpus", "build", folder / "text.txt", "--vocab", folder / "vocab", "--out", folder / "corpus"),
    ):
        result = CliRunner().invoke(app, [*map(str, command), "--json"])
        assert result.exit_code == 0, result.output
    return folder


@pytest.mark.slow
def test_from_text_to_a_model_that_writes_as_transformers_does(folder, tmp_path, run):
    corpus = Corpus.open(folder / "corpus")
    assert corpus.tokenizer.decode(corpus.sentence(1).tolist()).startswith(" Today ")
    said = json.loads(run("vocab", "inspect", folder / "vocab", folder / "text.txt", "--json").splitlines()[-1])
    assert said["special_ids"] == {"<pad>": 1, "<s>": 0, "</s>": 2, "<mask>": said["size"] - 1}
    assert said["coverage"]["unknown_rate"] == 0
    how = {"steps": 120, "batch_size": 16, "learning_rate": 5e-3, "progress": False}
    result = maskloom.pretrain(folder / "corpus", tmp_path / "run", recipe=DENOISING, **how)
    assert result["denoising_accuracy"] > 0.6

    rows = [{"source": f"Today {a} sees {b}.", "target": f"{b}  –  {a}"} for a in ANIMALS for b in ANIMALS]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    files = ("--train", tmp_path / "rows.jsonl", "--dev", tmp_path / "rows.jsonl", "--out", tmp_path / "tuned")
    settings = ("seq2seq.max_target_length=40", "seq2seq.label_smoothing=0.0", "data.max_length=40", "seq2seq.beam=1")
    given = [part for setting in (*settings, "training.evaluate_every=60") for part in ("--set", setting)]
    more = ("--learning-rate", "4e-3", "--steps", 120, "--batch-size", 16, "--metric", "exact_match", *given)
    run("finetune", "--task", "seq2seq", "--model", tmp_path / "run", *files, *more)
    sources = [row["source"] for row in rows]
    found = [answer["text"] for answer in maskloom.load(tmp_path / "tuned").predict(sources)]
    assert sum(answer == row["target"] for answer, row in zip(found, rows, strict=True)) > 4  # a constant answer: 1
    assert f"{found[2]}\n" in run("generate", "--model", tmp_path / "tuned", "--prompt", sources[2], "--beam", 1)

    model = tmp_path / "tuned" / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    peer = transformers.BartForConditionalGeneration.from_pretrained(model).eval()
    with torch.inference_mode():
        ids = peer.generate(**tokenizer(sources, return_tensors="pt", padding=True), num_beams=1, max_length=41)
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == found


def test_a_gpt_2_learns_on_the_same_bytes_from_left_to_right(folder, tmp_path):
    recipe = {"objective": "causal_lm", "model.architecture": "gpt", "model.size": "tiny", "data.max_length": 32}
    recipe |= {"model.config": {"hidden_size": 32, "num_attention_heads": 2, "pre_norm": True}}
    how = {"steps": 40, "batch_size": 8, "learning_rate": 1e-2, "progress": False}
    result = maskloom.pretrain(folder / "corpus", tmp_path / "run", recipe=recipe, **how)
    assert result["lm_perplexity"] < 10
    (found,) = maskloom.load(tmp_path / "run").generate(["Today the DOG"])
    assert "sees" in found["text"]
