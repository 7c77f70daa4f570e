import pytest

from maskloom.training.schedules import make_schedule


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
