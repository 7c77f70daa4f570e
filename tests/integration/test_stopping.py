"""The fast part of R8 of the soak: runs that get a signal save, say how to resume, and resume bit for bit."""

import pytest

from tools.soak.kills import leave_alone
from tools.soak.signals import try_second_interrupt, try_signal
from tools.soak.subjects import finetuning, grid_search

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("SIGTERM", 0.7),
        ("SIGINT", 0.3),
        pytest.param("SIGUSR1", 0.2, marks=SLOW),
        pytest.param("SIGHUP", 0.35, marks=SLOW),
    ],
)
def test_a_signal_saves_and_the_run_goes_on_to_the_bit(server, pretrained_alone, budget, name, share):
    trial = try_signal(server, pretrained_alone, name, share, budget.work / "stopped")
    assert trial.passed, f"{trial.name}: {trial.detail}"


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=SLOW)])
def test_a_second_interrupt_leaves_at_once(server, pretrained_alone, budget, number):
    trial = try_second_interrupt(server, pretrained_alone, budget, number, budget.work / "left")
    assert trial.passed, f"{trial.name}: {trial.detail}"


@pytest.mark.parametrize("subject", [finetuning, pytest.param(grid_search, marks=SLOW)])
def test_finetuning_and_searches_stop_and_go_on_too(server, run_data, budget, subject):
    chosen = subject(run_data, epochs=1)
    alone = leave_alone(server, chosen, budget.work / chosen.name)
    trial = try_signal(server, alone, "SIGTERM", 0.6, budget.work / "stopped")
    assert trial.passed, f"{trial.name}: {trial.detail}"
