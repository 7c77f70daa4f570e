"""Opening corpora: their contents, and every kind of damage reported before anything is read."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from maskloom.data.corpus.building import CorpusSettings, build_corpus
from maskloom.data.corpus.manifest import write_manifest
from maskloom.data.corpus.opening import Corpus
from maskloom.errors import DataError
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]))
DOCUMENTS = [[[5, 6], [7]], [[8, 8, 8]], [[9, 10, 11], [5], [6, 7]]]
FILES = (
    "shards/00000.tokens",
    "shards/00001.tokens",
    "shards/00002.tokens",
    "sentence_lengths.bin",
    "sentence_offsets.bin",
    "document_offsets.bin",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of three documents, one shard each."""
    folder = tmp_path_factory.mktemp("corpora")
    letters = "\n\n".join("\n".join(" ".join("abcdefg"[i - 5] for i in s) for s in document) for document in DOCUMENTS)
    (folder / "a.txt").write_text(letters)
    build_corpus(
        folder / "a.txt",
        tokenizer=TOKENIZER,
        out=folder / "whole",
        settings=CorpusSettings(sentences="lines", shard_tokens=1),
    )
    return folder / "whole"


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copied"))


def joined(sentences: list[list[int]]) -> list[int]:
    return [index for sentence in sentences for index in sentence]


def change_manifest(folder: Path, **changes) -> None:
    content = json.loads((folder / "manifest.json").read_bytes()) | changes
    (folder / "manifest.json").write_text(json.dumps(content))


def test_everything_is_where_it_was_put(whole: Path) -> None:
    corpus = Corpus.open(whole)
    assert (corpus.num_documents, corpus.num_sentences, corpus.num_tokens) == (3, 6, 12)
    assert corpus.document_offsets.tolist() == [0, 2, 3, 6]
    assert corpus.sentence_lengths.tolist() == [2, 1, 3, 3, 1, 2]
    assert corpus.sentence_offsets.tolist() == [0, 2, 3, 6, 9, 10, 12]
    flat = [sentence for document in DOCUMENTS for sentence in document]
    assert [corpus.sentence(index).tolist() for index in range(6)] == flat
    parts = zip(corpus.document_offsets, corpus.document_offsets[1:], strict=False)
    assert [corpus.sentences(*part).tolist() for part in parts] == [joined(document) for document in DOCUMENTS]
    assert corpus.sentences(1, 5).tolist() == joined(flat[1:5])
    assert corpus.sentences(4, 4).tolist() == []
    assert corpus.vocabulary.tokens == TOKENIZER.vocabulary.tokens
    assert corpus.tokenizer.lowercase
    assert Tokenizer.load(whole).token_ids("a b") == [5, 6]


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (0, 7), (3, 2)])
def test_sentences_outside_are_an_error(whole: Path, first: int, last: int) -> None:
    with pytest.raises(IndexError, match="the corpus has 6"):
        Corpus.open(whole).sentences(first, last)


def test_nothing_can_be_written_through_an_open_corpus(whole: Path) -> None:
    corpus = Corpus.open(whole)
    arrays = (corpus.sentence(0), corpus.sentence_lengths, corpus.sentence_offsets, corpus.document_offsets)
    assert not any(array.flags.writeable for array in arrays)


def test_equal_corpora_share_a_fingerprint_wherever_they_lie(whole: Path, copied: Path, tmp_path: Path) -> None:
    assert Corpus.open(whole).fingerprint == Corpus.open(copied).fingerprint
    (tmp_path / "a.txt").write_text("a b\nc\n\nd d d\n\ne f g\na\nb d")
    build_corpus(
        tmp_path / "a.txt",
        tokenizer=TOKENIZER,
        out=tmp_path / "other",
        settings=CorpusSettings(sentences="lines", shard_tokens=1),
    )
    assert Corpus.open(tmp_path / "other").fingerprint != Corpus.open(whole).fingerprint


