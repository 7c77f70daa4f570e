"""Scores of hand-made vectors, and the formats of pair and question files."""

from pathlib import Path

import numpy as np
import pytest

from maskloom.cli.words import evaluation_lines
from maskloom.errors import DataError
from maskloom.text.word_vectors import WordVectors
from maskloom.words.evaluation import Triple, analogy_scores, read_analogies, read_pairs, similarity_scores

VECTORS = WordVectors(
    ["man", "Woman", "king", "queen", "apple"],
    np.array([[1, 0, 0], [1, 2, 0], [1, 0, 2], [1, 2, 2], [-3, 0.1, 0]], np.float32),
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", ",word1,word2,similarity\n0,sun-n,light-n,5\n1,big-j,dog-n,1.5\n"),
        ("a.csv", ",word1,word2,similarity\n0,sun,light,5\n1,big,dog,1.5\n2,,,\n"),
        ("a.csv", "word1,word2,score\nsun,light,5\nbig,dog,1.5\n"),
        ("a.csv", "Word 1,Word 2,Human (mean)\nsun,light,5\nbig,dog,1.5\n"),
        ("a.txt", "Word 1 Word 2 Human (mean)\nsun light 5\nbig dog 1.5\n"),
        ("a.tsv", "# a comment\nsun\tlight\t5\nbig\tdog\t1.5\n"),
        ("a.txt", "sun light 5\n\nbig dog 1.5\n"),
        ("a.csv", "sun,light,5,N\n,,,\nbig,dog,1.5,A\n"),
    ],
)
def test_pairs_are_read(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert read_pairs(tmp_path / name) == [("sun", "light", 5.0), ("big", "dog", 1.5)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "word1,word2,similarity\na,b,1\nc,d,\n",
            r"a.csv: line 3: expected two words and a number, got 'c d '",
        ),
        ("a.csv", "word1,word2,rank\na,b,1\n", "no score column"),
        ("a.txt", "a b 1\na b\n", "line 2: expected two words"),
        ("a.txt", "word1 word2 score\n", "no word pairs"),
        ("a.txt", "a b x\nc d 1\n", "line 1: expected two words and a number, got 'a b x'"),
        ("a.csv", "a,b,meaning\nc,d,1\n", "line 1: expected two words and a number, got 'a b meaning'"),
        ("a.txt", "a b\nc d 1\n", "line 1: expected two words and a number"),
        ("a.csv", "a,b,\nc,d,1\n", "line 1: expected two words and a number"),
        ("a.csv", "word1,word2,score,rater\na,b,1,x\n,,,x\n", "line 3: expected two words and a number"),
        ("a.csv", "word1,word2,score\n,b,1\n", "line 2: expected two words and a number"),
        ("a.jsonl", '{"word1": "a", "word2": "b", "score": 1}\n', r"a.jsonl: word pairs .* not from .jsonl"),
    ],
)
def test_bad_pairs_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_pairs(tmp_path / name)


def test_similarity_skips_and_counts_unknown_pairs() -> None:
    pairs = [("man", "woman", 3.0), ("KING", "queen", 4.0), ("man", "apple", 1.0), ("man", "pear", 9.0)]
    found = similarity_scores(VECTORS, pairs)
    assert (found["pairs"], found["unknown"], found["spearman"]) == (4, 1, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([("man", "pear", 9.0), ("man", "king", 1.0)], "a correlation needs two pairs of known words"),
        ([("man", "king", 2.0), ("man", "apple", 2.0)], "the scores of all 2 pairs of known words are equal"),
        ([("man", "king", 2.0), ("king", "man", 3.0)], "the cosines of all 2 pairs of known words are equal"),
    ],
)
def test_a_correlation_that_is_absent_says_why(pairs: list[Triple], why: str) -> None:
    found = similarity_scores(VECTORS, pairs)
    assert (found["spearman"], found["pearson"], found["no_correlation"]) == (None, None, why)


def test_analogies_are_counted_by_section(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_text(
        ": family\nman woman king queen\nman king woman queen\n: fruit\nman king apple pear\nman man man man\n"
    )
    found = analogy_scores(VECTORS, read_analogies(path), 30_000)
    assert found["sections"]["family"] == {"right": 2, "asked": 2}
    assert (found["questions"], found["skipped"]) == (4, 1)
    assert found["accuracy"] == pytest.approx(2 / 3)  # an answer is never one of the three words
    assert analogy_scores(VECTORS, read_analogies(path), 3)["skipped"] == 3
    path.write_text("a b c\n")
    with pytest.raises(DataError, match="line 1: expected four words"):
        read_analogies(path)


def drawn(seed: int) -> tuple[WordVectors, dict[str, np.ndarray]]:
    """Return random vectors, and their directions by lower-cased word: the first form of a word counts."""
    names = ["the", "Paris", "paris", *(f"w{number}" for number in range(40))]
    matrix = np.random.default_rng(seed).normal(size=(len(names), 9))
    units: dict[str, np.ndarray] = {}
    for name, row in zip(names, matrix.astype(np.float32).astype(np.float64), strict=True):
        units.setdefault(name.lower(), row / np.linalg.norm(row))
    return WordVectors(names, matrix.astype(np.float32)), units


def test_correlations_are_those_of_a_loop_over_pairs() -> None:
    vectors, units = drawn(0)
    draw = np.random.default_rng(1)
    words = [*vectors.words, "THE", "unknown"]
    pairs = [(*map(str, draw.choice(words, 2, replace=False)), float(draw.integers(0, 11))) for _ in range(80)]
    found = similarity_scores(vectors, pairs)
    known = [(units[a.lower()] @ units[b.lower()], score) for a, b, score in pairs if "unknown" not in (a, b)]
    cosines, scores = map(np.array, zip(*known, strict=True))
    sides = cosines, scores
    ranks = [np.array([(side < value).sum() + (side == value).sum() / 2 for value in side]) for side in sides]
    assert (found["pairs"], found["unknown"]) == (80, 80 - len(known))
    assert found["unknown"] > 0
    assert found["pearson"] == pytest.approx(np.corrcoef(cosines, scores)[0, 1], abs=1e-7)  # ours has fp32 cosines
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-9)


def test_analogies_are_those_of_a_loop_over_words() -> None:
    vectors, units = drawn(2)
    draw, most, right = np.random.default_rng(3), 30, 0
    among = {word.lower(): units[word.lower()] for word in vectors.words[:most]}
    questions = []
    for _ in range(60):
        a, b, c = map(str, draw.choice([*among], 3, replace=False))
        wanted = units[b] - units[a] + units[c]
        best, second = sorted({*among} - {a, b, c}, key=lambda word: -(among[word] @ wanted))[:2]
        is_best = bool(draw.integers(2))
        questions.append([a.upper(), b, c, best if is_best else second])
        right += is_best
    found = analogy_scores(vectors, {"one": questions, "two": [["w0", "w1", "w2", "w39"]]}, most)
    assert 20 < right < 40
    assert (found["right"], found["accuracy"], found["skipped"]) == (right, right / 60, 1)


def test_sections_are_told_in_one_line_each_if_questions_were_asked():
    sections = {"family": {"right": 2, "asked": 30}, "currency": {"right": 0, "asked": 0}}
    analogies = {"num_questions": 9, "num_right": 2, "accuracy": 0.5, "sections": sections}
    lines = evaluation_lines({"men.csv": {"num_pairs": 3, "spearman": 0.5}, "questions.txt": analogies})
    assert lines[:3] == ["men.csv:", "  pairs     3", "  spearman  0.5"]
    assert lines[-2:] == ["  sections:", "    family  2 of 30"]
