"""The size of a corpus estimated from samples, compared with its actual size."""

import gzip
import json
import random
from pathlib import Path

import pytest

from maskloom.data.corpus.building import CorpusSettings, build_corpus
from maskloom.data.corpus.documents import source_files
from maskloom.data.corpus.estimate import estimated_corpus
from maskloom.data.corpus.sentence_encoding import SentenceEncoder
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = [first + second + "o" for first in "bdfgklmnprst" for second in "aeiou"]
TOKENIZER = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]))


def text(num_sentences: int, seed: int) -> str:
    rng = random.Random(seed)
    return "\n".join(" ".join(rng.choices(WORDS, k=9)) + " ." for _ in range(num_sentences))


@pytest.mark.parametrize("kind", ["txt", "txt.gz", "jsonl", "jsonl.gz"])
def test_sizes_are_foreseen(tmp_path: Path, kind: str) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(12):
        # half of each row is other fields
        content = text(200 + 400 * (number % 2), number)
        if "jsonl" in kind:
            content = "".join(
                json.dumps({"text": line, "other": "x" * len(line)}) + "\n" for line in content.split("\n")
            )
        packed = gzip.compress(content.encode()) if "gz" in kind else content.encode()
        (tmp_path / "texts" / f"{number}.{kind}").write_bytes(packed)
    files = source_files(tmp_path / "texts")
    found = estimated_corpus(files, SentenceEncoder(TOKENIZER, sentences="lines"))
    assert found is not None
    manifest = build_corpus(
        tmp_path / "texts", tokenizer=TOKENIZER, out=tmp_path / "out", settings=CorpusSettings(sentences="lines")
    )
    assert found.num_tokens == pytest.approx(manifest["num_tokens"], rel=0.1)
    assert found.num_sentences == pytest.approx(manifest["num_sentences"], rel=0.1)
    names = ("sentence_lengths.bin", "sentence_offsets.bin", *(shard["file"] for shard in manifest["shards"]))
    written = sum(manifest["files"][name]["num_bytes"] for name in names)
    assert found.num_bytes == pytest.approx(written, rel=0.1)


def test_rows_longer_than_a_sample_are_foreseen(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    path.write_text(json.dumps({"text": text(60_000, 0)}) + "\n")
    assert path.stat().st_size > 2 << 20
    found = estimated_corpus(source_files(path), SentenceEncoder(TOKENIZER, sentences="lines"))
    assert found is not None
    assert (found.num_tokens, found.num_sentences) == pytest.approx((600_000, 60_000), rel=0.02)


def test_nothing_is_foreseen_of_no_text(tmp_path: Path) -> None:
    encoder = SentenceEncoder(TOKENIZER, sentences="split")
    (tmp_path / "a.txt").write_text("")
    assert estimated_corpus(source_files(tmp_path / "a.txt"), encoder) is None
    (tmp_path / "b.jsonl").write_text("not JSON\n{}\n[1]\n")
    found = estimated_corpus(source_files(tmp_path / "b.jsonl"), encoder)
    assert found is not None
    assert found == (0, 0, 0)
