"""Pages of experiments: stored ones are those that today's code writes, and they say what limits their trends."""

import json

import pytest
import torch

from maskloom.reproduce import results as results_of
from maskloom.reproduce.results import write_results
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
