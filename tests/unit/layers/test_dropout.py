import numpy as np
import pytest
import torch

from maskloom.layers import dropout
from maskloom.layers.dropout import Dropout, RowDraws, current_draws, drawing, dropout_factors, head_keys, next_keys


def factors_of(shape, rate, dtype=torch.float32):
    """Return factors with keys from torch's generator."""
    like = torch.empty(shape, dtype=dtype)
    keys, dither = next_keys(like[..., 0].numel())
    return dropout_factors(like, rate, keys.view(like.shape[:-1]), dither)


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 1e-4])
def test_factors_are_zero_at_the_rate_and_neighbours_are_independent(rate):
    torch.manual_seed(0)
    zero = torch.stack([factors_of((401, 101), rate) for _ in range(50)])
    assert zero.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)], rel=1e-6)
    zero = (zero == 0).double() - rate
    variance, total = rate * (1 - rate), zero.numel()
    assert abs(float(zero.sum())) < 4 * (variance * total) ** 0.5
    # between the two halves of a word, the words of a row, and rows
    shifted = [(zero[..., :-n], zero[..., n:]) for n in (1, 2, 3, 4)] + [(zero[:, :-n], zero[:, n:]) for n in (1, 2)]
    for one, other in shifted:
        assert abs(float((one * other).mean() / variance)) < 5 / total**0.5


def test_rows_of_near_keys_and_places_one_after_the_other_are_independent():
    lengths, rate, width = np.array([64, 100, 3, 128] * 16), 0.1, 64
    draws, num_tokens = RowDraws(7, 0, lengths), int(lengths.sum())
    with drawing(draws):
        zero = torch.stack(
            [dropout_factors(torch.empty(num_tokens, width), rate, *next_keys(num_tokens)) for _ in range(8)]
        )
    zero = ((zero == 0).double() - rate) / (rate * (1 - rate)) ** 0.5
    assert abs(float(zero.mean())) < 4 / zero.numel() ** 0.5
    for dimension in range(3):  # places, tokens, columns: the variances of independent values add up
        length = zero.shape[dimension]
        sums = zero.sum(dimension).square() / length
        assert float(sums.mean()) == pytest.approx(1.0, abs=5 * (2 / sums.numel()) ** 0.5)
    columns = zero.reshape(-1, width)
    correlations = (columns.T @ columns / len(columns) ** 0.5).fill_diagonal_(0.0)
    assert float(correlations.abs().max()) < 5.5


@pytest.mark.parametrize("lengths", [[5, 2, 9, 4], [1, 1, 9, 1]], ids=str)
def test_a_row_draws_the_same_however_the_batch_is_cut(lengths):
    lengths, width, heads = np.array(lengths), 7, 3

    def drawn(first, last):
        """Return the factors for embeddings, for attention over each sequence and for pooled vectors."""
        own = lengths[first:last]
        with drawing(RowDraws(11, first, own)):
            keys, dither = next_keys(int(own.sum()))
            tokens = dropout_factors(torch.empty(len(keys), width), 0.3, keys, dither)
            keys, dither = next_keys(int(own.sum()))
            attention = []
            for part, length in zip(keys.split(own.tolist()), own.tolist(), strict=True):
                # padded as if to the longest sequence of a group
                padded = torch.cat([part, part[:1].expand(3 - length % 3)])[None]
                like = torch.empty(1, heads, padded.shape[1], padded.shape[1])
                attention.append(dropout_factors(like, 0.3, head_keys(padded, heads), dither)[0, :, :length, :length])
            keys, dither = next_keys(len(own))
            pooled = dropout_factors(torch.empty(len(own), width), 0.3, keys, dither)
        return tokens, attention, pooled

    whole = drawn(0, 4)
    parts = [drawn(first, last) for first, last in ((0, 1), (1, 3), (3, 4))]
    assert torch.equal(whole[0], torch.cat([part[0] for part in parts]))
    for ours, cut in zip(whole[1], [sequence for part in parts for sequence in part[1]], strict=True):
        assert torch.equal(ours, cut)
    assert torch.equal(whole[2], torch.cat([part[2] for part in parts]))
    assert not torch.equal(whole[1][2][0], whole[1][2][1])


def test_draws_depend_on_the_key_and_end_with_their_pass():
    lengths = np.array([6, 6])
    found = []
    for key in (1, 1, 2):
        with drawing(RowDraws(key, 0, lengths)):
            found.append(Dropout(0.5)(torch.ones(12, 8)))
    assert current_draws() is None
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_the_threshold_is_right_on_average():
    # 0.1 is not a multiple of 2^-16: over all bit patterns, the dither must make up for the remainder
    torch.manual_seed(0)
    like, keys = torch.empty(1, 2**16), torch.zeros(1, dtype=torch.int32)
    dithers = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    num_zeros = [int((dropout_factors(like, 0.1, keys, float(dither)) == 0).sum()) for dither in dithers]
    assert len(set(num_zeros)) == 2
    share = num_zeros.count(max(num_zeros)) / len(num_zeros)
    assert share == pytest.approx(0.1 * 2**16 - int(0.1 * 2**16), abs=1e-3)


@pytest.mark.parametrize("shape", [(1,), (3, 5), (0, 4), (2, 3, 7), (4, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shape_and_type_follow_the_tensor(shape, dtype):
    like = torch.empty(shape, dtype=dtype)
    factors = dropout_factors(like, 0.1, torch.zeros(shape[:-1], dtype=torch.int32), 0.5)
    assert factors.shape == shape
    assert factors.dtype == dtype


@pytest.mark.parametrize("word", [0, 1, -1, 12345, -(2**31), 2**31 - 1, 0x9E3779B9 - 2**32])
def test_one_word_is_hashed_as_many_are(word):
    many = torch.tensor([7, word, -3], dtype=torch.int32)
    assert dropout._hashed_word(word) == int(dropout._hashed(many)[1])


def test_blocks_do_not_change_the_draws(monkeypatch):
    keys = torch.arange(50, dtype=torch.int32)
    whole = dropout_factors(torch.empty(50, 9), 0.4, keys, 0.5)
    monkeypatch.setattr("maskloom.layers.dropout._BLOCK", 16)
    assert torch.equal(whole, dropout_factors(torch.empty(50, 9), 0.4, keys, 0.5))


def test_the_same_seed_draws_the_same():
    first, second = Dropout(0.3), Dropout(0.3)
    x = torch.ones(3, 19)
    torch.manual_seed(5)
    a = first(x), first(x)
    torch.manual_seed(5)
    b = second(x), second(x)
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])
    assert not torch.equal(a[0], a[1])


def test_sum_with_a_residual_and_its_gradient():
    dropout = Dropout(0.4)
    residual, x = torch.randn(2, 6, 5, requires_grad=True).unbind(0)
    torch.manual_seed(1)
    thinned = dropout(x)
    torch.manual_seed(1)
    total = dropout.add(residual, x)
    torch.testing.assert_close(total, residual + thinned)
    (gradient,) = torch.autograd.grad(total.sum(), x)
    torch.testing.assert_close(gradient, (thinned / x).detach(), rtol=1e-4, atol=1e-4)


def test_nothing_happens_outside_training_or_at_rate_zero():
    x = torch.randn(4, 4)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(0.0).add(x, x), x + x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros_like(x))


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_an_impossible_rate_is_refused(rate):
    with pytest.raises(ValueError, match="dropout"):
        Dropout(rate)
