"""Losses on common masks, and the linear classifiers that models are compared with."""

import json
import math
from pathlib import Path

import pytest
import torch

from maskloom.checkpoints.huggingface import save_model
from maskloom.data.corpus.opening import Corpus
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.bert_config import BertConfig
from maskloom.reproduce import judging
from maskloom.reproduce.judging import check_comparable, linear_score, masked_losses
from maskloom.reproduce.probes import Probe
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.runs.finetune import LabelledFiles
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary_training import VocabularySettings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("\n\n".join(f"good or bad, number {n} of many words here." for n in range(500)))
    train_vocabulary_from_files([folder / "a.txt"], VocabularySettings(90), out=folder / "vocabulary")
    build_corpus_from_files(folder / "a.txt", vocab=folder / "vocabulary", out=folder / "corpus")
    return folder / "corpus"


@pytest.fixture
def model(corpus, tmp_path):
    """The folder of a model whose logits are all zero."""
    tokenizer = Tokenizer.load(corpus)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    made = build_model(BertConfig(vocab_size=len(tokenizer.vocabulary), **sizes), heads=("mlm",))
    with torch.no_grad():
        made.encoder.word_embeddings.zero_()
    save_model(made, tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    return tmp_path / "model"


def test_models_of_another_vocabulary_cannot_be_compared(model, corpus):
    check_comparable(model, corpus)
    tokens = (model / "vocab.txt").read_text().split("\n")
    (model / "vocab.txt").write_text("\n".join([*tokens[:30], "other", *tokens[31:]]))
    with pytest.raises(ConfigError, match=f"from id 30 on, where it has 'other' and the other {tokens[30]!r}, so loss"):
        check_comparable(model, corpus)


def test_a_model_that_knows_nothing_loses_the_log_of_the_vocabulary(corpus, model):
    losses = masked_losses(model, corpus)
    assert losses == pytest.approx([math.log(len(Tokenizer.load(corpus).vocabulary))] * len(losses), rel=1e-5)


def test_a_run_that_trained_on_the_judged_text_is_refused(corpus, model):
    run, fingerprint = model.parent, Corpus.open(corpus).fingerprint
    (run / "events.jsonl").touch()
    for of_corpus, recipe, is_refused in (
        (fingerprint, "", False),
        (fingerprint, "seed = 3", True),
        (fingerprint, "[data]\nheld_out_fraction = 0.1", True),
        ("another", "seed = 3", False),
    ):
        described = {"id": "", "paths": {}, "world_size": 1, "inputs": {"corpus": of_corpus}}
        (run / "run.json").write_text(json.dumps(described))
        (run / "recipe.toml").write_text(f'kind = "pretrain"\n{recipe}\n')
        if is_refused:
            with pytest.raises(ConfigError, match=r"it trained on some of the .* with 0\.02 and seed 0"):
                check_comparable(model, corpus)
        else:
            check_comparable(model, corpus)
    (run / "run.json").unlink()
    check_comparable(model, corpus)  # a model from elsewhere


def test_losses_are_those_of_the_documents_that_a_seed_holds_out(corpus, model, monkeypatch):
    asked, split = [], judging.split_documents
    monkeypatch.setattr(judging, "split_documents", lambda *given, seed: asked.append(seed) or split(*given, seed=seed))
    masked_losses(model, corpus)
    masked_losses(model, corpus, seed=3)
    assert asked == [0, 3]


def _probe(folder: Path, kind: str, rows: list[dict[str, str]]) -> Probe:
    for part in ("train", "dev"):
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Probe("probe", kind, LabelledFiles(folder / "train.jsonl", folder / "dev.jsonl"))


def test_a_bag_of_words_tells_texts_by_one_word(tmp_path, model):
    rows = [{"text": f"number {n} is {word}", "label": word} for n in range(20) for word in ("good", "bad")]
    found = linear_score(_probe(tmp_path, "single", rows), model, "tokens", max_length=32)
    assert (found["metric"], found["scores"]["accuracy"], found["reference"]) == ("accuracy", 1.0, 0.5)


def test_a_bag_of_words_sees_what_two_texts_share(tmp_path, model):
    pairs = [("good", "bad"), ("bad", "good"), ("good", "good"), ("bad", "bad")] * 5
    rows = [{"text": a, "pair": b, "label": str(a == b)} for a, b in pairs]
    assert linear_score(_probe(tmp_path, "pair", rows), model, "tokens", max_length=32)["scores"]["accuracy"] == 1.0


def test_word_vectors_are_those_of_the_model(tmp_path, model):
    rows = [{"text": word, "label": word} for word in ("good", "bad") * 10]
    probe = _probe(tmp_path, "single", rows)
    assert linear_score(probe, model, "vectors", max_length=32)["scores"]["accuracy"] == 0.5  # all vectors are zero
    made = build_model(BertConfig.of_size("tiny", vocab_size=len(Tokenizer.load(model).vocabulary)), heads=("mlm",))
    save_model(made, model)
    assert linear_score(probe, model, "vectors", max_length=32)["scores"]["accuracy"] == 1.0


def test_a_classifier_of_word_vectors_knows_which_label_is_more_common(tmp_path, model):
    rows = [{"text": "good", "label": label} for label in ("no", "yes", "yes") * 10]
    found = linear_score(_probe(tmp_path, "single", rows), model, "vectors", max_length=32)
    assert found["scores"]["accuracy"] == pytest.approx(2 / 3)  # the vectors are all zero and tell nothing
