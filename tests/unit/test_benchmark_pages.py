"""Benchmark pages state the order of the runs, the result of every row, and how it compares with the plain peer."""

import importlib.util
import json
import re
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import typer

from maskloom.cli import app, training
from maskloom.system.files import write_json

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _benchmarks_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.parametrize("was_stopped", [False, True])
def test_a_run_that_was_stopped_has_no_minutes(was_stopped, tmp_path, monkeypatch):
    import denoising

    options = Namespace(out=tmp_path, steps=1, seeds=1, more="", results=tmp_path / "page")
    folder, asked = denoising.run_folder(options, "token masking", 0), []
    folder.mkdir(parents=True)
    if was_stopped:
        (folder / "recipe.toml").touch()
    monkeypatch.setattr(denoising, "command", lambda *words: asked.append(words))
    seconds = denoising.pretrained(options, "token masking", 0)
    assert ("--resume" in asked[0]) == was_stopped == (seconds is None)
    found = dict.fromkeys(("accuracy", "perplexity", "rougeL"), 1.0)
    scores = {(noise, 0, task): found for noise in denoising._NOISES for task in denoising._TASKS}
    for noise in denoising._NOISES:
        write_json(denoising.run_folder(options, noise, 0) / "metrics.json", {"denoising_loss": 4.5})
    denoising.write_page(options, "text", {(noise, 0): seconds for noise in denoising._NOISES}, scores)
    (row,) = [line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| token masking |")]
    assert row.endswith("| 4.5 | - |" if was_stopped else "| 4.5 | 0.0 |")
    content = json.loads((tmp_path / "page.json").read_text(encoding="utf-8"))
    assert content["held_out_losses"]["token masking"] == [4.5]
    assert content["seconds"]["token masking, seed 0"] == seconds


def test_sides_run_in_alternating_order():
    from rounds import in_turn

    assert ["".join(in_turn("ABC", number)) for number in range(3)] == ["ABC", "CBA", "ABC"]


def test_children_that_write_more_than_a_pipe_holds_are_measured():
    from child_processes import first_of_ranks, measured

    command = [sys.executable, "-S", "-c", "import sys; print('x' * 200_000); print('y' * 200_000, file=sys.stderr)"]
    found = measured(command)
    assert found.output == "x" * 200_000 + "\n"
    assert min(found.seconds, found.processor, found.peak) > 0
    quiet = [*command[:-1], "print('x' * 200_000)"]
    assert first_of_ranks(quiet, num_ranks=2, threads=1) == found.output
    for run in (measured, lambda failing: first_of_ranks(failing, num_ranks=2, threads=1)):
        with pytest.raises(SystemExit, match="failed"):
            run([*command[:-1], "import os; os._exit(int(os.environ.get('RANK', 1)))"])


@pytest.mark.parametrize(
    ("value", "smaller", "level"),
    [(1.0, False, "below floor"), (2.0, False, "target"), (2.0, True, "floor"), (5.0, True, "below floor")],
)
def test_every_value_says_what_it_reaches(value, smaller, level):
    from rounds import reached

    aims = (3.0, 1.5, 1.0) if smaller else (1.5, 2.0, 3.0)
    assert reached(value, aims, smaller=smaller).startswith(level)
    assert reached(value, None) == "-"


def test_the_table_quotes_the_peer_as_shipped_and_in_its_best_plain_form():
    from pretraining_step_report import KEPT, OURS, PREDICTED, SHIPPED, Result, _page, summary_rows

    rates = {
        OURS: [90.0, 100.0, 110.0],
        "maskloom, MKL": [100.0, 110.0, 120.0],
        SHIPPED: [10.0] * 3,
        PREDICTED: [80.0] * 3,
        KEPT: [100.0] * 3,
    }
    result = Result(
        size="tiny",
        mix="128",
        batch_size=64,
        real_share=1.0,
        loss_difference=0.0,
        gradient_difference=0.0,
        gemm_peak=1e12,
        flops_per_token=1e9,
        products_share=0.5,
        rates=rates,
        processor_seconds=rates,
        memory={OURS: 1.0, SHIPPED: 4.0, PREDICTED: 2.0},
    )
    beside = [(row["beside"], row["result"]) for row in summary_rows([result])]
    assert beside == [
        ("transformers' BertForPreTraining as shipped", "10.0 times the tokens per second"),
        ("the same, with the MLM head on predicted positions only", "1.25 times the tokens per second"),
        ("as before, keeping memory", "1.00 times the tokens per second"),
    ]
    page = _page([result], "text", "command", 0.1, 2)
    assert "| tiny | 128 | transformers | **10.00x** | 9.00-11.00 | stretch (4.5 / 6 / 9) |" in page
    assert f"| tiny | 128 | {PREDICTED} | **1.25x** | 1.12-1.38 | below floor (1.6 / 2 / 2.5) |" in page
    assert f"| tiny | 128 | {KEPT} | **1.00x** | 0.90-1.10 | below floor (1.6 / 2 / 2.5) |" in page
    assert f"MKL on both sides: {PREDICTED} | **1.38x**" in page
    assert "Fewer than 5 rounds: a trial, no result." in page


@pytest.mark.parametrize("name", ["embedding", "embedding_intel"])
def test_the_stored_pages_of_embedding_are_what_their_figures_give(name):
    from embedding_report import page

    folder = Path(__file__).parents[2] / "benchmarks"
    assert page(json.loads((folder / f"{name}.json").read_text("utf-8"))) == (folder / f"{name}.md").read_text("utf-8")


def test_rows_of_tasks_name_what_they_change_of_the_recipe():
    import tomllib

    from maskloom.config import FinetuneRecipe, load_recipe
    from tools.readme_table import RECIPE, changes

    recipe = tomllib.loads((ROOT / "src/maskloom/recipes" / f"{RECIPE}.toml").read_text(encoding="utf-8"))
    assert changes(recipe) == []
    recipe["training"]["epochs"], recipe["data"]["max_length"] = 1.0, 64
    assert changes(recipe) == ["data.max_length=64", "training.epochs=1.0"]
    recipe["training"]["group_by_length"] = True
    taken = load_recipe(FinetuneRecipe, ROOT / "src/maskloom/recipes" / f"{RECIPE}.toml", changes(recipe))
    assert (taken.training.epochs, taken.training.group_by_length, taken.data.max_length) == (1.0, True, 64)
    del recipe["training"]["schedule"]
    with pytest.raises(ValueError, match=r"without training\.schedule"):
        changes(recipe)


def test_options_that_are_off_say_what_they_reach():
    from overheads_report import _options

    counted = {"bare loop": {"ops": 100, "calls": 9}, "all off": {"ops": 102, "calls": 10}}
    text = "\n".join(_options({"counted": counted, "ratios": [1.004, 1.005, 1.3]}))
    assert "+2.0% operations: below floor (1 / 0 / 0); +0.5% processor time: floor (1 / 0 / 0)." in text


def test_the_page_of_translation_is_what_its_script_writes(tmp_path):
    import json

    from translation import write_page

    page = ROOT / "results" / "translation.md"
    write_page(tmp_path / "page", json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["runs"])
    expected, found = (path.read_text(encoding="utf-8").splitlines() for path in (page, tmp_path / "page.md"))
    assert found[:-1] == expected[:-1]  # the last line names the machine


def test_scripts_whose_pages_tell_the_load_wait_until_it_is_low():
    folder = ROOT / "benchmarks"
    pages = [page for page in folder.glob("*.md") if "before the start" in page.read_text(encoding="utf-8")]
    assert len(pages) >= 8
    names = {re.sub(r"_(?:intel|zen\d|avx2)$", "", page.stem) for page in pages}
    scripts = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in names}
    assert [name for name, script in scripts.items() if "quiet_load()" not in script] == []


