"""Report pages about runs whose folders are written by hand, without any training."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from maskloom.config import PretrainRecipe, recipe_toml, validate_recipe
from maskloom.errors import ConfigError, DataError
from maskloom.runs.charts import distinct_names, visible
from maskloom.runs.report import examples
from maskloom.runs.report.page import charts_of, mean_curve, phase_marks, points, report
from maskloom.runs.report.record import RunRecord, data_account, differences, in_one_count, read_run, score_table
from maskloom.runs.rerun import rerun
from maskloom.tasks.judging import Verdict

ENVIRONMENT = {
    "command": ["maskloom", "pretrain"],
    "versions": {"python": "3.11.7"},
    "world_size": 1,
    "hardware": {"processor": "One", "cores": 2, "threads": 2, "cuda": None},
}


class Page(HTMLParser):
    """The tags, attributes and cells of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.cells = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def write_run(folder, *, events=(), metrics=None, objective="masked_lm", **training):
    folder.mkdir(parents=True)
    recipe = validate_recipe(PretrainRecipe, {"objective": objective, "training": training}, source="test")
    (folder / "recipe.toml").write_text(recipe_toml(recipe))
    description = {
        "id": "0" * 64,
        "inputs": {"corpus": "0" * 64},
        "paths": {"corpus": str(folder / "gone")},
        **ENVIRONMENT,
    }
    (folder / "run.json").write_text(json.dumps(description))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if metrics is not None:
        (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


def step(number, loss, stage="phase-1"):
    return {"event": "step", "stage": stage, "step": number, "losses": {"mlm": loss}, "learning_rate": 1e-4}


EVENTS = [
    step(1, 8.0),
    [],
    step(2, None),
    {"event": "lost_events", "number": 3},
    {"event": "warning", "stage": "phase-1", "step": 2, "text": "<b>loss</b> jumped"},
    step(3, 7.0),
    {"event": "evaluation", "stage": "phase-1", "step": 3, "metrics": {"mlm_loss": 7.25, "unigram_cross_entropy": 7.5}},
    {"event": "finished", "stage": "phase-1", "step": 3, "seconds": 60.0},
    step(1, 6.0, "phase-2"),
]


@pytest.mark.parametrize("name", ["unigram_cross_entropy", "unigram_entropy"])  # early runs wrote the second
def test_a_run_that_is_not_finished_has_a_page(name, tmp_path):
    run = write_run(tmp_path / "run", events=EVENTS)
    log = run / "events.jsonl"
    log.write_text(log.read_text().replace("unigram_cross_entropy", name))
    result = report([run], tmp_path / "page.html")
    assert result == {"page": str(tmp_path / "page.html"), "runs": {"run": "pretrain"}}
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "not finished: step 4" in text
    assert re.search(r'<div class="big">7\.25</div><span class="soft">mlm loss; unigram: 7\.5</span>', text)
    assert ">unigram<" in text
    assert "&lt;b&gt;loss&lt;/b&gt; jumped" in text
    assert "no longer exists" in text


def test_a_search_that_is_not_finished_is_shown_without_a_step(tmp_path):
    run = write_run(tmp_path / "run")
    description = json.loads((run / "run.json").read_text()) | {"inputs": {"space": {}}, "paths": {}}
    (run / "run.json").write_text(json.dumps(description))
    report([run], tmp_path / "page.html")
    assert ">search, not finished<" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("inputs", "name", "part"),
    [
        ({"train": ""}, "metrics.json", "best"),
        ({"space": {}}, "results.json", "best"),
        ({"space": {}, "tasks": []}, "glue.json", "tasks"),
    ],
)
def test_a_run_with_empty_results_is_damaged(inputs, name, part, tmp_path):
    """Regression: a KeyError; only pre-training without held-out text has no results."""
    run = write_run(tmp_path / "run", events=EVENTS, metrics={})
    report([run], tmp_path / "page.html")
    description = json.loads((run / "run.json").read_text()) | {"inputs": inputs, "paths": {}}
    (run / "run.json").write_text(json.dumps(description))
    (run / name).write_text("{}")
    said = rf"{name}: the file is damaged: '{part}' is None, expected dict$"
    with pytest.raises(DataError, match=said):
        report([run], tmp_path / "page.html")
    if name == "results.json":
        with pytest.raises(DataError, match=said):
            rerun(run, out=tmp_path / "again")
    if name == "metrics.json":
        (run / name).write_text('{"best": {}}')
        with pytest.raises(DataError, match=r"metrics\.json: the file is damaged: 'metric' is None, expected str$"):
            report([run], tmp_path / "page.html")


