"""What commands report about their device, and what they refuse up front because of it."""

import contextlib
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from tests.integration.tiny_models import model_folder
from tests.unit.inference.generators import generator_folder
from typer.testing import CliRunner

from maskloom.cli import app
from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.errors import ConfigError
from maskloom.runs import finetune as finetuning
from maskloom.runs import finetune_restarts
from maskloom.runs import pretrain as pretraining
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.training.ranks.ranks import Ranks


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    names = {"0": "red", "1": "green", "2": "blue"}
    ids = {name: int(number) for number, name in names.items()}
    folder = tmp_path_factory.mktemp("classifier")
    return model_folder(folder, id2label=names, label2id=ids, problem_type="single_label_classification")


@pytest.mark.parametrize(
    "arguments",
    [
        ["embed", "--model", "MODEL", "--input", "in.csv", "--output", "out.npy"],
        ["predict", "--model", "MODEL", "--input", "in.csv", "--output", "out.jsonl"],
        ["evaluate", "--model", "MODEL", "--data", "in.csv"],
        ["features", "--model", "MODEL", "--input", "in.txt", "--out", "features"],
        ["tune", "--model", "MODEL", "--dev", "in.csv"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_device_is_said_at_the_start_and_not_in_the_result(classifier, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MASKLOOM_DEVICE", "cpu")
    (tmp_path / "in.csv").write_text("text,label\nalpha beta,red\n" + "alpha beta,blue\ngamma,blue\n" * 3)
    (tmp_path / "in.txt").write_text("alpha beta\n")
    given = [str(classifier) if word == "MODEL" else word for word in arguments]
    ended = CliRunner().invoke(app, [*given, "--json"])
    assert ended.exit_code == 0, ended.output
    said = ended.stderr.splitlines()
    assert said[0].startswith("device: cpu, ")
    assert "thread" in said[0]
    assert sum(line.startswith("device:") for line in said) == 1
    assert "device" not in json.loads(ended.stdout)


def test_the_device_is_said_for_a_text_on_the_command_line(tmp_path, monkeypatch):
    """Regression: only commands on files named it."""
    monkeypatch.setenv("MASKLOOM_DEVICE", "cpu")
    masked = model_folder(tmp_path / "masked", heads=("mlm",))
    writer = generator_folder(tmp_path / "writer", "t5", words=["one", "<extra_id_0>"])
    commands = {
        "fill-mask": (masked, "alpha [MASK]"),
        "generate": (writer, "--prompt", "one", "--max-tokens", "2"),
        "fill-spans": (writer, "one <X>", "--max-tokens", "2"),
    }
    for name, (model, *arguments) in commands.items():
        ended = CliRunner().invoke(app, [name, "--model", str(model), *arguments, "--json"])
        assert ended.exit_code == 0, ended.output
        assert ended.stderr.startswith("device: cpu, ")
        assert "device" not in json.loads(ended.stdout)


@pytest.fixture
def _old_gpu(monkeypatch):
    @contextlib.contextmanager
    def joined(*_given, **_named):
        yield Ranks(torch.device("cuda", 0))

    for module in (pretraining, finetuning):
        monkeypatch.setattr(module, "joined_ranks", joined)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=7))


@pytest.mark.usefixtures("_old_gpu")
@pytest.mark.parametrize("kind", [PretrainRecipe, FinetuneRecipe])
def test_bf16_that_a_gpu_lacks_is_refused_before_anything_is_read(tmp_path, kind):
    recipe = load_recipe(kind, None, ["training.precision=bf16", "training.steps=1"])
    absent, out = tmp_path / "absent", tmp_path / "out"
    starts = {
        PretrainRecipe: lambda: pretraining.pretrain(recipe, corpus=absent, out=out),
        FinetuneRecipe: lambda: finetuning.finetune(
            recipe, model=absent, data=finetuning.LabelledFiles(absent, absent), out=out
        ),
    }
    with pytest.raises(ConfigError, match="cuda:0 does not support bf16; use 'fp16' or 'fp32'"):
        starts[kind]()
    assert not out.exists()


@pytest.fixture(scope="module")
def work(tmp_path_factory, classifier):
    """Return a folder with a corpus, a model, texts, and labelled files."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "in.csv").write_text("text,label\nalpha beta,red\ngamma,blue\n")
    (folder / "in.txt").write_text("alpha beta\n")
    (folder / "glue" / "CoLA").mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        (folder / "glue" / "CoLA" / name).write_text("gj04\t1\t\tFine.\ngj04\t0\t*\tfine Not.\n")
    (folder / "text.txt").write_text("\n\n".join(f"alpha beta {n}. gamma delta {n}." for n in range(20)))
    train_vocabulary_from_files([folder / "text.txt"], VocabularySettings(60), out=folder / "vocab")
    build_corpus_from_files([folder / "text.txt"], vocab=folder / "vocab", out=folder / "corpus")
    shutil.copytree(classifier, folder / "model")
    return folder


TRAINED = ["--train", "in.csv", "--dev", "in.csv", "--out", "out"]
USED = ["--model", "model"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["pretrain", "--corpus", "corpus", "--out", "out"],
        ["finetune", *USED, *TRAINED],
        ["search", *USED, *TRAINED],
        ["glue run", *USED, "--data", "glue", "--grid", "none", "--out", "out"],
        ["plan", "--corpus", "corpus", "--size", "tiny"],
        ["quickstart", "--out", "out"],
        ["evaluate", *USED, "--data", "in.csv"],
        ["tune", *USED, "--dev", "in.csv"],
        ["predict", *USED, "--input", "in.csv", "--output", "out.csv"],
        ["embed", *USED, "--input", "in.csv", "--output", "out.npy"],
        ["features", *USED, "--input", "in.txt", "--out", "out"],
        ["answer", *USED, "--context", "in.txt", "--question", "what?"],
        ["fill-mask", *USED, "alpha [MASK]"],
        ["fill-spans", *USED, "alpha <X>"],
        ["generate", *USED, "--prompt", "alpha"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_gpu_that_is_not_there_is_refused_before_any_work(command, work, monkeypatch, arguments):
    monkeypatch.chdir(work)
    before = sorted(work.rglob("*"))
    code, said = command(*arguments[0].split(), *arguments[1:], "--device", "cuda:99")
    assert code == 3, said
    assert "device 'cuda:99': torch " in said.splitlines()[-1]
    assert sorted(work.rglob("*")) == before


@pytest.mark.parametrize("name", ["pretrain", "finetune", "plan"])
def test_the_device_of_a_recipe_is_the_one_that_trains(command, work, monkeypatch, name):
    monkeypatch.chdir(work)
    inputs = [*USED, *TRAINED] if name == "finetune" else ["--corpus", "corpus"]
    inputs += ["--out", "out"] if name == "pretrain" else []
    code, said = command(name, *inputs, "--set", "training.device=cuda:99")
    assert code == 3, said
    assert "device 'cuda:99': torch " in said.splitlines()[-1]
    assert not (work / "out").exists()


@pytest.mark.parametrize(("name", "module", "function"), [
    ("pretrain", pretraining, "evaluate"), ("finetune", finetune_restarts, "evaluate_task"),
])  # fmt: skip
def test_a_run_evaluates_in_its_own_precision(command, work, monkeypatch, tmp_path, name, module, function):
    asked, evaluate = [], getattr(module, function)
    monkeypatch.setattr(module, function, lambda *given: asked.append(given[-1]) or evaluate(*given))
    monkeypatch.chdir(work)
    tiny = ["--size", "tiny", "--set", "data.held_out_fraction=0.2"]
    inputs = [*USED, *TRAINED[:4]] if name == "finetune" else ["--corpus", "corpus", *tiny]
    short = ["--steps", 1, "--batch-size", 2, "--max-length", 16, "--out", tmp_path / "out"]
    code, said = command(name, *inputs, *short, "--set", "training.precision=bf16", "--device", "cpu")
    assert code == 0, said
    assert {*asked} == {"bf16"}
