"""Corpus statistics compared with counts by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from maskloom.data.corpus import statistics as statistics
from maskloom.data.corpus.building import CorpusSettings, build_corpus
from maskloom.data.corpus.opening import Corpus
from maskloom.data.corpus.statistics import corpus_statistics, repeated_sentences, unigram_entropy
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]))
# documents of 2, 1 and 1 sentences with 3 + 1, 2 and 4 tokens and a duplicate: five a, three b, two unknown
TEXT = "a a b\nb\n\na ?\n\na ! b a\n\na ?\n"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "a.txt").write_text(TEXT)
    build_corpus(
        tmp_path / "a.txt",
        tokenizer=TOKENIZER,
        out=tmp_path / "out",
        settings=CorpusSettings(sentences="lines", shard_tokens=1),
    )
    return Corpus.open(tmp_path / "out")


@pytest.mark.parametrize("block", [1 << 20, 1, 3])
def test_figures_are_those_counted_by_hand(corpus: Corpus, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_BLOCK", block)
    found = corpus_statistics(corpus)
    assert {name: found[name] for name in ("num_documents", "num_sentences", "num_tokens", "num_shards")} == {
        "num_documents": 3,
        "num_sentences": 4,
        "num_tokens": 10,
        "num_shards": 2,
    }
    assert found["num_duplicate_documents"] == 1
    assert (found["num_empty_documents"], found["num_skipped_documents"]) == (0, 0)
    assert found["unknown_rate"] == 0.2
    assert found["unigram_entropy"] == pytest.approx(-(0.5 * math.log(0.5) + 0.3 * math.log(0.3) + 0.2 * math.log(0.2)))
    assert (found["num_distinct_tokens"], found["vocabulary_size"]) == (3, 8)
    assert list(found["most_frequent_tokens"].items()) == [("a", 5), ("b", 3), ("[UNK]", 2)]
    lengths = found["tokens_per_sentence"]  # 1, 2, 3, 4
    assert (lengths["min"], lengths["max"], lengths["mean"]) == (1, 4, 2.5)
    assert (lengths["p25"], lengths["p50"], lengths["p75"], lengths["p95"]) == (1, 2, 3, 4)
    documents = found["tokens_per_document"]  # 2, 4, 4
    assert (documents["min"], documents["p50"], documents["max"]) == (2, 4, 4)
    assert documents["mean"] == pytest.approx(10 / 3)
    sentences = found["sentences_per_document"]  # 1, 1, 2
    assert (sentences["min"], sentences["p50"], sentences["max"]) == (1, 1, 2)
    files = [path for path in corpus.folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert found["num_bytes"] == sum(path.stat().st_size for path in files)


def test_entropy_of_known_distributions() -> None:
    assert unigram_entropy(np.array([0, 7, 0])) == 0
    assert unigram_entropy(np.array([2, 2, 0, 2, 2])) == pytest.approx(math.log(4))


@pytest.mark.parametrize("block", [1 << 20, 1, 3])
def test_a_sentence_repeats_another_if_the_same_tokens_are_in_the_same_order(
    memory_corpus, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_BLOCK", block)
    corpus = memory_corpus([[[5, 6], [6, 5], [7]], [[6, 5], [5], [5, 5], [6, 5]]])
    assert repeated_sentences(corpus) == (pytest.approx(2 / 7), 1, 3)
