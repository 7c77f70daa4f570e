"""The whole quick start, on part of the documentation and with few steps, interrupted and resumed."""

import json
import re
import sysconfig
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import maskloom
from maskloom.errors import ConfigError
from maskloom.quickstart import documentation, journey
from maskloom.quickstart.journey import quickstart, summary_lines
from maskloom.quickstart.tasks import build_tasks
from maskloom.runs.display import Progress

OVERRIDES = {
    "pretrain": [
        *("model.config.hidden_size=32", "model.config.num_attention_heads=2", "model.config.intermediate_size=64"),
        "phases=[{max_length=32, steps=6, batch_size=8}, {max_length=64, steps=4, batch_size=4}]",
        *("training.save_every=2", "training.evaluate_every=2", "training.max_evaluation_instances=32"),
    ],
    "finetune": [
        *("training.steps=4", "training.evaluate_every=2", "restarts=2"),
        *("data.max_length=64", "training.batch_size=4"),
    ],
}
PARTS = {"networkx": "networkx/algorithms/c", "numpy": "numpy/lib/"}


class StoppedError(Exception):
    pass


class StageNames(Progress):
    def __init__(self) -> None:
        self.names: list[str] = []

    def begin(self, what: str, total: int, done: int = 0) -> None:
        self.names.append(what)


class StoppingProgress(Progress):
    def begin(self, what: str, total: int, done: int = 0) -> None:
        if what == "fine-tuning, seed 1":
            raise StoppedError


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [value for name, value in attrs if name in ("href", "src") and value]


def _part_of_the_documentation(folder: Path) -> tuple[dict[str, Path], dict[str, dict[str, Path]]]:
    """Link part of the standard library in a folder; return the paths of Python and files of two packages."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for file in (library / "pydoc_data" / "topics.py", *library.glob("a*.py")):
        link = folder / file.relative_to(library)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(file)
    files = {
        name: {str(file): Path(str(file.locate())) for file in metadata.files(name) or () if str(file).startswith(part)}
        for name, part in PARTS.items()
    }
    return {"stdlib": folder}, files


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    paths, files = _part_of_the_documentation(tmp_path_factory.mktemp("library"))
    out = tmp_path_factory.mktemp("quickstart") / "out"
    with pytest.MonkeyPatch.context() as patch:
        # listing and reading all takes seconds
        patch.setattr(documentation, "sysconfig", SimpleNamespace(get_paths=lambda: paths))
        patch.setattr(documentation, "required_packages", lambda: files)
        found = {source.area for source in documentation.find_sources()}
        assert found == {documentation.STANDARD_LIBRARY, *PARTS}
        patch.setattr(journey, "VOCABULARY_SIZE", 900)
        patch.setattr(journey, "build_tasks", partial(build_tasks, sizes=(20, 20)))
        with pytest.raises(StoppedError):
            quickstart(out=out, overrides=OVERRIDES, progress=StoppingProgress())
        before = (out / "pretrained" / "model" / "model.safetensors").stat().st_mtime_ns
        progress = StageNames()
        results = quickstart(out=out, overrides=OVERRIDES, progress=progress)
        predicted = [name for name in progress.names if "examples of" in name]
        assert len(set(predicted)) == len(predicted) == 4
        assert predicted[0] == "sentence-pretrained: examples of sentence-dev.jsonl"
        assert (out / "pretrained" / "model" / "model.safetensors").stat().st_mtime_ns == before
        yield out, results


def test_every_figure_is_there(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    assert json.loads((out / "results.json").read_text(encoding="utf-8")) == results
    assert 0 < results["pretraining"]["unigram_cross_entropy"] < 10
    for task in ("sentence", "pair"):
        compared = results["tasks"][task]
        assert compared["pretrained"]["scores"].keys() == compared["random"]["scores"].keys() == {"0", "1"}
    assert [len(best) for best in results["masks"].values()] == [5] * 6


def test_the_held_out_texts_are_not_in_the_corpus(finished: tuple[Path, dict[str, Any]]) -> None:
    out, _ = finished
    pretraining = (out / "text" / "documents.txt").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in (out / "tasks" / "sentence-dev.jsonl").read_text("utf-8").splitlines()]
    assert not {row["text"] for row in rows} & set(pretraining)


def test_the_models_can_be_used(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    model = maskloom.load(out / "finetuned" / "sentence-pretrained")
    assert model.predict(["The array is sorted along the last axis."])[0]["label"] in results["text"]["areas"]


def test_the_report_holds_everything_itself(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    page = (out / "report.html").read_text(encoding="utf-8")
    links = Links()
    links.feed(page)
    assert links.outside == []
    assert "script" not in links.tags
    assert links.tags.count("svg") > 8
    assert not re.search(r"url\(|@import", page)
    assert f"{results['pretraining']['mlm_accuracy']:.4g}" in page
    assert "pair-pretrained: examples from dev" in page
    assert all(name in page for name in results["text"]["areas"])


def test_the_summary_ends_with_the_folder_and_three_commands(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    lines = summary_lines(results)
    assert [line.split()[:2] for line in lines[-3:]] == [
        ["maskloom", "fill-mask"],
        ["maskloom", "predict"],
        ["maskloom", "pretrain"],
    ]
    assert str(out) in lines[-5]
    entropy = results["pretraining"]["unigram_cross_entropy"]
    early = {name: value for name, value in results["pretraining"].items() if name != "unigram_cross_entropy"}
    assert summary_lines({**results, "pretraining": {**early, "unigram_entropy": entropy}}) == lines


def test_another_seed_in_the_same_folder_is_refused(finished: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="was started with seed 0"):
        quickstart(out=finished[0], seed=1, overrides=OVERRIDES)
