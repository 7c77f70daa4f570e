"""Searches with a stand-in for fine-tuning: order, failures, interruptions, and what is kept and written."""

import json
import os
import shlex
import shutil
import signal

import pytest

from maskloom.config import FinetuneRecipe, load_recipe, recipe_toml, validate_recipe
from maskloom.errors import ConfigError, DataError, UsageError
from maskloom.recipe_files import overrides_of
from maskloom.runs import search as search_run
from maskloom.runs.display import Progress
from maskloom.runs.finetune import LabelledFiles
from maskloom.runs.search import Trials, search
from maskloom.runs.search_space import (
    GRIDS,
    ValueRange,
    grid_settings,
    parse_space,
    recipe_with,
    settings_text,
)
from maskloom.runs.task_summaries import markdown_of, search_rows
from maskloom.system.files import write_json, write_text
from maskloom.tasks.tables import ReadingOptions
from maskloom.training.checkpointing import checkpoints
from maskloom.training.faults.nonfinite import NumericalError

RATES = {"training.learning_rate": (1e-5, 3e-5, 2e-5)}


class Finetuning:
    """Scores a recipe by its learning rate, writes the files that a run leaves behind, and records its calls."""

    def __init__(self, *, failing=(), stops=(), error=None):
        self.calls, self.failing, self.stops = [], set(failing), list(stops)
        self.error = error or NumericalError("the loss is nan")

    def __call__(self, recipe, *, out, resume, data, **others):
        self.data = data
        rate = recipe.training.learning_rate
        self.calls.append((rate, recipe.training.batch_size, resume))
        if (out / "metrics.json").exists():
            return json.loads((out / "metrics.json").read_text())
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "recipe.toml", recipe_toml(recipe))
        if rate in self.stops:
            self.stops.remove(rate)
            raise KeyboardInterrupt
        if rate in self.failing:
            raise self.error
        score = 0.5 + rate * 1e4 + recipe.training.batch_size / 1000
        write_text(out / "model" / "config.json", json.dumps({"rate": rate}))
        result = {
            "metric": "accuracy", "best_seed": 0,
            "best": {"step": 3, "epoch": 1.0, "scores": {"accuracy": score, "loss": 1.0}, "degenerate": None},
            "restarts": {
                "num_restarts": 2, "scores": {"0": score, "1": score - 0.1}, "mean": score - 0.05,
                "standard_deviation": 0.0707, "degenerate": {"1": "every prediction is the same class"},
            },
        }  # fmt: skip
        write_json(out / "metrics.json", result)
        return result


@pytest.fixture
def inputs(tmp_path):
    write_text(tmp_path / "base" / "config.json", "{}")
    for name in ("train", "dev"):
        write_text(tmp_path / f"{name} file.tsv", "text\tlabel\na\t0\n")
    return {
        "model": tmp_path / "base",
        "train": tmp_path / "train file.tsv",
        "dev": tmp_path / "dev file.tsv",
        "out": tmp_path / "out",
    }


@pytest.fixture
def run(inputs, monkeypatch):
    def start(finetuning, **options):
        monkeypatch.setattr(search_run, "finetune", finetuning)
        recipe = options.pop("recipe", FinetuneRecipe())
        given = {**inputs, "space": RATES, **options}
        reading, metric = given.pop("reading", ReadingOptions()), given.pop("metric", None)
        data = LabelledFiles(given.pop("train"), given.pop("dev"), reading, metric)
        trials = Trials(
            **{
                {"num_trials": "number"}.get(name, name): given.pop(name)
                for name in ("space", "method", "num_trials")
                if name in given
            }
        )
        return search(recipe, data=data, trials=trials, **given)

    return start


def test_a_checkpoint_of_a_finished_trial_loses_its_name_before_its_files(run, inputs, monkeypatch):
    removed, original = [], checkpoints.remove_tree
    monkeypatch.setattr(checkpoints, "remove_tree", lambda path: (removed.append(path.name), original(path)))

    class Saving(Finetuning):
        def __call__(self, recipe, *, out, **others):
            write_text(out / "restarts" / "seed-0" / "checkpoints" / "step-00000003" / "manifest.json", "{}")
            return super().__call__(recipe, out=out, **others)

    run(Saving())
    assert removed == [f"step-00000003.tmp-{os.getpid()}"] * 3  # one for each trial
    assert not list(inputs["out"].rglob("checkpoints"))


