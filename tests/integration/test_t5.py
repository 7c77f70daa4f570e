"""Our T5: trained from scratch on pairs of texts, and filling blanks on the command line."""

import json
import random
import re

import numpy as np
import pytest
import torch

import maskloom
from maskloom.checkpoints.huggingface import save_model
from maskloom.data.batch import SourceTargetBatch
from maskloom.errors import ConfigError
from maskloom.generation.search import Generation
from maskloom.models.assembled import build_model
from maskloom.models.t5_config import T5Config
from maskloom.objectives.sequence_to_sequence import SequenceToSequence
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["thank", "you", "me", "to", "week", "party", "the", "cat", "sat", "on", "mat"]


@pytest.fixture(scope="module")
def tokenizer():
    sentinels = [f"<extra_id_{number}>" for number in range(9, -1, -1)]
    return WordPieceTokenizer(Vocabulary(["[UNK]", "[PAD]", *SPECIAL_TOKENS[2:], *WORDS, *sentinels]))


@pytest.fixture(scope="module")
def filling(tokenizer, tmp_path_factory):
    """Return the folder of a model that has memorised the fillings of one text."""
    ids = tokenizer.vocabulary.ids
    source = ["[CLS]", "thank", "you", "<extra_id_0>", "me", "to", "<extra_id_1>", "week", "[SEP]"]
    target = ["[CLS]", "<extra_id_0>", "cat", "sat", "<extra_id_1>", "mat", "[SEP]"]
    tokens, labels = (np.array([ids[token] for token in text]) for text in (source, target))
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
    config = T5Config(vocab_size=len(ids), **sizes, hidden_dropout_prob=0.0).with_marks(
        ids["[PAD]"], None, ids["[SEP]"]
    )
    model = build_model(config, ("decoder",), seed=0).train()
    number, marks = [np.array([len(text)]) for text in (tokens, labels)], np.array([[1, 2, 3]])
    batch = SourceTargetBatch(
        tokens, tokens * 0, number[0], np.append(ids["[PAD]"], labels[:-1]), number[1], labels, np.array([0]), marks
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        SequenceToSequence().loss_sums(model, batch)["seq2seq"].backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("filling")
    save_model(model, folder)
    tokenizer.save(folder)
    return folder


def test_blanks_are_filled(filling, tmp_path, run):
    text, filled = "Thank you <X> me to <Y> week!", "Thank you cat sat me to mat week!"
    said = run("fill-spans", "--model", filling, text).splitlines()
    assert said[0] == filled
    assert re.fullmatch(r"log-probability -\d\.\d{3}, ended by the model", said[-1])
    said = run("fill-spans", "--model", filling, text, "--max-tokens", 1).splitlines()
    assert said[-1].endswith(", stopped at the token limit; empty: blank 1, blank 2")
    found = json.loads(run("fill-spans", "--model", filling, text, "--beam", "3", "--json").splitlines()[0])
    assert found.pop("log_probability") == pytest.approx(0.0, abs=2.0)
    assert found == {"source": text, "text": filled, "fillings": ["cat sat", "mat"], "finish": "end"}
    (tmp_path / "in.txt").write_text(f"{text}\nyou <extra_id_0> me to <extra_id_1> week\n", encoding="utf-8")
    run("fill-spans", "--model", filling, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["index"], row["line"], row["source"][:3]) for row in rows] == [(0, 1, "Tha"), (1, 2, "you")]
    (alone,) = maskloom.load(filling).fill_spans([text])
    assert alone["fillings"] == rows[0]["fillings"]
    assert alone["log_probability"] == pytest.approx(rows[0]["log_probability"], abs=1e-4)


def test_draws_are_those_of_a_text_whatever_is_beside_it(filling):
    settings = Generation(max_tokens=12, temperature=3.0, seed=5)
    texts = ["thank <X>", "you <X> me", "the <X> on <Y>", "<X>"]
    together = maskloom.load(filling).fill_spans(texts, settings)
    apart = maskloom.load(filling, batch_size=1).fill_spans(texts, settings)
    assert [found["fillings"] for found in together] == [found["fillings"] for found in apart]
    assert maskloom.load(filling).fill_spans(texts[2:], settings, first=2)[0]["fillings"] == apart[2]["fillings"]