@pytest.mark.parametrize(("ours", "word"), [(35.8, "more"), (60.0, "less")])
def test_the_page_of_squad_says_how_v2_stands_to_no_answer_at_all(ours, word, tmp_path):
    from squad_report import write_page

    found = {"dev-v2.0": {"num_examples": 3, "exact_match": 20.0, "f1": ours}}
    constant = {"dev-v2.0: no answer at all": {"exact_match": 50.1, "f1": 50.1}}
    write_page(tmp_path / "squad", found, constant, "a machine.", "a command")
    page = " ".join((tmp_path / "squad.md").read_text(encoding="utf-8").split())
    assert f'"no answer" to everything has 50.1 F1, {word} than this model' in page


def test_the_page_of_goemotions_says_what_thresholds_do_to_micro_f1(tmp_path):
    from goemotions import FITTED, PLAIN, write_page

    scores = {
        name: {"f1_micro": micro, "f1_macro": 0.1, "calibration_error": 0.0, "num_examples": 2}
        for name, micro in zip((*FITTED, PLAIN), (0.40, 0.45, 0.42), strict=True)
    }
    content = {"scores": scores, "neutral": {"f1_micro": 0.3, "f1_macro": 0.01}, "changes": [], "epochs": 3.0}
    write_page(tmp_path / "page", {**content, "steps": 1, "num_train": 1, "num_dev": 1, "machine": "a machine"})
    page = " ".join((tmp_path / "page.md").read_text(encoding="utf-8").split())
    assert "those fitted to macro F1 change micro F1 by -2.0 points, those fitted to micro F1 by +3.0." in page


