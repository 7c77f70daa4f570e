"""Embeddings that start from word vectors, in new models of any architecture."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maskloom.checkpoints.huggingface import load_model
from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.errors import ConfigError
from maskloom.models.architectures import architecture_of, config_of
from maskloom.models.assembled import build_model
from maskloom.models.model_config import ModelSection
from maskloom.runs import words
from maskloom.runs.corpus import build_corpus_from_files
from maskloom.runs.display import Progress
from maskloom.runs.finetune import LabelledFiles, finetune
from maskloom.runs.pretrain import pretrain
from maskloom.runs.rerun import rerun
from maskloom.runs.word_vectors import take_word_vectors
from maskloom.runs.words import train_words
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import BART_TOKENS, SPECIAL_TOKENS, Vocabulary
from maskloom.text.word_vectors import read_vectors, write_vectors
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from maskloom.words import kernel
from maskloom.words import training as word_training
from maskloom.words.settings import WordsRecipe

WORDS = ["The", "good", "bad"]
MATRIX = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, "the", "good", "##good", "film"])
TOKENIZER = WordPieceTokenizer(VOCABULARY)


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    write_vectors(tmp_path / "vectors.bin", WORDS, MATRIX, "binary")
    return tmp_path / "vectors.bin"


@pytest.fixture
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train words by the loop that numba would compile, which takes longer than the little text of these tests."""

    def plain(*given: Any) -> tuple[float, int]:
        with np.errstate(over="ignore"):  # 64-bit draws wrap around
            total, number = kernel.train_block(*given)
        return float(total), int(number)

    for module in (words, word_training):
        monkeypatch.setattr(module, "compiled", lambda: plain)


def section(vectors: Path | None, **keys: object) -> ModelSection:
    values = {"size": "tiny", "config": {"hidden_size": 8}, **keys}
    return ModelSection.model_validate({**values, "word_vectors": None if vectors is None else str(vectors)})


@pytest.mark.parametrize("architecture", ["bert", "gpt", "transformer", "bart", "t5", "rnn", "lstm", "gru"])
def test_embeddings_of_words_are_their_vectors_and_others_stay(architecture: str, vectors: Path) -> None:
    plain = section(None, architecture=architecture)
    config = config_of(plain, vocab_size=len(VOCABULARY))
    model, fresh = (build_model(config, heads=(), seed=1) for _ in range(2))
    (told,) = take_word_vectors(model, section(vectors, architecture=architecture), TOKENIZER)
    assert told == f"embeddings of 2 of the vocabulary's 9 tokens come from {vectors}"
    changed = (model.encoder.word_embeddings != fresh.encoder.word_embeddings).any(1)
    assert [VOCABULARY.tokens[place] for place in changed.nonzero().flatten()] == ["the", "good"]
    assert np.array_equal(model.encoder.word_embeddings[5:7].detach().numpy(), MATRIX[:2])
    assert take_word_vectors(fresh, plain, TOKENIZER) == []
    assert architecture_of(config).name == architecture


def test_byte_level_pieces_with_a_space_are_words(vectors: Path) -> None:
    vocabulary = Vocabulary([*BART_TOKENS.tokens, "good", "Ġgood", "Ġthe", "film"], BART_TOKENS, prefix="")
    model, fresh = (build_model(config_of(section(None), vocab_size=len(vocabulary)), heads=(), seed=1) for _ in "ab")
    take_word_vectors(model, section(vectors), BytePairTokenizer(vocabulary, (), lowercase=False))
    changed = (model.encoder.word_embeddings != fresh.encoder.word_embeddings).any(1)
    assert [vocabulary.tokens[place] for place in changed.nonzero().flatten()] == ["Ġgood", "Ġthe"]


