"""Files and scores of word vectors compared with gensim, if installed (it comes with the extra `bench`)."""

from pathlib import Path

import numpy as np
import pytest

from maskloom.text.word_vectors import Form, WordVectors, read_vectors, write_vectors
from maskloom.words.evaluation import analogy_scores, read_analogies, read_pairs, similarity_scores

gensim = pytest.importorskip("gensim.models")
pytestmark = pytest.mark.parity
WORDS = ["the", "Paris", "paris", "naïve", "1", *(f"w{number}" for number in range(60))]
MATRIX = np.random.default_rng(0).normal(size=(len(WORDS), 12)).astype(np.float32)


@pytest.fixture
def theirs() -> object:
    vectors = gensim.KeyedVectors(12)
    vectors.add_vectors(WORDS, MATRIX)
    return vectors


@pytest.mark.parametrize("form", ["binary", "text"])
def test_our_files_open_there_and_theirs_here(form: Form, theirs: object, tmp_path: Path) -> None:
    write_vectors(tmp_path / "ours", WORDS, MATRIX, form)
    found = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "ours"), binary=form == "binary")
    assert found.index_to_key == WORDS
    assert np.array_equal(found.vectors, MATRIX)
    theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=form == "binary")  # type: ignore[attr-defined]
    here = read_vectors(tmp_path / "theirs")
    assert here.words == WORDS
    assert np.array_equal(here.matrix, MATRIX)


def test_similarity_scores_are_equal(theirs: object, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    pairs = [(*draw.choice([*WORDS, "unknown", "THE"], 2, replace=False), draw.integers(0, 11)) for _ in range(80)]
    (tmp_path / "p.tsv").write_text("".join(f"{a}\t{b}\t{score}\n" for a, b, score in pairs))
    ours = similarity_scores(WordVectors(WORDS, MATRIX), read_pairs(tmp_path / "p.tsv"))
    pearson, spearman, unknown = theirs.evaluate_word_pairs(str(tmp_path / "p.tsv"))  # type: ignore[attr-defined]
    assert ours["pearson"] == pytest.approx(pearson.statistic, abs=1e-7)  # gensim computes cosines in fp32
    assert ours["spearman"] == pytest.approx(spearman.statistic, abs=1e-9)
    assert ours["unknown"] / ours["pairs"] * 100 == pytest.approx(unknown)


def test_analogies_are_equal(theirs: object, tmp_path: Path) -> None:
    vectors, draw = WordVectors(WORDS, MATRIX), np.random.default_rng(2)
    lines = []
    for _ in range(60):
        a, b, c = draw.choice(WORDS[5:], 3, replace=False)
        d = vectors.analogy(a, b, c, 2)[draw.integers(2)][0]
        lines.append(f"{a} {b} {c} {d}")
    (tmp_path / "q.txt").write_text(": one\n" + "\n".join(lines) + "\n: two\nw1 w2 w3 nobody\nPARIS w1 w2 w3\n")
    ours = analogy_scores(vectors, read_analogies(tmp_path / "q.txt"), 40)
    accuracy, sections = theirs.evaluate_word_analogies(str(tmp_path / "q.txt"), 40)  # type: ignore[attr-defined]
    assert 0.2 < ours["accuracy"] < 0.9
    assert ours["accuracy"] == pytest.approx(accuracy)
    assert ours["sections"]["one"]["right"] == len(sections[0]["correct"])