def test_every_page_of_results_states_a_command_whose_flags_exist():
    import re

    reproduce = typer.main.get_command(app).commands["reproduce"]
    known_flags = {flag for parameter in reproduce.params for flag in parameter.opts}
    for page in sorted((ROOT / "results").glob("*.md")):
        text = " ".join(page.read_text(encoding="utf-8").split())
        if "`make soak`" in text:
            continue
        if known := re.search(r"Generated by `maskloom reproduce ([\w-]+)([^`]*) --out DIR`", text):
            assert known[1] in get_args(training.ExperimentName), page.name
            assert set(re.findall(r"--[a-z][\w-]*", known[2])) <= known_flags, page.name
            continue
        commands = re.findall(r"python (benchmarks/\w+\.py) ((?:(?!python )[^`])*--results [\w/]+)", text)
        assert commands, f"{page.name} states no command that makes it"
        for script, arguments in commands:
            source = (ROOT / script).read_text(encoding="utf-8")
            shared = re.search(r"parser_of_runs\(__doc__(.*)\)", source)
            names = ["out", "results", *re.findall(r"(\w+)=", shared[1])] if shared else []
            for flag in re.findall(r"--[a-z][\w-]*", arguments):
                assert flag[2:] in names or f'"{flag}"' in source, f"{page.name}: {script} has no {flag}"


def test_the_peer_of_budget_reaches_the_learning_rate_that_it_is_given():
    from run_mlm_route import rate_at

    rates = [rate_at(share, 5e-4, 0.1) for share in (0.0, 0.05, 0.1, 0.55, 1.0)]
    assert rates == pytest.approx([0.0, 2.5e-4, 5e-4, 2.5e-4, 0.0])
    assert rate_at(0.0, 5e-4, 0.0) == 5e-4


def test_overheads_times_imports_of_modules_that_exist():
    runs = importlib.import_module("overheads").RUNS
    assert all(importlib.util.find_spec(f"maskloom.runs.{name}") for name in runs)


def test_start_up_is_measured_before_anything_is_loaded_that_would_count_as_its_memory(tmp_path, monkeypatch):
    import overheads

    calls = []
    monkeypatch.setattr(overheads, "quiet_load", lambda: 0.1)
    monkeypatch.setattr(overheads, "measure", lambda part, rounds, threads: calls.append(part))
    monkeypatch.setattr(overheads, "processor", lambda: calls.append("processor") or "a processor")
    monkeypatch.setattr(overheads, "page", lambda figures: "")
    monkeypatch.setattr(overheads, "summary_rows", lambda figures: [])
    monkeypatch.setattr("sys.argv", ["", "--parts", "evaluation", "start_up", "--out", str(tmp_path / "page.md")])
    overheads.main()
    assert calls[:2] == ["start_up", "processor"]
    assert json.loads((tmp_path / "page.json").read_text(encoding="utf-8"))["machine"] == "a processor"


@pytest.mark.parametrize(
    ("library", "own", "peers"),
    [
        ("oneDNN for large ones, else MKL: measured", ["maskloom, MKL"], ["transformers, predicted positions, oneDNN"]),
        ("MKL: measured to be faster", ["maskloom, oneDNN"], []),
        ("torch's own choice: no AVX-512", [], []),
    ],
)
def test_a_step_has_a_side_for_each_library_that_this_processor_lets_it_choose(library, own, peers, monkeypatch):
    import pretraining_step as script

    monkeypatch.setattr(script, "OWN_LIBRARY", "onednn" if library.startswith("oneDNN") else "mkl")
    monkeypatch.setattr(script, "library_of_products", lambda: library)
    for side in ("Ours", "Peer"):
        monkeypatch.setattr(script, side, lambda *_, **__: None)
    plain, kept = "transformers, predicted positions", "transformers, predicted positions, keeping memory"
    expected = ["maskloom", *own, "transformers", plain, kept, *peers]
    assert list(script.make_sides(ROOT, None, 8, with_compiled=False)) == expected


