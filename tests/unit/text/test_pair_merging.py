"""The fast trainer compared with one that recounts everything after every merge."""

import math
from collections import Counter
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.text import pair_merging
from maskloom.text.pair_merging import FrequencyQueue, Score, _log, merge_pairs

WORDS = st.dictionaries(
    st.text("abc", min_size=1, max_size=9) | st.text("aé", min_size=1, max_size=6), st.integers(1, 90), min_size=1
)


def symbols_of(words: dict[str, int]) -> list[str]:
    inside = {char for word in words for char in word[1:]}
    return [*sorted({word[0] for word in words}), *(f"##{char}" for char in sorted(inside))]


def replaced(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """Replace a pair from left to right."""
    found: list[str] = []
    position = 0
    while position < len(symbols):
        is_pair = tuple(symbols[position : position + 2]) == pair
        found.append(pair[0] + pair[1].removeprefix("##") if is_pair else symbols[position])
        position += 2 if is_pair else 1
    return found


def counted(cut: dict[str, list[str]], words: dict[str, int]) -> Counter[str]:
    singles: Counter[str] = Counter()
    for word, symbols in cut.items():
        for symbol in symbols:
            singles[symbol] += words[word]
    return singles


def log_likelihood(singles: Counter[str]) -> float:
    total = singles.total()
    return math.fsum(count * math.log(count / total) for count in singles.values() if count)


def naive_merges(words: dict[str, int], *, num_symbols: int, score: Score, min_frequency: int) -> list[str]:
    """The definition: recount all pairs, take the best (ties go to the older symbols), replace from left to right."""
    found = symbols_of(words)
    cut = {word: [word[0], *(f"##{char}" for char in word[1:])] for word in words}
    while len(found) < num_symbols:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in zip(cut[word], cut[word][1:], strict=False):
                pairs[pair] += count
        singles = counted(cut, words)
        values: dict[tuple[str, str], float] = {p: count for p, count in pairs.items() if count >= min_frequency}
        if score == "likelihood":
            # compute the gain by making the merge
            before = log_likelihood(singles)
            for pair in values:
                having = {word: symbols for word, symbols in cut.items() if pair in pairwise(symbols)}
                after = singles.copy()
                after.subtract(counted(having, words))
                after.update(counted({word: replaced(symbols, pair) for word, symbols in having.items()}, words))
                values[pair] = round((log_likelihood(after) - before) * 1024)
            values = {pair: value for pair, value in values.items() if value > 0}
        if not values:
            break
        ranks = {pair: (-value, found.index(pair[0]), found.index(pair[1])) for pair, value in values.items()}
        best = min(ranks, key=ranks.__getitem__)
        merged = best[0] + best[1].removeprefix("##")
        if merged not in found:
            found.append(merged)
        cut = {word: replaced(symbols, best) for word, symbols in cut.items()}
    return found


def fast_merges(words: dict[str, int], *, num_symbols: int, score: Score, min_frequency: int) -> list[str]:
    ordered = sorted(words)
    symbols, _ = merge_pairs(
        ordered,
        [words[word] for word in ordered],
        symbols_of(words),
        num_symbols=num_symbols,
        score=score,
        min_frequency=min_frequency,
    )
    return symbols


@pytest.mark.parametrize("few", [0, 3, 1000])
@pytest.mark.parametrize("score", ["frequency", "likelihood"])
@given(words=WORDS, num_symbols=st.integers(1, 60), min_frequency=st.integers(1, 4))
@settings(deadline=None, max_examples=35)
def test_equal_to_recounting(
    score: Score, few: int, words: dict[str, int], num_symbols: int, min_frequency: int
) -> None:
    size = max(num_symbols, len(symbols_of(words)))
    expected = naive_merges(words, num_symbols=size, score=score, min_frequency=min_frequency)
    with mock.patch.object(pair_merging, "_FEW", few):
        assert fast_merges(words, num_symbols=size, score=score, min_frequency=min_frequency) == expected


@pytest.mark.parametrize("score", ["frequency", "likelihood"])
def test_equal_to_recounting_on_larger_text(score: Score) -> None:
    rng = np.random.default_rng(3)
    letters = np.array(list("etaoinshrdlu"))
    words: Counter[str] = Counter()
    # the naive gain in likelihood requires the replacement, which is slow
    size, number = (40, 150) if score == "likelihood" else (120, 250)
    for length, count in zip(rng.integers(1, 12, number), rng.integers(1, 50, number), strict=True):
        words["".join(rng.choice(letters, length, p=np.arange(12, 0, -1) / 78))] += int(count)
    expected = naive_merges(words, num_symbols=size, score=score, min_frequency=2)
    assert fast_merges(words, num_symbols=size, score=score, min_frequency=2) == expected


def test_two_ways_to_a_string_are_one_symbol() -> None:
    words = {"abc": 10, "abd": 3, "xbc": 12, "xbcabc": 5}
    for score in ("frequency", "likelihood"):
        found = fast_merges(words, num_symbols=100, score=score, min_frequency=1)
        assert len(found) == len(set(found))
        assert set(words) <= set(found)


def test_likelihood_knows_the_symbol_that_a_second_way_leads_to() -> None:
    # ##bc is first created from ##b ##c; once ##bc exists, joining ##b ##c elsewhere has a different gain
    words = {"abcd": 50, "xbcxbc": 20, "abxc": 9, "bbcc": 7, "aaaa": 31, "aaa": 5, "xaab": 8}
    expected = naive_merges(words, num_symbols=60, score="likelihood", min_frequency=1)
    assert fast_merges(words, num_symbols=60, score="likelihood", min_frequency=1) == expected


def test_likelihood_stops_where_a_merge_gains_nothing() -> None:
    # ##b follows a less often than by chance, and every other pair is too rare to be merged
    words = {"a": 1000, "ab": 5, **{chr(0x4E00 + number) + "b": 4 for number in range(100)}}
    num_symbols = len(symbols_of(words)) + 1
    for score, num_merged in (("frequency", 1), ("likelihood", 0)):
        found = fast_merges(words, num_symbols=num_symbols, score=score, min_frequency=5)
        assert len(found) == num_symbols - 1 + num_merged


def test_counts_do_not_overflow_32_bits() -> None:
    words = {"ab": 3_000_000_000, "cd": 2_999_999_999, "ef": 5_000_000_000_000}
    assert fast_merges(words, num_symbols=8, score="frequency", min_frequency=2)[6:] == ["ef", "ab"]
    assert fast_merges(words, num_symbols=8, score="likelihood", min_frequency=2)[6:] == ["ef", "ab"]


def test_logarithms_of_basic_arithmetic_are_those_of_the_library() -> None:
    values = np.array([1.0, 1.0 + 2**-52, 1.5, 2.0, 3.0, 7.0, 1e3, 123_456_789.0, 2.0**53, 5e12])
    np.testing.assert_allclose(_log(values), np.log(values), rtol=4e-16, atol=0)


def test_queues_are_empty_when_nothing_is_frequent() -> None:
    assert FrequencyQueue({1: 1}, 2).best() is None
    assert FrequencyQueue({}, 1).best() is None
    assert fast_merges({"a": 3}, num_symbols=9, score="likelihood", min_frequency=1) == ["a"]
    assert fast_merges({"ab": 3}, num_symbols=9, score="likelihood", min_frequency=4) == ["a", "##b"]
