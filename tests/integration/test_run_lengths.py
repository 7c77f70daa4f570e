"""Runs that are extended, shortened, limited by time, or stopped early because dev did not improve."""

import json
import random
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from maskloom.config import PretrainRecipe, load_recipe
from maskloom.errors import ConfigError
from maskloom.recipe_files import recipe_toml
from maskloom.runs import resuming
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.runs.display import Progress
from maskloom.runs.export import export
from maskloom.runs.pretrain import pretrain
from maskloom.runs.recipes import with_epochs
from maskloom.runs.rerun import rerun
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.training.events import read_events
from maskloom.training.ranks.ranks import Ranks

WORDS = "the array list sorted in place of its values and keys returns a new copy".split()  # noqa: SIM905
SETTINGS = [
    *("model.size=tiny", "model.config.hidden_size=16", "model.config.num_attention_heads=2"),
    *("model.config.num_hidden_layers=1", "data.max_length=24", "data.held_out_fraction=0.2", "training.batch_size=4"),
    *("training.save_every=4", "training.log_every=1", "training.num_threads=1", "training.warmup_steps=3"),
    *("training.learning_rate=1e-3", "training.max_evaluation_instances=8", "model.config.intermediate_size=32"),
]


class Stop(Progress):
    """Interrupts a phase at a given step, as a crash would."""

    def __init__(self, phase: str, step: int) -> None:
        self._phase, self._step, self._is_here, self.begun = phase, step, False, {}

    def begin(self, what, total, done=0):
        self._is_here, self.begun[what] = what.startswith(self._phase), done

    def advance(self, done, **figures):
        if self._is_here and done == self._step:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("corpus"), random.Random(0)
    documents = [" ".join(" ".join(draw.choices(WORDS, k=9)) + "." for _ in range(6)) for _ in range(30)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    train_vocabulary_from_files([folder / "text.txt"], VocabularySettings(60), out=folder / "v")
    build_corpus_from_files([folder / "text.txt"], vocab=folder / "v", out=folder / "c")
    return folder / "c"


def recipe(*changes: str) -> PretrainRecipe:
    return load_recipe(PretrainRecipe, None, [*SETTINGS, *changes])


@pytest.fixture(scope="module")
def short(corpus, tmp_path_factory):
    """Return a finished run of 8 steps, for tests to extend copies of it."""
    out = tmp_path_factory.mktemp("short") / "run"
    pretrain(recipe("training.steps=8"), corpus=corpus, out=out)
    return out


def rates(out: Path) -> list[float]:
    return [event["learning_rate"] / 1e-3 for event in read_events(out / "events.jsonl") if event["event"] == "step"]


def weights(out: Path) -> bytes:
    return (out / "model" / "model.safetensors").read_bytes()


def test_threads_and_blocks_are_the_recipes(corpus, tmp_path, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr("maskloom.runs.pretrain.prepare_blocks", lambda model, **how: asked.append(how))
    for number, is_on in enumerate(("true", "false"), start=2):
        blocks = (f"training.activation_checkpointing={is_on}", f"training.compile={is_on}")
        own = recipe("training.steps=3", f"training.num_threads={number}", *blocks)
        pretrain(own, corpus=corpus, out=tmp_path / is_on)
    (first, on), (second, off) = asked[:2], asked[2:]
    assert (first, on) == (2, {"recompute": True, "compile_": True})
    assert (second, off) == (3, {"recompute": False, "compile_": False})


def test_no_more_is_evaluated_than_the_recipe_says(corpus, tmp_path):
    found = []
    for most in (1, 3, 1000):
        own = recipe("training.steps=3", f"training.max_evaluation_instances={most}", "training.evaluate_every=3")
        found.append(pretrain(own, corpus=corpus, out=tmp_path / str(most))["num_predictions"])
    assert 0 < found[0] < found[1] < found[2]


def test_a_finished_run_is_extended_and_the_recipe_tells_how(run, corpus, short, tmp_path):
    shutil.copytree(short, tmp_path / "run")
    said = run("pretrain", "--corpus", corpus, "--out", tmp_path / "run", "--resume", "--steps", 16)
    assert "extended: planned for 8 steps, 16 from step 8 on; the learning rate moves linearly over 3 steps" in said
    assert weights(tmp_path / "run") != weights(short)
    now = rates(tmp_path / "run")
    assert now[:8] == rates(short)
    assert now[8:11] == pytest.approx([0.0, (16 - 9) / 13 / 3, (16 - 10) / 13 * 2 / 3])
    assert now[11:] == pytest.approx([(16 - step) / 13 for step in range(11, 16)])
    stored = load_recipe(PretrainRecipe, tmp_path / "run" / "recipe.toml").training
    assert [(extension.at, extension.steps) for extension in stored.extensions] == [(8, 8)]
    assert stored.steps == 16
    assert rerun(tmp_path / "run", out=tmp_path / "again")["identical"]


def test_the_first_rank_decides_whether_a_run_is_complete(corpus, tmp_path, monkeypatch):
    own = recipe("training.steps=3")
    assert pretrain(own, corpus=corpus, out=tmp_path / "run")

    @contextmanager
    def as_second_rank(*_given, **_named):
        """Join a first rank that knows of nothing; this one still sees the files of the finished run."""
        yield Ranks(rank=1, world_size=2)

    monkeypatch.setattr("maskloom.runs.pretrain.joined_ranks", as_second_rank)
    steps, silent = [], Progress()
    silent.advance = lambda step, **_: steps.append(step)
    monkeypatch.setattr("maskloom.runs.pretrain.SILENT", silent)
    assert pretrain(own, corpus=corpus, out=tmp_path / "run", resume=True) == {}
    assert steps == [1, 2, 3]


def test_an_extension_that_is_interrupted_goes_on_to_the_same_bits(corpus, short, tmp_path, monkeypatch):
    for out in ("whole", "cut"):
        shutil.copytree(short, tmp_path / out)
    longer = recipe("training.steps=16")
    pretrain(longer, corpus=corpus, out=tmp_path / "whole", resume=True)

    with pytest.raises(KeyboardInterrupt):
        pretrain(longer, corpus=corpus, out=tmp_path / "cut", resume=True, progress=Stop("phase-1", 13))
    again = Stop("none", 0)
    monkeypatch.setattr("maskloom.data.loader.Loader.account", None)  # the data were counted when the phase began
    pretrain(longer, corpus=corpus, out=tmp_path / "cut", resume=True, progress=again)
    assert again.begun["phase-1, length 24"] == 12
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_the_best_checkpoint_is_that_of_the_whole_extended_run(corpus, tmp_path):
    own = [setting for setting in SETTINGS if "learning_rate" not in setting]
    own += ["training.learning_rate=0.3", "training.evaluate_every=2", "training.keep_best=true"]
    for steps in (8, 16):
        changed = load_recipe(PretrainRecipe, None, [*own, f"training.steps={steps}"])
        pretrain(changed, corpus=corpus, out=tmp_path / "run", resume=steps == 16)
        events = [event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "evaluation"]
        best = min(events, key=lambda event: event["metrics"]["mlm_loss"])
        exported = tmp_path / f"best-{steps}"
        export(tmp_path / "run", exported, step=best["step"])
        found = [(folder / "model.safetensors").read_bytes() for folder in (exported, tmp_path / "run" / "best-model")]
        assert found[0] == found[1]
    assert best["step"] < 16
    assert [event["step"] for event in events] == list(range(2, 17, 2))


def test_an_extension_keeps_the_steps_of_evaluations_and_a_rerun_compares_the_best_model(corpus, tmp_path):
    for steps in (10, 20):
        changed = recipe(f"training.steps={steps}", "training.keep_best=true")
        pretrain(changed, corpus=corpus, out=tmp_path / "run", resume=steps == 20)
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [event["step"] for event in events if event["event"] == "evaluation"] == list(range(1, 21))
    result = rerun(tmp_path / "run", out=tmp_path / "again")
    assert result["identical"]
    both = [load_file(tmp_path / "run" / name / "model.safetensors") for name in ("model", "best-model")]
    assert result["num_tensors"] == sum(map(len, both))
    changed = {name: tensor + 1 for name, tensor in both[1].items()}
    save_file(changed, tmp_path / "run" / "best-model" / "model.safetensors")
    result = rerun(tmp_path / "run", out=tmp_path / "again", resume=True)
    assert (result["identical"], result["num_differing"]) == (False, len(changed))
    assert result["differing"][0].startswith("best-model: ")


def test_a_run_is_shortened_but_not_to_less_than_it_has_made(corpus, short, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(short, out)
    with pytest.raises(ConfigError, match=r"--steps 6: .* has already done 8 steps; `maskloom export`"):
        pretrain(recipe("training.steps=6"), corpus=corpus, out=out, resume=True)
    before = (out / "recipe.toml").read_bytes()
    changed = recipe("training.steps=20", "training.learning_rate=1e-2")
    with pytest.raises(ConfigError, match=r"must keep its recipe: training\.learning_rate was"):
        pretrain(changed, corpus=corpus, out=out, resume=True)
    assert (out / "recipe.toml").read_bytes() == before
    pretrain(recipe("training.steps=12"), corpus=corpus, out=out, resume=True)
    pretrain(recipe("training.steps=16"), corpus=corpus, out=out, resume=True)
    stored = load_recipe(PretrainRecipe, out / "recipe.toml").training
    assert [(extension.at, extension.steps) for extension in stored.extensions] == [(8, 8), (12, 12)]


def test_a_run_is_not_shortened_to_an_end_within_its_warm_up(tmp_path, monkeypatch):
    planned = [setting for setting in SETTINGS if "warmup" not in setting] + ["training.warmup_ratio=0.9"]
    stored = load_recipe(PretrainRecipe, None, [*planned, "training.steps=20"])
    (tmp_path / "recipe.toml").write_text(recipe_toml(stored), encoding="utf-8")
    monkeypatch.setattr(resuming, "_last_step", lambda *_: 4)
    shortened = load_recipe(PretrainRecipe, None, [*planned, "training.steps=9"])
    with pytest.raises(ConfigError, match="--steps 9: the run warms up for 18 steps"):
        resuming.extended_recipe(shortened, tmp_path, lambda chosen: chosen.training, {"phase-1": tmp_path})


def test_a_change_that_is_taken_back_before_another_step_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "_last_step", lambda *_: 10)
    first = recipe("training.steps=20")
    (tmp_path / "recipe.toml").write_text(recipe_toml(first), encoding="utf-8")
    given = (tmp_path, lambda chosen: chosen.training, {"phase-1": tmp_path})
    longer = resuming.extended_recipe(recipe("training.steps=40"), *given)
    assert [(extension.at, extension.steps) for extension in longer.training.extensions] == [(10, 20)]
    (tmp_path / "recipe.toml").write_text(recipe_toml(longer), encoding="utf-8")
    assert resuming.extended_recipe(recipe("training.steps=20"), *given) == first


def test_epochs_become_the_steps_that_make_them(run, corpus, tmp_path):
    settings = [part for setting in (*SETTINGS, "training.batch_size=8") for part in ("--set", setting)]
    begun = run("pretrain", "--corpus", corpus, "--out", tmp_path / "r", "--epochs", 3, *settings)
    assert 2.8 < float(re.search(r"([0-9.]+) epochs of", begun).group(1)) < 3.2
    steps = int(re.search(r"([0-9,]+) steps of", begun).group(1).replace(",", ""))
    assert load_recipe(PretrainRecipe, tmp_path / "r" / "recipe.toml").training.steps == steps


@pytest.mark.parametrize(
    ("epochs", "steps", "changes", "message"),
    [
        (0.0, None, [], "--epochs 0.0: expected a number above 0"),
        (float("nan"), None, [], "--epochs nan: expected a number above 0"),
        (1.0, 9, [], "--epochs: --steps 9 is also set; use only one of them"),
        (1.0, None, ["training.minutes=1.0"], r"--epochs: training\.minutes = 1 is also set; use only one of them"),
        (1.0, None, ["phases=[{max_length=8, steps=3}]"], "--epochs: every phase has its own steps"),
        (0.1, None, ["training.warmup_steps=900"], r"--epochs 0\.1: training\.warmup_steps = 900: it may not exceed"),
    ],
)
def test_epochs_that_do_not_decide_are_refused(corpus, epochs, steps, changes, message):
    with pytest.raises(ConfigError, match=message):
        with_epochs(load_recipe(PretrainRecipe, None, changes), epochs, steps, corpus)


def test_a_run_by_the_clock_ends_with_a_model_and_cannot_be_repeated(run, corpus, tmp_path):
    said = run(
        *("pretrain", "--corpus", corpus, "--out", tmp_path / "run", "--minutes", 0.01),
        *[word for setting in SETTINGS if "warmup_steps" not in setting for word in ("--set", setting)],
    )
    assert "0.01 minutes, in steps of 4 sequences" in said
    steps = [event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "step"]
    fractions = [fraction for event in steps for fraction in event["fractions_of_time"]]
    assert len(fractions) == steps[-1]["step"]
    assert fractions == sorted(fractions)
    assert weights(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["mlm_loss"] > 0
    with pytest.raises(ConfigError, match="its learning rate followed the clock"):
        rerun(tmp_path / "run", out=tmp_path / "again")
    said = run("pretrain", "--corpus", corpus, "--out", tmp_path / "run", "--resume", "--steps", 9, code=3)
    assert "was started for 0.01 minutes, and such a run cannot be extended" in said


def in_phases(last: int) -> str:
    return f"phases=[{{max_length=16, steps=6, learning_rate=2e-3}}, {{max_length=24, steps={last}}}]"


def test_the_last_phase_of_a_run_is_extended_and_a_kill_changes_no_bit(run, corpus, tmp_path):
    pretrain(recipe(in_phases(5)), corpus=corpus, out=tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    found = rates(tmp_path / "cut")
    again = ("pretrain", "--corpus", corpus, "--resume", "--out")
    said = run(*again, tmp_path / "whole", "--steps", 16)
    assert "extended: planned for 5 steps, 10 from step 5 on" in said
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe(in_phases(10)), corpus=corpus, out=tmp_path / "cut", resume=True, progress=Stop("phase-2", 9))
    progress = Stop("none", 0)
    pretrain(recipe(in_phases(10)), corpus=corpus, out=tmp_path / "cut", resume=True, progress=progress)
    assert progress.begun == {"phase-2, length 24": 8}
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    now = rates(tmp_path / "cut")
    assert now[:11] == found
    assert now[11:] == pytest.approx([0.0, 4 / 7 / 3, 3 / 7 * 2 / 3, 2 / 7, 1 / 7])
    stored = load_recipe(PretrainRecipe, tmp_path / "cut" / "recipe.toml")
    assert [phase.steps for phase in stored.phases] == [6, 10]
    assert [(extension.at, extension.steps) for extension in stored.training.extensions] == [(5, 5)]
    assert rerun(tmp_path / "cut", out=tmp_path / "again")["identical"]
    said = run(*again, tmp_path / "cut", "--steps", 6, code=3)
    assert "--steps 6: the phases before the last one already have 6 steps" in said
    said = run(*again, tmp_path / "cut", "--steps", 14, code=3)
    assert f"8 steps of the last phase: {tmp_path / 'cut'} has already done 10 steps" in said
    said = run(*again, tmp_path / "cut", "--set", "phases.0.steps=9", code=3)
    assert "a resumed run must keep its recipe: phases.0.steps was 6, is 9" in said


def test_a_last_phase_that_has_not_begun_just_takes_its_new_number_of_steps(corpus, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe(in_phases(5)), corpus=corpus, out=tmp_path / "run", progress=Stop("phase-1", 5))
    pretrain(recipe(in_phases(7)), corpus=corpus, out=tmp_path / "run", resume=True)
    pretrain(recipe(in_phases(7)), corpus=corpus, out=tmp_path / "other")
    assert weights(tmp_path / "run") == weights(tmp_path / "other")


@pytest.mark.slow
def test_phases_share_the_minutes_and_a_resume_goes_on_with_what_is_left(run, corpus, tmp_path):
    by_clock = [setting for setting in SETTINGS if "warmup_steps" not in setting and "save_every" not in setting]
    changes = [in_phases(6), "training.minutes=0.04", "training.save_every=2"]
    timed = load_recipe(PretrainRecipe, None, [*by_clock, *changes])
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        pretrain(timed, corpus=corpus, out=out, progress=Stop("phase-2", 4))
    first = [event for event in read_events(out / "events.jsonl") if event.get("stage") == "phase-1"]
    said = run("pretrain", "--corpus", corpus, "--out", out, "--resume")
    assert "phase-2, length 24" in said
    steps = [event for event in read_events(out / "events.jsonl") if event["event"] == "step"]
    assert [event for event in steps if event["stage"] == "phase-1"] == [e for e in first if e["event"] == "step"]
    for phase in ("phase-1", "phase-2"):
        own = [fraction for event in steps if event["stage"] == phase for fraction in event["fractions_of_time"]]
        assert own == sorted(own)
        assert own[0] < 0.2 < own[-1]
    assert weights(out)
    said = run("pretrain", "--corpus", corpus, "--out", out, "--resume", "--steps", 40, code=3)
    assert "was started for 0.04 minutes, and such a run cannot be extended" in said
    said = run("pretrain", "--corpus", corpus, "--out", out, "--resume", "--set", "phases.1.steps=9", code=3)
    assert "a resumed run must keep its recipe: phases.1.steps was 6, is 9" in said