@pytest.mark.parametrize(
    ("name", "written_by"),
    [
        ("benchmarks/elmo_speed", "elmo_speed.page"),
        ("benchmarks/elmo_speed_intel", "elmo_speed.page"),
        ("benchmarks/finetuning_speed", "finetuning_speed_report.page"),
        ("benchmarks/finetuning_speed_intel", "finetuning_speed_report.page"),
        ("benchmarks/gpt_speed", "gpt_speed.page"),
        ("benchmarks/gpt_speed_intel", "gpt_speed.page"),
        ("benchmarks/gpt_speed_zen5", "gpt_speed.page"),
        ("benchmarks/gpu", "gpu_check_report.page"),
        ("benchmarks/half_precision", "half_precision.page"),
        ("benchmarks/half_precision_zen4", "half_precision.page"),
        ("benchmarks/overheads", "overheads_report.page"),
        ("benchmarks/recurrent_speed", "recurrent_speed.page"),
        ("benchmarks/recurrent_speed_intel", "recurrent_speed.page"),
        ("benchmarks/seq2seq_speed", "seq2seq_speed.page"),
        ("benchmarks/seq2seq_speed_intel", "seq2seq_speed.page"),
        ("benchmarks/seq2seq_speed_zen4", "seq2seq_speed.page"),
        ("benchmarks/vocabulary_scores", "vocabulary_scores.report"),
        ("benchmarks/vocabulary_training", "vocabulary_training.report"),
        ("benchmarks/weak_scaling", "weak_scaling.page"),
        ("benchmarks/words", "words.report"),
        ("benchmarks/words_intel", "words.report"),
        ("results/recipe_ablation", "recipe_ablation.page"),
        ("results/recipe_ablation_schedules", "recipe_ablation.page"),
    ],
)
def test_a_stored_page_is_what_its_figures_give(name, written_by):
    script, _, function = written_by.partition(".")
    page, stored = getattr(importlib.import_module(script), function), ROOT / f"{name}.md"
    found = page(json.loads(stored.with_suffix(".json").read_text("utf-8"))).splitlines()
    assert found == stored.read_text("utf-8").splitlines()


def test_each_seed_of_an_ablation_is_scored_on_the_text_that_it_holds_out(tmp_path, monkeypatch):
    import recipe_ablation as script

    asked, rates = [], {"sizes": [{"tokens_per_second": 1.0}]}
    counts = {"num_tokens": 1, "num_documents": 1, "vocabulary_size": 1}
    monkeypatch.setattr(script, "Corpus", SimpleNamespace(open=lambda folder: None))
    monkeypatch.setattr(script, "corpus_statistics", lambda corpus: counts)
    monkeypatch.setattr(script, "run", lambda name, seed, corpus, folder: folder.mkdir())
    monkeypatch.setattr(script, "masked_losses", lambda model, corpus, seed: asked.append((model, seed)) or [1.0])
    monkeypatch.setattr(script, "plan_pretraining", lambda recipe, corpus, seconds: rates)
    monkeypatch.setattr(script, "processor", lambda: "a processor")
    page = tmp_path / "page"
    given = ["--corpus", "c", "--variants", "rotary", "--seeds", "0", "2", "--results", str(page)]
    monkeypatch.setattr("sys.argv", ["", "--out", str(tmp_path), *given])
    script.main()
    assert asked == [(tmp_path / f"rotary-{seed}" / "model", seed) for seed in (0, 2)]
    assert "read about a quarter of it" not in page.with_suffix(".md").read_text(encoding="utf-8")
    results = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    del results["held_out"]
    assert "runs with other seeds read about a quarter of it in training" in script.page(results)
    write_json(page.with_suffix(".json"), results)
    with pytest.raises(SystemExit):
        script.main()
    del results["variants"]["rotary"]["losses"]["2"]
    assert "read about a quarter of it" not in script.page(results)


