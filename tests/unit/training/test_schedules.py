from itertools import pairwise

import pytest

from maskloom.training.optimizers import clock_factor, extended_factor, make_schedule


def test_google_schedule_has_the_published_jump() -> None:
    factor = make_schedule("google", warmup_steps=34, steps=343)
    assert factor(0) == 0.0
    assert factor(33) == pytest.approx(33 / 34)
    assert factor(34) == pytest.approx(1 - 34 / 343)
    assert factor(342) == pytest.approx(1 / 343)


def test_linear_schedule_reaches_one_and_falls_to_zero() -> None:
    factor = make_schedule("linear", warmup_steps=10, steps=110)
    assert factor(0) == 0.0
    assert factor(9) == pytest.approx(0.9)
    assert factor(10) == 1.0
    assert factor(60) == pytest.approx(0.5)
    assert factor(109) == pytest.approx(0.01)


@pytest.mark.parametrize("name", ["google", "linear"])
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (0, 7), (7, 7), (1, 1)])
def test_edges_stay_within_zero_and_one(name: str, warmup: int, steps: int) -> None:
    factor = make_schedule(name, warmup_steps=warmup, steps=steps)
    assert all(0.0 <= factor(step) <= 1.0 for step in range(steps + 2))
    if warmup == 0:
        assert factor(0) == 1.0


@pytest.mark.parity
def test_linear_schedule_equals_transformers() -> None:
    import torch
    from transformers import get_linear_schedule_with_warmup

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = get_linear_schedule_with_warmup(optimizer, 5, 50)
    ours = make_schedule("linear", warmup_steps=5, steps=50)
    for step in range(50):
        assert ours(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def _extended(steps: int, extensions: list[tuple[int, int]], name="linear", warmup_steps: int = 10) -> list[float]:
    return [
        extended_factor(step, name=name, warmup_steps=warmup_steps, steps=steps, extensions=extensions)
        for step in range(steps)
    ]


def test_an_extended_run_goes_on_a_line_to_the_rate_of_the_longer_one() -> None:
    plain, longer = _extended(100, []), _extended(200, [])
    found = _extended(200, [(60, 100)])
    assert found[:60] == plain[:60]
    assert found[70:] == longer[70:]
    assert found[60] == pytest.approx(plain[60])
    assert found[65] == pytest.approx((plain[60] + longer[65]) / 2)


def test_a_run_that_is_shortened_to_less_than_its_warm_up_still_falls_to_its_end() -> None:
    found = [
        extended_factor(step, name="linear", warmup_steps=2000, steps=16_000, extensions=[(15_000, 20_000)])
        for step in range(15_000, 16_000)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 1e-3


def test_a_run_that_had_decayed_is_warmed_up_again() -> None:
    found = _extended(200, [(100, 100)])
    assert found[99] == pytest.approx(1 / 90)
    assert found[100] == 0.0
    assert 0.0 < found[101] < found[105] < found[110] == _extended(200, [])[110]


def test_a_run_may_be_shortened_and_extended_again() -> None:
    found = _extended(120, [(30, 100), (50, 60)])
    assert found[:50] == _extended(60, [(30, 100)])[:50]
    assert found[60:] == _extended(120, [])[60:]
    assert all(abs(a - b) < 0.11 for a, b in pairwise(found))
    assert _extended(200, [(60, 100)], name="google")[70:] == _extended(200, [], name="google")[70:]
    assert _extended(200, [(60, 100)], warmup_steps=0)[60:] == _extended(200, [], warmup_steps=0)[60:]


@pytest.mark.parametrize("name", ["google", "linear"])
def test_the_clocks_schedule_is_that_of_steps(name) -> None:
    for step in range(0, 1001, 7):
        by_steps = make_schedule(name, warmup_steps=100, steps=1000)(step)
        assert clock_factor(step / 1000, name=name, warmup_ratio=0.1) == pytest.approx(by_steps)
    assert clock_factor(1.0, name=name, warmup_ratio=1.0) == 0.0
    assert clock_factor(0.0, name=name, warmup_ratio=0.0) == 1.0
