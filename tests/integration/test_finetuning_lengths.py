"""Fine-tuning that is resumed, extended, shortened or limited by time."""

import json
import re
import shutil
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fine_tuning import finetune

from maskloom.checkpoints.huggingface import load_model
from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.recipe_files import validate_recipe
from maskloom.runs import finetune_restarts
from maskloom.runs.display import Progress
from maskloom.runs.export import export
from maskloom.runs.finetune_restarts import reopen_restarts
from maskloom.runs.info import describe_folder
from maskloom.runs.rerun import rerun
from maskloom.runs.run_folder import saved_sum
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.task import evaluate_task
from maskloom.training.checkpointing.checkpoints import checkpoint_weights, step_folders, step_of
from maskloom.training.events import read_events
from maskloom.training.faults.interruption import Interrupted
from tools.golden_losses import finetuning, names

KINDS = [name.partition("/")[2] for name in names() if name.startswith("finetune/")]
LIKE_OTHERS = ("regression", "multilabel", "tagging")  # as single and tagging_crf, but for the loss of the head


def with_training(recipe: FinetuneRecipe, **values) -> FinetuneRecipe:
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=values)})


def steps_of(out: Path, seed: int = 0) -> list[dict]:
    events = read_events(out / "events.jsonl")
    return [event for event in events if event["event"] == "step" and event["stage"] == f"seed-{seed}"]


def losses(out: Path, seed: int = 0) -> list[float]:
    return [event["loss"] for event in steps_of(out, seed)]


def evaluated(out: Path, seed: int = 0) -> list[int]:
    events = read_events(out / "events.jsonl")
    return [event["step"] for event in events if event["event"] == "evaluation" and event["stage"] == f"seed-{seed}"]


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("[!.]*") if path.is_file()}


class Stop(Progress):
    """Interrupts a seed at a given step, as a crash would."""

    def __init__(self, seed: int, step: int) -> None:
        self._seed, self._step, self._is_here = seed, step, False

    def begin(self, what, total, done=0):
        self._is_here = what.endswith(f"seed {self._seed}")

    def advance(self, done, **figures):
        if self._is_here and done == self._step:
            raise KeyboardInterrupt


