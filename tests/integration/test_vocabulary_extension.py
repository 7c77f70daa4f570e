"""A model's vocabulary extended by domain pieces: old rows stay, new rows start as a mean of old ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.cli import app
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.vocabulary_extension import REPORT, extend_vocabulary
from maskloom.system.worker_processes import Work
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

TEXT = "the cardiomyopathy of the heart, a cardiomyopathy; myopathy and neuropathy and cardiology.\n" * 6
OLD_TEXTS = ["the heart and a hat", "hot; hearts of the art."]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "bert"
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["the", "heart", "and", "of", "card", "##io", "##my", "##path"]
    tokens = ["[PAD]", *SPECIAL_TOKENS[1:], *".,;", *letters, *(f"##{letter}" for letter in letters), *words]
    # two embedding rows more than the vocabulary has pieces, as in published models
    config = BertConfig(
        vocab_size=len(tokens) + 2,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
    )
    built = build_model(config, heads=("mlm", "nsp"), seed=1)
    with torch.no_grad():
        built.heads["mlm"].bias.normal_(generator=torch.Generator().manual_seed(2))  # pyright: ignore[reportCallIssue]
    save_model(built, folder, extra_config={"note": "kept"})
    WordPieceTokenizer(Vocabulary(tokens), max_length=64).save(folder)
    (folder / "maskloom.json").write_text('{"max_length": 48}')
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "domain.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def grown(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the model with three more pieces, and what the command said."""
    folder = tmp_path_factory.mktemp("grown")
    (folder / "domain.txt").write_text(TEXT)
    command = ["vocab", "extend", folder / "domain.txt", "--model", model, "--add", 3, "--out", folder / "out"]
    done = CliRunner().invoke(app, [*map(str, command), "--json"])
    assert done.exit_code == 0, done.output
    return folder / "out", json.loads(done.stdout)


def logits(folder: Path, text: str) -> torch.Tensor:
    loaded, _ = load_model(folder)
    ids = torch.tensor([Tokenizer.load(folder).encode(text).ids])
    output = loaded.eval().encoder(ids)
    return loaded.heads["mlm"](output.last_hidden_state[0])


def test_old_texts_give_what_they_gave_and_new_pieces_start_as_means(
    model: Path, grown: tuple[Path, dict[str, Any]]
) -> None:
    out, report = grown
    old, new = Tokenizer.load(model), Tokenizer.load(out)
    first = ["cardiomyopathy", "neuropathy", "cardiology"]
    assert report["pieces"] == first
    assert report["after"]["pieces_per_word"] < report["before"]["pieces_per_word"]
    places = [new.vocabulary.ids[token] for token in first]
    size = len(old.vocabulary)
    assert places == [size, size + 1, size + 2]
    assert new.vocabulary.tokens[:size] == old.vocabulary.tokens
    for token in first:
        assert new.tokens(f"a {token}") == ["a", token]
    before, after = load_model(model)[0], load_model(out)[0]
    rows = json.loads((out / REPORT).read_text())["pieces"]
    assert [row["token"] for row in rows] == first
    for row in rows:
        sources = [old.vocabulary.ids[token] for token in row["old_pieces"]]
        assert old.tokens(row["token"]) == row["old_pieces"]
        mean = before.encoder.word_embeddings[sources].mean(0)
        torch.testing.assert_close(after.encoder.word_embeddings[row["id"]], mean)
        bias = after.heads["mlm"].bias[row["id"]]
        torch.testing.assert_close(bias, before.heads["mlm"].bias[sources].mean(0))
    assert after.heads["mlm"].decoder is after.encoder.word_embeddings
    for old_text in OLD_TEXTS:
        assert new.encode(old_text).ids == old.encode(old_text).ids
        expected, found = logits(model, old_text), logits(out, old_text)
        torch.testing.assert_close(found[:, :size], expected[:, :size], rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        Predictor.load(out).encode(OLD_TEXTS), Predictor.load(model).encode(OLD_TEXTS), rtol=0, atol=1e-6
    )


@pytest.mark.parity
def test_the_folder_opens_in_transformers(grown: tuple[Path, dict[str, Any]]) -> None:
    transformers = pytest.importorskip("transformers")
    out, _ = grown
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    peer = transformers.BertForPreTraining.from_pretrained(out).eval()
    sentence = "a cardiomyopathy of the heart, neuropathy"
    ids = tokenizer(sentence)["input_ids"]
    assert ids == Tokenizer.load(out).encode(sentence).ids
    assert tokenizer.convert_ids_to_tokens(ids)[1:3] == ["a", "cardiomyopathy"]
    assert peer.config.vocab_size == len(peer.cls.predictions.bias) == len(tokenizer)
    assert peer.config.note == "kept"
    with torch.no_grad():
        expected = peer(input_ids=torch.tensor([ids])).prediction_logits[0]
    torch.testing.assert_close(logits(out, sentence), expected, rtol=0, atol=1e-5)


def test_what_belongs_to_the_model_goes_along(model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "grown"
    extend_vocabulary([text], 1, model=model, out=out)
    # one piece fits into the existing rows
    assert load_model(out)[0].config.vocab_size == load_model(model)[0].config.vocab_size
    assert json.loads((out / "maskloom.json").read_text()) == {"max_length": 48}
    report = extend_vocabulary([text], 500, model=model, out=tmp_path / "more", work=Work(2))
    assert 1 < report["num_new_pieces"] < 500
    assert "occurs at least 5 times" in report["why_fewer"]
    again = extend_vocabulary([text], 500, model=model, out=tmp_path / "again")
    assert again["pieces"] == report["pieces"]


def test_word_vectors_that_a_task_reads_go_along(model: Path, text: Path, tmp_path: Path) -> None:
    tagger = tmp_path / "tagger"
    shutil.copytree(model, tagger)
    settings = {"kind": "tagging", "settings": {"features": {"layers": "last", "word_vectors": "word_vectors"}}}
    (tagger / "maskloom.json").write_text(json.dumps(settings))
    (tagger / "word_vectors").write_bytes(b"1 1\na 0.5\n")
    extend_vocabulary([text], 1, model=tagger, out=tmp_path / "grown")
    assert json.loads((tmp_path / "grown" / "maskloom.json").read_text()) == settings
    assert (tmp_path / "grown" / "word_vectors").read_bytes() == b"1 1\na 0.5\n"


def test_wrong_folders_and_texts_are_named(model: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists and is not an empty folder; choose another --out"):
        extend_vocabulary([text], 1, model=model, out=model)
    (tmp_path / "texts").mkdir()
    shutil.copy(text, tmp_path / "texts")
    with pytest.raises(ConfigError, match=r"lies inside .*texts, which is read as text"):
        extend_vocabulary([tmp_path / "texts"], 1, model=model, out=tmp_path / "texts" / "out")
    text.write_text("the heart and the heart")
    with pytest.raises(DataError, match="no piece to add: no run of pieces within a word occurs at least 5 times"):
        extend_vocabulary([text], 1, model=model, out=tmp_path / "out")
    text.write_text(" \n")
    with pytest.raises(DataError, match="no words in"):
        extend_vocabulary([text], 1, model=model, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
