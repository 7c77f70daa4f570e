"""The fast trainer against one that counts everything again after every merge."""

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.text import segmented_words
from maskloom.text.likelihood_queue import LikelihoodQueue
from maskloom.text.pair_merging import FrequencyQueue, Score, merge_pairs

WORDS = st.dictionaries(
    st.text("abc", min_size=1, max_size=9) | st.text("aé", min_size=1, max_size=6), st.integers(1, 9), min_size=1
)


def symbols_of(words: dict[str, int]) -> list[str]:
    inside = {char for word in words for char in word[1:]}
    return [*sorted({word[0] for word in words}), *(f"##{char}" for char in sorted(inside))]


def naive_merges(words: dict[str, int], *, num_symbols: int, score: Score, min_frequency: int) -> list[str]:
    """The definition: recount all pairs, take the best, the older symbols at a tie, replace from left to right."""
    found = symbols_of(words)
    cut = {word: [word[0], *(f"##{char}" for char in word[1:])] for word in words}
    while len(found) < num_symbols:
        pairs: Counter[tuple[str, str]] = Counter()
        singles: Counter[str] = Counter()
        for word, count in words.items():
            for pair in zip(cut[word], cut[word][1:], strict=False):
                pairs[pair] += count
            for symbol in cut[word]:
                singles[symbol] += count
        frequent = {pair: count for pair, count in pairs.items() if count >= min_frequency}
        if not frequent:
            break

        values: dict[tuple[str, str], float] = dict(frequent)
        if score == "likelihood":
            values = {(a, b): count / (float(singles[a]) * float(singles[b])) for (a, b), count in frequent.items()}
        ranks = {pair: (-value, found.index(pair[0]), found.index(pair[1])) for pair, value in values.items()}
        best = min(ranks, key=ranks.__getitem__)
        merged = best[0] + best[1].removeprefix("##")
        if merged not in found:
            found.append(merged)
        for word, symbols in cut.items():
            replaced: list[str] = []
            position = 0
            while position < len(symbols):
                is_pair = tuple(symbols[position : position + 2]) == best
                replaced.append(merged if is_pair else symbols[position])
                position += 2 if is_pair else 1
            cut[word] = replaced
    return found


def fast_merges(words: dict[str, int], *, num_symbols: int, score: Score, min_frequency: int) -> list[str]:
    ordered = sorted(words)
    return merge_pairs(
        ordered,
        [words[word] for word in ordered],
        symbols_of(words),
        num_symbols=num_symbols,
        score=score,
        min_frequency=min_frequency,
    )


@pytest.mark.parametrize("few", [0, 3, 1000])
@pytest.mark.parametrize("score", ["frequency", "likelihood"])
@given(words=WORDS, num_symbols=st.integers(1, 60), min_frequency=st.integers(1, 4))
@settings(deadline=None, max_examples=150)
def test_equal_to_recounting(
    score: Score, few: int, words: dict[str, int], num_symbols: int, min_frequency: int
) -> None:
    size = max(num_symbols, len(symbols_of(words)))
    expected = naive_merges(words, num_symbols=size, score=score, min_frequency=min_frequency)
    with mock.patch.object(segmented_words, "FEW", few):
        assert fast_merges(words, num_symbols=size, score=score, min_frequency=min_frequency) == expected


@pytest.mark.parametrize("score", ["frequency", "likelihood"])
def test_equal_to_recounting_on_larger_text(score: Score) -> None:
    rng = np.random.default_rng(3)
    letters = np.array(list("etaoinshrdlu"))
    words: Counter[str] = Counter()
    for length, count in zip(rng.integers(1, 12, 400), rng.integers(1, 50, 400), strict=True):
        words["".join(rng.choice(letters, length, p=np.arange(12, 0, -1) / 78))] += int(count)
    expected = naive_merges(words, num_symbols=180, score=score, min_frequency=2)
    assert fast_merges(words, num_symbols=180, score=score, min_frequency=2) == expected


def test_two_ways_to_a_string_are_one_symbol() -> None:
    words = {"abc": 10, "abd": 3, "xbc": 12, "xbcabc": 5}
    for score in ("frequency", "likelihood"):
        found = fast_merges(words, num_symbols=100, score=score, min_frequency=1)
        assert len(found) == len(set(found))
        assert set(words) <= set(found)


def test_counts_do_not_overflow_32_bits() -> None:
    words = {"ab": 3_000_000_000, "cd": 2_999_999_999, "ef": 5_000_000_000_000}
    assert fast_merges(words, num_symbols=8, score="frequency", min_frequency=2)[6:] == ["ef", "ab"]
    # each pair is all that its symbols do, so the rarest is the most telling
    assert fast_merges(words, num_symbols=8, score="likelihood", min_frequency=2)[6:] == ["cd", "ab"]


def test_queues_are_empty_when_nothing_is_frequent() -> None:
    assert FrequencyQueue({1: 1}, 2).best() is None
    assert FrequencyQueue({}, 1).best() is None
    assert LikelihoodQueue({1: 1}, [1, 1], 2).best() is None
    assert LikelihoodQueue({}, [], 1).best() is None
