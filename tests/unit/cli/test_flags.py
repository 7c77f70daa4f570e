"""Familiar flags: what they set and refuse, the hints for unknown ones, and shell completion."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from maskloom.cli import app
from maskloom.cli.options import complete_key, space_beside
from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.data.corpus.building import CorpusSettings
from maskloom.data.corpus.lint import Finding
from maskloom.errors import ConfigError, DataError, UsageError
from maskloom.generation.search import Generation
from maskloom.recipe_files import recipe_keys
from maskloom.reproduce.experiments import Budget
from maskloom.reproduce.running import Repeats
from maskloom.runs.recipes import FLAG_KEYS, check_flags, recipe_of_run, run_to_resume
from maskloom.runs.task_summaries import notes_of
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.vocabulary_training import VocabularySettings


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["finetune", "--lr", "1e-4"], "--learning-rate"),
        (["finetune", "--num_train_epochs", "3"], "--epochs"),
        (["finetune", "--per-device-train-batch-size", "3"], "--batch-size"),
        (["finetune", "--model_name_or_path", "x"], "--model"),
        (["finetune", "--save-steps", "3"], "--set training.save_every=VALUE"),
        (["pretrain", "--fp16", "x"], "--set training.precision=VALUE"),
        (["pretrain", "--dropout", "0.3"], "--set model.config.hidden_dropout_prob=VALUE"),
        (["finetune", "--warmup-ratio", "0.1"], "--set training.warmup_ratio=VALUE"),
        (["finetune", "--stride", "64"], "--set span.stride=VALUE"),
        (["pretrain", "--max_steps", "3"], "--steps"),
        (["pretrain", "--mlm-probability", "0.3"], "--set data.masked_lm_prob=VALUE"),
        (["pretrain", "--learning-rat", "0.3"], "--learning-rate"),
        (["pretrain", "--hidden-size", "64"], "--set model.config.hidden_size=VALUE"),
        (["pretrain", "--num_layers", "3"], "--set model.config.num_hidden_layers=VALUE"),
        (["plan", "--mlm-probability", "0.3"], "--set data.masked_lm_prob=VALUE"),
        (["reproduce", "--mlm-probability", "0.3"], "--set pretrain.data.masked_lm_prob=VALUE"),
        (["reproduce", "--epochs", "3"], "--set finetune.training.epochs=VALUE"),
        (["predict", "--output_dir", "x"], "--output"),
        (["predict", "--test-file", "x"], "--input"),
        (["evaluate", "--input", "x"], "--data"),
        (["vocab", "train", "--vocab-size", "9"], "(Possible options: --size)"),
        (["pretrain", "--vocab-size", "9"], "(Possible options: maskloom vocab train --size)"),
        (["words", "train", "--vocab-size", "9"], "(Possible options: maskloom vocab train --size)"),
    ],
)
def test_an_unknown_flag_points_to_the_right_one(arguments, hint):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert f"No such option: {arguments[-2]}" in said
    assert hint in said


def test_an_unknown_flag_like_no_other_gets_no_hint():
    said = CliRunner().invoke(app, ["pretrain", "--gpus", "3"]).output
    assert "No such option: --gpus" in said
    assert "Possible" not in said


@pytest.mark.parametrize(
    ("flag", "value", "rule"),
    [
        ("--epochs", "x", "'x': it must be a number"),
        ("--seed", "1.5", "'1.5': it must be a whole number"),
        ("--restarts", "0", "'0': it must be greater than or equal to 1"),
    ],
)
def test_a_wrong_number_is_named_with_its_rule(flag, value, rule):
    result = CliRunner().invoke(app, ["finetune", flag, value])
    assert result.exit_code == 2
    assert f"Invalid value for '{flag}': {rule}" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        (["finetune", "--task", "multilable"], "single, pair, regression, multilabel, .*; did you mean multilabel[?]"),
        (["search", "--task", "singel"], "single, pair, .*; did you mean single[?]"),
        (["pretrain", "--size", "tinny"], "tiny, mini, small, medium, base, large; did you mean tiny[?]"),
        (["corpus", "build", "--sentences", "word"], "split, lines"),
        (["embed", "--pooling", "x"], "mean, cls, max"),
    ],
)
def test_a_wrong_value_is_named_with_those_that_there_are(arguments, choices):
    result = CliRunner().invoke(app, arguments)
    said = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code == 2
    assert re.search(f"Invalid value for '{arguments[-2]}': '{arguments[-1]}' is not one of {choices} ", said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "--data", "d.csv"], "no model: pass --model"),
        (["predict", "--model", "m", "--ensemble", "e", "--input", "i.csv", "--output", "o.csv"], "leave out --model"),
        (["finetune", "--model", ".", "--train", "t", "--dev", "d", "--out", "o", "--format", "mrcp"], "--format: "),
        (
            ["pretrain", "--corpus", "c", "--out", "o", "--batch-size", "4", "--set", "training.batch_size=8"],
            "--batch-size and --set training.batch_size=… set the same key: use only one of them",
        ),
        (
            ["pretrain", "--corpus", "c", "--out", "o", "--epochs", "2", "--set", "training.steps=8"],
            "--epochs and --set training.steps=… both set how long to train",
        ),
        (
            ["pretrain", "--corpus", "c", "--out", "o", "--epochs", "2", "--set", "training.steps = 8"],
            "--epochs and --set training.steps=… both set how long to train",
        ),
        (["plan", "--corpus", "c", "--epochs", "2", "--set", "training.steps=8"], "both set how long to train"),
        (
            ["score-answers", "--data", "d.json", "--predictions", "p.json", "--null-threshold", "1"],
            "^--null-threshold: it applies to null odds; pass --null-odds FILE$",
        ),
        (
            ["pretrain", "--out", "o", "--verify"],
            "^--verify: it repeats training steps of an earlier run; pass --resume",
        ),
        (
            ["finetune", "--out", "o", "--verify"],
            "^--verify: it repeats training steps of an earlier run; pass --resume",
        ),
        (["export", "r", "--out", "o", "--normalize"], "^--normalize: it needs --for-vectors$"),
        (["evaluate", "--model", "m", "--data", "d", "--average", "probabilities"], "^--average: m is one model"),
        (
            [*("vocab", "train", "t", "--size", "9", "--out", "o"), "--model", "words", "--alphabet-limit", "1000"],
            "^--alphabet-limit: a vocabulary of words does not limit its characters",
        ),
        (["reproduce", "table5", "--out", "o", "--minutes", "60"], "^--minutes: it is for budget, not for table5$"),
        (["reproduce", "budget", "--out", "o", "--scale", "tiny"], "^--scale: for budget, --minutes sets the scale"),
        (
            ["reproduce", "figure1", "--out", "o", "--seeds", "3"],
            "^--seeds: figure1 makes its own inputs, at one scale",
        ),
        (["embed", "--model", "m", "--input", "i.txt", "--report", "r.html", "--normalize"], "^--normalize: only"),
        (
            ["embed", "--model", "m", "--input", "i.txt", "--report", "r.html", "--no-normalize"],
            "^--no-normalize: only",
        ),
        (
            ["embed", "--model", "m", "--input", "i.txt", "--output", "o.npy", "--int8", "--device", "cuda"],
            "^--int8 with --device cuda: eight-bit inference runs only on the CPU$",
        ),
        (["recipes", "--json", "show", "pretrain"], "--json: give it after the command: maskloom recipes show --json"),
    ],
)
def test_flags_that_cannot_be_meant_are_wrong_usage(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MASKLOOM_DEVICE", "")  # --device sets it
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_onnx_without_its_extra_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setitem(sys.modules, "maskloom.runs.export", None)  # which imports torch
    arguments = ["export", str(tmp_path), "--out", str(tmp_path / "out"), "--onnx"]
    with pytest.raises(ConfigError, match=r"^--onnx needs onnx and onnxscript: pip install 'maskloom\[onnx\]'$"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_flags_set_their_keys():
    for kind, names in ((PretrainRecipe, {"size"}), (FinetuneRecipe, {"epochs", "task", "restarts", "keep_restarts"})):
        known = {key.path for key in recipe_keys(kind)}
        shared = {"steps", "minutes", "batch_size", "learning_rate", "max_length", "seed"}
        assert {FLAG_KEYS[name] for name in names | shared} <= known
    flags = {"epochs": 2.5, "learning_rate": 1e-5, "seed": 0, "task": "pair", "steps": None}
    recipe = recipe_of_run(FinetuneRecipe, None, changes=[], flags=flags)
    assert (recipe.training.epochs, recipe.training.learning_rate, recipe.task) == (2.5, 1e-5, "pair")


@pytest.mark.parametrize(
    ("changes", "flags", "message"),
    [
        ([], {"learning_rate": -1.0}, r"^--learning-rate -1.0: training.learning_rate = -1.0: it must be greater than"),
        (["training.stps=5"], {}, r"^--set 'training.stps=5': unknown key 'training.stps'; did you mean"),
        (["trainin.steps=5"], {}, r"^.*squad-v1\.toml with --set 'trainin.steps=5': unknown key 'trainin'"),
        (["data.max_length=many"], {"seed": 1}, r"^--set 'data.max_length=many': data.max_length = 'many'"),
        (["training=3"], {"steps": 5}, "^--steps 5: 'training' is a value, not a section$"),
        (["training.log_to=[1]"], {}, r"^--set 'training.log_to=\[1\]': training.log_to.0 = 1"),
        (
            ["training.warmup_steps=9", "seed=1"],
            {"steps": 5},
            r"^.*squad-v1\.toml with --set 'training.warmup_steps=9', --steps 5: training.warmup_steps = 9: it may not",
        ),
    ],
)
def test_a_wrong_change_is_blamed_and_not_the_recipe_s_file(changes, flags, message):
    with pytest.raises(ConfigError, match=message):
        recipe_of_run(FinetuneRecipe, "squad-v1", changes=changes, flags=flags)


def test_a_flag_that_would_change_nothing_is_refused():
    phases = "phases=[{max_length=8, steps=3, learning_rate=1e-3}]"
    recipe = load_recipe(PretrainRecipe, None, [phases])
    for flag, key in (("steps", "steps"), ("max_length", "max_length"), ("learning_rate", "learning_rate")):
        with pytest.raises(ConfigError, match=rf"change that with --set phases\.0\.{key}=VALUE"):
            check_flags(recipe, {flag: 3})
    check_flags(recipe, {"batch_size": 3, "seed": 4, "steps": None})
    with pytest.raises(ConfigError, match=r"--epochs: training\.steps = 4 is also set"):
        check_flags(load_recipe(FinetuneRecipe, None, ["training.steps=4"]), {"epochs": 1.0})
    with pytest.raises(ConfigError, match=r"--epochs: training\.minutes = 30 is also set; use only one of them"):
        check_flags(load_recipe(FinetuneRecipe, None, ["training.minutes=30.0"]), {"epochs": 1.0, "minutes": 30.0})
    with pytest.raises(ConfigError, match="--steps: run was started for 30 minutes, and such a run cannot be extended"):
        check_flags(load_recipe(PretrainRecipe, None, ["training.minutes=30.0"]), {"steps": 9}, Path("run"))
    with pytest.raises(ConfigError, match=r"--epochs 2\.0: the grid varies training\.epochs"):
        space_beside(["paper"], {"epochs": 2.0, "seed": 1}, None)
    with pytest.raises(ConfigError, match=r"^--set training\.epochs=2: the grid varies training\.epochs"):
        space_beside(["paper"], {"seed": 1}, ["seed=1", "training.epochs=2"])
    varied = ["training.epochs=2,3"]
    assert space_beside(varied, {"epochs": None, "seed": 1}, ["training.batch_size=2"]) == {"training.epochs": [2, 3]}
    assert space_beside(None, {"epochs": 2.0}, ["training.epochs=2"]) is None


@pytest.mark.parametrize("changes", ['model={size="tiny"}', "model.size=tiny"])
def test_a_size_in_a_setting_is_that_of_the_new_model(changes, tmp_path, monkeypatch):
    """Regression: beside a whole table [model] of --set, --vocab set the default size."""
    found = []
    monkeypatch.setattr("maskloom.runs.first_look.look_at_training_data", lambda *given: found.append(given[-1]))
    monkeypatch.setattr("maskloom.runs.finetune.finetune", lambda *_, **__: {})
    given = ["finetune", "--vocab", "v", "--train", "t.csv", "--dev", "d.csv", "--out", str(tmp_path / "o")]
    CliRunner().invoke(app, [*given, "--set", changes])
    assert [recipe.model.size for recipe in found] == ["tiny"]


def test_a_grid_of_sizes_is_no_conflict_with_the_size_that_vocab_implies(tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr("maskloom.runs.first_look.look_at_training_data", lambda *_: None)
    monkeypatch.setattr("maskloom.runs.search.search", lambda *_, trials, **__: tried.append(trials.space))
    given = ["search", "--vocab", "v", "--train", "t.csv", "--dev", "d.csv", "--out", str(tmp_path / "o")]
    CliRunner().invoke(app, [*given, "--grid", "model.size=tiny,mini"])
    assert tried == [{"model.size": ["tiny", "mini"]}]


RUNS = {
    "pretrain": {"corpus": "0"},
    "finetune": {"train": "0"},
    "search": {"train": "0", "space": {}},
    "glue run": {"tasks": None, "space": {}},
    "words train": {"text": "0"},
}


def write_description(folder, inputs):
    (folder / "run.json").write_text(json.dumps({"id": "0", "paths": {}, "world_size": 1, "inputs": inputs}))


@pytest.mark.parametrize("command", RUNS)
def test_the_run_of_another_command_is_named_with_it(command, tmp_path):
    needed = {"glue run": ["--model", "m", "--data", "d"], "words train": ["t.txt"]}.get(command, [])
    arguments = [*command.split(), *needed, "--out", str(tmp_path), "--resume"]
    (tmp_path / "recipe.toml").write_text("")
    for other in RUNS.keys() - {command}:
        write_description(tmp_path, RUNS[other])
        with pytest.raises(UsageError, match=f"this run is continued by maskloom {other} --resume$"):
            CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_word_vectors_resume_without_their_options(tmp_path, monkeypatch):
    write_description(tmp_path, RUNS["words train"])
    (tmp_path / "recipe.toml").write_text('kind = "words"\nsize = 8\nloss = "softmax"\nnegative = 9\n')
    recipes = []
    monkeypatch.setattr("maskloom.runs.words.train_words", lambda _, recipe, **__: recipes.append(recipe) or {})
    for more in ([], ["--epochs", "2"], ["--size", "100"]):  # 100 is the default, but here it is given
        CliRunner().invoke(app, ["words", "train", "t.txt", "--out", str(tmp_path), "--resume", *more])
    found = [(recipe.size, recipe.loss, recipe.epochs) for recipe in recipes]
    assert found == [(8, "softmax", 5), (8, "softmax", 2), (100, "softmax", 5)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--negative", "9", "--loss", "softmax"], "--negative 9: it changes nothing without --loss negative"),
        (["--noise-exponent", "1", "--loss", "hierarchical"], "--noise-exponent 1.0: it changes nothing without"),
        (["--context", "sum"], "--context sum: it changes nothing without --model cbow"),
        (["--divided-gradient"], "--divided-gradient: it changes nothing without --model cbow"),
        (["--phrase-threshold", "9"], "--phrase-threshold 9.0: it changes nothing without --phrases"),
        (["--tokenize", "spaces", "--cased"], "--cased: it changes nothing without --tokenize words"),
    ],
)
def test_an_option_of_word_vectors_that_would_change_nothing_is_refused(flags, message, tmp_path):
    given = ["words", "train", str(tmp_path / "absent.txt"), "--out", str(tmp_path / "o"), *flags]
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_a_number_of_words_to_search_is_for_analogies():
    given = ["words", "evaluate", "absent", "--pairs", "absent.csv", "--most", "30000"]
    with pytest.raises(UsageError, match="--most: it limits where the answers of --analogies are searched"):
        CliRunner().invoke(app, given, catch_exceptions=False)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["words", "train", "absent.txt"], "learning_rate"),
        (["pretrain", "--corpus", "absent"], "training.learning_rate"),
        (["finetune", "--model", "absent", "--train", "t.csv", "--dev", "d.csv"], "training.learning_rate"),
    ],
)
def test_a_rate_that_is_not_finite_is_named_as_given(command, key, value, tmp_path):
    """Regression: it was told as the text 'NaN'."""
    given = [*command, "--out", str(tmp_path / "o"), "--learning-rate", value]
    with pytest.raises(ConfigError, match=f"^--learning-rate {value}: {key} = {value}: it must be a finite number"):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_keys_are_completed():
    pretrain, plan, finetune = (SimpleNamespace(info_name=name) for name in ("pretrain", "plan", "finetune"))
    for command in (pretrain, plan):
        assert complete_key(command, "data.mask") == ["data.masked_lm_prob=", "data.mask_prob="]
    assert complete_key(finetune, "tagging.context=") == ["tagging.context=sentence", "tagging.context=document"]
    assert complete_key(finetune, "data.mask") == []


def test_resuming_a_run_that_is_not_there_says_that_a_new_one_begins(tmp_path, monkeypatch):
    said = []
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("")
    assert run_to_resume(tmp_path / "run", True, said.append) == tmp_path / "run"
    assert run_to_resume(tmp_path / "run", False, said.append) is None
    assert said == []
    assert run_to_resume(tmp_path / "rnu", True, said.append) is None
    assert said == [f"no run in {tmp_path / 'rnu'} yet: starting a new one"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert run_to_resume(tmp_path / "rnu", True, said.append) is None
    assert len(said) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["pretrain", "--corpus", "absent"],
        ["finetune", "--model", "absent", "--train", "t.csv", "--dev", "d.csv"],
        ["search", "--model", "absent", "--train", "t.csv", "--dev", "d.csv"],
        ["glue", "run", "--data", "absent", "--model", "absent"],
    ],
)
def test_every_command_that_resumes_says_so(command, tmp_path):
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "rnu"), "--resume"])
    assert isinstance(result.exception, DataError)
    assert result.stderr == f"no run in {tmp_path / 'rnu'} yet: starting a new one\n"
    assert CliRunner().invoke(app, [*command, "--out", str(tmp_path / "rnu")]).stderr == ""


def test_control_characters_in_findings_and_notes_are_shown_and_not_sent(monkeypatch):
    finding = Finding("warning", "repeats", "'a\x1b[2Jb' stands 9 times")
    monkeypatch.setattr("maskloom.data.corpus.opening.Corpus.open", lambda folder: None)
    monkeypatch.setattr("maskloom.data.corpus.lint.lint_corpus", lambda corpus: [finding])
    said = CliRunner().invoke(app, ["corpus", "lint", "corpus"]).stdout
    assert said == "warning: repeats: 'a\\x1b[2Jb' stands 9 times\n"
    none = {"value": None, "missing": []}
    wnli = {"status": "majority", "label": "\x1b[2J", "columns": {}}
    result = {"tasks": {"wnli": wnli}, "absent": {}, "paper_average": none, "leaderboard_score": none}
    assert r"every answer is \x1b[2J," in notes_of(result)[1]


BUILD = ["corpus", "build", "t", "--vocab", "v", "--out", "o"]
BUILDING = "corpus.build_corpus_from_files"
READ = ["--model", "m", "--input", "t.jsonl", "--output"]


@pytest.mark.parametrize(
    ("arguments", "function", "expected"),
    [
        (BUILD, BUILDING, {"settings": CorpusSettings()}),
        ([*BUILD, "--documents", "file"], BUILDING, {"settings": CorpusSettings(documents="file")}),
        ([*BUILD, "--language", "de"], BUILDING, {"settings": CorpusSettings(language="de")}),
        (
            ["vocab", "train", "t", "--size", "9", "--out", "o"],
            "corpus.train_vocabulary_from_files",
            {"settings": VocabularySettings(9)},
        ),
        (["predict", *READ, "o.csv"], "predict.predict", {"csv_safe": False}),
        (["predict", *READ, "o.csv", "--csv-safe"], "predict.predict", {"csv_safe": True}),
        (["embed", *READ, "o.npy"], "predict.embed", {"pooling": None, "normalize": None}),
        (["embed", *READ, "o.npy", "--normalize"], "predict.embed", {"pooling": None, "normalize": True}),
        (["export", "r", "--out", "o", "--for-vectors", "cls"], "export.describe_vectors", {"normalize": False}),
        (
            ["export", "r", "--out", "o", "--for-vectors", "cls", "--normalize"],
            "export.describe_vectors",
            {"normalize": True},
        ),
    ],
)
def test_a_flag_reaches_what_does_the_work(arguments, function, expected, monkeypatch):
    given = []
    monkeypatch.setattr("maskloom.runs.export.export", lambda *_, **__: {})
    loaded = SimpleNamespace(device=torch.device("cpu"))
    monkeypatch.setattr("maskloom.inference.Predictor.load", lambda *_, **__: loaded)
    for name in ("look_at_input", "look_at_texts"):
        monkeypatch.setattr(f"maskloom.runs.first_look.{name}", lambda *_, **__: None)
    monkeypatch.setattr(f"maskloom.runs.{function}", lambda *_, **values: given.append(values))
    CliRunner().invoke(app, arguments)
    assert [{key: values[key] for key in expected} for values in given] == [expected]


@pytest.mark.parametrize(
    ("arguments", "device", "expected"),
    [
        (["table5"], "cpu", {"scale": "tiny", "repeats": Repeats(3, 5), "corpus": None, "tasks": None}),
        (["table5"], "cuda", {"scale": "tiny", "repeats": Repeats(3, 1)}),
        (["table6", "--scale", "one-gpu", "--seeds", "2"], "cpu", {"scale": "one-gpu", "repeats": Repeats(2, 1)}),
        (["table7", "--jobs", "4", "--tasks", "t"], "cuda", {"repeats": Repeats(3, 4), "tasks": Path("t")}),
        (["figure4", "--corpus", "c", "--tasks", "t"], "cpu", {"corpus": Path("c"), "tasks": Path("t")}),
        (
            ["table8", "--set", "pretrain.training.steps=9", "--set", "finetune.frozen=true"],
            "cpu",
            {"overrides": {"pretrain": ["training.steps=9"], "finetune": ["frozen=true"]}},
        ),
        (["budget"], "cpu", {"scale": Budget(60.0), "repeats": Repeats(3, 5)}),
        (
            ["budget", "--minutes", "2", "--beside", "a=f", "--beside", "b=g", "--seeds", "5"],
            "cpu",
            {"scale": Budget(2.0, {"a": Path("f"), "b": Path("g")}), "repeats": Repeats(5, 5)},
        ),
    ],
)
def test_flags_of_an_experiment_reach_it(arguments, device, expected, monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr("maskloom.system.devices.chosen_device", lambda: SimpleNamespace(type=device))
    monkeypatch.setattr("maskloom.cli.training.usable_cores", lambda: 5)
    monkeypatch.setattr("maskloom.reproduce.running.reproduce", lambda name, **how: given.append((name, how)))
    CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path / "o")])
    ((name, how),) = given
    assert (name, how["out"]) == (arguments[0], tmp_path / "o")
    assert {key: how[key] for key in expected} == expected


def test_flags_of_a_plan_reach_it(monkeypatch):
    given = []
    monkeypatch.setattr("maskloom.data.corpus.manifest.read_manifest", lambda corpus: {})
    monkeypatch.setattr("maskloom.runs.plan.plan_pretraining", lambda *recipes, **how: given.append((recipes, how)))
    flags = ["--batch-size", "8", "--max-length", "32", "--seconds", "0.5", "--set", "data.mask_prob=0.7"]
    for more in (["--minutes", "3"], ["--size", "base", "--steps", "9"]):
        CliRunner().invoke(app, ["plan", "--corpus", "c", *flags, *more])
    (all_sizes, how), ((base,), _) = given
    assert (how["corpus"], how["seconds"]) == (Path("c"), 0.5)
    assert [recipe.model.size for recipe in all_sizes] == ["tiny", "mini", "small", "medium", "base"]
    assert {recipe.training.minutes for recipe in all_sizes} == {3.0}
    assert (base.model.size, base.training.steps) == ("base", 9)
    for recipe in (*all_sizes, base):
        assert (recipe.training.batch_size, recipe.data.max_length, recipe.data.mask_prob) == (8, 32, 0.7)


DRAWN = {"max_tokens": 3, "temperature": 0.5, "seed": 2}
ALL_DRAWN = {**DRAWN, "top_k": 4, "top_p": 0.9, "min_tokens": 1, "no_repeat_ngram": 2}


@pytest.mark.parametrize(
    ("command", "settings", "fills"),
    [
        ("generate", ALL_DRAWN, None),
        ("generate", {"beam": 3, "length_penalty": 0.6, "num_best": 2}, None),
        ("fill-spans", {}, Generation(temperature=0.0)),
        ("fill-spans", DRAWN, Generation(**DRAWN)),
        ("fill-spans", {"beam": 3}, Generation(beam=3)),
    ],
)
def test_flags_of_generation_reach_it(command, settings, fills, monkeypatch, tmp_path):
    loaded, called = [], []
    for name in ("cli.use.check_model_name", "runs.first_look.look_at_sources"):
        monkeypatch.setattr(f"maskloom.{name}", lambda *_: None)
    opened = SimpleNamespace(device=torch.device("cpu"))
    monkeypatch.setattr("maskloom.inference.Predictor.load", lambda *_, **how: loaded.append(how) or opened)
    monkeypatch.setattr("maskloom.runs.predict.generate", lambda *given, **how: called.append((given, how)))
    files = ["--input", str(tmp_path / "i.csv"), "--output", str(tmp_path / "o.jsonl")]
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    more = ["--batch-size", "7", "--text-column", "t", "--on-bad-rows", "skip"]
    CliRunner().invoke(app, [command, "--model", "m", *files, *flags, *more])
    (((_, *places, given), how),) = called
    assert (loaded, places) == ([{"batch_size": 7}], [tmp_path / "i.csv", tmp_path / "o.jsonl"])
    assert given == ({} if fills else settings)
    assert how["reading"] == ReadingOptions(text_column="t", on_bad_rows="skip")
    assert how.get("fills") == fills
