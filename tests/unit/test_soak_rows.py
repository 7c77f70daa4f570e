"""What the rows of the soak conclude from their observations."""

from collections import Counter
from pathlib import Path

import pytest

from tools.soak import mutants
from tools.soak.endurance import Sample, complaints, slope_per_hour
from tools.soak.kills import LeftAlone, _lost_too_much, kills_of, kills_one_after_another
from tools.soak.mutants import Mutant, planted
from tools.soak.rows import Budget
from tools.soak.subjects import Subject, differences, finetuning, outcome, pretraining

PASSES = [
    *("files.write", "files.rename", "training.micro_batch", "training.step", "events.write", "files.write"),
    *("evaluation.batch", "files.write"),
]


def _alone():
    return LeftAlone(Subject("pretrain", (), 7, ""), {}, PASSES, 3.0)


def test_points_before_the_first_batch_are_of_the_start_and_later_writes_of_saves():
    alone = _alone()
    assert alone.passes_of("start-up") == {"files.write": [1], "files.rename": [1]}
    assert alone.passes_of("save") == {"files.write": [2, 3]}
    assert alone.passes_of("evaluation") == {"evaluation.batch": [1]}
    assert alone.passes_of("step") == {"training.micro_batch": [1], "training.step": [1], "events.write": [1]}


def test_kills_are_drawn_from_the_seed(tmp_path):
    plan = {"save": 3, "clock": 2}
    kills = kills_of(_alone(), plan, Budget(1, tmp_path))
    assert kills == kills_of(_alone(), plan, Budget(1, tmp_path))
    assert {kill.rule for kill in kills[:3]} <= {"kill@files.write#2", "kill@files.write#3"}
    assert all(0 <= kill.seconds <= 3 for kill in kills)
    assert kills != kills_of(_alone(), plan, Budget(2, tmp_path))


def test_kills_in_a_row_are_at_points_that_every_run_passes(tmp_path):
    alone = LeftAlone(Subject("pretrain", (), 7, ""), {}, ["training.micro_batch", "training.step"] * 200, 3.0)
    plans = [kills_one_after_another(alone, Budget(seed, tmp_path)) for seed in range(20)]
    assert kills_one_after_another(alone, Budget(0, tmp_path)) == plans[0] != plans[1]
    for plan in plans:
        kinds = Counter(kill.kind for kill in plan)
        assert kinds == {"start-up": 2, "evaluation": 1, "step": 4, "save": 3}
        assert plan[0].kind == "start-up"
        assert plan[1].kind == "evaluation"
    rules = {kind: {kill.rule for plan in plans for kill in plan if kill.kind == kind} for kind in kinds}
    assert rules["start-up"] == {f"kill@files.{name}#1" for name in ("write", "sync", "rename")}
    assert rules["evaluation"] == {"kill@evaluation.batch#1"}
    steps = {int(rule.partition("#")[2]) for rule in rules["step"]}
    assert (min(steps), max(steps)) == (20, 41)
    assert {rule.rpartition("#")[0] for rule in rules["save"]} == {
        f"kill@training.step>files.{name}" for name in ("write", "sync", "rename")
    }


@pytest.mark.parametrize(
    ("subject", "before", "under_way", "said", "complaint"),
    [
        (pretraining, ("phase-1", 21), None, "phase-1, length 32: continuing at 14 of 200", []),
        (
            pretraining,
            ("phase-1", 22),
            None,
            "phase-1, length 32: continuing at 14 of 200",
            ["went back 8 steps from 22, more than 7"],
        ),
        (pretraining, ("phase-1", 24), 21, "phase-1, length 32: continuing at 14 of 200", []),
        (finetuning, ("seed-1", 10), None, "fine-tuning, seed 1", ["went back 10 steps from 10, more than 9"]),
        (finetuning, ("seed-0", 10), None, "fine-tuning, seed 1", []),
    ],
)
def test_work_lost_beyond_an_interval_or_a_save_is_complained_of(subject, before, under_way, said, complaint):
    assert _lost_too_much(subject(Path("data")), before, under_way, f"device: cpu\n{said}\nsaved\n") == complaint


def test_an_outcome_is_blind_to_times_and_places_and_to_nothing_else(tmp_path):
    for name, seconds, loss, extra in (("a", 1, 0.5, ()), ("b", 2, 0.5, ()), ("c", 1, 0.6, (".left.tmp",))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "metrics.json").write_text(f'{{"seconds": {seconds}, "model": "{folder}/model"}}')
        step = f'{{"event": "step", "loss": {loss}, "tokens_per_second": {seconds}}}\n'
        (folder / "events.jsonl").write_text(step + '{"event": "checkpoint"}\n' * seconds)
        for left in extra:
            (folder / left).touch()
    found = {name: outcome(tmp_path / name) for name in "abc"}
    assert differences(found["b"], found["a"]) == []
    assert differences(found["c"], found["a"]) == [".left.tmp is too many", "events.jsonl differs"]
    assert differences(found["a"], found["c"]) == [".left.tmp is missing", "events.jsonl differs"]


def _samples(grows=0, threads=0, files=0, checkpoints=2):
    found = []
    for number in range(1000):
        resident = (300 + min(number, 100)) * 2**20 + number * grows
        later = number // 500
        found.append(Sample(number, resident, 3 + threads * later, 20 + files * later, checkpoints))
    return [*found, *(Sample(1000 + number, 2**20, 1, 3, checkpoints) for number in range(20))]  # the process ends


@pytest.mark.parametrize(
    ("trouble", "complaint"),
    [
        ({}, None),
        ({"grows": 4096}, "memory grew"),
        ({"threads": 1}, "threads: 3 at first, 4 at last"),
        ({"files": 1}, "files: 20 at first, 21 at last"),
        ({"checkpoints": 4}, "4 checkpoints at once"),
    ],
)
def test_a_process_that_collects_things_is_seen(trouble, complaint):
    found, figures = complaints(_samples(**trouble))
    assert bool(found) == bool(complaint)
    assert complaint is None or complaint in found[0]
    assert "MB/h" in figures


def test_the_slope_is_in_mebibytes_an_hour():
    samples = [Sample(second, 2**20 * second, 1, 1, 1) for second in range(100)]
    assert slope_per_hour(samples) == pytest.approx(3600)


def test_a_mutant_whose_place_is_gone_is_no_mutant(tmp_path):
    copy = planted(Mutant("x", "errors.py", "class ConfigError(", "class ConfigErrors(", ()), tmp_path)
    assert "class ConfigErrors(" in (copy / "maskloom" / "errors.py").read_text()
    with pytest.raises(ValueError, match="0 times"):
        planted(Mutant("x", "errors.py", "not in there", "", ()), tmp_path)


def test_every_mutant_finds_its_place():
    for mutant in mutants.MUTANTS:
        source = (mutants.ROOT / "src/maskloom" / mutant.file).read_text(encoding="utf-8")
        assert source.count(mutant.old) == 1, mutant.name