def test_every_combination_is_tried_and_ranked(run, inputs):
    finetuning = Finetuning()
    space = {"training.batch_size": (16, 32), **RATES}
    result = run(finetuning, space=space)
    assert [call[:2] for call in finetuning.calls] == [(rate, size) for size in (16, 32) for rate in (1e-5, 3e-5, 2e-5)]
    assert [trial["name"] for trial in result["trials"][:2]] == ["trial-005", "trial-002"]
    assert result["best"]["settings"] == {"training.batch_size": 32, "training.learning_rate": 3e-5}
    plan = json.loads((inputs["out"] / "search.json").read_text())
    assert [trial["settings"]["training.batch_size"] for trial in plan["trials"]] == [16, 16, 16, 32, 32, 32]
    assert json.loads((inputs["out"] / "results.json").read_text()) == result


def test_only_the_best_model_is_kept(run, inputs):
    result = run(Finetuning())
    assert json.loads((inputs["out"] / "model" / "config.json").read_text()) == {"rate": 3e-5}
    assert result["model"] == str(inputs["out"] / "model")
    assert not list(inputs["out"].glob("trials/*/model"))


def test_equal_scores_go_to_the_earlier_trial(run):
    result = run(Finetuning(), space={"training.weight_decay": (0.1, 0.2)})
    assert result["best"]["number"] == 1


def test_a_failing_trial_leaves_the_others_alone(run, inputs):
    result = run(Finetuning(failing=[1e-5, 2e-5]))
    assert (result["num_trials"], result["num_failed"]) == (3, 2)
    assert [trial["name"] for trial in result["trials"]] == ["trial-002", "trial-001", "trial-003"]
    assert result["trials"][1]["error"] == "NumericalError: the loss is nan"
    assert "NumericalError" in (inputs["out"] / "trials" / "trial-001.failure.txt").read_text()
    table = (inputs["out"] / "results.md").read_text()
    assert "| – | trial-001 | 1e-05 | failed: NumericalError: the loss is nan |" in table


def test_a_search_without_any_result_says_why(run):
    with pytest.raises(ConfigError, match="all 3 trials failed: trial-001: NumericalError: the loss is nan"):
        run(Finetuning(failing=[1e-5, 2e-5, 3e-5]))


@pytest.mark.parametrize("error", [DataError("train.tsv: line 2: empty text"), OSError("no space left")])
def test_what_no_trial_can_mend_ends_the_search(run, error):
    finetuning = Finetuning(failing=[1e-5], error=error)
    with pytest.raises(type(error), match=str(error)):
        run(finetuning)
    assert len(finetuning.calls) == 1


def test_wrong_data_leave_no_search_behind(run, inputs, monkeypatch):
    def refuse(*args, **options):
        raise DataError("dev.tsv: line 2: empty text")

    with pytest.raises(DataError, match="line 2"):
        run(refuse)
    assert not inputs["out"].exists()
    inputs["dev"].write_text("text\tlabel\nb\t0\n")
    assert run(Finetuning())["num_failed"] == 0


def test_an_interrupted_search_goes_on_in_the_middle(run, inputs):
    whole = run(Finetuning(), out=inputs["out"].with_name("whole"))
    finetuning = Finetuning(stops=[3e-5])
    with pytest.raises(KeyboardInterrupt):
        run(finetuning)
    with pytest.raises(ConfigError, match="already contains a run"):
        run(finetuning)
    result = run(finetuning, resume=True, space=None)
    assert finetuning.calls == [(1e-5, 32, False), (3e-5, 32, False), (3e-5, 32, True), (2e-5, 32, False)]
    assert [trial["score"] for trial in result["trials"]] == [trial["score"] for trial in whole["trials"]]
    assert result["best"]["seconds"] is None
    assert run(finetuning, resume=True) == result
    assert len(finetuning.calls) == 4


def test_a_finished_search_has_nothing_left_to_do(run, inputs):
    run(Finetuning(failing=[3e-5], error=RuntimeError("out of memory")))
    run(again := Finetuning(), resume=True)  # tries the failed trial once more
    assert len(again.calls) == 1
    run(last := Finetuning(), resume=True)
    assert last.calls == []
    shutil.rmtree(inputs["out"] / "model")
    with pytest.raises(ConfigError, match=r"model no longer exists; .* maskloom finetune .*/reruns/trial-002"):
        run(Finetuning(), resume=True)


def test_a_trial_killed_before_it_began_is_begun(run, inputs):
    (inputs["out"] / "trials" / "trial-002").mkdir(parents=True)
    (inputs["out"] / "trials" / "trial-002" / "run.json").write_text("{}")
    (inputs["out"] / "trials").rename(inputs["out"].with_name("left"))
    with pytest.raises(KeyboardInterrupt):
        run(Finetuning(stops=[1e-5]), out=inputs["out"].with_name("other"))
    other = inputs["out"].with_name("other")
    (inputs["out"].with_name("left") / "trial-002").rename(other / "trials" / "trial-002")
    finetuning = Finetuning()
    assert run(finetuning, out=other, resume=True)["num_failed"] == 0
    assert (3e-5, 32, False) in finetuning.calls
    assert not (other / "trials" / "trial-002" / "run.json").exists()