class Terminate(Stop):
    """Sends SIGTERM to the process at a given step of a seed."""

    def advance(self, done, **figures):
        if self._is_here and done == self._step:
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Return a recipe for one epoch of 5 steps, and its files."""
    recipe, files = finetuning("single", tmp_path_factory.mktemp("single"))
    return with_training(recipe, steps=None, epochs=1.0, evaluate_every=None, micro_batch_size=8), files


@pytest.fixture(scope="module")
def finished(single, tmp_path_factory):
    """Return the recipe, the folder and the result of a finished run that kept the models of both its seeds."""
    recipe, files = single
    recipe = recipe.model_copy(update={"restarts": 2, "keep_restarts": True})
    out = tmp_path_factory.mktemp("finished") / "run"
    return recipe, out, finetune(recipe, **files, out=out)


def test_threads_and_blocks_are_the_recipes(single, tmp_path, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr("maskloom.runs.finetune_restarts.prepare_blocks", lambda model, **how: asked.append(how))
    for number, is_on in enumerate((True, False), start=2):
        own = {"num_threads": number, "activation_checkpointing": is_on, "compile": is_on}
        finetune(with_training(single[0], **own), **single[1], out=tmp_path / f"run-{number}")
    on, off = ({"recompute": is_on, "compile_": is_on} for is_on in (True, False))
    assert asked == [2, on, 3, off]


def test_a_run_that_was_killed_before_it_had_its_recipe_begins(single, tmp_path):
    """Its folder holds only run.json, which is written first."""
    recipe, files = single
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    finetune(recipe, **files, out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in LIKE_OTHERS else kind for kind in KINDS]
)
def test_every_kind_of_task_is_extended_to_the_bit(kind, tmp_path):
    """The 40 training examples are 3 steps an epoch, so the extension goes on into a second one."""
    recipe, files = finetuning(kind, tmp_path)
    recipe = with_training(recipe, batch_size=16, micro_batch_size=8)
    out = tmp_path / "run"
    finetune(with_training(recipe, steps=2), **files, out=out)
    before = losses(out)
    finetune(with_training(recipe, steps=4), **files, out=out, resume=True)
    assert losses(out)[:2] == before
    assert [event["learning_rate"] for event in steps_of(out)[2:]] == pytest.approx([1e-3 * 2 / 4, 1e-3 * 1 / 4])
    assert evaluated(out) == [2, 4]
    stored = load_recipe(FinetuneRecipe, out / "recipe.toml").training
    assert [(extension.at, extension.steps) for extension in stored.extensions] == [(2, 2)]
    assert rerun(out, out=tmp_path / "again")["identical"]
    assert (losses(tmp_path / "again"), evaluated(tmp_path / "again")) == (losses(out), [2, 4])


@pytest.mark.slow
def test_an_extension_of_several_seeds_that_is_interrupted_goes_on_to_the_same_bits(single, tmp_path):
    short, files = single
    short = short.model_copy(update={"restarts": 2, "keep_restarts": True})
    longer = with_training(short, epochs=3.0)
    results = {}
    for out in (tmp_path / "whole", tmp_path / "cut"):
        finetune(short, **files, out=out)
        assert [len(step_folders(out / "restarts" / f"seed-{seed}" / "checkpoints")) for seed in (0, 1)] == [1, 1]
        assert export(out, tmp_path / f"{out.name}-model")["step"] is None
    results["whole"] = finetune(longer, **files, out=tmp_path / "whole", resume=True)
    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        finetune(longer, **files, out=cut, resume=True, progress=Stop(1, 9))
    assert not describe_folder(cut)["finished"]
    own = load_recipe(FinetuneRecipe, cut / "recipe.toml")
    results["cut"] = finetune(own, **files, out=cut, resume=True)
    assert {**results["cut"], "model": ""} == {**results["whole"], "model": ""}
    for part in (".", "restarts/seed-0", "restarts/seed-1"):
        assert weights(cut / part) == weights(tmp_path / "whole" / part)
    assert [evaluated(cut, seed) for seed in (0, 1)] == [[5, 10, 15]] * 2
    assert rerun(cut, out=tmp_path / "again")["identical"]
    assert finetune(own, **files, out=cut, resume=True) == results["cut"]


@pytest.mark.slow
def test_seeds_that_are_not_as_far_are_extended_at_the_same_step(single, tmp_path):
    recipe, files = single
    recipe = with_training(recipe.model_copy(update={"restarts": 3}), epochs=2.0)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        finetune(recipe, **files, out=out, progress=Stop(1, 7))
    finetune(with_training(recipe, epochs=4.0), **files, out=out, resume=True)
    rates = [[event["learning_rate"] for event in steps_of(out, seed)] for seed in (0, 1, 2)]
    assert rates[0] == rates[1] == rates[2]
    assert [evaluated(out, seed) for seed in (0, 1, 2)] == [[5, 10, 15, 20]] * 3
    assert rerun(out, out=tmp_path / "again")["identical"]


def test_an_extension_that_brings_nothing_better_keeps_the_best_weights(single, tmp_path):
    recipe, files = single
    recipe = with_training(recipe.model_copy(update={"restarts": 2}), learning_rate=1e-12)
    out = tmp_path / "run"
    first = finetune(recipe, **files, out=out)
    before = weights(out)
    extended = finetune(with_training(recipe, epochs=2.0), **files, out=out, resume=True)
    assert (extended["best"], extended["best_seed"]) == (first["best"], first["best_seed"])
    assert extended["last"]["step"] == 10
    assert weights(out) == before


def test_a_run_is_shortened_and_used_but_not_to_less_than_it_has_made(single, tmp_path):
    recipe, files = single
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        finetune(with_training(recipe, epochs=4.0), **files, out=out, progress=Stop(0, 8))
    kept = (out / "recipe.toml").read_bytes()
    with pytest.raises(ConfigError, match=r"^--epochs 1 \(5 steps\): .* has already done 5 steps"):
        finetune(recipe, **files, out=out, resume=True)
    assert (out / "recipe.toml").read_bytes() == kept
    result = finetune(with_training(recipe, epochs=2.0), **files, out=out, resume=True)
    assert result["last"]["step"] == 10
    assert steps_of(out)[-1]["learning_rate"] == pytest.approx(1e-3 / 8)
    assert len(Predictor.load(out).predict(["ban ken", "zard"])) == 2


def test_best_weights_of_a_step_that_no_checkpoint_holds_are_made_again(single, tmp_path):
    recipe, files = single
    recipe, out = with_training(recipe, epochs=3.0, save_every=100), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        finetune(recipe, **files, out=out, progress=Stop(0, 11))
    best = json.loads((out / "restarts" / "seed-0" / "best.json").read_text())["step"]
    finetune(with_training(recipe, epochs=4.0), **files, out=out, resume=True)
    (extension,) = load_recipe(FinetuneRecipe, out / "recipe.toml").training.extensions
    assert (extension.at, extension.steps) == (best, 15)
    assert rerun(out, out=tmp_path / "again")["identical"]


@pytest.mark.parametrize("while_saving", [False, True])
def test_the_best_weights_of_a_killed_run_are_those_whose_score_is_reported(
    single, tmp_path, monkeypatch, while_saving
):
    def scored(*args):
        return replace(outcome := evaluate_task(*args), scores={**outcome.scores, "accuracy": next(accuracies)})

    (recipe, files), out = single, tmp_path / "run"
    settings, inputs = with_training(recipe, epochs=3.0), {**files, "out": out}
    monkeypatch.setattr(finetune_restarts, "evaluate_task", scored)
    accuracies = iter([0.2, 0.3, 0.1, 0.1])  # of steps 5 and 10, and when 10 and 15 are repeated on other hardware
    with pytest.raises(KeyboardInterrupt):
        finetune(settings, **inputs, progress=Stop(0, 11))
    seed = out / "restarts" / "seed-0"
    newest, _ = step_folders(seed / "checkpoints")
    shutil.rmtree(newest)  # a kill before it was written, and perhaps before the weights were
    if while_saving:
        (seed / "best.json").write_text('{"step": 10}')
    result = finetune(settings, **inputs, resume=True)
    assert (result["best"]["step"], result["best"]["scores"]["accuracy"]) == (10, 0.1 if while_saving else 0.3)
    assert json.loads((seed / "best.json").read_text())["sha256"] == saved_sum(out / "model")


def test_a_run_with_a_class_list_continues_from_another_directory(single, tmp_path, monkeypatch):
    recipe, files = single
    inputs = {**files, "out": tmp_path / "run"}
    (tmp_path / "labels.txt").write_text("no\nyes\nodd\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        finetune(recipe, **inputs, reading=ReadingOptions(labels="labels.txt"), progress=Stop(0, 1))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    result = finetune(recipe, **inputs, resume=True)
    assert result["data"]["labels"] == ["no", "yes", "odd"]
    assert finetune(recipe, **inputs, reading=ReadingOptions(labels="../labels.txt"), resume=True) == result
    (tmp_path / "labels.txt").write_text("no\nyes\nnew\n")
    with pytest.raises(ConfigError, match=r"labels .*labels\.txt has changed since the start of this run"):
        finetune(recipe, **inputs, resume=True)


def test_patience_goes_on_with_an_extension_and_a_run_that_it_ended_is_not_extended(single, tmp_path):
    recipe, files = single
    still = with_training(recipe, learning_rate=1e-12, patience=2)
    out = tmp_path / "run"
    finetune(with_training(still, epochs=2.0), **files, out=out)
    result = finetune(with_training(still, epochs=9.0), **files, out=out, resume=True)
    assert result["last"]["step"] == 15
    assert evaluated(out) == [5, 10, 15]
    before = contents(out)
    with pytest.raises(ConfigError, match=r"dev did not improve in 2 evaluations \(training\.patience\)"):
        finetune(with_training(still, epochs=12.0), **files, out=out, resume=True)
    assert contents(out) == before


def test_a_run_whose_checkpoints_or_model_are_gone_is_not_extended(single, tmp_path):
    recipe, files = single
    out = tmp_path / "run"
    finetune(recipe, **files, out=out)
    (out / "model").rename(tmp_path / "model")
    longer = with_training(recipe, epochs=2.0)
    with pytest.raises(ConfigError, match="model, the best weights so far, no longer exists; start a new run"):
        finetune(longer, **files, out=out, resume=True)
    (tmp_path / "model").rename(out / "model")
    (out / "restarts" / "seed-0" / "checkpoints").rename(tmp_path / "checkpoints")
    with pytest.raises(ConfigError, match=r"^--epochs 2 \(10 steps\): the checkpoints of .* no longer exist"):
        finetune(longer, **files, out=out, resume=True)
    assert (out / "metrics.json").exists()


@pytest.mark.slow
def test_time_that_was_used_counts_after_a_resume_and_seeds_share_it(single, tmp_path):
    recipe, files = single
    by_clock = with_training(recipe.model_copy(update={"restarts": 2}), minutes=0.06, save_every=2)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        finetune(by_clock, **files, out=out, progress=Stop(0, 9))
    result = finetune(by_clock, **files, out=out, resume=True)
    for seed in (0, 1):
        fractions = [fraction for event in steps_of(out, seed) for fraction in event["fractions_of_time"]]
        assert len(fractions) == steps_of(out, seed)[-1]["step"] > 9
        assert fractions == sorted(fractions)
        assert fractions[0] < 0.2 < fractions[-1]
        assert 2 <= len(evaluated(out, seed)) <= 12
    assert result["last"]["step"] == steps_of(out, result["best_seed"])[-1]["step"]
    with pytest.raises(ConfigError, match=r"must keep its recipe: training\.epochs was 1\.0, is 2\.0"):
        finetune(with_training(by_clock, epochs=2.0), **files, out=out, resume=True)


def test_the_commands_say_what_the_clock_makes_of_a_run_and_refuse_what_it_cannot_do(run, single, tmp_path):
    _, files = single
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    options += ["--set", "data.max_length=24", "--batch-size", 8, "--recipe", "finetune-glue-small"]
    out = tmp_path / "run"
    said = run("finetune", *options, "--out", out, "--minutes", 0.01)
    assert "training.epochs = 3.0: ignored, training.minutes is set" not in said
    assert re.search(
        r"0\.01 minutes, in steps of 8 examples up to 24 tokens, about \d+ tokens per step; epochs of 40 ", said
    )
    assert "after 10% of the time of warm-up" in said
    assert "has not improved" not in said
    said = run("finetune", *options[:6], "--out", out, "--resume", "--epochs", 3, code=3)
    assert "was started for 0.01 minutes, and such a run cannot be extended; start a new run" in said
    assert "its learning rate followed the clock" in run("rerun", out, "--out", tmp_path / "again", code=3)
    said = run("search", *options, "--out", tmp_path / "s", "--set", "training.minutes=1.0", code=3)
    assert "training.minutes: set epochs or steps instead" in said
    assert not (tmp_path / "s" / "recipe.toml").exists()


def test_a_finished_run_is_extended_by_the_command(run, single, tmp_path):
    recipe, files = single
    out = tmp_path / "run"
    finetune(recipe, **files, out=out)
    said = run("finetune", "--out", out, "--resume", "--epochs", 2)  # the run has recorded its files and its model
    assert "extended: planned for 5 steps, 10 from step 5 on; the learning rate moves immediately to that of a" in said
    assert len(losses(out)) == 10
    assert f"{out} is complete" in run("finetune", "--out", out, "--resume", "--train", files["train"])
    said = run("finetune", "--out", out, "--resume", "--dev", files["train"], code=3)
    assert f"dev {files['train']} is not {files['dev']}, which was read at the start" in said
    assert "pass either --model" in run("finetune", "--out", tmp_path / "new", "--resume", code=2)
    said = run("finetune", "--out", tmp_path / "new", "--resume", "--model", files["model"], code=2)
    assert "missing --train, a file of labelled examples" in said


@pytest.mark.parametrize("num_removed", [0, 1, 2, 3])
def test_a_kill_while_a_finished_run_is_opened_again_costs_nothing(
    single, finished, tmp_path, num_removed, monkeypatch
):
    (_, files), (recipe, folder, result) = single, finished
    out = shutil.copytree(folder, tmp_path / "run")
    before = {part: weights(out / part) for part in (".", "restarts/seed-0", "restarts/seed-1")}
    removed, unlink = [], Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        if len(removed) == num_removed:
            raise KeyboardInterrupt
        removed.append(path.name)
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt) if num_removed < 3 else nullcontext():
            reopen_restarts(out, recipe)
    assert removed == ["metrics.json", "result.json", "result.json"][:num_removed]
    assert finetune(recipe, **files, out=out, resume=True) == {**result, "model": str(out / "model")}
    assert {part: weights(out / part) for part in before} == before
    finetune(with_training(recipe, epochs=2.0), **files, out=out, resume=True)
    assert [evaluated(out, seed) for seed in (0, 1)] == [[5, 10]] * 2


@pytest.fixture
def kept(single, finished, tmp_path):
    """Return a copy of the finished run, its worse seed's folder, and a call that extends the copy."""
    (_, files), (recipe, folder, result) = single, finished
    out = shutil.copytree(folder, tmp_path / "run")
    worse = out / "restarts" / f"seed-{1 - result['best_seed']}"
    return out, worse, lambda: finetune(with_training(recipe, epochs=2.0), **files, out=out, resume=True)


