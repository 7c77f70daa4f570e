"""An architecture, pre-training objectives and a kind of task added from outside the package, as table rows.

docs/ADDING.md shows the parts that are added, in `added_*.py`, and their way from text to predictions.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.contract.added_architecture import Bag
from tests.contract.added_carrying import REMEMBERING
from tests.contract.added_task import SMOOTHED, Smoothed
from typer.testing import CliRunner

import maskloom
from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.cli import app
from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe, recipe_toml
from maskloom.data.corpus.opening import Corpus
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.recipe_files import recipe_keys
from maskloom.runs.display import LineProgress, Progress
from maskloom.runs.finetune import LabelledFiles, finetune
from maskloom.runs.predict import predict
from maskloom.runs.pretrain import pretrain
from maskloom.runs.pretraining_plan import check_corpus, model_config, phase_plans, pretraining_data
from maskloom.runs.report.examples import examples_of
from maskloom.runs.report.page import report
from maskloom.runs.report.record import read_run
from maskloom.tasks.kinds import KINDS
from maskloom.text.tokenizer import Tokenizer


def test_all_three_go_from_text_to_predictions(rows, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = PretrainRecipe.model_validate(
        {
            "objective": "copying",
            "copying": {"sentence": 1},
            "model": {"architecture": "bag", "size": "tiny", "config": {"initializer_range": 0.2}},
            "data": {"max_length": 24, "next_sentence": False, "held_out_fraction": 0.2},
            "training": {"steps": 60, "batch_size": 8, "learning_rate": 0.02},
        }
    )
    metrics = pretrain(recipe, corpus="corpus", out="run")
    assert metrics["copy_accuracy"] > 0.9
    assert "copy_perplexity" in metrics
    assert load_recipe(PretrainRecipe, "run/recipe.toml") == recipe

    trained = load_file("run/checkpoints/phase-1/step-00000060/model.safetensors")
    model = maskloom.load("run").model
    assert isinstance(model.encoder, Bag)
    assert all(torch.equal(values, trained[name]) for name, values in model.named_parameters())

    for name in ("train.csv", "dev.csv"):
        Path(name).write_text("text,label\n" + "".join(f"the {a} cat,{a}\n" for a in "abc") * 5)
    recipe = FinetuneRecipe.model_validate(
        {
            "task": "smoothed",
            "smoothed": {"amount": 0.2},
            "data": {"max_length": 24},
            "training": {"epochs": 40, "batch_size": 5, "learning_rate": 0.02},
        }
    )
    result = finetune(recipe, model="run", data=LabelledFiles("train.csv", "dev.csv"), out="tuned")
    assert result["best"]["scores"]["accuracy"] == 1.0
    assert load_recipe(FinetuneRecipe, "tuned/recipe.toml") == recipe
    assert json.loads(Path("tuned/model/maskloom.json").read_text())["settings"] == {"amount": 0.2}

    tuned = maskloom.load("tuned")
    assert isinstance(tuned.model.encoder, Bag)
    assert tuned.task.objective == Smoothed(0.2)
    assert [found["label"] for found in tuned.predict(["the a cat", "the c cat"])] == ["a", "c"]
    predict("tuned", Path("dev.csv"), Path("out.jsonl"))
    assert len(Path("out.jsonl").read_text().splitlines()) == 15
    shown = examples_of(read_run("tuned", "tuned"), 10, Progress())
    assert (shown["num_right"], shown["num_predicted"], len(shown["confusion"])) == (10, 10, 3)
    report(["run", "tuned"], "page.html")
    assert "the a cat" in Path("page.html").read_text()


def test_commands_take_a_kind_that_was_added(rows, corpus, tmp_path):
    model = tmp_path / "bert"
    config = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    save_model(build_model(config, (), seed=0), model)
    Tokenizer.load(corpus).save(model)
    rest = ["--model", model, "--train", tmp_path / "t.csv", "--dev", tmp_path / "t.csv", "--out", tmp_path / "o"]
    (tmp_path / "t.csv").write_text("text,label\n" + "the cat,a\nit sees,b\n" * 3)
    flags = ["--task", "smoothed", "--set", "smoothed.amount=0.3", "--steps", 2, "--batch-size", 2]
    done = CliRunner().invoke(app, [str(word) for word in ("finetune", *rest, *flags, "--json")])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["task"] == "smoothed"
    scored = CliRunner().invoke(app, ["evaluate", "--model", str(tmp_path / "o"), "--data", str(tmp_path / "t.csv")])
    assert scored.exit_code == 0, scored.output
    done = CliRunner().invoke(app, [str(word) for word in ("finetune", *rest, "--task", "smothed")])
    assert done.exit_code == 2
    assert "did you mean smoothed?" in " ".join(done.output.replace("│", " ").split())


def test_the_row_of_an_architecture_says_its_sizes_and_initial_weights(rows):
    recipe = load_recipe(PretrainRecipe, None, ["model.architecture=bag", "model.size=tiny", "objective=copying"])
    config = model_config(recipe, vocab_size=60)
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (16, 2, 64)
    with pytest.raises(ConfigError, match="unknown model size 'base'; known: tiny"):
        model_config(load_recipe(PretrainRecipe, None, ["model.architecture=bag", "model.size=base"]), vocab_size=60)
    model = build_model(config, ("lm", "classifier"), num_labels=3, seed=0)
    assert model.encoder.final_norm.weight.tolist() == [1.0] * 16
    assert 0.005 < model.encoder.word_embeddings.std() < 0.02
    assert model.heads["classifier"].dense.bias is None


@pytest.mark.parametrize(("number", "word"), [(0, "cat"), (1, "dog"), (9, "dog")])
def test_the_section_of_an_objective_reaches_its_stream(rows, corpus, number, word):
    recipe = load_recipe(PretrainRecipe, None, ["objective=copying", f"copying.sentence={number}"])
    opened = Corpus.open(corpus)
    loader = PRETRAINING["copying"].loader(opened, None, pretraining_data(recipe), batch_size=3, seed=0)
    batch, _ = loader.next_batch({})
    assert [opened.vocabulary.tokens[batch.token_ids[end - 2]] for end in np.cumsum(batch.lengths)] == [word] * 3
    (plan,) = phase_plans(recipe)
    assert plan.data == pretraining_data(recipe)


def test_an_objective_that_carries_state_trains_resumes_to_the_bit_and_is_saved(rows, corpus, tmp_path):
    recipe = PretrainRecipe.model_validate(
        {
            "objective": "remembering",
            "model": {"size": "tiny", "config": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}},
            "data": {"max_length": 6, "held_out_fraction": 0.2},
            "training": {"steps": 8, "batch_size": 2, "save_every": 3, "evaluate_every": 4, "keep_best": True},
        }
    )
    assert not recipe.data.next_sentence
    said, run, progress = [], tmp_path / "run", Progress()
    progress.say = said.append
    metrics = pretrain(recipe, corpus=corpus, out=run, progress=progress)
    assert metrics.keys() == {"remembered_loss", "age"}
    assert metrics["age"] > 0
    assert f"step 8: held-out remembered loss {metrics['remembered_loss']:.3f} nats" in said
    assert (run / "best-model" / "model.safetensors").is_file()
    state = load_file(run / "checkpoints" / "phase-1" / "step-00000008" / "carry.safetensors")
    assert state["1"].tolist() == [8, 8]
    whole = (run / "model" / "model.safetensors").read_bytes()
    assert set(load_model(run / "model")[0].heads) == {"mlm", "span"}
    for folder in ("model", "checkpoints/phase-1/step-00000008"):
        shutil.rmtree(run / folder)
    progress = LineProgress()
    progress.say = said.append
    assert pretrain(recipe, corpus=corpus, out=run, resume=True, progress=progress) == metrics
    assert "phase-1, length 6: continuing at 6 of 8" in said
    assert (run / "model" / "model.safetensors").read_bytes() == whole
    pretrain(recipe, corpus=corpus, out=run, resume=True, verify=True)


def test_what_an_objective_does_not_read_and_what_it_needs_are_refused(monkeypatch, corpus):
    monkeypatch.setitem(PRETRAINING, "remembering", replace(REMEMBERING, needs=("begin",)))
    with pytest.raises(ConfigError, match=r"leave out data\.static_masks, not read by this objective"):
        load_recipe(PretrainRecipe, None, ["objective=remembering", "data.static_masks=true"])
    with pytest.raises(ConfigError, match="objective = 'remembering' needs a begin token"):
        check_corpus(load_recipe(PretrainRecipe, None, ["objective=remembering"]), Corpus.open(corpus))


def test_a_task_on_pairs_of_texts_is_a_row(rows, corpus, tmp_path):
    changes = ["objective=halving", "training.steps=2", "data.max_length=24", "data.held_out_fraction=0.2"]
    said, progress = [], Progress()
    progress.say = said.append
    recipe = load_recipe(PretrainRecipe, None, [*changes, "model.size=tiny"])
    metrics = pretrain(recipe, corpus=corpus, out=tmp_path / "run", progress=progress)
    assert {"mlm_loss", "halves_accuracy", "halves_majority_fraction"} <= metrics.keys()
    assert any("; HALVES accuracy" in line for line in said)
    assert set(load_model(tmp_path / "run" / "model")[0].heads) == {"mlm", "nsp"}


def test_an_objective_that_is_not_there_has_no_section():
    with pytest.raises(ConfigError, match="unknown key 'copying'"):
        load_recipe(PretrainRecipe, None, ["copying.sentence=1"])


def test_a_section_of_its_own_is_part_of_the_recipe_as_long_as_there_is_the_kind(monkeypatch):
    default = recipe_toml(FinetuneRecipe())
    monkeypatch.setitem(KINDS, "smoothed", SMOOTHED)
    assert recipe_toml(FinetuneRecipe()) == default + "\n[smoothed]\namount = 0.1\n"
    last = [*recipe_keys(FinetuneRecipe)][-1]
    assert (last.path, last.default, last.meaning) == (
        "smoothed.amount", 0.1, "Weight of the targets on all classes alike."
    )  # fmt: skip
    for change, said in (
        ("smoothed.amount=1.5", "smoothed.amount = 1.5: it must be less than 1"),
        ("smoothed.amout=0.5", "unknown key 'smoothed.amout'; did you mean 'smoothed.amount'?"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            load_recipe(FinetuneRecipe, None, [change])
    monkeypatch.undo()
    assert recipe_toml(FinetuneRecipe()) == default
    with pytest.raises(ConfigError, match="unknown key 'smoothed'"):
        load_recipe(FinetuneRecipe, None, ["smoothed.amount=0.5"])
