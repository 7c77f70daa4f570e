"""Comparisons with peers treat both sides alike, and stored pages are what their scripts write from their figures."""

import importlib
import json
import os
import tomllib
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, os.environ.get(name, "false"))  # what a script sets ends with the test


def figures_of(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("busy", "busy", "page"),
        ("busy_intel", "busy", "page"),
        ("communication", "communication_report", "page"),
        ("corpus_building", "corpus_building", "report"),
        ("earlier_commit", "earlier_commit", "page"),
        ("encoding", "encoding", "report"),
    ],
)
def test_stored_pages_are_what_their_figures_give(name, module, function):
    pytest.importorskip("tokenizers")
    write = getattr(importlib.import_module(module), function)
    assert write(figures_of(name)) == (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def test_the_page_of_parity_is_what_its_figures_give(tmp_path):
    from finetuning_parity_report import report_text

    found = json.loads((ROOT / "results" / "finetuning_parity.json").read_text(encoding="utf-8"))
    page = (ROOT / "results" / "finetuning_parity.md").read_text(encoding="utf-8")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(page.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    assert report_text(found["tasks"], list(found["settings"]["tasks"]), found, recipe) == page
    shipped = ROOT / "src/maskloom/recipes/finetune-glue-small.toml"
    assert tomllib.loads(recipe.read_text("utf-8")) == tomllib.loads(shipped.read_text("utf-8"))


def test_sides_take_turns_on_single_sentences(monkeypatch):
    import embedding

    calls = []
    monkeypatch.setattr(embedding, "PAUSE", 0.0)
    sides = {name: lambda texts, name=name: calls.append((name, *texts)) for name in "AB"}
    found = embedding.latency(sides, list("abcdefghij") * 2)
    assert [(side, text) for side, text in calls[:16:4]] == [("A", "a"), ("B", "a"), ("B", "b"), ("A", "b")]
    assert {name: len(percentiles) for name, percentiles in found.items()} == {"A": 2, "B": 2}


@pytest.mark.parametrize("disturbed", [False, True])
def test_times_of_one_sentence_give_a_ratio_only_if_equal_work_took_equal_time(disturbed):
    from embedding_report import page, summary_rows

    figures = figures_of("embedding")
    latency = figures["latency"]
    latency["onnxruntime_sorted"] = [(2.0 if disturbed else 1.1) * value for value in latency["onnxruntime_given"]]
    assert ("takes **" in page(figures)) == (not disturbed)
    assert ("these times are no result" in page(figures)) == disturbed
    assert any("latency" in row["job"] for row in summary_rows(figures)) == (not disturbed)


def test_the_page_of_embedding_says_whose_imports_are_timed():
    from embedding_report import page

    figures = figures_of("embedding")
    assert "imports are not included" in page(figures)
    for row in figures["bulk"]:  # as in earlier figures
        del row["imports"]
    assert "imports are included for the peers' packages only" in page(figures)


def test_google_is_compared_with_building_and_drawing(monkeypatch):
    from corpus_building import compared, growth, summarised, summary_rows

    def run(build, draw=None):
        build, draw = ({"seconds": value, "processor": value} for value in (build, draw))
        return [{"build": build, "mebibytes": 1.0} | ({} if draw["seconds"] is None else {"draw": draw})]

    found = {("google", 1, 40): run(20.0), ("datasets", 1, 40): run(8.0, 2.0), ("datasets", 2, 40): run(4.0, 2.0)}
    found |= {("ours", workers, 40): run(1.0, 1.0) for workers in (1, 2)}
    found |= {("grown", workers, size): run(size) for workers in (1, 2) for size in (20, 200)}
    rows = compared(found, 40)
    ratios = [(row["peer"], row["our_processes"], row["with_drawing"], row["ratio"]) for row in rows]
    assert ratios[:2] == [("google", 1, True, 10.0), ("google", 2, True, 10.0)]
    assert ratios[2:4] == [("datasets", 1, False, 8.0), ("datasets", 2, False, 4.0)]
    summary = summary_rows(rows, growth(summarised(found, {20: 1, 40: 1, 200: 1})))
    assert [row["result"].split(" times")[0] for row in summary] == ["10.0 / 10.0", "8.0 / 4.0", "10.0 / 10.0"]


@pytest.mark.parametrize(("mebibytes", "level"), [(399.0, "stretch"), (400.0, "floor")])
def test_the_target_of_memory_has_a_limit(mebibytes, level):
    from corpus_building import memory_reached

    assert memory_reached({"mebibytes": 1.0, "largest_mebibytes": mebibytes}).startswith(level)


def test_the_page_beside_other_work_speaks_of_the_jobs_measured():
    from busy import page, summary

    figures = figures_of("busy")
    figures["jobs"] = {"tiny": figures["jobs"]["tiny"]}
    assert "tiny 32 rows)" in page(figures)
    assert "embedding" not in page(figures)
    figures["jobs"] = {"embed": figures["jobs"]["tiny"]}
    figures["cores"] = 4
    assert "training" not in page(figures)
    assert "embedding with MiniLM" in page(figures)
    assert summary(figures) == []
    figures["jobs"]["tiny"] = figures["jobs"]["embed"]
    assert "4 cores" in summary(figures)[0]["job"]


@pytest.mark.parametrize("rounds", [5, 7])
def test_figures_beside_other_work_are_kept_only_with_as_many_rounds(rounds, tmp_path, monkeypatch):
    import busy

    stored = figures_of("busy")
    own = {"processor": "p", "versions": "v", "cores": len(os.sched_getaffinity(0))}
    former = {**stored, **own, "jobs": {"tiny": stored["jobs"]["tiny"]}}
    (tmp_path / "busy.json").write_text(json.dumps(former), encoding="utf-8")
    for name, value in {"processor": "p", "versions": "v", "quiet_load": 0.0}.items():
        monkeypatch.setattr(busy, name, lambda *_, value=value: value)
    monkeypatch.setattr(busy, "__file__", str(tmp_path / "busy.py"))
    monkeypatch.setattr(busy, "measured", lambda job, rounds: stored["jobs"]["tiny"])
    monkeypatch.setattr("sys.argv", ["busy.py", "--jobs", "mini", "--rounds", str(rounds)])
    busy.main()
    found = json.loads((tmp_path / "busy.json").read_text(encoding="utf-8"))
    assert sorted(found["jobs"]) == (["mini", "tiny"] if rounds == 5 else ["mini"])


@pytest.mark.parametrize(("seeds", "cell"), [(1, "50.0"), (2, "51.0 ± 1.4")])
def test_the_page_of_frozen_features_takes_any_number_of_seeds(seeds, cell, tmp_path):
    from feature_based import ROWS, write_page

    found = {"scores": {str(seed): 0.5 + 0.02 * seed for seed in range(seeds)}}
    rows = dict.fromkeys((name for name, *_ in ROWS), found)
    write_page(tmp_path / "page", rows, Namespace(seeds=seeds, threads=1))
    assert f"| `sum_all` | {cell} | 95.5 |" in (tmp_path / "page.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_the_trigram_predicts_the_words_that_elmo_predicts(way, tmp_path, monkeypatch):
    import elmo_tagging

    from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
    from maskloom.text.vocabulary_training import VocabularySettings

    text = tmp_path / "text.txt"
    drawn = np.random.default_rng(0).integers(0, 300, (100, 50))
    text.write_text("".join(" ".join(f"w{number}" for number in document) + "\n\n" for document in drawn))
    settings = VocabularySettings(400, lowercase=False, model="words")
    train_vocabulary_from_files([text], settings=settings, out=tmp_path / "vocabulary")
    build_corpus_from_files(text, vocab=tmp_path / "vocabulary", out=tmp_path / "corpus")
    monkeypatch.setattr(elmo_tagging, "_BATCH", 2)
    monkeypatch.setattr(elmo_tagging, "_ROW", 5)
    train, whole = elmo_tagging._streams(tmp_path / "corpus", way)
    monkeypatch.setattr(elmo_tagging, "_MOST_EVALUATED", 5)
    same, part = elmo_tagging._streams(tmp_path / "corpus", way)
    assert np.array_equal(train, same)
    assert len(part) == 2 * 2 * 5
    assert part[:10].tolist() == whole[:10].tolist()
    (at,) = (at for at in range(10, len(whole)) if whole[at : at + 10].tolist() == part[10:].tolist())
    assert 2 * at - len(whole) in range(-2, 3)


def test_a_translation_page_has_the_signatures_of_its_scores_if_they_are_stored():
    from translation import signature_lines

    scores = {"test": {"bleu": 37.0, "signatures": {"chrf": "nc:6", "bleu": "tok:13a"}}}
    assert signature_lines([{"scores": scores}] * 2) == ["sacrebleu's signatures: bleu `tok:13a`, chrf `nc:6`.", ""]
    assert signature_lines([{"scores": {"test": {"bleu": 37.0}}}]) == []
