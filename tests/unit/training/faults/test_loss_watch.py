import random

import pytest

from maskloom.training.faults.loss_watch import LossWatch


def _said(losses: list[float]) -> list[tuple[str, int]]:
    watch = LossWatch()
    return [(what, step) for step, loss in enumerate(losses, start=1) for what in watch.look(step, loss)]


def _noise(number: int, seed: int = 0, scale: float = 0.1) -> list[float]:
    draw = random.Random(seed)
    return [3.0 + draw.gauss(0.0, scale) for _ in range(number)]


@pytest.mark.parametrize("at", [21, 60, 300])
def test_a_spike_of_ten_deviations_is_warned_of_at_its_step(at: int) -> None:
    losses = _noise(400)
    losses[at - 1] = 3.0 + 1.6
    assert _said(losses) == [("spike", at)]


def test_nine_deviations_and_a_loss_that_falls_are_no_spike() -> None:
    losses = [4.0 if number % 2 else 3.0 for number in range(100)]
    assert _said([*losses, 3.5 + 0.5 * 9.9]) == []
    assert _said([*losses, 3.5 + 0.5 * 10.1]) == [("spike", 101)]
    assert _said([10.0 * 0.99**step + noise - 3.0 for step, noise in enumerate(_noise(1000, seed=1))]) == []


def test_spikes_are_said_once_in_a_hundred_steps() -> None:
    losses = _noise(500)
    for step in (200, 201, 290, 301, 450):
        losses[step - 1] = 1e4 * step**3
    assert _said(losses) == [("spike", 200), ("spike", 301), ("spike", 450)]


def test_a_frozen_loss_is_warned_of_within_a_hundred_steps_and_again_after_as_many() -> None:
    losses = [*_noise(70), *[2.5] * 220, *_noise(50)]
    assert _said(losses) == [("frozen", 120), ("frozen", 220)]
    assert _said([0.0] * 50) == [("frozen", 50)]
    assert _said(_noise(300, scale=1e-4)) == []