@pytest.mark.usefixtures("_uncompiled")
def test_words_with_accents_and_hangul_are_known_and_keep_their_vectors(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("caf\u00e9 \ud55c\uad6d caf\u00e9 cafe na\u00efve\n" * 100)
    train_words(tmp_path / "text.txt", WordsRecipe(size=8, epochs=1), out=tmp_path / "words")
    tokenizer, vectors = Tokenizer.load(tmp_path / "words"), read_vectors(tmp_path / "words" / "vectors.bin")
    assert vectors.words[0] == "caf\u00e9"
    assert len(tokenizer.vocabulary) == len(SPECIAL_TOKENS) + 3
    ids = tokenizer.token_ids("Caf\u00e9 \ud55c\uad6d na\u00efve cafe")
    assert tokenizer.vocabulary.unk_id not in ids
    model = build_model(config_of(section(None), vocab_size=len(tokenizer.vocabulary)), heads=())
    take_word_vectors(model, section(tmp_path / "words"), tokenizer)
    wanted = vectors.matrix[vectors.rows_of(["cafe", "\ud55c\uad6d", "na\u00efve", "cafe"])]
    assert np.array_equal(model.encoder.word_embeddings[ids].detach().numpy(), wanted)


def test_vectors_that_do_not_fit_are_refused(vectors: Path) -> None:
    model = build_model(config_of(section(None, config={"hidden_size": 16}), vocab_size=9), heads=())
    with pytest.raises(ConfigError, match=r"has vectors of 8 numbers, but the embeddings of the model have 16; set"):
        take_word_vectors(model, section(vectors), TOKENIZER)
    model = build_model(config_of(section(None), vocab_size=6), heads=())
    with pytest.raises(ConfigError, match="no token of the vocabulary is a word in"):
        take_word_vectors(model, section(vectors), WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, "film"])))
    with pytest.raises(ValueError, match=r"freeze_word_vectors = true needs model\.word_vectors"):
        section(None, freeze_word_vectors=True)


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_classifier_trains_from_vectors_of_a_words_run_on_its_words(is_frozen: bool, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("good films are good\nbad films are bad\n" * 200)
    train_words(tmp_path / "text.txt", WordsRecipe(size=8, epochs=1), out=tmp_path / "words")
    assert Tokenizer.load(tmp_path / "words").tokens("Good films!") == ["good", "films", "[UNK]"]
    (tmp_path / "train.csv").write_text("text,label\n" + "good films,1\nbad films,0\n" * 8)
    model = {"architecture": "lstm", "size": "tiny", "config": {"hidden_size": 8}, "freeze_word_vectors": is_frozen}
    model |= {"word_vectors": str(tmp_path / "words")}
    training = {"epochs": 1.0, "batch_size": 4, "learning_rate": 1e-2}
    recipe = load_recipe(FinetuneRecipe, {"model": model, "training": training, "data": {"max_length": 8}})
    lines: list[str] = []
    progress = type("Said", (Progress,), {"say": lambda self, text: lines.append(text)})()
    data = LabelledFiles(tmp_path / "train.csv", tmp_path / "train.csv")
    finetune(recipe, model=tmp_path / "words", data=data, out=tmp_path / "run", progress=progress)
    assert f"embeddings of 4 of the vocabulary's 9 tokens come from {tmp_path / 'words'}" in lines
    given = torch.from_numpy(read_vectors(tmp_path / "words" / "vectors.bin").matrix)
    learnt = load_model(tmp_path / "run" / "model", heads=())[0].encoder.word_embeddings[5:]
    assert torch.equal(given, learnt) == is_frozen
    assert torch.allclose(given, learnt, atol=0.2)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["paths"]["word_vectors"] == str(tmp_path / "words" / "vectors.bin")
    if not is_frozen:
        rerun(tmp_path / "run", out=tmp_path / "again")
        again = load_model(tmp_path / "again" / "model", heads=())[0].encoder.word_embeddings[5:]
        assert torch.equal(again, learnt)
        write_vectors(tmp_path / "words" / "vectors.bin", ["good", "bad"], MATRIX[:2], "binary")
        with pytest.raises(ConfigError, match=r"word_vectors .* has changed since the start of this run"):
            finetune(recipe, model=tmp_path / "words", data=data, out=tmp_path / "run", resume=True)


@pytest.mark.usefixtures("_uncompiled")
def test_pretraining_starts_from_vectors(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("good films are good\n\nbad films are bad\n\n" * 50)
    train_words(tmp_path / "text.txt", WordsRecipe(size=8, epochs=1), out=tmp_path / "words")
    build_corpus_from_files(tmp_path / "text.txt", vocab=tmp_path / "words", out=tmp_path / "corpus")
    model = {"architecture": "lstm", "size": "tiny", "config": {"hidden_size": 8}, "freeze_word_vectors": True}
    model |= {"word_vectors": str(tmp_path / "words")}
    training = {"steps": 2, "batch_size": 4, "learning_rate": 1e-2}
    values = {"model": model, "objective": "causal_lm", "training": training, "data": {"max_length": 16}}
    pretrain(load_recipe(PretrainRecipe, values), corpus=tmp_path / "corpus", out=tmp_path / "run")
    given = torch.from_numpy(read_vectors(tmp_path / "words" / "vectors.bin").matrix)
    assert torch.equal(load_model(tmp_path / "run" / "model", heads=())[0].encoder.word_embeddings[5:], given)
    assert "word_vectors" in json.loads((tmp_path / "run" / "run.json").read_text())["inputs"]


@pytest.mark.slow
@pytest.mark.realdata
def test_an_lstm_learns_film_reviews_better_from_vectors_of_other_reviews(data_folder: Path, tmp_path: Path) -> None:
    rows = []
    for name, label in (("neg", 0), ("pos", 1)):
        lines = (data_folder / "sentiment" / f"rt-polarity.{name}").read_text(encoding="utf-8").split("\n")
        rows += [(re.sub(r"[^a-z]+", " ", line.lower()).strip(), label) for line in lines]
    rows = [row for row in rows if row[0]]
    np.random.default_rng(0).shuffle(rows)
    for name, part in (("train", rows[1000:2000]), ("dev", rows[:1000])):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in part))
    reviews = data_folder / "imdb" / "train.jsonl.gz"
    train_words(reviews, WordsRecipe(size=64, epochs=3, workers=2), out=tmp_path / "words")
    scores = []
    for vectors in (None, str(tmp_path / "words")):
        model = {"architecture": "lstm", "size": "tiny", "config": {"hidden_size": 64, "pooling": "max"}}
        training = {"epochs": 6.0, "learning_rate": 1e-3, "num_threads": 1}
        values = {"model": {**model, "word_vectors": vectors}, "training": training, "data": {"max_length": 64}}
        data = LabelledFiles(tmp_path / "train.csv", tmp_path / "dev.csv")
        out = tmp_path / f"run-{len(scores)}"
        result = finetune(load_recipe(FinetuneRecipe, values), model=tmp_path / "words", data=data, out=out)
        scores.append(result["best"]["scores"]["accuracy"])
    assert scores[1] > scores[0] + 0.01
