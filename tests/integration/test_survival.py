"""The fast part of R1, R3 and R7 of the soak: killed runs and runs on a full disk resume to the same bits."""

import shutil

import pytest

from tools.soak.full_disks import end_on_small_disk, model_places, small_disk, try_full_disk
from tools.soak.kills import Kill, kill_once, kills_of, kills_one_after_another, leave_alone, try_kill
from tools.soak.subjects import RUN, differences, finetuning, grid_search, outcome, run_whole


@pytest.fixture(scope="module")
def finetuned_alone(server, budget, run_data):
    return leave_alone(server, finetuning(run_data, epochs=2), budget.work / "finetune")


@pytest.fixture(scope="module")
def searched_alone(server, budget, run_data):
    return leave_alone(server, grid_search(run_data, epochs=1), budget.work / "search")


def _kill_once_of_each(server, alone, budget, **plan):
    for kill in kills_of(alone, plan, budget):
        trial = try_kill(server, alone, kill, budget.work / "killed")
        assert trial.passed, f"{trial.name}: {trial.detail}"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=SLOW) for kind in ("start-up", "clock", "step", "evaluation")), "save"]
)
def test_pretraining_goes_on_to_the_bit_after_a_kill(server, pretrained_alone, budget, kind):
    _kill_once_of_each(server, pretrained_alone, budget, **{kind: 1})


@pytest.mark.slow
def test_finetuning_goes_on_to_the_bit_after_a_kill(server, finetuned_alone, budget):
    _kill_once_of_each(server, finetuned_alone, budget, save=1, evaluation=1)


@pytest.mark.slow
def test_finetuning_killed_after_the_last_step_of_a_seed_leaves_nothing_behind(server, finetuned_alone, budget):
    last = finetuned_alone.passes.count("files.rename")
    for number in range(last - 13, last - 9):  # last save, dropped checkpoints, result.json, model folder
        trial = try_kill(server, finetuned_alone, Kill("save", f"kill@files.rename#{number}"), budget.work / "killed")
        assert trial.passed, f"{trial.name}: {trial.detail}"


@pytest.mark.slow
def test_a_grid_search_goes_on_to_the_bit_after_a_kill(server, searched_alone, budget):
    _kill_once_of_each(server, searched_alone, budget, clock=1)


@pytest.mark.parametrize(
    "kind", ["pretrained", *(pytest.param(kind, marks=SLOW) for kind in ("finetuned", "searched"))]
)
def test_a_disk_that_is_full_at_a_model_folder_ends_a_run_with_74_and_one_line(server, budget, request, kind):
    alone = request.getfixturevalue(f"{kind}_alone")
    rules = model_places(alone)
    assert rules
    for rule in rules[:1] if kind == "pretrained" else rules[::2]:
        trial = try_full_disk(server, alone, rule, budget.work / "full" / "run")
        assert trial.passed, f"{trial.name}: {trial.detail}"


@pytest.mark.slow
def test_a_real_file_system_that_is_too_small_ends_a_run_with_74_and_one_line(server, pretrained_alone, budget):
    with small_disk(budget.work / "small") as is_mounted:
        if not is_mounted:
            pytest.skip("may not mount a file system")
        for size in (96 << 10, 512 << 10):
            assert end_on_small_disk(server, pretrained_alone, budget.work / "small", size) == "", size
            shutil.rmtree(budget.work / "small" / RUN)


def test_a_run_survives_kills_in_a_row(server, pretrained_alone, budget):
    folder = budget.work / "in-a-row"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    kills = kills_one_after_another(pretrained_alone, budget)[:4]
    assert [kill.kind for kill in kills] == ["start-up", "evaluation", "step", "save"]
    for number, kill in enumerate(kills):
        kill_once(server, pretrained_alone.subject, kill, folder, resume=number > 0)
    run_whole(server, pretrained_alone.subject.resumed(), folder)
    assert differences(outcome(folder / RUN), pretrained_alone.outcome) == []
