"""The page of use patterns: units, which rows have to pass, and the baselines that ignore order."""

import importlib
import json
import math
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def patterns(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("use_patterns")


@pytest.mark.parametrize(
    ("name", "network", "score", "baseline", "told", "verdict"),
    [
        ("names", "lstm", 4.1, 5.0, "4.10 | 5.00 | 4.20", "yes"),
        ("names", "lstm", 4.3, 5.0, "4.30 | 5.00 | 4.20", "no"),
        ("names", "transformer", 4.1, 5.0, "4.10 | 5.00 | -", "-"),
        ("reviews", "lstm", 0.75, 0.7, "75.0% | 70.0% | 72.0%", "yes"),
        ("reviews", "lstm", 0.75, 0.76, "75.0% | 76.0% | 72.0%", "no"),
        ("reviews", "lstm", 0.71, 0.7, "71.0% | 70.0% | 72.0%", "no"),
        ("reviews", "bert", 0.75, 0.7, "75.0% | 70.0% | -", "-"),
        ("reviews", "word vectors", 0.76, 0.76, "76.0% | - | -", "-"),
        ("reversed digits", "gru", 94.8, None, "94.8% | - | 95.0%", "no"),
        ("translation", "gru", 27.2, None, "27.2 | - | -", "-"),
    ],
)
def test_a_row_passes_above_its_bound_and_its_baseline(patterns, name, network, score, baseline, told, verdict):
    row = patterns._row(name, network, {"score": score, "seconds": 12.3}, baseline)
    assert row.endswith(f"| {told} | {verdict} | 12 |")
    assert ("one to one" in row) == (network == "word vectors")


def test_frequencies_of_letters_count_the_end(patterns, tmp_path):
    for part, names in (("train", ["a b", "a b"]), ("dev", ["a"])):
        rows = "".join(json.dumps({"source": "PER", "target": name}) + "\n" for name in names)
        (tmp_path / f"names-{part}.jsonl").write_text(rows, encoding="utf-8")
    # a, b and the end occur twice each; add-one smoothing, with one more for unseen letters, gives 3 of 10
    assert patterns._baseline(tmp_path, "names") == pytest.approx(-math.log2(0.3))


def test_names_are_read_letter_by_letter_with_their_classes(patterns, tmp_path, monkeypatch):
    tags = [("New", "B-LOC"), ("York", "I-LOC"), ("Bo", "B-PER"), ("Al", "B-PER"), ("and", "O"), ("Al", "B-PER")]
    monkeypatch.setattr(patterns, "_sentences", lambda _: [[[word, "", "", tag] for word, tag in tags]])
    kept = {}
    monkeypatch.setattr(patterns, "_write_rows", lambda out, data, train, dev: kept.setdefault("rows", [*train, *dev]))
    patterns._prepare_names(tmp_path)
    found = {(row["source"], row["target"]) for row in kept["rows"]}
    assert found == {("LOC", "N e w _ Y o r k"), ("PER", "B o"), ("PER", "A l")}


def test_stored_figures_make_the_stored_page_with_its_note(patterns, tmp_path, monkeypatch):
    stored = BENCHMARKS.parent / "results" / "use_patterns.md"
    machine = stored.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
    monkeypatch.setattr(patterns, "machine", lambda: machine.removesuffix("."))
    content = json.loads(stored.with_suffix(".json").read_text(encoding="utf-8"))
    patterns._write_page(tmp_path / "page", content)
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == stored.read_text(encoding="utf-8")
    assert content["note"] in stored.read_text(encoding="utf-8")


def test_reviews_are_read_in_the_encoding_of_their_files(patterns, tmp_path, monkeypatch):
    monkeypatch.setenv("MASKLOOM_DATA", str(tmp_path))
    (tmp_path / "sentiment").mkdir()
    for name, text in (("neg", "un clich\u00e9"), ("pos", "hmmm\u0085 jir\u00ed")):
        (tmp_path / "sentiment" / f"rt-polarity.{name}").write_text(f"{text}\n", encoding="utf-8")
    kept = []
    monkeypatch.setattr(patterns, "write_texts", lambda _out, _data, train, dev: kept.extend([*train, *dev]))
    patterns._prepare_reviews(tmp_path)
    assert sorted(kept) == [("hmmm\u0085 jir\u00ed", "pos"), ("un clich\u00e9", "neg")]


def test_seconds_of_a_resumed_run_are_unknown(patterns):
    assert patterns._row("translation", "gru", {"score": 27.2, "seconds": None}, None).endswith("| - | - |")
