"""Pages of experiments: stored ones are those that today's code writes, and they say what limits their trends."""

import json

import pytest
import torch

from maskloom.reproduce import results as results_of
from maskloom.reproduce.judging import training_record
from maskloom.reproduce.results import write_results
from maskloom.runs.run_folder import DESCRIPTION, RECIPE
from tools.experiment_pages import NAMES, RESULTS, rendered


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_page_is_what_its_figures_give_today(name):
    for ending, text in rendered(name).items():
        stored = (RESULTS / f"{name}.{ending}").read_text(encoding="utf-8")
        assert stored == text, f"run python -m tools.experiment_pages {name}"


def stored(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def written(results, tmp_path):
    """Return the results with verdicts, table.md and report.html."""
    found = write_results(results, tmp_path)
    return found, *((tmp_path / file).read_text(encoding="utf-8") for file in ("table.md", "report.html"))


def test_models_on_the_unigram_plateau_are_named_with_their_losses(tmp_path):
    results = stored("table8")
    found, table, page = written(results, tmp_path)
    (note,) = found["notes"]
    assert "less than 0.5 nats below the 6.39 of token frequencies" in note
    assert "80/0/20 (5.99 with seed 0);" in note  # but not seeds 1 and 2
    assert "80/20/0" not in note
    assert note in table
    assert note in page
    for runs in results["models"].values():
        for run in runs:
            run["mlm_loss"] = 5.0
    assert written(results, tmp_path)[0]["notes"] == []


def test_losses_on_shared_masks_decide_for_models_from_elsewhere(tmp_path):
    results = stored("budget")
    results["scores"]["run_mlm"]["masked_loss"] = [6.5, 6.6, 6.7, 6.6, 6.6]
    found, _, page = written(results, tmp_path)
    assert found["notes"][-1].endswith("run_mlm (6.60).")
    assert ">token frequencies</text>" in page
    assert "<h3>masked-LM loss, nats, held out</h3>" in page


def test_seeds_are_drawn_behind_the_means_of_figure_4(tmp_path):
    _, table, page = written(stored("figure4"), tmp_path)
    assert page.count("<polyline") == 2 + 2 * 3
    assert "<title>left-to-right, seed 2</title>" in page
    assert "| MNLI-m, about 84.4 |" in table


def test_a_trend_on_a_task_of_the_paper_is_stated_where_the_task_is_measured(tmp_path):
    results = stored("table6")
    assert all("mrpc" not in trend["claim"] for trend in written(results, tmp_path)[0]["trends"])
    results["columns"]["mrpc"], results["metrics"]["mrpc"] = "mrpc", "f1"
    for columns in results["scores"].values():
        columns["mrpc"] = columns["pair"]
    trends = {trend["claim"]: trend for trend in written(results, tmp_path)[0]["trends"]}
    alike = ("the largest model is better than the smallest on mrpc", "the largest model is better on pairs than")
    values = [next(trend["values"] for claim, trend in trends.items() if claim.startswith(start)) for start in alike]
    assert values[0] == values[1]


@pytest.fixture
def model(tmp_path):
    """Return the model folder of a run of 60 minutes that was stopped and resumed, without weights."""
    (tmp_path / "run" / "model").mkdir(parents=True)
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 1, "intermediate_size": 256}
    config = {"model_type": "bert", "vocab_size": 50, **sizes}
    (tmp_path / "run" / "model" / "config.json").write_text(json.dumps(config))
    return tmp_path / "run" / "model"


def test_the_minutes_of_a_run_are_those_of_its_own_clock_over_all_resumes(model):
    run = model.parent
    phases = "".join(f"[[phases]]\nmax_length = 64\nsteps = {steps}\n" for steps in (3, 1))
    (run / RECIPE).write_text(f'kind = "pretrain"\n[training]\nminutes = 60\n{phases}')
    described = {"id": "", "paths": {}, "world_size": 1, "inputs": {"corpus": ""}, "hardware": {"threads": 2}}
    (run / DESCRIPTION).write_text(json.dumps(described))
    events = [
        {"event": "step", "stage": "phase-1", "step": 1, "fractions_of_time": [0.0]},
        {"event": "step", "stage": "phase-1", "step": 40, "fractions_of_time": [0.5, 0.999]},
        {"event": "finished", "stage": "phase-1", "step": 40, "seconds": 12.0},  # since it was resumed
        {"event": "step", "stage": "phase-2", "step": 9, "fractions_of_time": [0.98]},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    minutes = pytest.approx(45 * 0.999 + 15 * 0.98)
    assert training_record(run) == {"layers": 3, "width": 64, "minutes": minutes, "threads": 2}
    (run / RECIPE).write_text('kind = "pretrain"\n[training]\nsteps = 40\nnum_threads = 4\n')
    assert training_record(model) == {"layers": 3, "width": 64, "minutes": None, "threads": 4}


def test_a_model_from_elsewhere_has_a_size_alone(model):
    (model.parent / RECIPE).write_text('kind = "pretrain"\n')  # of a run of which nothing else is left
    assert training_record(model) == {"layers": 3, "width": 64, "minutes": None, "threads": None}


@pytest.mark.parametrize(("device", "named"), [("cuda", "A GPU; "), ("cpu", "A processor, 2 cores, 2 threads; ")])
def test_the_machine_of_a_page_is_the_device_that_computes(monkeypatch, device, named):
    """Regression: a GPU that the machine has was named for runs on the processor."""
    hardware = {"processor": "A processor", "cores": 2, "threads": 2, "cuda": "A GPU"}
    known = {"hardware": hardware, "versions": {"python": "3", "torch": "2"}}
    monkeypatch.setattr(results_of, "environment", lambda: known)
    monkeypatch.setattr(results_of, "chosen_device", lambda: torch.device(device))
    assert results_of.machine_of_runs(1) == f"{named}Python 3, torch 2"


def test_the_command_of_a_page_can_be_pasted(tmp_path):
    """Regression: settings were not quoted."""
    results = {**stored("table5"), "overrides": {"pretrain": ['model={size="tiny"}']}}
    assert """--set 'pretrain.model={size="tiny"}' --out DIR`""" in written(results, tmp_path)[1]
