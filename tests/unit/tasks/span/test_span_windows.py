import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskloom.tasks.span.encoding import is_max_context, plan_windows

SIZES = {"num_pieces": st.integers(0, 60), "capacity": st.integers(1, 20), "stride": st.integers(1, 25)}


def published_windows(num_pieces, capacity, stride):
    """Return (start, length) of each window by the published loop, until one reaches the end."""
    found, start = [], 0
    while start < num_pieces:
        length = min(num_pieces - start, capacity)
        found.append((start, length))
        if start + length == num_pieces:
            break
        start += min(length, stride)
    return found


@given(**SIZES)
def test_windows_are_those_of_the_published_loop(num_pieces, capacity, stride):
    _, starts, lengths = plan_windows(np.array([num_pieces]), np.array([capacity]), stride).T
    expected = published_windows(num_pieces, capacity, stride) or [(0, 0)]
    assert list(zip(starts.tolist(), lengths.tolist(), strict=True)) == expected


@given(**SIZES)
def test_each_piece_counts_in_the_window_of_most_context(num_pieces, capacity, stride):
    windows = published_windows(num_pieces, capacity, stride)
    places = [
        (place, number) for number, (start, length) in enumerate(windows) for place in range(start, start + length)
    ]
    if not places:
        return
    place, number = np.array(places).T
    same = np.ones(len(places), dtype=np.int64)
    found = is_max_context(place, number, same * len(windows), same * num_pieces, same * capacity, stride)
    for (place, number), is_max in zip(places, found.tolist(), strict=True):
        scores = [
            min(place - start, start + length - 1 - place) + 0.01 * length if start <= place < start + length else -1
            for start, length in windows
        ]
        assert is_max == (scores.index(max(scores)) == number)
    assert found.sum() == num_pieces


def test_a_stride_is_a_step_not_an_overlap():
    sizes, capacities = np.array([400, 300, 0, 301, 50]), np.array([300, 300, 300, 300, 10])
    questions, starts, lengths = plan_windows(sizes, capacities, 128).T
    assert questions.tolist() == [0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 4]
    assert starts.tolist() == [0, 128, 0, 0, 0, 128, 0, 10, 20, 30, 40]
    assert lengths.tolist() == [300, 272, 300, 0, 300, 173, 10, 10, 10, 10, 10]


def test_questions_with_other_windows_are_told_apart():
    # the same piece of one context in two windows of 8, and one of a short context in its only window
    args = np.array([6, 6, 5]), np.array([0, 1, 0]), np.array([3, 3, 1]), np.array([14, 14, 6]), np.array([8, 8, 8])
    assert is_max_context(*args, 3).tolist() == [False, True, True]


@pytest.mark.parametrize("place", [0, 13])
def test_ends_of_a_context_count_where_they_are_seen(place):
    windows = [0] if place == 0 else [2]
    ones = np.ones(1, dtype=np.int64)
    assert is_max_context(np.array([place]), np.array(windows), ones * 3, ones * 14, ones * 8, 3).all()
