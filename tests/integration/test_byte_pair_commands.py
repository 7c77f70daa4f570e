"""Commands with a byte-pair vocabulary: vocab, corpus, pre-training, fine-tuning, and what they refuse."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from maskloom.cli import app
from maskloom.config import PretrainRecipe
from maskloom.errors import ConfigError, DataError
from maskloom.runs.corpus import REPORT, build_corpus_from_files, inspect_vocabulary, train_vocabulary_from_files
from maskloom.runs.pretrain import pretrain
from maskloom.runs.vocabulary_extension import extend_vocabulary
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary_training import VocabularySettings

WORDS = ["the", "river", "ran", "under", "stone", "bridges", "while", "people", "slept", "."]


def recipe(**changes) -> PretrainRecipe:
    config = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    sections = {
        "objective": "causal_lm",
        "model": {"config": config},
        "data": {"max_length": 24, "next_sentence": False, "held_out_fraction": 0.1},
        "training": {"batch_size": 8, "steps": 3, "device": "cpu", "num_threads": 1},
    }
    return PretrainRecipe.model_validate(sections | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with texts, and a byte-pair vocabulary and a corpus built from them."""
    folder = tmp_path_factory.mktemp("byte-pairs")
    rng = random.Random(1)
    texts = ["\n".join(" ".join(rng.choices(WORDS, k=9)) for _ in range(4)) for _ in range(80)]
    (folder / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    train_vocabulary_from_files([folder / "a.txt"], VocabularySettings(60, model="bpe"), out=folder / "vocab")
    build_corpus_from_files(folder / "a.txt", vocab=folder / "vocab", out=folder / "corpus")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    pretrain(recipe(), corpus=folder / "corpus", out=folder / "run")
    return folder / "run"


def test_the_command_trains_byte_pairs_and_knows_them_again(folder: Path, tmp_path: Path) -> None:
    command = ["vocab", "train", str(folder / "a.txt"), "--out", str(tmp_path / "v"), "--model", "bpe", "--size", "60"]
    first = CliRunner().invoke(app, [*command, "--workers", "2", "--json"])
    assert first.exit_code == 0, first.output
    for name in ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (tmp_path / "v" / name).read_bytes() == (folder / "vocab" / name).read_bytes()
    again = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(again.stdout)["already_trained"]
    with pytest.raises(ConfigError, match=r"different vocabulary \(differences: model\)"):
        train_vocabulary_from_files([folder / "a.txt"], VocabularySettings(60), out=tmp_path / "v")
    merges = tmp_path / "v" / "merges.txt"
    merges.write_text(merges.read_text() + "t h\n")
    with pytest.raises(ConfigError, match=r"different vocabulary \(differences: vocab.json or merges.txt\)"):
        train_vocabulary_from_files([folder / "a.txt"], VocabularySettings(60, model="bpe"), out=tmp_path / "v")


def test_a_vocabulary_is_inspected_with_text(folder: Path) -> None:
    found = inspect_vocabulary(folder / "vocab", [folder / "a.txt"])
    assert found["special_ids"] == {
        "<pad>": 0, "<unk>": 1, "<extract>": 2, "<delimiter>": 3, "<start>": 4, "<end>": 5,
    }  # fmt: skip
    assert found["coverage"]["unknown_rate"] == 0
    assert found["num_word_ends"] >= len(WORDS)
    assert "num_continuations" not in found
    assert json.loads((folder / "vocab" / REPORT).read_text())["made_from"]["model"] == "bpe"


def test_a_model_learns_from_left_to_right_and_keeps_its_tokenizer(folder: Path, run: Path) -> None:
    assert Tokenizer.load(run / "model") == Tokenizer.load(folder / "vocab")
    build_corpus_from_files(folder / "a.txt", vocab=run, out=folder / "again")
    assert (folder / "again" / "manifest.json").read_bytes() == (folder / "corpus" / "manifest.json").read_bytes()
    metrics = pretrain(recipe(), corpus=folder / "again", out=folder / "more", init=run)
    assert metrics["lm_loss"] > 0


def test_objectives_that_need_other_tokens_are_refused_before_any_work(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'masked_lm' needs a mask token, but the vocabulary of .*corpus has none; .* or byte-level"
    ):
        pretrain(recipe(objective="masked_lm"), corpus=folder / "corpus", out=tmp_path / "run")
    masking = Path(shutil.copytree(folder / "vocab", tmp_path / "masking"))
    tokens = masking / "vocab.json"
    tokens.write_text(tokens.read_text().replace("<start>", "<mask>").replace("<extract>", "<none>"))
    for name in ("tokenizer.json", "tokenizer_config.json", REPORT):
        (masking / name).unlink()
    (masking / "special_tokens_map.json").write_text('{"mask_token": "<mask>"}')
    build_corpus_from_files(folder / "a.txt", vocab=masking, out=tmp_path / "corpus")
    data = {"max_length": 24, "next_sentence": True}
    with pytest.raises(
        ConfigError, match=r"data.next_sentence = true needs a token that represents a pair .* of .*corpus has none"
    ):
        pretrain(recipe(objective="masked_lm", data=data), corpus=tmp_path / "corpus", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_whole_word_masking_of_text_without_spaces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join("整句没有空格" * 3 + str(number) for number in range(50)))
    settings = VocabularySettings(300, lowercase=False, model="byte-bpe")
    train_vocabulary_from_files([tmp_path / "text.txt"], settings, out=tmp_path / "vocab")
    build_corpus_from_files(tmp_path / "text.txt", vocab=tmp_path / "vocab", out=tmp_path / "corpus")
    data = {"max_length": 24, "next_sentence": False, "whole_word_masking": True}
    with pytest.raises(ConfigError, match=r"whole_word_masking = true: a word of .*corpus has \d+ pieces on average"):
        pretrain(recipe(objective="masked_lm", data=data), corpus=tmp_path / "corpus", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_corpus_of_other_tokens_or_merges_is_refused(folder: Path, run: Path, tmp_path: Path) -> None:
    train_vocabulary_from_files([folder / "a.txt"], VocabularySettings(59, model="bpe"), out=tmp_path / "v")
    build_corpus_from_files(folder / "a.txt", vocab=tmp_path / "v", out=tmp_path / "c")
    of_both, last = "60 pieces differs from the corpus's vocabulary of 59", Tokenizer.load(run / "model").vocabulary
    where = re.escape(f"from id 59 on, where it has {last.tokens[59]!r} and the other no piece;")
    with pytest.raises(ConfigError, match=f"its vocabulary of {of_both} {where}"):
        pretrain(recipe(), corpus=tmp_path / "c", out=tmp_path / "r", init=run)
    merges = (folder / "vocab" / "merges.txt").read_text().splitlines()
    other = Path(shutil.copytree(folder / "vocab", tmp_path / "other"))
    (other / "merges.txt").write_text("\n".join([merges[0], *merges[:0:-1]]))
    build_corpus_from_files(folder / "a.txt", vocab=other, out=tmp_path / "o")
    with pytest.raises(ConfigError, match=r"differs from the corpus's vocabulary of 60 in its merges or rules;"):
        pretrain(recipe(), corpus=tmp_path / "o", out=tmp_path / "r", init=run)


def test_what_needs_wordpiece_says_so(folder: Path, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vocab extend needs a WordPiece vocabulary"):
        extend_vocabulary([folder / "a.txt"], 3, model=run, out=tmp_path / "extended")
    assert not any(tmp_path.iterdir())


def test_bad_text_and_damaged_vocabularies_end_with_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"the \xff river")
    (tmp_path / "empty.txt").write_bytes(b"\n")
    for name, message in (("bad.txt", "not UTF-8"), ("empty.txt", "empty.txt: no text")):
        with pytest.raises(DataError, match=message):
            train_vocabulary_from_files([tmp_path / name], VocabularySettings(60, model="bpe"), out=tmp_path / "v")
    damaged = Path(shutil.copytree(folder / "vocab", tmp_path / "damaged"))
    (damaged / "merges.txt").write_bytes(b"#version: 0.2\nt \xff\n")
    command = ["corpus", "build", str(folder / "a.txt"), "--vocab", str(damaged), "--out", str(tmp_path / "c")]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, DataError)
    assert "merges.txt: byte 17 is not UTF-8" in str(result.exception)
