"""An optimiser and a learning-rate schedule added from outside the package, as table rows."""

import json
import shutil

import pytest
import torch

from maskloom.config import FinetuneRecipe, PretrainRecipe
from maskloom.runs.display import LineProgress
from maskloom.runs.pretrain import pretrain
from maskloom.training.optimizers import OPTIMIZERS

# Their state: a step and a tensor; only a tensor; one more number; rows and columns.
OTHER_OPTIMIZERS = {
    "adagrad": lambda groups, _: torch.optim.Adagrad(groups, lr=0.01),
    "sgd": lambda groups, _: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
    "nadam": lambda groups, _: torch.optim.NAdam(groups, lr=0.01),
    "adafactor": lambda groups, _: torch.optim.Adafactor(groups, lr=0.01),
}


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("adagrad", "sgd", "nadam")), "adafactor", "counting"],
)
def test_an_optimizer_and_a_schedule_by_rows_train_and_resume_to_the_bit(monkeypatch, rows, corpus, tmp_path, name):
    for other, row in OTHER_OPTIMIZERS.items():
        monkeypatch.setitem(OPTIMIZERS, other, row)
    training = {"optimizer": name, "schedule": "stairs", "steps": 8, "batch_size": 4, "learning_rate": 0.01}
    training |= {"save_every": 5, "log_every": 1, "warmup_ratio": 0.0}
    recipe = PretrainRecipe.model_validate({"data": {"max_length": 24, "held_out_fraction": 0.0}, "training": training})
    pretrain(recipe, corpus=corpus, out=tmp_path / "run")
    steps = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    rates = [event["learning_rate"] for event in steps if event["event"] == "step"]
    assert rates == [pytest.approx(1e-2)] * 4 + [pytest.approx(5e-3)] * 4
    whole = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "phase-1" / "step-00000008")
    description = tmp_path / "run" / "run.json"
    description.write_text(description.read_text().replace(f'"{torch.__version__}"', '"2.9.0"'))
    said, progress = [], LineProgress()
    progress.say = said.append
    pretrain(recipe, corpus=corpus, out=tmp_path / "run", resume=True, progress=progress)
    assert "phase-1, length 24: continuing at 5 of 8" in said
    assert f"warning: torch was 2.9.0, is {torch.__version__}: the last bits may differ" in said
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == whole


def test_names_that_no_table_has_are_refused():
    for recipe, values, said in (
        (PretrainRecipe, {"model": {"architecture": "nothing"}}, "architecture"),
        (PretrainRecipe, {"objective": "nothing"}, "objective"),
        (FinetuneRecipe, {"task": "nothing"}, "task"),
        (PretrainRecipe, {"training": {"optimizer": "nothing"}}, "'adamw', 'bert_adam'"),
        (PretrainRecipe, {"training": {"schedule": "nothing"}}, "'cosine'"),
    ):
        with pytest.raises(ValueError, match=said):
            recipe.model_validate(values)
