"""The fast part of the soak's R1 and R3: real kills of real runs, which go on to the bits of the run left alone."""

import shutil

import pytest

from tools.soak.kills import KILLS_IN_A_ROW, kill_once, kills_of, leave_alone, try_kill
from tools.soak.subjects import RUN, differences, finetuning, grid_search, outcome, prepare, pretraining, run_whole


@pytest.fixture(scope="module")
def data(server, budget):
    return prepare(server, budget.work / "data", num_topics=40)


@pytest.fixture(scope="module")
def pretrained_alone(server, budget, data):
    return leave_alone(server, pretraining(data, steps=50, evaluate_every=20), budget.work / "pretrain")


def _kill_once_of_each(server, alone, budget, **plan):
    for kill in kills_of(alone, plan, budget):
        trial = try_kill(server, alone, kill, budget.work / "killed")
        assert trial.passed, f"{trial.name}: {trial.detail}"


@pytest.mark.parametrize("kind", ["start-up", "step", "evaluation", "save", "clock"])
def test_pretraining_goes_on_to_the_bit_after_a_kill(server, pretrained_alone, budget, kind):
    _kill_once_of_each(server, pretrained_alone, budget, **{kind: 1})


def test_finetuning_goes_on_to_the_bit_after_a_kill(server, data, budget):
    alone = leave_alone(server, finetuning(data, epochs=2), budget.work / "finetune")
    _kill_once_of_each(server, alone, budget, save=1, evaluation=1)


def test_a_grid_search_goes_on_to_the_bit_after_a_kill(server, data, budget):
    alone = leave_alone(server, grid_search(data, epochs=1), budget.work / "search")
    _kill_once_of_each(server, alone, budget, clock=1)


def test_a_run_survives_kills_in_a_row(server, pretrained_alone, budget):
    folder = budget.work / "in-a-row"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    kills = kills_of(pretrained_alone, {"start-up": 2, "save": 1}, budget)
    assert len(kills) < KILLS_IN_A_ROW
    for number, kill in enumerate(kills):
        kill_once(server, pretrained_alone.subject, kill, folder, resume=number > 0)
    run_whole(server, pretrained_alone.subject.resumed(), folder)
    assert differences(outcome(folder / RUN), pretrained_alone.outcome) == []
