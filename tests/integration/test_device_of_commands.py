"""What commands report about their device, and what they refuse up front because of it."""

import contextlib
import json
from types import SimpleNamespace

import pytest
import torch
from tests.integration.tiny_models import model_folder
from typer.testing import CliRunner

from maskloom.cli import app
from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.errors import ConfigError
from maskloom.runs import finetune as finetuning
from maskloom.runs import pretrain as pretraining
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
    with pytest.raises(ConfigError, match="cuda:0 has no bf16; use 'fp16' or 'fp32'"):
        starts[kind]()
    assert not out.exists()