def test_a_page_shows_what_differs_and_nothing_else(tmp_path):
    one = write_run(tmp_path / "one", events=EVENTS, metrics={"mlm_loss": 3.5}, learning_rate=1e-3)
    other = write_run(tmp_path / "other", events=EVENTS, metrics={"mlm_loss": 3.0}, learning_rate=3e-3)
    report([one, other], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    differing = text[text.index("Differences") : text.index("Environment")]
    assert re.findall(r'<td class="key">([^<]*)', differing)[0] == "training.learning_rate"
    assert "0.003" in differing
    assert "batch_size" not in differing


def test_runs_of_different_kinds_do_not_differ_in_keys_that_only_one_has(tmp_path):
    one = write_run(tmp_path / "one", events=EVENTS, metrics={"mlm_loss": 3.5, "num_predictions": 2934.0})
    tuned = []
    for name, metric in (("a", "f1"), ("b", "accuracy")):
        folder = write_run(tmp_path / name)
        (folder / "recipe.toml").write_text('kind = "finetune"\n')
        inputs = {"model": "0" * 64, "train": "1" * 64, "dev": "2" * 64, "metric": metric}
        paths = {name: f"{name}.csv" for name in ("model", "train", "dev")}
        description = json.loads((folder / "run.json").read_text()) | {"inputs": inputs, "paths": paths}
        (folder / "run.json").write_text(json.dumps(description))
        tuned.append(read_run(folder, name))
    assert differences([read_run(one, "one"), tuned[0]]) == []
    assert differences([read_run(one, "one"), *tuned]) == [["input: metric", "–", "f1", "accuracy"]]
    assert ["predictions", "2934"] in score_table([read_run(one, "one")])


def test_a_note_on_a_file_is_told_once(tmp_path):
    part = {"path": "a.csv", "num_rows": 2, "num_kept": 2, "dropped": {}, "notes": ["odd"]}
    events = [{"event": "data", "train": part, "dev": part, "notes": ["a.csv: odd"], "labels": []}]
    folder = write_run(tmp_path / "run", events=events)
    description = json.loads((folder / "run.json").read_text()) | {"inputs": {"train": "1" * 64}, "paths": {}}
    (folder / "run.json").write_text(json.dumps(description))
    told = [text for _, text in data_account(read_run(folder, "run"))]
    assert told == ["2 of 2 rows of a.csv", "2 of 2 rows of a.csv", "a.csv: odd"]


def test_every_objective_has_its_own_chart_of_the_loss(tmp_path):
    """A run that has not been evaluated yet is counted by its recipe."""
    gpt = [{**step(number, 5.0), "losses": {"lm": 5.0}} for number in (1, 2)]
    runs = [
        write_run(tmp_path / "one", events=EVENTS, metrics={"mlm_loss": 3.5, "mlm_accuracy": 0.5}),
        write_run(tmp_path / "other", events=EVENTS),
        write_run(tmp_path / "gpt", events=gpt, objective="causal_lm"),
    ]
    for chosen in (runs, runs[::-1]):
        report(chosen, tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert {"Masked-LM loss, nats per token", "Language-model loss, nats per token"} <= {
            title for title in re.findall("<h3>([^<]*)", text) if "loss" in title
        }
    assert text.count(">unigram<") == 1
    assert '<th class="key">key</th>' in text  # it stays in sight while a wide table is scrolled


def test_names_cannot_inject_and_the_page_loads_nothing(tmp_path):
    name = "<img src=x onerror=alert(1)>\u202e\"'&\x07"
    run = write_run(tmp_path / name, events=EVENTS, metrics={"<script>alert(1)</script>": 1.0})
    other = write_run(tmp_path / "elsewhere" / name, events=EVENTS)
    report([run, other], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert {"table", "svg"} <= page.tags
    assert not page.tags & {"script", "img", "link", "iframe", "object"}
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("href", "src")]
    assert not re.search(r"url\(|@import|https?://", text)
    assert "<script>alert(1)</script>" in "".join(page.cells)
    assert "\u202e" not in text
    assert "\x07" not in text


def test_what_is_no_run_is_named(tmp_path):
    write_run(tmp_path / "runs" / "a")
    with pytest.raises(ConfigError, match=r"runs is not the folder of a run"):
        report([tmp_path / "runs"], tmp_path / "page.html")
    with pytest.raises(ConfigError, match="no such folder"):
        report([tmp_path / "absent"], tmp_path / "page.html")
    with pytest.raises(ConfigError, match="names the page to write"):
        report([tmp_path / "runs" / "a"], tmp_path)
    (tmp_path / "runs" / "a" / "metrics.json").write_text("[]")
    with pytest.raises(DataError, match=r"metrics\.json"):
        report([tmp_path / "runs" / "a"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_default_page_is_in_the_folder_of_the_first_run(tmp_path):
    first, other = (write_run(tmp_path / name, events=EVENTS) for name in ("a", "b"))
    assert report([first, other], None)["page"] == str(first / "report.html")
    assert "<title>a, b: " in (first / "report.html").read_text(encoding="utf-8")


def test_curves_leave_out_what_was_not_finite():
    events = [event for event in EVENTS if isinstance(event, dict)]
    assert points(events, "step", "losses", "mlm") == [(1, 8.0), (3, 7.0), (1, 6.0)]
    assert points(in_one_count(events), "step", "losses", "mlm") == [(1, 8.0), (3, 7.0), (4, 6.0)]
    assert points(events, "evaluation", "metrics", "mlm_loss") == [(3, 7.25)]
    assert mean_curve([[(1, 2.0), (2, 4.0)], [(2, 6.0)]]) == [(2, 5.0)]
    assert mean_curve([]) == []


def test_phases_of_a_run_that_was_resumed_or_extended_are_counted_once():
    ended = {"event": "finished", "stage": "phase-1", "step": 3}
    events = [step(1, 8.0), step(3, 7.0), ended, step(1, 6.0, "phase-2"), ended, step(2, 5.0, "phase-2")]
    counted = in_one_count([*events, {**ended, "stage": "phase-2", "step": 2}])
    assert points(counted, "step", "losses", "mlm") == [(1, 8.0), (3, 7.0), (4, 6.0), (5, 5.0)]
    assert phase_marks(counted) == [("start of phase 2", 3)]
    assert phase_marks(in_one_count([step(3, 7.0), ended, step(4, 6.0), {**ended, "step": 4}])) == []


def test_names_of_runs_are_told_apart():
    assert distinct_names([("bert", "a"), ("qa", "a")]) == ["bert", "qa"]
    assert distinct_names([("bert", "a"), ("bert", "b")]) == ["a/bert", "b/bert"]
    assert distinct_names([("bert", "a"), ("bert", "a")]) == ["a/bert (1)", "a/bert (2)"]


def test_what_is_not_seen_is_shown():
    assert visible("a\x00\u202eb\ud800é\n") == "a\\x00\\u202eb\\ud800é\n"


def test_percent_and_fractions_are_kept_apart(tmp_path):
    records = []
    for task, metrics in (
        ("span", {"f1": 4.93, "exact_match": 3.5, "HasAns_exact": 2.5, "best_f1_thresh": -1.5}),
        ("tagging", {"f1": 0.5}),
        ("multilabel", {"f1_micro": 0.75, "exact_match": 0.25}),
        ("seq2seq", {"bleu": 12.0, "rougeL": 40.0}),
    ):
        (tmp_path / task).mkdir()
        event = {"event": "evaluation", "stage": "seed-0", "step": 3, "metrics": {**metrics, "loss": 1.0}}
        (tmp_path / task / "events.jsonl").write_text(json.dumps(event) + "\n")
        about = {"inputs": {"metric": next(iter(metrics))}}
        records.append(RunRecord(task, tmp_path / task, "finetune", "", {"task": task}, about, None, tmp_path))
    assert score_table(records) == [
        ["f1, percent", "4.93", "–", "–", "–"],
        ["exact match, percent", "3.5", "–", "–", "–"],
        ["HasAns exact, percent", "2.5", "–", "–", "–"],
        ["best f1 thresh", "-1.5", "–", "–", "–"],
        ["loss", "1", "1", "1", "1"],
        ["f1", "–", "0.5", "–", "–"],
        ["f1 micro", "–", "–", "0.75", "–"],
        ["exact match", "–", "–", "0.25", "–"],
        ["bleu", "–", "–", "–", "12"],
        ["rougeL, percent", "–", "–", "–", "40"],
    ]
    titles = [chart.title for chart in charts_of(records)["Fine-tuning"]]
    assert titles[:5] == ["Dev f1, percent", "Dev f1", "Dev f1 micro", "Dev bleu", "Loss"]


def test_thin_lines_are_what_the_note_under_a_chart_says(tmp_path):
    """Regression: the thin lines of a loss were those of training and of dev, one more for each seed."""
    (tmp_path / "run").mkdir()
    events = [
        event
        for seed in (0, 1)
        for event in (
            {"event": "step", "stage": f"seed-{seed}", "step": 1, "loss": 2.0, "learning_rate": 0.1},
            {"event": "evaluation", "stage": f"seed-{seed}", "step": 1, "metrics": {"accuracy": 0.5, "loss": 1.0}},
        )
    ]
    (tmp_path / "run" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    about = {"inputs": {"metric": "accuracy"}}
    run = RunRecord("run", tmp_path / "run", "finetune", "", {"task": "single"}, about, None, tmp_path)
    charts = {chart.title: chart for chart in charts_of([run])["Fine-tuning"]}
    assert charts["Loss"].note == "Thin lines: training; with dots: dev."
    assert charts["Loss"].svg.count("faint") == charts["Loss"].svg.count("<title>training") == 2
    for title in ("Dev accuracy", "Learning rate"):
        assert charts[title].note == "Thin lines: single seeds; bold: their mean."
        assert charts[title].svg.count("faint") == charts[title].svg.count("<title>one seed") == 2


@pytest.mark.parametrize("probability", [0.75, None])
def test_wrong_answers_without_probabilities_are_not_called_confident(probability, tmp_path, monkeypatch):
    """Regression: for generated texts the page had an empty column and a heading that promised an order."""
    found = examples._sorted_out([Verdict("a", "b", 1.0, probability)], 1, False, (), np.zeros((0, 0)))
    monkeypatch.setattr(examples, "examples_of", lambda *_: found)
    metrics = {"metric": "bleu", "best": {"scores": {"bleu": 1.0}, "reference": None}, "restarts": {"num_restarts": 1}}
    run = write_run(tmp_path / "run", metrics=metrics)
    description = json.loads((run / "run.json").read_text()) | {"inputs": {"train": ""}, "paths": {}}
    (run / "run.json").write_text(json.dumps(description))
    report([run], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (
        ("Wrong, most confident first" in text) == (">probability<" in text) == ("0.750" in text) == bool(probability)
    )
