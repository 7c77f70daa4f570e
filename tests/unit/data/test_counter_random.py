import numpy as np
import pytest
from scipy import stats

from maskloom.data.counter_random import Permutation, integers, uniform, words


def test_words_follow_splitmix64() -> None:
    """The first outputs of the published generator from state 0, obtained here by adding the constant by hand."""
    from maskloom.data.counter_random import _GAMMA, mixed

    states = np.array([_GAMMA, 2 * _GAMMA & (2**64 - 1)], dtype=np.uint64)
    assert mixed(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_scalars_and_arrays_give_the_same_draws() -> None:
    table = uniform(7, np.arange(5)[:, None], np.arange(4)[None, :], 9)
    assert table.shape == (5, 4)
    for i in range(5):
        for j in range(4):
            assert table[i, j] == uniform(7, i, j, 9) == uniform(7, np.int64(i), np.array([j]), 9)[0]
    assert words(7, 2**64 - 1) == words(7, np.array([2**64 - 1], dtype=np.uint64))[0] == words(7, -1)


def test_every_counter_and_the_seed_matter() -> None:
    draws = [uniform(*key) for key in [(0, 1, 2), (1, 1, 2), (0, 2, 1), (0, 1), (0, 1, 2, 0), (0, 0, 1, 2)]]
    assert len({float(draw) for draw in draws}) == len(draws)


def test_draws_are_uniform_and_neighbours_independent() -> None:
    draws = uniform(3, np.arange(200_000))
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.01
    nested = uniform(3, np.arange(300)[:, None], np.arange(300)[None, :])
    assert abs(np.corrcoef(nested[:, 0], nested[:, 1])[0, 1]) < 0.2
    assert stats.chisquare(np.histogram(nested.ravel(), bins=64)[0]).pvalue > 1e-3


def test_integers_stay_below_the_bound_and_are_even() -> None:
    draws = integers(7, 5, np.arange(70_000))
    assert draws.dtype == np.int64
    assert stats.chisquare(np.bincount(draws, minlength=7)).pvalue > 1e-3
    bounds = np.arange(1, 1001)
    drawn = integers(bounds, 5, bounds)
    assert (drawn >= 0).all()
    assert (drawn < bounds).all()
    assert 0 <= int(integers(2**62, 1, 2)) < 2**62
    with pytest.raises(ValueError, match="n is 0"):
        integers(0, 1)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 17, 4095, 4096, 4097, 5000, 65_536, 65_537])
def test_permutation_is_a_bijection(size: int) -> None:
    permutation = Permutation(size, 11, 4)
    images = permutation[np.arange(size)]
    assert permutation.size == size
    assert sorted(images.tolist()) == list(range(size))
    for index in range(0, size, max(1, size // 7)):
        assert permutation[index] == images[index]
        assert isinstance(permutation[index], int)


def test_permutations_of_different_keys_differ() -> None:
    places = np.arange(10_000)
    first, second, again = (Permutation(10_000, 1, epoch)[places] for epoch in (0, 1, 0))
    assert (first == again).all()
    assert (first == second).mean() < 0.01
    assert (first == places).mean() < 0.01


def test_small_permutations_are_all_reached_evenly() -> None:
    drawn = [tuple(Permutation(3, 1, key)[np.arange(3)].tolist()) for key in range(1500)]
    counts = np.unique(np.array(drawn), axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
def test_large_permutations_place_an_element_evenly() -> None:
    images = np.array([Permutation(5000, 1, key)[17] for key in range(4000)])
    assert stats.chisquare(np.histogram(images, bins=20, range=(0, 5000))[0]).pvalue > 1e-3
    order = Permutation(100_000, 9)[np.arange(100_000)]
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02


def test_huge_ranges_cost_nothing() -> None:
    permutation = Permutation(10**15, 2)
    assert 0 <= permutation[10**15 - 1] < 10**15
    with pytest.raises(IndexError, match="outside"):
        permutation[10**15]