def test_failures_of_numbers_stay_and_others_are_tried_again(run):
    run(Finetuning(failing=[1e-5]))
    again = Finetuning()
    assert run(again, resume=True)["num_failed"] == 1
    assert again.calls == []


def test_other_failures_are_tried_again_and_may_win(run, inputs):
    first = run(Finetuning(failing=[3e-5], error=RuntimeError("out of memory")))
    assert first["best"]["name"] == "trial-003"
    assert json.loads((inputs["out"] / "model" / "config.json").read_text()) == {"rate": 2e-5}
    again = Finetuning()
    result = run(again, resume=True)
    assert (result["num_failed"], result["best"]["name"]) == (0, "trial-002")
    assert again.calls == [(3e-5, 32, False)]
    assert json.loads((inputs["out"] / "model" / "config.json").read_text()) == {"rate": 3e-5}
    assert sorted(path.name for path in inputs["out"].glob("model*")) == ["model"]


def test_a_search_killed_after_the_best_model_was_put_in_place_keeps_it_whole(run, inputs, monkeypatch):
    """Regression: a half-removed model of the best trial was copied over the complete one."""
    remove = search_run.shutil.rmtree

    def killed(folder, **options):
        if folder.is_dir() and folder.parent.name == "trial-002":
            (folder / "config.json").unlink()
            raise KeyboardInterrupt
        remove(folder, **options)

    with monkeypatch.context() as patched:
        patched.setattr(search_run.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            run(Finetuning())
    assert run(Finetuning(), resume=True)["best"]["name"] == "trial-002"
    assert json.loads((inputs["out"] / "model" / "config.json").read_text()) == {"rate": 3e-5}
    assert not list(inputs["out"].rglob("*.tmp-*"))


def test_a_resumed_search_is_the_same_search(run, inputs):
    run(Finetuning())
    with pytest.raises(ConfigError, match="started with space"):
        run(Finetuning(), resume=True, space={"training.epochs": (1.0,)})
    inputs["dev"].write_text("text\tlabel\nb\t0\n")
    with pytest.raises(ConfigError, match=r"dev file\.tsv has changed since"):
        run(Finetuning(), resume=True)


def test_a_search_with_a_class_list_goes_on_in_another_directory(run, inputs, tmp_path, monkeypatch):
    labels, finetuning = tmp_path / "labels.txt", Finetuning(stops=[3e-5])
    labels.write_text("0\n1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(finetuning, reading=ReadingOptions(labels="labels.txt"))
    monkeypatch.chdir(inputs["model"])
    result = run(finetuning, resume=True)
    assert finetuning.data.reading == ReadingOptions(labels=str(labels))
    assert shlex.split(result["best"]["command"]).count(str(labels)) == 1
    assert run(finetuning, reading=ReadingOptions(labels="../labels.txt"), resume=True) == result
    labels.write_text("0\n2\n")
    with pytest.raises(ConfigError, match=r"labels .*labels\.txt has changed since the start of this run"):
        run(finetuning, resume=True)


def test_the_command_of_a_trial_says_all_that_it_did(run, inputs):
    recipe = validate_recipe(FinetuneRecipe, {"restarts": 2, "data": {"max_length": 64}}, source="test")
    reading = ReadingOptions(format="rte", on_bad_rows="skip")
    result = run(Finetuning(), recipe=recipe, reading=reading, metric="f1")
    words = shlex.split(result["best"]["command"])
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert words[:2] == ["maskloom", "finetune"]
    assert options["--train"] == str(inputs["train"])
    assert options["--set"] == "training.learning_rate=3e-05"
    assert (options["--format"], options["--on-bad-rows"], options["--metric"]) == ("rte", "skip", "f1")
    again = load_recipe(FinetuneRecipe, options["--recipe"], [options["--set"]])
    assert (again.restarts, again.data.max_length, again.task) == (2, 64, "pair")
    stored = load_recipe(FinetuneRecipe, inputs["out"] / "trials" / "trial-002" / "recipe.toml")
    assert again == stored


@pytest.mark.parametrize("error", [UsageError, ConfigError])
def test_what_the_first_trial_refuses_ends_the_search_and_leaves_nothing(run, inputs, error):
    """Regression: settings that suit no trial were failures of all, and the folder took no corrected command."""

    def finetuning(recipe, **options):
        calls.append(recipe)
        raise error("data.max_length 128 exceeds the 80 tokens that base takes")

    calls = []
    with pytest.raises(ConfigError, match=r"^data\.max_length 128 exceeds the 80 tokens that base takes$"):
        run(finetuning)
    assert len(calls) == 1
    assert not list(inputs["out"].glob("*"))
    assert run(Finetuning(), recipe=FinetuneRecipe(seed=3))["num_failed"] == 0


def test_what_a_later_trial_refuses_is_its_failure(run):
    result = run(Finetuning(failing=[3e-5], error=ConfigError("too long")))
    assert [trial["name"] for trial in result["trials"]] == ["trial-003", "trial-001", "trial-002"]


def test_an_error_that_replaced_a_stop_is_no_failure_of_the_trial(run, inputs, monkeypatch):
    """Regression: a library that was creating a class replaced Interrupted, and the trial was recorded as failed."""
    monkeypatch.setattr(search_run, "RAISED", raised := [signal.SIGTERM])  # one of an earlier run
    finetuning = Finetuning(failing=[3e-5], error=RuntimeError("__set_name__ failed"))
    assert run(Finetuning(failing=[3e-5], error=RuntimeError("a bug")), out=inputs["out"] / "a")["num_failed"] == 1

    def stopped(recipe, **how):
        if recipe.training.learning_rate == 3e-5:
            raised.append(signal.SIGHUP)
        return finetuning(recipe, **how)

    with pytest.raises(RuntimeError, match="__set_name__ failed"):
        run(stopped, out=inputs["out"] / "b")
    assert not list((inputs["out"] / "b" / "trials").glob("*.failure.txt"))


def test_without_a_grid_it_says_that_there_is_one_trial(run, inputs):
    said = []
    progress = Progress()
    progress.say = said.append
    run(Finetuning(), space=None, progress=progress)
    assert said[0].startswith("no --grid: one trial with the recipe's settings; --grid ")
    said.clear()
    run(Finetuning(), space={}, out=inputs["out"].with_name("other"), progress=progress)
    assert not [line for line in said if "--grid" in line]


def test_wrong_settings_are_refused_before_anything_is_written(run, inputs):
    """Regression: with training.steps, trials that differed only in their epochs were the same run."""
    stepped = validate_recipe(FinetuneRecipe, {"training": {"steps": 9}}, source="test")
    epochs, sizes = (
        {"training.epochs": ValueRange(low=1.0, high=2.0)},
        {"training.batch_size": ValueRange(low=1, high=10**400)},
    )
    for options, message in [
        ({"space": {"training.learning_rat": (1.0,)}}, "did you mean 'training.learning_rate'"),
        ({"space": {"training.batch_size": (8, 0)}}, "--grid, trial 2: training.batch_size = 0"),
        ({"space": {"seed.x": (1,)}}, "'seed' is a value, not a section"),
        ({"space": epochs}, "ranges need optuna"),
        ({"num_trials": 3}, "--trials is for optuna"),
        ({"method": "optuna"}, "number of trials"),
        ({"method": "optuna", "num_trials": 2, "space": {}}, "something to search"),
        ({"reading": ReadingOptions(format="rte"), "recipe": FinetuneRecipe(task="single")}, "rte is a pair task"),
        ({"recipe": stepped, "space": {"training.epochs": (1.0, 2.0)}}, "trial 1: training.epochs: training.steps = 9"),
        ({"recipe": stepped, "space": GRIDS["paper"]}, "training.steps = 9 is also set; use only one of them"),
        ({"recipe": stepped, "method": "optuna", "num_trials": 2, "space": epochs}, "a trial: training.epochs: "),
        ({"method": "optuna", "num_trials": 2, "space": sizes}, "a trial: training.batch_size = 10000"),
        ({"method": "optuna", "num_trials": 2, "space": {"seed": (1, -1)}}, "a trial: seed = -1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            run(Finetuning(), **options)
        assert not inputs["out"].exists()
    with pytest.raises(DataError, match=r"nowhere\.tsv: cannot be read"):
        run(Finetuning(), train=inputs["out"] / "nowhere.tsv")
    assert not inputs["out"].exists()


def test_grids_as_arguments():
    space = parse_space(
        ["training.batch_size=16,32", "training.learning_rate=5e-5, 3e-5", "training.optimizer=adamw,x"]
    )
    assert space == {
        "training.batch_size": [16, 32],
        "training.learning_rate": [5e-5, 3e-5],
        "training.optimizer": ["adamw", "x"],
    }
    assert parse_space(["paper"]) == GRIDS["paper"]
    assert len(grid_settings(GRIDS["paper"])) == 18
    assert grid_settings(GRIDS["none"]) == [{}]
    assert parse_space(["training.epochs=1.0", "small"])["training.epochs"] == [1.0]
    assert parse_space(["small", "training.epochs=1.0"])["training.epochs"] == [1.0]
    assert parse_space(["training.learning_rate=1e-5..1e-4"]) == {"training.learning_rate": {"low": 1e-5, "high": 1e-4}}
    assert parse_space(["training.batch_size=8..64"]) == {"training.batch_size": {"low": 8, "high": 64}}


@pytest.mark.parametrize(
    "argument",
    [
        "huge",
        "a=",
        "=1",
        "a=1,1",
        "a=1,,2",
        "a=2..1",
        "a=1..x",
        "a=0.0..1.0",
        "a=-1.0..1.0",
        "a=true..false",
        "a=1..2#00",
        "a=1..2\nb=3",
        "a=1#..2",
        "a=1..1e400",
    ],
)
def test_arguments_that_are_no_grid(argument):
    with pytest.raises(ConfigError, match="--grid"):
        parse_space([argument])


def test_a_key_given_twice_is_refused():
    with pytest.raises(ConfigError, match="already given"):
        parse_space(["a=1", "a=2"])


@pytest.mark.parametrize("name", GRIDS)
def test_published_grids_are_recipes_and_survive_json(name):
    for settings in grid_settings(GRIDS[name]):
        recipe = recipe_with(FinetuneRecipe(), settings, source=name)
        assert load_recipe(FinetuneRecipe, None, overrides_of(settings)).training == recipe.training
    assert json.loads(json.dumps(GRIDS[name])) == GRIDS[name]


def test_settings_in_words():
    assert (
        settings_text({"training.learning_rate": 3e-5, "training.batch_size": 8}) == "learning_rate 3e-05, batch_size 8"
    )
    assert settings_text({}) == "recipe settings"


def test_the_table_says_what_was_best_on_dev_and_how_runs_spread(run):
    result = run(Finetuning())
    headers, rows = search_rows(result)
    assert headers == [
        "rank",
        "trial",
        "learning_rate",
        "accuracy, best on dev",
        "mean ± sd, median",
        "degenerate",
        "minutes",
    ]
    assert rows[0][:6] == [
        "1",
        "trial-002",
        "3e-05",
        "0.8320",
        "0.7820 ± 0.0707, median 0.7820 (2 runs)",
        "1 of 2 (seed 1)",
    ]
    assert markdown_of(["a|b"], [["c"]]) == "| a\\|b |\n|---|\n| c |"


def test_optuna_goes_on_as_if_it_had_not_been_interrupted(run, inputs):
    pytest.importorskip("optuna")
    options = {
        "method": "optuna",
        "num_trials": 13,
        "space": {"training.learning_rate": ValueRange(low=1e-5, high=1e-4)},
    }
    whole = run(Finetuning(), **options, out=inputs["out"].with_name("whole"))
    rates = [trial["settings"]["training.learning_rate"] for trial in sorted(whole["trials"], key=_number)]
    assert len(set(rates)) == 13
    assert all(1e-5 <= rate <= 1e-4 for rate in rates)
    cut = Finetuning(stops=[rates[11]])
    with pytest.raises(KeyboardInterrupt):
        run(cut, **options)
    result = run(Finetuning(), resume=True, space=None)
    assert [trial["settings"] for trial in result["trials"]] == [trial["settings"] for trial in whole["trials"]]
    assert result["num_trials"] == 13


def test_values_that_fit_only_some_of_another_key_are_searched(run):
    """Regression: each value was checked with the first values of the other keys only, and 32 does not fit 16."""
    pytest.importorskip("optuna")
    space = {"training.batch_size": (16, 32), "training.micro_batch_size": (16, 32)}
    assert run(Finetuning(), method="optuna", num_trials=4, space=space)["num_trials"] in (3, 4)


def test_optuna_never_tries_the_same_twice(run):
    pytest.importorskip("optuna")
    result = run(Finetuning(failing=[2e-5]), method="optuna", num_trials=9)
    tried = [trial["settings"]["training.learning_rate"] for trial in result["trials"]]
    assert sorted(tried) == [1e-5, 2e-5, 3e-5]


def test_a_missing_optuna_is_named(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install maskloom\[search\]"):
        run(Finetuning(), method="optuna", num_trials=2)


def _number(trial):
    return trial["number"]
