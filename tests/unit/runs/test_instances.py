"""Static instances as files: what they are made from, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from maskloom.data.corpus_building import build_corpus
from maskloom.errors import ConfigError
from maskloom.runs.instances import write_google_instances
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["a", "b", "c", "d", "e", "f"]
TEXT = "a b\nc d e\nf a b\n\nd e\n\nb b\nc\n"


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS])).save(tmp_path / "vocab")
    return tmp_path / "vocab"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_corpus_gives_the_instances_of_its_text(text: Path, vocab: Path, tmp_path: Path) -> None:
    build_corpus([text], tokenizer=Tokenizer.load(vocab), out=tmp_path / "corpus", sentences="lines")
    settings: dict[str, Any] = {"max_length": 16, "dupe_factor": 3}
    report = write_google_instances([text], tmp_path / "a.jsonl", vocab=vocab, **settings)
    again = write_google_instances([tmp_path / "corpus"], tmp_path / "b.jsonl", **settings)
    assert rows(tmp_path / "a.jsonl") == rows(tmp_path / "b.jsonl")
    assert (report["num_documents"], report["num_instances"]) == (3, len(rows(tmp_path / "a.jsonl")))
    assert {**report, "file": ""} == {**again, "file": ""}


def test_predictions_that_the_limit_cuts_off_are_counted(vocab: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(["a b c d e f a\nb c d e f a b"] * 4) + "\n")
    settings: dict[str, Any] = {"vocab": vocab, "max_length": 20, "short_seq_prob": 0.0, "masked_lm_prob": 0.3}
    asked = write_google_instances(
        [tmp_path / "text.txt"], tmp_path / "a.jsonl", max_predictions_per_seq=20, **settings
    )
    cut = write_google_instances([tmp_path / "text.txt"], tmp_path / "b.jsonl", max_predictions_per_seq=2, **settings)
    assert (asked["num_predictions_cut_off"], cut["num_predictions"]) == (0, 2 * cut["num_instances"])
    wanted = [round(0.3 * len(row["tokens"])) for row in rows(tmp_path / "b.jsonl")]
    assert cut["num_predictions_cut_off"] == sum(wanted) - cut["num_predictions"] > 0


def test_a_run_lends_its_vocabulary(text: Path, vocab: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(vocab, target_is_directory=True)
    for name, folder in (("a", vocab), ("b", tmp_path / "run")):
        write_google_instances([text], tmp_path / f"{name}.jsonl", vocab=folder, max_length=16)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_the_end_of_a_file_ends_no_document_but_a_blank_line_does(text: Path, vocab: Path, tmp_path: Path) -> None:
    (tmp_path / "next.txt").write_text("a\nb\n")
    counts = []
    for ending in ("c\n", "c", "c\n\n", "c\n \n", "c\n\u00a0\n"):
        text.write_text(TEXT.removesuffix("c\n") + ending, encoding="utf-8")
        found = write_google_instances([text, tmp_path / "next.txt"], tmp_path / "a.jsonl", vocab=vocab)
        counts.append(found["num_documents"])
    # the last file ends with a blank that bytes do not show, which is a line of white space all the same
    assert counts == [3, 3, 4, 4, 4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"out": "a.txt"}, r"a\.txt: instances are written as \.tfrecord or \.jsonl"),
        ({"vocab": None}, "text needs --vocab"),
        ({"masked_lm_prob": 1.5}, r"masked_lm_prob = 1\.5: it must be from 0 to 1"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq = 0"),
        (
            {"max_predictions_per_seq": 10**12},
            "max_predictions_per_seq = 1000000000000: it may not exceed max_length = 128",
        ),
        ({"max_length": 4}, "max_length is 4"),
    ],
)
def test_wrong_settings_are_named(
    text: Path, vocab: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    given = {"vocab": vocab, "out": "a.jsonl", **settings}
    with pytest.raises(ConfigError, match=message):
        write_google_instances([text], tmp_path / given.pop("out"), **given)
    assert not list(tmp_path.glob("a.*"))


def test_an_output_that_is_a_folder_or_lies_in_the_text_is_refused_and_links_stay(
    text: Path, vocab: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(TEXT)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ConfigError, match="the output is a file, this is a folder"):
        write_google_instances([text], tmp_path / "folder.jsonl", vocab=vocab)
    with pytest.raises(ConfigError, match=r"lies inside .*texts, which is read as text"):
        write_google_instances([tmp_path / "texts"], tmp_path / "texts" / "a.jsonl", vocab=vocab)
    (tmp_path / "link.jsonl").symlink_to("held.jsonl")
    write_google_instances([text], tmp_path / "link.jsonl", vocab=vocab)
    assert (tmp_path / "link.jsonl").is_symlink()
    assert rows(tmp_path / "held.jsonl")


def test_a_corpus_stands_alone(text: Path, vocab: Path, tmp_path: Path) -> None:
    build_corpus([text], tokenizer=Tokenizer.load(vocab), out=tmp_path / "corpus")
    with pytest.raises(ConfigError, match="is a corpus and must be the only source; 2 sources are given"):
        write_google_instances([tmp_path / "corpus", text], tmp_path / "a.jsonl", vocab=vocab)
    with pytest.raises(ConfigError, match="has a vocabulary of its own"):
        write_google_instances([tmp_path / "corpus"], tmp_path / "a.jsonl", vocab=vocab)