def refused(out: Path, extend, message: str) -> None:
    before = contents(out)
    with pytest.raises((ConfigError, DataError), match=message):
        extend()
    assert contents(out) == before


def test_a_run_with_a_kept_or_best_model_gone_or_changed_is_not_extended(kept, tmp_path):
    out, worse, extend = kept
    (worse / "model").rename(tmp_path / "model")
    refused(out, extend, f"{worse}/model, the best weights so far, no longer exists")
    (tmp_path / "model").rename(worse / "model")
    config = (out / "model" / "config.json").read_bytes()
    (out / "model" / "config.json").unlink()
    refused(out, extend, f"{out}/model/config.json: cannot be read")
    (out / "model" / "config.json").write_bytes(config)
    own = weights(out)
    for other in (weights(worse), own[:-1]):
        (out / "model" / "model.safetensors").write_bytes(other)
        refused(out, extend, f"{out}/model: config.json or model.safetensors has changed since the run wrote it")
    (out / "model" / "model.safetensors").write_bytes(own)
    assert extend()["last"]["step"] == 10


@pytest.mark.parametrize(
    ("name", "content"),
    [("best.json", "{}"), ("best.json", '{"step": "a"}'), ("result.json", "{}"), ("metrics.json", "{}")],
)
def test_extending_names_the_damaged_file(kept, name, content):
    out, worse, extend = kept
    path = (out if name == "metrics.json" else worse) / name
    path.write_text(content)
    refused(out, extend, f"{path}: the file is damaged: '")


