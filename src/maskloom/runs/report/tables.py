"""The tables of a report: scores, what differs between runs, what was read, where it ran."""

from __future__ import annotations

import shlex
from typing import Any

from maskloom.config import FinetuneRecipe, PretrainRecipe
from maskloom.data.corpus import Corpus
from maskloom.errors import DataError
from maskloom.metrics.answers import is_percent
from maskloom.runs.charts import visible
from maskloom.runs.display import lines_of
from maskloom.runs.report.record import RunRecord
from maskloom.runs.run_folder import flat
from maskloom.runs.task_summaries import examples_text

Table = list[list[str]]
_CORPUS = {
    "num_documents": "documents",
    "num_sentences": "sentences",
    "num_tokens": "tokens",
    "num_duplicate_documents": "duplicates left out",
    "num_empty_documents": "empty documents left out",
    "num_skipped_documents": "documents skipped",
    "num_ignored_files": "files ignored",
}


def scores(run: RunRecord) -> dict[str, float]:
    """Return the scores that stand for a run: held-out metrics, or those of its best evaluation on dev."""
    result = run.result
    if result is None:
        evaluations = [event["metrics"] for event in run.events if event.get("event") == "evaluation"]
        result = evaluations[-1] if evaluations else {}
    elif run.best is not None:
        result = run.best["best"]["scores"]
    elif run.kind == "glue":
        flat_scores = {
            f"{name} {metric}": value for name, of in result["scores"].items() for metric, value in of.items()
        }
        averages = {name: result[name]["value"] for name in ("paper_average", "leaderboard_score")}
        result = {**flat_scores, **averages}
    return {name: value for name, value in result.items() if isinstance(value, (int, float))}


def with_unit(run: RunRecord, name: str) -> str:
    """Return the name of a score, with "percent" for the official scores of answers: all others are fractions."""
    return f"{name}, percent" if is_percent(name, scores(run)) else name


def score_table(runs: list[RunRecord]) -> Table:
    """Return one row a score with one value a run, the deciding score of each kind first."""
    by_run = [{with_unit(run, name): value for name, value in scores(run).items()} for run in runs]
    names = list(dict.fromkeys(name for found in by_run for name in found))
    return [[name.replace("_", " "), *(_figure(found.get(name)) for found in by_run)] for name in names]


def differences(runs: list[RunRecord]) -> Table:
    """Return the keys in which runs differ: recipe, inputs, versions, hardware; of one run, those it sets itself."""
    if len(runs) == 1:
        recipe, default = flat(runs[0].recipe), flat(_defaults(runs[0]))
        return [
            [key, _figure(value), _figure(default.get(key))]
            for key, value in recipe.items()
            if value != default.get(key) and value not in ({}, [])
        ]
    flattened = [_settings(run) for run in runs]
    keys = list(dict.fromkeys(key for values in flattened for key in values))
    return [
        [key, *(_figure(values.get(key)) for values in flattened)]
        for key in keys
        if any(values.get(key) != flattened[0].get(key) for values in flattened)
    ]


def data_account(run: RunRecord) -> Table:
    """Return what was read for a run, what was cut and what was left out."""
    if run.kind == "pretrain":
        return _corpus_account(run)
    rows = []
    for inner in run.trained:
        prefix = "" if inner is run else f"{inner.name}: "
        account: dict[str, Any] = next((event for event in inner.events if event.get("event") == "data"), {})
        rows += [[f"{prefix}{part}", examples_text(account[part])] for part in ("train", "dev") if part in account]
        rows += [[f"{prefix}note", str(note)] for note in account.get("notes", [])]
        if account.get("labels"):
            rows.append([f"{prefix}labels", ", ".join(map(visible, account["labels"][:40]))])
    return [[visible(cell) for cell in row] for row in rows]


def surroundings(runs: list[RunRecord]) -> Table:
    """Return command, versions and hardware, one row a fact with one value a run."""
    facts = []
    for run in runs:
        description = run.description
        hardware = description.get("hardware", {})
        facts.append(
            {
                "command": shlex.join(map(str, description.get("command", []))),
                "processor": hardware.get("processor") or hardware.get("machine"),
                "cores, threads used": f"{hardware.get('cores')}, {hardware.get('threads')}",
                "GPU": hardware.get("cuda"),
                "processes": description.get("world_size"),
                "tokens per second, median": _speed(run),
                "minutes since its last start": _minutes(run),
                **description.get("versions", {}),
            }
        )
    names = list(dict.fromkeys(name for values in facts for name in values))
    rows = [[name, *(_figure(values.get(name)) for values in facts)] for name in names]
    return [row for row in rows if any(cell != "–" for cell in row[1:])]


def trouble_table(runs: list[RunRecord], most: int = 20) -> Table:
    """Return the first events of a run that a person should know before trusting it."""
    rows = []
    for run in runs:
        for inner in run.trained:
            for event in inner.trouble[:most]:
                rest = {key: value for key, value in event.items() if key not in ("event", "stage", "step", "position")}
                text = event.get("text") or "; ".join(" ".join(line.split()) for line in lines_of(rest))
                place = f"{event.get('stage', '')} {event.get('step', '')}".strip()
                rows.append([inner.name, place, str(event["event"]), visible(text)])
            if len(inner.trouble) > most:
                rows.append([inner.name, "", "", f"and {len(inner.trouble) - most} more, in its events.jsonl"])
    return rows


def _defaults(run: RunRecord) -> dict[str, Any]:
    kind = PretrainRecipe if run.kind == "pretrain" else FinetuneRecipe
    return kind().model_dump(exclude_none=True)


def _settings(run: RunRecord) -> dict[str, Any]:
    """Return all that may tell a run from another one as flat keys."""
    inputs = run.description.get("inputs", {})
    paths = run.description.get("paths", {})
    read = {
        f"input: {name}": f"{paths.get(name, '')} ({value:.12}…)" if isinstance(value, str) else value
        for name, value in inputs.items()
        if name not in ("reading", "space", "tasks")
    }
    reading = {f"read with: {key}": value for key, value in flat(inputs.get("reading") or {}).items()}
    return {**flat(_defaults(run)), **flat(run.recipe), **read, **reading}


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
        return [*rows, ["account", "the folder holds another corpus now, so what this one skipped is unknown"]]
    return rows + [[text, _figure(corpus.manifest[name])] for name, text in _CORPUS.items() if name in corpus.manifest]


def _speed(run: RunRecord) -> float | None:
    speeds = [e["tokens_per_second"] for inner in run.trained for e in inner.events if e.get("tokens_per_second")]
    return sorted(speeds)[len(speeds) // 2] if speeds else None


def _minutes(run: RunRecord) -> float | None:
    seconds = [e["seconds"] for inner in run.trained for e in inner.events if e.get("event") == "finished"]
    return round(sum(seconds) / 60, 1) if seconds else None


def _figure(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return visible(value)