def test_wrong_texts_and_models_are_refused(filling, tokenizer, tmp_path, run):
    assert "0 blanks in 'thank you'; expected 1 to 10" in run("fill-spans", "--model", filling, "thank you", code=3)
    (tmp_path / "in.txt").write_text("you <X>\nnone\n", encoding="utf-8")
    files = ("--input", tmp_path / "in.txt", "--output", tmp_path / "out.jsonl")
    assert f"{tmp_path / 'in.txt'}, line 2: 0 blanks" in run("fill-spans", "--model", filling, *files, code=3)
    assert not (tmp_path / "out.jsonl").exists()
    assert "pass either TEXT or --input FILE" in run("fill-spans", "--model", filling, code=2)
    drawn = run("fill-spans", "--model", filling, "thank <X>", "--seed", 2, code=3)
    assert "temperature = 0 with seed: the most likely token is always taken" in drawn
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64}
    config = T5Config(vocab_size=len(tokenizer.vocabulary), **sizes)
    for heads, vocabulary, message in (((), tokenizer, "no decoder"), (("decoder",), None, "no <extra_id_0>")):
        folder = tmp_path / "".join(("model", *heads))
        save_model(build_model(config, heads), folder)
        (vocabulary or WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS]))).save(folder)
        with pytest.raises(ConfigError, match=message):
            maskloom.load(folder).fill_spans(["<X>"])


@pytest.mark.slow
def test_trained_from_nothing_it_begins_and_ends_as_its_folder_says(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "vocab")
    pairs = [("thank you", "me to"), ("the cat", "sat on the mat"), ("party week", "you")]
    rows = [json.dumps({"source": source, "target": target}) for source, target in pairs]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows * 8) + "\n", encoding="utf-8")
    recipe = {
        "model.architecture": "t5", "model.size": "tiny", "seq2seq.label_smoothing": 0.0, "training.num_threads": 1,
        "model.config": {"hidden_size": 32, "num_attention_heads": 2, "hidden_dropout_prob": 0.0},
        "seq2seq.max_target_length": 16, "training.warmup_ratio": 0.1,
    }  # fmt: skip
    files = (tmp_path / "vocab", tmp_path / "rows.jsonl", tmp_path / "rows.jsonl", tmp_path / "run")
    how = {"task": "seq2seq", "steps": 100, "batch_size": 8, "learning_rate": 5e-3, "max_length": 16}
    result = maskloom.finetune(*files, recipe=recipe, progress=False, metric="exact_match", **how)
    assert result["best"]["scores"]["exact_match"] == 100
    content = json.loads((tmp_path / "run" / "model" / "config.json").read_text(encoding="utf-8"))
    ids = tokenizer.vocabulary.ids
    assert [content[key] for key in ("pad_token_id", "decoder_start_token_id", "eos_token_id")] == [
        ids["[PAD]"], ids["[PAD]"], ids["[SEP]"],
    ]  # fmt: skip
    assert maskloom.load(tmp_path / "run").predict(["the cat"]) == [{"text": "sat on the mat"}]


@pytest.mark.parametrize(
    "kind", [pytest.param("wordpiece", marks=pytest.mark.slow), "bpe", pytest.param("byte-bpe", marks=pytest.mark.slow)]
)
def test_pre_trained_on_missing_spans_it_fills_them(tmp_path, run, kind):
    draw = random.Random(0)
    lines = [f"{draw.choice(['anna', 'bob'])} ate the {draw.choice(['cake', 'soup'])} on monday ." for _ in range(300)]
    text = "\n\n".join("\n".join(lines[first : first + 3]) for first in range(0, 300, 3))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    size = ("--size", 400 if kind == "byte-bpe" else 160, "--sentinels", 100)
    run("vocab", "train", tmp_path / "text.txt", "--model", kind, *size, "--out", tmp_path / "v")
    run("corpus", "build", tmp_path / "text.txt", "--vocab", tmp_path / "v", "--out", tmp_path / "c")
    recipe = {
        "objective": "span_corruption", "model.architecture": "t5", "model.size": "tiny", "data.max_length": 32,
        "model.config": {"hidden_size": 32, "num_attention_heads": 2, "hidden_dropout_prob": 0.0},
        "training.num_threads": 1, "training.warmup_ratio": 0.1, "data.short_seq_prob": 0.0,
        "training.max_evaluation_instances": 16,
    }  # fmt: skip
    how = {"steps": 70, "batch_size": 16, "learning_rate": 1e-2, "progress": False}
    result = maskloom.pretrain(tmp_path / "c", tmp_path / "run", recipe=recipe, **how)
    model = maskloom.load(tmp_path / "run")
    config, vocabulary = model.model.config, model.tokenizer.vocabulary
    end = vocabulary.cls_id if kind == "bpe" else vocabulary.sep_id  # as in the template "start A extract" of a GPT
    assert (config.eos_token_id, config.decoder_start_token_id) == (end, vocabulary.pad_id)
    assert model.tokenizer.template.end == (end,)
    assert next(value for name, value in result.items() if name.endswith("perplexity")) < 4
    (found,) = model.fill_spans(["anna ate the soup <X> bob ate the cake on monday ."])
    assert "monday" in found["fillings"][0]
    assert found["finish"] == "end"
