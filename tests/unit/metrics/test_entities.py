import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.entity_scores import entity_scores

from maskloom.metrics.entities import EntityMetric, entities_of, is_tag

LABELS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC"))]
IOB_LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def spans_by_conlleval(tags):
    """Apply the chunk rules of the shared task's script, branch by branch, including the branches for E and S."""
    spans, begin, previous, previous_kind = [], None, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        ends = previous != "O" and (
            previous in "ES" or prefix in ("B", "S", "O") or (prefix != "O" and kind != previous_kind)
        )
        starts = prefix != "O" and (prefix in "BS" or previous in ("O", "E", "S") or kind != previous_kind)
        if ends:
            spans.append((previous_kind, begin, place))
        if starts:
            begin = place
        previous, previous_kind = prefix, kind
    return spans


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("I-PER I-PER O I-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("I-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("O I-PER B-LOC O", [("PER", 1, 2), ("LOC", 2, 3)]),
        ("B-PER E-PER S-PER I-PER", [("PER", 0, 2), ("PER", 2, 3), ("PER", 3, 4)]),
        ("E-PER E-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER L-PER U-LOC", [("PER", 0, 2), ("LOC", 2, 3)]),
        ("B-a-b I-a-b", [("a-b", 0, 2)]),
        ("O O", []),
    ],
)
def test_entities_of_ill_and_well_formed_tags(tags, expected):
    assert entities_of(tags.split()) == expected


def test_every_short_sequence_agrees_with_the_script_s_branches():
    for length in (1, 2, 3):
        for tags in itertools.product(LABELS, repeat=length):
            assert entities_of(tags) == spans_by_conlleval(tags), tags


@pytest.mark.parametrize(
    ("scheme", "tags", "expected"),
    [
        ("iob2", "I-PER I-PER O B-PER I-PER I-LOC", [("PER", 3, 5)]),
        ("bioes", "B-PER I-PER O S-LOC E-LOC B-LOC E-LOC B-PER", [("LOC", 3, 4), ("LOC", 5, 7)]),
        ("bioes", "E-PER", []),
        ("bilou", "U-PER B-PER L-PER L-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("iob1", "I-PER B-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
    ],
)
def test_strict_entities_are_whole_in_their_scheme(scheme, tags, expected):
    assert entities_of(tags.split(), strict=scheme) == expected


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        ("O B-PER I-PER B-LOC I-LOC", "iob2"),
        ("O B-PER B-LOC I-LOC", "iob2"),
        ("O I-PER B-LOC I-LOC", "iob1"),
        ("O I-PER I-LOC", "io"),
        ("O B-PER I-PER E-PER S-PER", "bioes"),
        ("O B-PER I-PER L-PER U-PER", "bilou"),
    ],
)
def test_labels_imply_a_scheme_in_which_no_entity_is_lost(labels, scheme):
    """A type without B- begins with I-; models of CoNLL-2003's own tags lack B-PER, which never occurs there."""
    names = labels.split()
    metric = EntityMetric(names)
    assert metric.scheme == scheme
    metric.update([np.array([0, 1, 0])], np.array([0, 1, 0]))
    whole = {"io", "iob1", "iob2"}
    assert metric.compute()["strict_f1"] == (1.0 if scheme in whole else 0.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("O", True), ("B-PER", True), ("U-x-y", True), ("o", False), ("B-", False), ("B", False), ("X-PER", False)],
)
def test_form_of_a_tag(text, expected):
    assert is_tag(text) is expected
    if not expected:
        with pytest.raises(ValueError, match="neither O nor"):
            EntityMetric(["O", text])


def test_scores_of_a_case_counted_by_hand():
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    predicted = [["B-PER", "I-PER", "O", "I-LOC"], ["B-PER", "O"]]
    scores = entity_scores(predicted, true)
    assert scores["precision"] == pytest.approx(2 / 3)
    assert scores["recall"] == pytest.approx(2 / 3)
    assert scores["f1"] == pytest.approx(2 / 3)
    assert (scores["strict_precision"], scores["strict_recall"]) == (pytest.approx(1 / 2), pytest.approx(1 / 3))
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert (scores["f1_PER"], scores["precision_PER"], scores["recall_PER"]) == (pytest.approx(2 / 3), 0.5, 1.0)
    assert (scores["precision_LOC"], scores["recall_LOC"]) == (1.0, 0.5)


def test_sentences_never_merge():
    joined = entity_scores([["B-PER", "I-PER"]], [["B-PER", "O"]])
    apart = entity_scores([["B-PER"], ["I-PER"]], [["B-PER"], ["O"]])
    assert (joined["precision"], joined["recall"]) == (0.0, 0.0)  # one entity, one word too long
    assert (apart["precision"], apart["recall"]) == (0.5, 1.0)  # two entities, the second one wrong


@settings(max_examples=30)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8), min_size=1, max_size=12
    ),
    st.integers(1, 5),
)
def test_pieces_sum_to_the_whole(sentences, size):
    sides = [[np.array([pair[side] for pair in words]) for words in sentences] for side in (0, 1)]
    whole, pieces = EntityMetric(IOB_LABELS), EntityMetric(IOB_LABELS)
    whole.update(sides[0], np.concatenate(sides[1]))
    for first in range(0, len(sentences), size):
        pieces.update(sides[0][first : first + size], np.concatenate(sides[1][first : first + size]))
    assert whole.compute() == pieces.compute()
    assert all(0.0 <= score <= 1.0 for score in whole.compute().values())


def test_nothing_predicted_scores_zero_and_is_called_degenerate():
    metric = EntityMetric(IOB_LABELS)
    metric.update([np.zeros(3, int)], np.array([1, 2, 0]))
    assert metric.compute()["f1"] == 0.0
    assert metric.reference() == 0.0
    assert metric.degeneracy() == "no entity is ever predicted: train longer, or with a higher learning rate"


def test_one_tag_for_all_words_is_called_degenerate_and_a_mixture_is_not():
    metric = EntityMetric(IOB_LABELS, primary="accuracy")
    metric.update([np.full(4, 1)], np.array([1, 2, 0, 0]))
    assert metric.degeneracy() == "every word gets the tag B-PER"
    assert metric.reference() == 0.5
    metric.update([np.array([0])], np.array([0]))
    assert metric.degeneracy() is None


def test_wrong_input_is_refused():
    metric = EntityMetric(IOB_LABELS)
    with pytest.raises(ValueError, match="3 words predicted, 2 true"):
        metric.update([np.array([1, 2]), np.array([2])], np.array([1, 2]))
    with pytest.raises(ValueError, match="a prediction lies outside the labels 0 to 4"):
        metric.update([np.array([0, 5])], np.array([0, 0]))
    with pytest.raises(ValueError, match="a target lies outside"):
        metric.update([np.array([0, 0])], np.array([0, -100]))
    with pytest.raises(ValueError, match="no words"):
        metric.compute()
    with pytest.raises(ValueError, match="is not one of"):
        EntityMetric(IOB_LABELS, primary="matthews")