def test_the_peak_of_a_gpu_is_that_of_its_whole_name():
    from gpu_check_report import page

    case = {
        "size": "base",
        "rows": 1,
        "length": 8,
        "is_mixed": True,
        "memory": {},
        "problems": {},
        "flops_per_token": 1,
    }
    case |= {"flops_per_token": 1, "rates": {"maskloom": [20.0, 30.0], "transformers": [10.0, 10.0]}}
    figures = {"device": "cuda:0, NVIDIA L40, 44 GiB", "torch": "2", "peak": 1e14, "rounds": 2, "steps": [case]}
    text = page(figures)
    assert "over 181 TFLOP/s" in text
    assert "maskloom reads 20 tokens/s in the first round and 30 in the last." in text
    assert "over 100 TFLOP/s" in page({**figures, "device": "cuda:0, NVIDIA L40S, 44 GiB"})


def test_only_padded_rows_give_the_peer_a_mask():
    """transformers reads a mask's values on the host, and with one cannot use flash attention when compiled."""
    from full_rows import full_rows
    from step_sides import _padded

    assert "attention_mask" not in _padded(full_rows(2, 8), 8)
    assert _padded(full_rows(2, 8), 9)["attention_mask"].tolist() == [[1] * 8 + [0]] * 2


def test_versions_name_the_peers_and_one_that_is_not_installed():
    from surroundings import versions

    found = versions("numpy", "no-such-package")
    assert found.startswith(f"{versions()}, numpy ")
    assert found.endswith(", no-such-package absent")
    assert [part.split()[0] for part in versions().split(", ")] == ["Python", "torch"]


def test_the_page_of_elmo_says_with_which_versions_and_how_much_load_it_was_measured():
    from elmo_speed import page

    row = {"size": "tiny", "part": "step", "rows": 32, "threads": 2, "rates": [[3.0], [2.0]]}
    figures = {"command": "a command", "machine": "a machine", "versions": "torch 2", "rounds": 5, "parts": "Parts."}
    figures |= {"loss_difference": 1e-8, "gradient_difference": 1e-7}
    figures["results"] = [{**row, "load": 0.25}, {**row, "load": 0.5}]
    assert page(figures).endswith("a machine; torch 2; load before each row at most 0.50.\n")


def test_the_page_of_a_gpu_names_the_versions_of_its_peers_and_its_host():
    from gpu_check_report import page

    about = {"device": "a GPU", "versions": "Python 3, torch 2, transformers 5", "processor": "a host", "load": 0.25}
    text = page({**about, "peak": 1e14, "rounds": 5})
    assert "on a GPU, Python 3, torch 2, transformers 5. Host: a host; load at the last start 0.25. A large" in text


@pytest.mark.parametrize("name", ["finetuning_speed", "finetuning_speed_intel"])
def test_the_page_of_fine_tuning_describes_the_data_that_were_measured(name):
    page = ROOT / "benchmarks" / f"{name}.md"
    figures = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    told, data = " ".join(page.read_text(encoding="utf-8").split()), {job["data"] for job in figures["jobs"]}
    for phrase, named in (
        ("SQuAD", "SQuAD v1.1"),
        ("run_qa", "SQuAD v1.1"),
        ("Wide mix", "Wide mix"),
        ("GoEmotions' texts", "GoEmotions"),
    ):
        assert (phrase in told) == (named in data), phrase
    assert ("- Memory:" in page.read_text(encoding="utf-8")) == bool(figures["memory"])


def test_minutes_of_a_resumed_run_are_unknown(tmp_path):
    from translation import _TESTS, write_page

    scores = {test: {"bleu": 1.0, "chrf": 2.0} for test in _TESTS}
    run = {"name": "the recipe", "seed": 0, "dev": {"loss": 1.0, "bleu": 1.0}, "scores": scores, "kills": 0}
    runs = [{**run, "sha256": "", "cpu_seconds": 60.0}, {**run, "seed": 1, "sha256": "", "cpu_seconds": None}]
    for some, minutes in ((runs[:1], "1.0"), (runs, "-")):
        write_page(tmp_path / "page", some)
        (row,) = [line for line in (tmp_path / "page.md").read_text("utf-8").splitlines() if "the recipe |" in line]
        assert row.endswith(f"| {minutes} |")
