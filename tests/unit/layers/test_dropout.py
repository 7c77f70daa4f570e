import pytest
import torch

from maskloom.layers.dropout import Dropout, dropout_factors


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 1e-4])
def test_factors_are_zero_at_the_rate(rate):
    torch.manual_seed(0)
    num_values, num_calls = 40_001, 50
    factors = torch.stack([dropout_factors(torch.empty(num_values), rate) for _ in range(num_calls)])
    assert factors.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)], rel=1e-6)
    total = num_values * num_calls
    num_zeros = int((factors == 0).sum())
    assert abs(num_zeros - rate * total) < 4 * (rate * (1 - rate) * total) ** 0.5
    # neighbours share a draw of the generator and must be independent all the same
    zero = (factors == 0).double() - rate
    for distance in (1, 2, 3, 4):
        correlation = (zero[:, :-distance] * zero[:, distance:]).mean() / (rate * (1 - rate))
        assert abs(float(correlation)) < 5 / total**0.5


def test_the_threshold_is_right_on_average(monkeypatch):
    # 0.1 is no multiple of 2^-16: with all bit patterns once, the dither must make up for the remainder
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16)

    def every_pattern(self, *_):
        return self.copy_(patterns.view(torch.int64))

    monkeypatch.setattr(torch.Tensor, "random_", every_pattern)
    dithers = iter((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: next(dithers))
    num_zeros = sum(int((dropout_factors(torch.empty(2**16), 0.1) == 0).sum()) for _ in range(1000))
    assert num_zeros / 1000 / 2**16 == pytest.approx(0.1, abs=1e-9)


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (2, 3, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_and_type_follow_the_tensor(shape, dtype):
    factors = dropout_factors(torch.empty(shape, dtype=dtype), 0.1)
    assert factors.shape == shape
    assert factors.dtype == dtype


def test_the_same_seed_draws_the_same():
    first, second = Dropout(0.3), Dropout(0.3)
    x = torch.ones(57)
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