def test_a_finished_run_without_its_model_says_so_and_how_to_get_one(kept, run, tmp_path):
    out, _, extend = kept
    extend()
    copy = out.rename(tmp_path / "copy")
    recipe, places = (
        load_recipe(FinetuneRecipe, copy / "recipe.toml"),
        json.loads((copy / "run.json").read_text())["paths"],
    )
    again = finetune(recipe, **places, out=copy, resume=True)
    assert again["model"] == str(copy / "model")
    (copy / "model").rename(tmp_path / "gone")
    options = [word for name, path in places.items() for word in (f"--{name}", path)]
    said = run("finetune", *options, "--out", copy, "--resume", "--epochs", 2, code=3)
    command = f"maskloom export {copy} --stage seed-{again['best_seed']} --out DIR"
    gone = f"{copy} is complete, but {copy / 'model'} no longer exists"
    assert f"{gone}; export its last checkpoint with: {command}" in said
    assert export(copy, tmp_path / "model", stage=f"seed-{again['best_seed']}")["step"] == 10


def test_the_mean_of_the_last_checkpoints_is_the_model_and_survives_a_stop(single, tmp_path, monkeypatch):
    recipe, files = single
    recipe = with_training(recipe, epochs=3.0, average_checkpoints=2, keep_checkpoints=1)
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    with pytest.raises(Interrupted):  # which saves a step that is not one of those averaged
        finetune(recipe, **files, out=cut, progress=Terminate(0, 12))
    finetune(recipe, **files, out=cut, resume=True)
    kept = step_folders(cut / "restarts" / "seed-0" / "checkpoints")
    assert [step_of(folder) for folder in kept] == [15, 10]
    monkeypatch.setattr(finetune_restarts, "drop_old_checkpoints", lambda *_: None)
    finetune(recipe, **files, out=whole)
    assert weights(cut) == weights(whole)

    folders = step_folders(whole / "restarts" / "seed-0" / "checkpoints")[:2]
    first, second = map(checkpoint_weights, folders)
    model, _ = load_model(whole / "model")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, ((first[name].double() + second[name].double()) / 2).float())
    best = json.loads((whole / "restarts" / "seed-0" / "result.json").read_text())["best"]
    assert (best["step"], best["averaged"]) == (15, [10, 15])
    assert "the mean of 2 checkpoints" in (whole / "model" / "README.md").read_text()

    finetune(with_training(recipe, epochs=4.0), **files, out=cut, resume=True)
    best = json.loads((cut / "restarts" / "seed-0" / "result.json").read_text())["best"]
    assert best["averaged"] == [15, 20]
    with pytest.raises(ConfigError, match=r"average_checkpoints = 4: 15 steps give 3 checkpoints, one every 5 steps"):
        finetune(with_training(recipe, average_checkpoints=4), **files, out=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"average_checkpoints counts steps: leave out training\.minutes"):
        validate_recipe(FinetuneRecipe, {"training": {"average_checkpoints": 2, "minutes": 1.0}}, source="recipe")
