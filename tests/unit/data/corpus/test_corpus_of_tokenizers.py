"""Corpora by tokenizer: WordPiece corpora keep their bytes, byte-pair corpora record their kind."""

import hashlib
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.encoded_texts import encode_all

from maskloom.data.corpus import sentence_encoding
from maskloom.data.corpus.building import CorpusSettings, build_corpus
from maskloom.data.corpus.lint import lint_corpus
from maskloom.data.corpus.opening import Corpus
from maskloom.data.corpus.sentence_encoding import SentenceEncoder
from maskloom.data.corpus.statistics import corpus_statistics
from maskloom.errors import ConfigError, DataError
from maskloom.text import sentences as text_sentences
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.sentences import split_sentences
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.vocabulary_training import VocabularySettings, train_vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WHITE = " \t\n"
WORDS = ["the", "river", "ran", "under", "stone", "bridges", "while", "people", "slept", "."]
WORDPIECE = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcde", "##s"]))


def documents(number: int) -> list[str]:
    rng = random.Random(0)
    return [
        "\n".join(" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(rng.randint(1, 9)))
        for _ in range(number)
    ]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(documents(60)) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def byte_pairs() -> BytePairTokenizer:
    return train_vocabulary(documents(60), VocabularySettings(size=60, model="bpe"))[0]


def build(text: Path, tokenizer: Any, out: Path) -> dict[str, Any]:
    return build_corpus(
        text, tokenizer=tokenizer, out=out, settings=CorpusSettings(sentences="lines", shard_tokens=100)
    )


def test_the_manifest_of_a_wordpiece_corpus_is_what_it_always_was(text: Path, tmp_path: Path) -> None:
    manifest = build(text, WORDPIECE, tmp_path / "out")
    assert manifest["settings"] == {
        "vocabulary_sha256": hashlib.sha256("\n".join(WORDPIECE.vocabulary.tokens).encode()).hexdigest(),
        "vocabulary_size": 21,
        "lowercase": True,
        "compatibility": "google",
        "max_length": 512,
        "sentences": "lines",
        "language": "en",
        "on_bad_text": "error",
        "shard_tokens": 100,
    }
    # tokenizer.json is written by the library, whose releases may differ
    stable = {name: value for name, value in manifest.items() if name != "checksum"}
    stable["files"] = {name: value for name, value in manifest["files"].items() if name != "tokenizer.json"}
    digest = hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()
    assert digest == "5529909547ac111798776d60a5fe5dfbed192092e116a9986e87b46aa7bfd583"


@pytest.mark.parametrize("has_targets", [False, True])
def test_a_stopped_build_leaves_no_tokenizer_to_a_build_with_another(
    text: Path, tmp_path: Path, byte_pairs, has_targets: bool
) -> None:
    bad, out = tmp_path / "bad.txt", tmp_path / "out"
    bad.write_bytes(b"\xff\n")
    first = replace(WORDPIECE, targets=WORDPIECE) if has_targets else WORDPIECE
    with pytest.raises(DataError):
        build(bad, first, out)
    manifest = build(text, byte_pairs, out)
    assert Corpus.open(out).tokenizer == byte_pairs
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert names == {"manifest.json", *manifest["files"]}


def test_a_corpus_with_the_tokenizer_of_another_is_refused(text: Path, tmp_path: Path, byte_pairs, monkeypatch) -> None:
    out = tmp_path / "out"
    build(text, byte_pairs, out)
    WORDPIECE.vocabulary.save(out / "vocab.txt")  # which the manifest does not list
    with pytest.raises(DataError, match=r"the added token '.*' has the id \d+; its place in the vocabulary is"):
        Corpus.open(out)
    monkeypatch.setattr(Tokenizer, "load", lambda *_, **__: WORDPIECE)  # as without added tokens
    with pytest.raises(DataError, match="the ids are not those of the tokenizer in this folder"):
        Corpus.open(out)


def test_a_corpus_of_byte_pairs_holds_the_ids_of_its_tokenizer(text: Path, tmp_path: Path, byte_pairs) -> None:
    manifest = build(text, byte_pairs, tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    lines = [line for document in documents(60) for line in document.split("\n")]
    found = [corpus.sentence(index).tolist() for index in range(corpus.num_sentences)]
    assert found == byte_pairs.token_ids_batch(lines)
    assert corpus.tokenizer == byte_pairs
    assert manifest["settings"]["tokenizer"] == "byte-pair"
    assert {"vocab.json", "merges.txt"} <= manifest["files"].keys()
    assert "vocab.txt" not in manifest["files"]
    assert build(text, byte_pairs, tmp_path / "out")["already_built"]
    assert corpus_statistics(corpus)["unknown_rate"] == 0
    assert corpus.tokenizer.decode(corpus.sentence(0).tolist()) == lines[0]


def test_odd_words_have_the_ids_of_the_whole_text(tmp_path: Path, byte_pairs) -> None:
    lines = ["The Café, naïve RIVER's \x85 ran", "東京 ran", "<unk> <start> the", "x\u2028y İ ǅ", "a" * 300 + "é"]
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    build(tmp_path / "a.txt", byte_pairs, tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    found = np.concatenate([corpus.sentence(index) for index in range(corpus.num_sentences)])
    assert found.tolist() == [index for ids in byte_pairs.token_ids_batch(lines) for index in ids]


def test_other_merges_are_another_corpus(text: Path, tmp_path: Path, byte_pairs) -> None:
    build(text, byte_pairs, tmp_path / "out")
    other = BytePairTokenizer(byte_pairs.vocabulary, byte_pairs.merges[::-1])
    with pytest.raises(ConfigError, match=r"built differently \(vocabulary_sha256 differ\)"):
        build(text, other, tmp_path / "out")
    with pytest.raises(ConfigError, match="built differently"):
        build(text, WORDPIECE, tmp_path / "out")
    (tmp_path / "out" / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(DataError, match=r"merges\.txt: has 14 bytes instead of"):
        Corpus.open(tmp_path / "out")


def test_lint_shows_words_and_knows_the_unknown_token(tmp_path: Path, byte_pairs) -> None:
    lines = ["the river ran under stone bridges"] * 20 + ["qqqqqqq zzzzzzz"] * 2
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    build(tmp_path / "a.txt", byte_pairs, tmp_path / "out")
    messages = {finding.code: finding.message for finding in lint_corpus(Corpus.open(tmp_path / "out"))}
    assert "'the river ran under stone bridges' (20 times)" in messages["repeated_sentences"]
    assert "of the tokens are <unk>, above" in messages["unknown_tokens"]


ODD = [
    "The ",
    "It's so. ",
    " ok! ",
    "\n",
    "東京",
    "🙂 ",
    "   ",
    "…",
    "\t",
    "'s ",
    "Yes. ",
    "No?! ",
    "x\u00a0y",
    "##",
    "\x1c",
]


@pytest.fixture(scope="module")
def of_bytes() -> Tokenizer:
    settings = VocabularySettings(size=320, model="byte-bpe", lowercase=False)
    return train_vocabulary([*documents(60), "".join(ODD) * 9], settings)[0]


@pytest.mark.parametrize("sentences", ["split", "lines"])
@pytest.mark.parametrize("prefix_space", [False, True])
def test_sentences_of_bytes_together_are_the_whole_text(of_bytes, sentences, prefix_space) -> None:
    """One space separates any two words and precedes every sentence but the first."""
    tokenizer = replace(of_bytes, prefix_space=prefix_space)
    encoder, draw = SentenceEncoder(tokenizer, sentences=sentences), random.Random(0)
    texts = ["".join(draw.choices(ODD, k=draw.randint(1, 60))) for _ in range(300)]
    encoded = encode_all(encoder, texts)
    place = number = 0
    for text in texts:
        lines = [
            line for line in (split_sentences(text) if sentences == "split" else text.split("\n")) if line.strip(WHITE)
        ]
        whole = [re.sub(f"[{WHITE}]+", " ", line).strip(" ") for line in lines]
        for length, first in zip(encoded.sentence_lengths[number:], range(len(whole)), strict=False):
            ids = np.frombuffer(encoded.tokens, encoder.type)[place : place + length].tolist()
            assert ids == tokenizer.token_ids((" " if first else "") + whole[first])
            place, number = place + length, number + 1
    assert number == len(encoded.sentence_lengths)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Encode documents in blocks of this many bytes, so that texts of some kilobytes are long ones."""
    size = 1 << 14
    monkeypatch.setattr(sentence_encoding, "_BLOCK_BYTES", size)
    monkeypatch.setattr(sentence_encoding, "_LONGEST_RUN", size)
    monkeypatch.setattr(text_sentences, "_PIECE_BYTES", size)
    monkeypatch.setattr(text_sentences, "_WINDOW_BYTES", size << 4)
    monkeypatch.setattr(text_sentences, "_MARGIN", size >> 4)
    return size


@pytest.mark.parametrize("sentences", ["split", "lines"])
def test_a_long_document_of_bytes_is_encoded_as_a_whole(of_bytes, sentences, small_blocks) -> None:
    text = "A long one, yes. It's on!\n" * 2_000 + "x" * 30_000 + " end. It's"
    encoder = SentenceEncoder(of_bytes, sentences=sentences)
    encoded = encode_all(encoder, [text])
    assert len(encoded.tokens) > small_blocks
    assert np.frombuffer(encoded.tokens, encoder.type).tolist() == of_bytes.token_ids(" ".join(text.split()))


@pytest.mark.parametrize("prefix_space", [False, True])
@pytest.mark.usefixtures("small_blocks")
def test_a_long_line_of_bytes_is_cut_only_at_blanks(of_bytes, prefix_space) -> None:
    text, tokenizer = ("東京東京東京 --- " * 2_000).strip(), replace(of_bytes, prefix_space=prefix_space)
    encoded = encode_all(SentenceEncoder(tokenizer, sentences="lines"), [text])
    assert np.frombuffer(encoded.tokens, "<u2").tolist() == tokenizer.token_ids(text)


def test_a_space_before_texts_is_another_corpus(text: Path, tmp_path: Path, of_bytes) -> None:
    build(text, of_bytes, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"built differently \(prefix_space differ\)"):
        build(text, replace(of_bytes, prefix_space=True), tmp_path / "out")


def test_a_corpus_that_does_not_record_a_space_before_texts_still_opens(
    text: Path, tmp_path: Path, of_bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions recorded fewer rules of the tokenizer."""
    tokenizer, identity = replace(of_bytes, prefix_space=True), BytePairTokenizer.identity
    with monkeypatch.context() as earlier:
        earlier.setattr(BytePairTokenizer, "identity", lambda own: identity(replace(own, prefix_space=False)))
        assert "prefix_space" not in build(text, tokenizer, tmp_path / "out")["settings"]
    assert Corpus.open(tmp_path / "out").tokenizer == tokenizer


def test_a_corpus_of_bytes_is_described_and_linted(text: Path, tmp_path: Path, of_bytes) -> None:
    build(text, of_bytes, tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.tokenizer == of_bytes
    assert corpus.manifest["settings"]["tokenizer"] == "byte-level byte-pair"
    found = corpus_statistics(corpus)
    assert found["unknown_rate"] == 0
    assert "Ġriver" in found["most_frequent_tokens"]
    assert {finding.code for finding in lint_corpus(corpus)} == {"few_tokens", "paragraphs_as_documents"}
    (tmp_path / "b.txt").write_text("\n\n".join(["Ωμέγα και ψι."] * 40), encoding="utf-8")
    build(tmp_path / "b.txt", of_bytes, tmp_path / "other")
    messages = {finding.code: finding.message for finding in lint_corpus(Corpus.open(tmp_path / "other"))}
    assert "of the tokens are single letters or bytes" in messages["other_script"]
