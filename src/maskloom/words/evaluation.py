"""Score word vectors as gensim does: word similarity against human judgement, and analogies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from maskloom.errors import DataError
from maskloom.tasks.tables import layout_of, read_rows
from maskloom.text.word_vectors import WordVectors

Triple = tuple[str, str, float]
# The part-of-speech suffix of each word in the MEN data set: sun-n.
_PART_OF_SPEECH = re.compile(".-[nvja]$")
_SCORES = ("similarity", "simlex999", "score", "mean", "rating")
_QUESTIONS_AT_ONCE = 256


def read_pairs(path: Path) -> list[Triple]:
    """Read two words and a score per row: .csv or .tsv columns named word1, word2 and similarity, or the first three.

    A .txt file has three fields separated by white space. A first row that names a score, such as "Human (mean)", is a
    header. If every word ends in its part of speech, as in MEN, the suffix is removed. Raises DataError for .jsonl,
    and, with the line number, for a row that is not two words and a score.
    """
    layout = layout_of(path)
    if layout == "jsonl":
        raise DataError(f"{path}: word pairs are read from .csv, .tsv and .txt, not from {path.suffix}")
    rows = [([*map(str, row.fields)], row.line) for row in read_rows(path, layout)]
    rows = [(fields[0].split() if layout == "text" else fields, line) for fields, line in rows]
    rows = [(fields, line) for fields, line in rows if "".join(fields).strip() and not fields[0].startswith("#")]
    names = [name.strip().lower() for name in rows[0][0]] if rows else []
    places = [0, 1, 2]
    if {"word1", "word2"} <= {*names}:
        score = next((name for name in _SCORES if name in names), None)
        if score is None:
            raise DataError(f"{path}: line 1: no score column, such as similarity, among {', '.join(names)}")
        places = [names.index(name) for name in ("word1", "word2", score)]
        # a row may have only its number, in a column without a name
        rows = [row for row in rows[1:] if any(cell.strip() for cell, name in zip(row[0], names, strict=False) if name)]
    elif {*re.findall(r"\w+", " ".join(names[2:]))} & {*_SCORES} and not _is_score(names[2]):
        rows = rows[1:]
    triples = [_triple(f"{path}: line {line}", fields, places) for fields, line in rows]
    if not triples:
        raise DataError(f"{path}: no word pairs")
    if all(_PART_OF_SPEECH.search(word) for triple in triples for word in triple[:2]):
        return [(first[:-2], second[:-2], score) for first, second, score in triples]
    return triples


def _is_score(field: str) -> bool:
    try:
        return bool(np.isfinite(float(field)))
    except ValueError:
        return False


def _triple(place: str, fields: list[str], places: list[int]) -> Triple:
    fields = [field.strip() for field in fields]
    if max(places) >= len(fields) or not (fields[places[0]] and fields[places[1]] and _is_score(fields[places[2]])):
        raise DataError(f"{place}: expected two words and a number, got {' '.join(fields)!r:.80}")
    return fields[places[0]], fields[places[1]], float(fields[places[2]])


def similarity_scores(vectors: WordVectors, pairs: list[Triple]) -> dict[str, Any]:
    """Return the Spearman and Pearson correlations of cosines with scores, excluding pairs with unknown words.

    Case is ignored: a word stands for the first of its forms in the vocabulary, the most frequent one. If all scores or
    all cosines are equal there is no correlation, and `no_correlation` says why.
    """
    folded = _folded(vectors, len(vectors.words))
    found = [(folded.get(a.lower()), folded.get(b.lower()), score) for a, b, score in pairs]
    known = [(a, b, score) for a, b, score in found if a is not None and b is not None]
    from scipy.stats import pearsonr, spearmanr  # 60 MiB that training does not need

    result: dict[str, Any] = {"pairs": len(pairs), "unknown": len(pairs) - len(known)}
    first, second, scores = np.array(known).reshape(-1, 3).T
    rows = [vectors.directions[side.astype(int)] for side in (first, second)]
    cosines = np.einsum("ij,ij->i", *rows).astype(float)
    for name, values in (("scores", scores), ("cosines", cosines)):
        if len({*values.tolist()}) < 2:
            same = f"the {name} of all {len(known):,} pairs of known words are equal"
            why = same if len(known) > 1 else "a correlation needs two pairs of known words"
            return {**result, "spearman": None, "pearson": None, "no_correlation": why}
    of_ranks: Any = spearmanr(scores, cosines)
    of_values: Any = pearsonr(scores, cosines)
    return {**result, "spearman": float(of_ranks.statistic), "pearson": float(of_values.statistic)}


def _folded(vectors: WordVectors, most: int) -> dict[str, int]:
    """Map lower-cased words to rows among the first `most` words; the first of a word's forms counts."""
    folded: dict[str, int] = {}
    for place, word in enumerate(vectors.words[:most]):
        folded.setdefault(word.lower(), place)
    return folded


def read_analogies(path: Path) -> dict[str, list[list[str]]]:
    """Read questions of four words per line, by section, begun by `: name`; raises DataError for any other line."""
    sections: dict[str, list[list[str]]] = {}
    name = path.stem
    for row in read_rows(path, "text"):
        line = " ".join(map(str, row.fields))
        words = line.split()
        if line.startswith(":"):
            name = line[1:].strip()
        elif words:
            if len(words) != 4:
                raise DataError(f"{path}: line {row.line}: expected four words, got {line!r:.80}")
            sections.setdefault(name, []).append(words)
    if not sections:
        raise DataError(f"{path}: no questions")
    return sections


def analogy_scores(vectors: WordVectors, sections: dict[str, list[list[str]]], most: int) -> dict[str, Any]:
    """Return how many questions a : b = c : d are answered correctly, in total and by section.

    The answer is the word nearest to b - a + c (3CosAdd) among the first `most` words, excluding a, b and c; case is
    ignored. Questions with a word outside the first `most` are skipped.
    """
    folded = _folded(vectors, most)
    by_section, right, asked = {}, 0, 0
    for name, questions in sections.items():
        found = [[folded.get(word.lower(), -1) for word in question] for question in questions]
        rows = np.array([question for question in found if min(question) >= 0]).reshape(-1, 4)
        num_right = sum(_right(vectors, rows, folded, min(most, len(vectors.words))))
        by_section[name] = {"right": num_right, "asked": len(rows)}
        right, asked = right + num_right, asked + len(rows)
    total = sum(map(len, sections.values()))
    return {
        "questions": total,
        "skipped": total - asked,
        "right": right,
        "accuracy": right / asked if asked else None,
        "sections": by_section,
    }


def _right(vectors: WordVectors, rows: np.ndarray, folded: dict[str, int], most: int) -> Iterator[int]:
    directions = vectors.directions[:most]
    first_form = np.array([folded[word.lower()] for word in vectors.words[:most]])
    for start in range(0, len(rows), _QUESTIONS_AT_ONCE):
        part = rows[start : start + _QUESTIONS_AT_ONCE]
        a, b, c, d = part.T
        cosines = (directions[b] - directions[a] + directions[c]) @ directions.T
        for asked in (a, b, c):
            cosines[first_form == asked[:, None]] = -np.inf
        yield int((first_form[cosines.argmax(1)] == d).sum())
