import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.tasks.tagging.encoding import plan_windows


def starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@st.composite
def files(draw):
    """Draw word piece counts by document and sentence: mostly one piece, sometimes many."""
    word = st.sampled_from([1, 1, 1, 2, 3, 9, 40])
    sentence = st.lists(word, min_size=1, max_size=draw(st.sampled_from([3, 12, 60])))
    return draw(st.lists(st.lists(sentence, min_size=1, max_size=8), min_size=1, max_size=3))


def arrays(documents):
    sentences = [sentence for document in documents for sentence in document]
    numbers = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    return starts([n for s in sentences for n in s]), starts([len(s) for s in sentences]), numbers


@settings(max_examples=60)
@given(files(), st.integers(1, 40), st.sampled_from(["sentence", "document"]))
def test_every_word_is_scored_once_where_its_first_piece_is_seen(documents, room, context):
    word_starts, sentence_starts, numbers = arrays(documents)
    windows = plan_windows(word_starts, sentence_starts, numbers, room, context)
    first, end, first_word, end_word = windows.T
    assert np.concatenate([np.arange(a, b) for a, b in zip(first_word, end_word, strict=True)]).tolist() == list(
        range(len(word_starts) - 1)
    )
    assert (end - first <= room).all()
    assert (end_word > first_word).all()
    assert (first <= word_starts[first_word]).all()
    assert (word_starts[end_word - 1] < end).all()


@settings(max_examples=60)
@given(files(), st.integers(1, 40), st.sampled_from(["sentence", "document"]))
def test_no_window_reaches_over_the_end_of_its_sentence_or_document(documents, room, context):
    word_starts, sentence_starts, numbers = arrays(documents)
    changes = np.flatnonzero(np.diff(numbers)) + 1
    bounds = sentence_starts if context == "sentence" else sentence_starts[[0, *changes, len(numbers)]]
    for first, end, first_word, _ in plan_windows(word_starts, sentence_starts, numbers, room, context).tolist():
        part = int(np.searchsorted(bounds, first_word, side="right")) - 1
        low, high = word_starts[bounds[part]], word_starts[bounds[part + 1]]
        assert low <= first
        assert end <= high
        assert end - first == min(room, high - low)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([1, 1, 2, 5]), min_size=1, max_size=80), st.integers(1, 30))
def test_each_word_of_a_long_sentence_is_scored_where_its_context_is_largest(words, room):
    word_starts = starts(words)
    windows = plan_windows(word_starts, np.array([0, len(words)]), np.zeros(1, int), room, "sentence")
    # the plan omits windows in which no word begins, since they have nothing to score
    for first, end, first_word, end_word in windows.tolist():
        for place in word_starts[first_word:end_word].tolist():
            inside = windows[(windows[:, 0] <= place) & (place < windows[:, 1])]
            best = np.minimum(place - inside[:, 0], inside[:, 1] - 1 - place).max()
            assert min(place - first, end - 1 - place) == best


def test_a_long_sentence_is_split_at_the_middle_of_the_overlap():
    windows = plan_windows(np.arange(13), np.array([0, 12]), np.zeros(1, int), 8, "sentence")
    assert windows.tolist() == [[0, 8, 0, 6], [4, 12, 6, 12]]


def test_a_short_document_is_one_window_and_sentences_alone_are_many():
    word_starts, sentence_starts, numbers = arrays([[[1, 1], [2]], [[1]]])
    in_documents = plan_windows(word_starts, sentence_starts, numbers, 10, "document")
    assert in_documents.tolist() == [[0, 4, 0, 3], [4, 5, 3, 4]]
    alone = plan_windows(word_starts, sentence_starts, numbers, 10, "sentence")
    assert alone.tolist() == [[0, 2, 0, 2], [2, 4, 2, 3], [4, 5, 3, 4]]


def test_a_long_document_is_filled_up_on_both_sides():
    # six sentences of four pieces, room for 16: cores of two sentences, centred in their windows
    word_starts, sentence_starts, numbers = arrays([[[1] * 4] * 6])
    windows = plan_windows(word_starts, sentence_starts, numbers, 16, "document")
    assert windows.tolist() == [[0, 16, 0, 8], [4, 20, 8, 16], [8, 24, 16, 24]]


@given(st.lists(st.integers(1, 20), min_size=2, max_size=30), st.integers(20, 60))
def test_sentences_that_fit_are_scored_whole_with_context_on_both_sides(lengths, room):
    word_starts, sentence_starts, numbers = arrays([[[1] * length for length in lengths]])
    total = sum(lengths)
    for first, end, first_word, end_word in plan_windows(
        word_starts, sentence_starts, numbers, room, "document"
    ).tolist():
        assert first_word in sentence_starts
        assert end_word in sentence_starts
        before, behind = first_word - first, end - end_word
        if first > 0 and end < total:
            assert abs(before - behind) <= 1


def test_no_sentences_have_no_windows():
    for context in ("sentence", "document"):
        assert len(plan_windows(np.zeros(1, int), np.zeros(1, int), np.zeros(0, int), 5, context)) == 0
