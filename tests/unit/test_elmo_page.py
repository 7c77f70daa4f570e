"""The table of docs/ELMO.md, whose decreases follow from its scores, and the trigram model of ELMo's page."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "ELMO.md"


def test_relative_decreases_follow_from_the_scores():
    rows = re.findall(r"^\| .+ \| ([\d.]+) \| ([\d.]+) \| ([\d.]+)% \|$", PAGE.read_text("utf-8"), re.M)
    assert len(rows) == 6
    for baseline, with_elmo, told in rows:
        decrease = 100 * (float(with_elmo) - float(baseline)) / (100 - float(baseline))
        digits = len(told.partition(".")[2])
        assert f"{decrease:.{digits}f}" == told


def test_probabilities_of_the_trigram_add_up_to_one_in_seen_and_unseen_contexts(monkeypatch):
    monkeypatch.syspath_prepend(PAGE.parents[1] / "benchmarks")
    from elmo_tagging import trigram_perplexity

    train = np.random.default_rng(0).integers(0, 5, 60)
    for context in itertools.product(range(5), repeat=2):
        total = sum(1 / trigram_perplexity(train, np.array([*context, word])) for word in range(5))
        assert total == pytest.approx(1.0)


def test_the_trigram_is_that_of_kneser_and_ney(monkeypatch):
    monkeypatch.syspath_prepend(PAGE.parents[1] / "benchmarks")
    from elmo_tagging import trigram_perplexity

    train = np.array([0, 1, 2, 0, 1, 2, 2, 0, 1, 0])
    trigrams = [tuple(train[at : at + 3].tolist()) for at in range(len(train) - 2)]
    bigrams = {(second, third) for _, second, third in set(trigrams)}
    unigrams = [third for _, third in bigrams]
    least = 1 / 3
    one = (unigrams.count(2) - 0.75 + 0.75 * len(set(unigrams)) * least) / len(unigrams)
    after = [second for first, second, third in set(trigrams)].count(1)
    kinds = {third for _, second, third in trigrams if second == 1}
    pairs = len({(first, second, third) for first, second, third in trigrams if (second, third) == (1, 2)})
    two = (max(pairs - 0.75, 0) + 0.75 * len(kinds) * one) / after
    seen = [third for first, second, third in trigrams if (first, second) == (0, 1)]
    three = (seen.count(2) - 0.75 + 0.75 * len(set(seen)) * two) / len(seen)
    assert 1 / trigram_perplexity(train, np.array([0, 1, 2])) == pytest.approx(three)


def test_scores_at_a_small_scale_are_the_measured_ones():
    results = json.loads((PAGE.parents[1] / "results" / "elmo.json").read_text("utf-8"))["rows"]
    vectors, mix, joined = (100 * results[name]["mean"] for name in ("vectors", "mix", "joined"))
    told = " ".join(PAGE.read_text("utf-8").split())
    assert f"reaches {vectors:.1f} F1 on the named entities of CoNLL-2003 with word vectors alone" in told
    assert f"{mix:.1f} with ELMo's mix, and {joined:.1f} with both concatenated" in told
