"""What the folder of a run records, finished or not, and tables of it for one run or several."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import median_high
from typing import Any

from maskloom.config import FinetuneRecipe, PretrainRecipe
from maskloom.data.corpus.opening import Corpus
from maskloom.errors import DataError
from maskloom.runs.charts import visible
from maskloom.runs.display import formatted, lines_of
from maskloom.runs.run_folder import RECIPE, RESULTS, RunKind, described_model, flat, kind_of_run
from maskloom.runs.task_summaries import examples_text, unit_of
from maskloom.system.foreign_files import read_bytes, read_json_object, read_json_value
from maskloom.training.events import read_events

# What every result of a kind of run has; pre-training may have none.
_MAIN_RESULTS = {
    "finetune": {"best": dict, "metric": str, "restarts": dict}, "search": {"best": dict}, "glue": {"tasks": dict}
}  # fmt: skip
_TROUBLE, _MOST_TROUBLE = ("nonfinite", "warning", "out_of_memory", "lost_events"), 20


@dataclass(frozen=True)
class RunRecord:
    """One run: recipe and description as plain values, results and inner runs if it has any, and its model's folder."""

    name: str
    folder: Path
    kind: RunKind
    recipe_text: str
    recipe: dict[str, Any]
    description: dict[str, Any]
    result: dict[str, Any] | None
    model_folder: Path
    inner: tuple[RunRecord, ...] = ()

    @property
    def trained(self) -> tuple[RunRecord, ...]:
        """The runs whose curves represent this one: itself, or the best trial of a search or of every GLUE task."""
        return self.inner if self.kind in ("search", "glue") else (self,)

    @property
    def best(self) -> dict[str, Any] | None:
        """The result of a finished fine-tuning run, or of the best trial of a search; None for others."""
        if self.result is None or self.kind not in ("finetune", "search"):
            return None
        return self.result if self.kind == "finetune" else self.result["best"]

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The events of its log; [] if there is none yet."""
        path = self.folder / "events.jsonl"
        return read_events(path) if path.is_file() else []

    @cached_property
    def stages(self) -> dict[str, list[dict[str, Any]]]:
        """Its events by curve: all phases of pre-training in one running step count, or each seed separately."""
        if self.kind == "pretrain":
            return {"": in_one_count(self.events)}
        by_stage: dict[str, list[dict[str, Any]]] = {}
        for event in self.events:
            if "stage" in event:
                by_stage.setdefault(str(event["stage"]), []).append(event)
        return by_stage


def read_run(folder: str | Path, name: str) -> RunRecord:
    """Read a run's folder; raises ConfigError for any other folder, DataError for a damaged file."""
    folder = Path(folder)
    description = described_model(folder)
    content = read_bytes(folder / RECIPE, limit=1 << 20)
    try:
        recipe = tomllib.loads(text := content.decode("utf-8"))
    except ValueError as error:
        raise DataError(f"{folder / RECIPE}: not valid TOML: {error}") from None
    kind = kind_of_run(description)
    result = read_json_object(path) if (path := folder / RESULTS[kind]).is_file() else None
    for key, of in _MAIN_RESULTS.get(kind, {}).items() if result is not None else ():
        read_json_value(path, key, of)
    inner: list[RunRecord] = []
    if kind == "search" and result is not None:
        best = read_run(folder / "trials" / str(result["best"]["name"]), f"{name}, best trial")
        inner = [replace(best, model_folder=folder / "model")]
    if kind == "glue":
        tasks = sorted(path.parent for path in folder.glob(f"*/{RECIPE}"))
        inner = [run for path in tasks for run in read_run(path, f"{name}, {path.name}").inner]
        inner = [replace(run, name=run.name.removesuffix(", best trial")) for run in inner]
    return RunRecord(name, folder, kind, text, recipe, description, result, folder / "model", tuple(inner))