def test_the_manifest_sums_every_file(whole: Path) -> None:
    found = {path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()}
    assert found == {*FILES, "manifest.json"}
    assert set(Corpus.open(whole).manifest["files"]) == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_damage_of_every_file_is_named(copied: Path, name: str) -> None:
    path = copied / name
    content = path.read_bytes()
    for length in {0, 1, len(content) // 2, len(content) - 1}:
        path.write_bytes(content[:length])
        for verify in (True, False):
            with pytest.raises(
                DataError, match=rf"copied: .*{name}: has {length:,} bytes instead of {len(content):,}\b"
            ):
                Corpus.open(copied, verify=verify)
    path.write_bytes(content + b"x")
    with pytest.raises(DataError, match=rf"{name}: has {len(content) + 1:,} bytes"):
        Corpus.open(copied)
    for bit in random.Random(0).sample(range(8 * len(content)), min(8, 8 * len(content))):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        with pytest.raises(DataError, match=rf"{name}: its SHA-256 differs"):
            Corpus.open(copied)
    path.unlink()
    with pytest.raises(DataError, match=rf"{name}: cannot be read: No such file"):
        Corpus.open(copied)
    path.write_bytes(content)
    assert Corpus.open(copied).num_tokens == 12


def test_all_damaged_files_are_named_at_once(copied: Path) -> None:
    for name in FILES[:3]:
        (copied / name).unlink()
    with pytest.raises(DataError) as error:
        Corpus.open(copied)
    assert all(f"{name}: cannot be read: No such file" in str(error.value) for name in FILES[:3])
    assert "build it again" in str(error.value)


def test_exchanged_shards_and_another_vocabulary_are_noticed(copied: Path) -> None:
    first, second = copied / "shards" / "00000.tokens", copied / "shards" / "00001.tokens"
    first.rename(copied / "x")
    second.rename(first)
    (copied / "x").rename(second)
    Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdegf"]).save(copied / "vocab.txt")
    with pytest.raises(DataError, match=r"shards/00000.*shards/00001.*vocab\.txt: its SHA-256"):
        Corpus.open(copied)


def test_every_change_of_the_manifest_is_noticed(copied: Path) -> None:
    path = copied / "manifest.json"
    content = path.read_bytes()
    assert json.loads(content)["checksum"]
    for length in range(0, len(content) - 1, 37):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"manifest\.json: .*(damaged|not the manifest)"):
            Corpus.open(copied)
    for bit in random.Random(1).sample(range(8 * len(content)), 200):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        with pytest.raises(DataError, match=r"manifest\.json: "):
            Corpus.open(copied)


def test_wrong_sums_in_the_manifest_are_noticed(copied: Path) -> None:
    files = json.loads((copied / "manifest.json").read_bytes())["files"]
    files["vocab.txt"]["sha256"] = "0" * 64
    change_manifest(copied, files=files)
    with pytest.raises(DataError, match=r"manifest\.json: damaged: its checksum does not match"):
        Corpus.open(copied)


def test_counts_that_the_files_do_not_have_are_noticed(copied: Path) -> None:
    content = json.loads((copied / "manifest.json").read_bytes()) | {"num_sentences": 7}
    write_manifest(copied, content)
    with pytest.raises(DataError, match=r"sentence_lengths\.bin: 6 values, but the manifest promises 7"):
        Corpus.open(copied)


@pytest.mark.parametrize(
    "change",
    [
        {"num_tokens": True},
        {"num_tokens": -12},
        {"num_sentences": "6"},
        {"token_type": "<u8"},
        {"settings": {}},
        {"sources": None},
        {"files": []},
        {"files": {"../../secret": {"num_bytes": 1, "sha256": ""}}},
        {"shards": [{"file": "vocab.txt", "num_tokens": 12}]},
        {"shards": [{"file": "/etc/passwd", "num_tokens": 12}]},
        {"shards": [[0]]},
        {"shards": {}},
    ],
)
def test_a_manifest_that_was_made_up_is_refused_although_its_checksum_fits(copied: Path, change: dict) -> None:
    content = json.loads((copied / "manifest.json").read_bytes())
    if isinstance(change.get("files"), dict):
        change = {"files": content["files"] | change["files"]}
    write_manifest(copied, content | change)
    with pytest.raises(DataError, match=r"manifest\.json: its parts are inconsistent"):
        Corpus.open(copied)


def test_a_manifest_nested_without_end_and_a_pipe_for_a_shard_are_refused(copied: Path) -> None:
    whole = (copied / "manifest.json").read_bytes()
    (copied / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"manifest\.json: .*nested too deeply.*build it again"):
        Corpus.open(copied)
    (copied / "manifest.json").write_bytes(whole)
    (copied / "shards" / "00001.tokens").unlink()
    os.mkfifo(copied / "shards" / "00001.tokens")
    with pytest.raises(DataError, match=r"shards/00001\.tokens: is a pipe"):
        Corpus.open(copied)


def test_a_newer_format_is_refused_by_number(copied: Path) -> None:
    change_manifest(copied, format_version=2)
    with pytest.raises(DataError, match="format version 2, but this maskloom reads versions up to 1; upgrade"):
        Corpus.open(copied)


@pytest.mark.parametrize("content", ["[]", "{}", '"text"', '{"format": "parquet"}'])
def test_a_foreign_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json: not the manifest of a maskloom corpus"):
        Corpus.open(tmp_path)


def test_a_manifest_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DataError, match=r"manifest\.json: is a folder; expected a regular file$"):
        Corpus.open(tmp_path)


def test_a_text_file_gets_the_command_that_makes_a_corpus_of_it(tmp_path: Path) -> None:
    (tmp_path / "text.txt").touch()
    with pytest.raises(DataError, match=r"text\.txt: .* is not a corpus; `maskloom corpus build` makes one"):
        Corpus.open(tmp_path / "text.txt")


def test_folders_without_a_manifest_say_what_they_are(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent: no such folder"):
        Corpus.open(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no manifest\.json, so it is not a corpus; `maskloom corpus build`"):
        Corpus.open(tmp_path / "empty")
    os.unlink(copied / "manifest.json")
    with pytest.raises(DataError, match="copied: the corpus is unfinished"):
        Corpus.open(copied)
