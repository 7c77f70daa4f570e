import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.metrics.entities import Entity, entities_of
from maskloom.tasks.tagging.schemes import (
    SCHEMES,
    FormFinder,
    breach_of,
    forbidden_pairs,
    tag_names,
    tags_of,
)

ALL_PAIRS = list(itertools.product(SCHEMES, repeat=2))


@st.composite
def entities(draw, apart=False):
    """Draw the entities of one sentence, adjacent ones allowed unless `apart`, and its number of words."""
    found, place = [], draw(st.integers(0, 2))
    for length, gap, kind in draw(
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.sampled_from(["PER", "LOC", "a-b"])), max_size=6)
    ):
        found.append(Entity(kind, place, place + length))
        place += length + max(gap, int(apart))
    return found, place


@settings(max_examples=40)
@given(case=entities(apart=True))
def test_every_scheme_converts_to_every_other_and_back(case):
    found, num_words = case
    for source, target in ALL_PAIRS:
        tags = tags_of(found, num_words, source)
        there = tags_of(entities_of(tags), num_words, target)
        assert entities_of(there) == found, (source, target)
        assert breach_of(there, target) is None, (source, target)
        assert tags_of(entities_of(there), num_words, source) == tags, (source, target)


@settings(max_examples=40)
@given(case=entities())
def test_neighbours_of_one_type_stay_apart(case):
    found, num_words = case
    for source, target in [pair for pair in ALL_PAIRS if "io" not in pair]:
        tags = tags_of(entities_of(tags_of(found, num_words, source)), num_words, target)
        assert entities_of(tags, strict=target) == found, (source, target)
        assert tags == tags_of(found, num_words, target), (source, target)


def test_io_joins_neighbours_of_one_type():
    assert tags_of(entities_of(["B-PER", "B-PER", "B-LOC"]), 3, "io") == ["I-PER", "I-PER", "I-LOC"]


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("io", "I-PER I-PER I-PER I-LOC O I-PER"),
        ("iob1", "I-PER I-PER B-PER I-LOC O I-PER"),
        ("iob2", "B-PER I-PER B-PER B-LOC O B-PER"),
        ("bioes", "B-PER E-PER S-PER S-LOC O S-PER"),
        ("bilou", "B-PER L-PER U-PER U-LOC O U-PER"),
    ],
)
def test_tags_of_one_sentence(scheme, expected):
    found = [Entity("PER", 0, 2), Entity("PER", 2, 3), Entity("LOC", 3, 4), Entity("PER", 5, 6)]
    assert tags_of(found, 6, scheme) == expected.split()


@pytest.mark.parametrize(
    ("scheme", "tags", "place", "rule"),
    [
        ("iob2", "O I-PER", 1, "in IOB2 an entity begins with B-, so I-PER cannot follow O"),
        ("iob2", "B-LOC I-PER", 1, "I-PER cannot follow B-LOC"),
        ("iob2", "E-PER", 0, "IOB2 has the prefixes B-, I-, but no E-"),
        ("io", "O B-PER", 1, "IO has the prefixes I-, but no B-"),
        ("bioes", "B-PER O", 1, "the entity of B-PER continues until E-PER, but O does not"),
        ("bioes", "B-PER I-PER", 1, "(the sentence ends here)"),
        ("bioes", "B-PER E-LOC", 1, "E-LOC does not continue it"),
        ("bioes", "S-PER E-PER", 1, "E-PER cannot follow S-PER"),
        ("bioes", "E-PER", 0, "cannot follow O"),
        ("bilou", "B-PER L-PER I-PER", 2, "in BILOU an entity begins with B-, so I-PER cannot follow L-PER"),
        ("iob1", "S-PER", 0, "no S-"),
    ],
)
def test_the_first_breach_is_named_with_its_rule(scheme, tags, place, rule):
    breach = breach_of(tags.split(), scheme)
    assert breach is not None
    assert breach[0] == place
    assert rule in breach[1]


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (["O O"], "iob2"),
        (["B-PER I-PER O", "B-LOC B-LOC"], "iob2"),
        (["I-PER I-PER O"], "iob1"),
        (["I-PER B-PER O"], "iob1"),
        (["O S-PER"], "bioes"),
        (["B-PER E-PER"], "bioes"),
        (["B-PER L-PER"], "bilou"),
        (["U-PER O B-PER I-PER L-PER"], "bilou"),
        # a single mistake does not change the detected scheme
        (["B-PER I-PER", "B-LOC O B-LOC", "O I-PER"], "iob2"),
        (["I-PER I-PER O I-LOC", "O B-PER", "I-PER B-PER"], "iob1"),
        (["B-PER E-PER", "S-PER O S-PER", "B-PER O"], "bioes"),
    ],
)
def test_schemes_are_told_apart(sentences, expected):
    finder = FormFinder(Path("a"), allows_both=False)
    for tags in sentences:
        finder.add(tags.split(), lambda word: word)
    assert finder.form() == expected


@settings(max_examples=50)
@given(st.lists(entities(), min_size=1, max_size=5), st.sampled_from(["iob1", "iob2", "bioes", "bilou"]))
def test_a_scheme_that_is_found_says_what_was_meant(cases, scheme):
    finder = FormFinder(Path("a"), allows_both=False)
    for found, num_words in cases:
        finder.add(tags_of(found, num_words, scheme), lambda word: word)
    for found, num_words in cases:
        assert entities_of(tags_of(found, num_words, scheme)) == found
        assert breach_of(tags_of(found, num_words, scheme), finder.form()) is None


def test_tag_names_are_whole_whatever_training_held():
    assert tag_names(["PER", "LOC", "PER"], "iob2") == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert tag_names(["X"], "bioes") == ("O", "B-X", "I-X", "E-X", "S-X")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_forbidden_pairs_are_all_that_a_scheme_does_not_allow(scheme):
    tags = tag_names(["X", "Y"], scheme)
    forbidden = forbidden_pairs(tags, scheme)
    for length in (1, 2, 3):
        for places in itertools.product(range(len(tags)), repeat=length):
            is_refused = any(pair in forbidden for pair in itertools.pairwise([-1, *places, -1]))
            assert is_refused == (breach_of([tags[place] for place in places], scheme) is not None)


def test_forbidden_pairs_of_one_type():
    # O, B-X, I-X: only I-X is forbidden, at the start and after O
    assert forbidden_pairs(("O", "B-X", "I-X"), "iob2") == ((-1, 2), (0, 2))