def in_one_count(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events in which the steps of later phases continue the count of earlier ones."""
    staged = [event for event in events if "stage" in event]
    lasts: dict[str, int] = {}
    for event in staged:
        lasts[event["stage"]] = max(lasts.get(event["stage"], 0), event.get("step", 0))
    offsets = dict(zip(lasts, accumulate(lasts.values(), initial=0), strict=False))
    return [{**event, "step": offsets[event["stage"]] + event.get("step", 0)} for event in staged]


Table = list[list[str]]


def scores(run: RunRecord) -> dict[str, float]:
    """Return a run's scores: held-out metrics, the best on dev, GLUE columns, or the last evaluation if unfinished."""
    result = run.result
    if result is None:
        evaluations = [event["metrics"] for event in run.events if event.get("event") == "evaluation"]
        result = evaluations[-1] if evaluations else {}
    elif run.best is not None:
        result = run.best["best"]["scores"]
    elif run.kind == "glue":
        averages = {name: result[name]["value"] for name in ("paper_average", "leaderboard_score")}
        of_columns = result["scores"].items()
        result = {f"{name} {metric}": value for name, found in of_columns for metric, value in found.items()} | averages
    return {name: value for name, value in result.items() if isinstance(value, (int, float))}


def with_unit(run: RunRecord, name: str) -> str:
    """Return the name of a score, with "percent" if it is in percent: the official scores of answers, and ROUGE."""
    return f"{name}, percent" if unit_of(name, scores(run)) else name


def score_table(runs: list[RunRecord]) -> Table:
    """Return one row per score with one value per run."""
    return _beside(
        [
            {with_unit(run, name).removeprefix("num_").replace("_", " "): value for name, value in scores(run).items()}
            for run in runs
        ]
    )


def differences(runs: list[RunRecord]) -> Table:
    """Return the keys in which runs differ: of the recipe, the inputs and how they were read.

    Pre-training runs are compared among themselves, and so are the others: they have other keys.
    """
    columns = [_settings(run) for run in runs]
    sides = [
        [one for run, one in zip(runs, columns, strict=True) if (run.kind == "pretrain") is it] for it in (True, False)
    ]
    return [
        row for row in _beside(columns) if any(one.get(row[0]) != side[0].get(row[0]) for side in sides for one in side)
    ]


def data_account(run: RunRecord) -> Table:
    """Return what was read for a run, what was truncated and what was left out; notes on it have rows of their own."""
    if run.kind == "pretrain":
        return _corpus_account(run)
    rows = []
    for inner in run.trained:
        prefix = "" if inner is run else f"{inner.name}: "
        account: dict[str, Any] = next((event for event in inner.events if event.get("event") == "data"), {})
        rows += [
            [f"{prefix}{part}", examples_text({**account[part], "notes": ()})]
            for part in ("train", "dev")
            if part in account
        ]
        rows += [[f"{prefix}note", str(note)] for note in account.get("notes", [])]
        if account.get("labels"):
            rows.append([f"{prefix}labels", ", ".join(map(visible, account["labels"][:40]))])
    return [[visible(cell) for cell in row] for row in rows]


def surroundings(runs: list[RunRecord]) -> Table:
    """Return command, versions and hardware, one row per fact with one value per run."""
    facts = []
    for run in runs:
        description = run.description
        hardware = description.get("hardware", {})
        events = [event for inner in run.trained for event in inner.events]
        speeds = [event["tokens_per_second"] for event in events if event.get("tokens_per_second")]
        seconds = [event["seconds"] for event in events if event.get("event") == "finished"]
        facts.append(
            {
                "command": shlex.join(map(str, description.get("command", []))),
                "processor": hardware.get("processor") or hardware.get("machine"),
                "cores, threads used": f"{hardware.get('cores')}, {hardware.get('threads')}",
                "GPU": hardware.get("cuda"),
                "processes": description.get("world_size"),
                "tokens per second, median": median_high(speeds) if speeds else None,
                "minutes since its last start": round(sum(seconds) / 60, 1) if seconds else None,
                **description.get("versions", {}),
            }
        )
    return [row for row in _beside(facts) if any(cell != "–" for cell in row[1:])]


def trouble_table(runs: list[RunRecord]) -> Table:
    """Return the first events of each run that a person should know about before trusting it."""
    rows = []
    for run in runs:
        for inner in run.trained:
            trouble = [event for event in inner.events if event.get("event") in _TROUBLE]
            for event in trouble[:_MOST_TROUBLE]:
                rest = {key: value for key, value in event.items() if key not in ("event", "stage", "step", "position")}
                text = event.get("text") or "; ".join(" ".join(line.split()) for line in lines_of(rest))
                place = f"{event.get('stage', '')} {event.get('step', '')}".strip()
                rows.append([inner.name, place, str(event["event"]), visible(text)])
            if (num_more := len(trouble) - _MOST_TROUBLE) > 0:
                rows.append([inner.name, "", "", f"and {num_more} more, in its events.jsonl"])
    return rows


def _beside(columns: list[dict[str, Any]]) -> Table:
    """Return one row per key with the value of each column."""
    keys = dict.fromkeys(key for values in columns for key in values)
    return [[key, *(_figure(values.get(key)) for values in columns)] for key in keys]


def _settings(run: RunRecord) -> dict[str, Any]:
    """Return everything that may distinguish one run from another, as flat keys."""
    kind = PretrainRecipe if run.kind == "pretrain" else FinetuneRecipe
    inputs = run.description.get("inputs", {})
    paths = run.description.get("paths", {})
    read = {
        f"input: {name}": f"{paths[name]} ({value:.12}…)" if name in paths and isinstance(value, str) else value
        for name, value in inputs.items()
        if name not in ("reading", "space", "tasks")
    }
    reading = {f"read with: {key}": value for key, value in flat(inputs.get("reading") or {}).items()}
    return {**flat(kind().model_dump(exclude_none=True)), **flat(run.recipe), **read, **reading}


def _corpus_account(run: RunRecord) -> Table:
    folder = run.description.get("paths", {}).get("corpus")
    if folder is None:
        return []
    rows = [["corpus", visible(folder)]]
    try:
        corpus = Corpus.open(folder, verify=False)
    except DataError:
        return [*rows, ["account", "the corpus no longer exists, so what it skipped is unknown"]]
    if corpus.fingerprint != run.description["inputs"].get("corpus"):
        return [*rows, ["account", "the folder now contains another corpus, so what this one skipped is unknown"]]
    counts = {name: value for name, value in corpus.manifest.items() if name.startswith("num_")}
    return rows + [[name[4:].replace("_", " "), _figure(value)] for name, value in counts.items()]


def _figure(value: Any) -> str:
    return "–" if value is None or value == "" else visible(formatted(value))
