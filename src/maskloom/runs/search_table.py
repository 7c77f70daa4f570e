"""Tables that compare the trials of a search, or the tasks of a GLUE run: as rows and as Markdown."""

from __future__ import annotations

import statistics
from typing import Any

from maskloom.metrics.glue_score import OFFICIAL_METRICS
from maskloom.runs.display import printable
from maskloom.runs.glue.files import TASKS
from maskloom.runs.search_space import settings_text, value_text


def ranked(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the finished trials by best dev score, highest first; on ties the earlier trial comes first."""
    done = [record for record in records if record["status"] == "done"]
    return sorted(done, key=lambda record: (-record["score"], record["number"]))


def search_rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the headers and rows of a finished search; failed trials come last, with the reason."""
    keys = list(dict.fromkeys(key for trial in result["trials"] for key in trial["settings"]))
    names = [key.rpartition(".")[2] for key in keys]
    names = [key if names.count(name) > 1 else name for key, name in zip(keys, names, strict=True)]
    metric = result["metric"].replace("_", " ")
    headers = ["rank", "trial", *names, f"{metric}, best on dev", "mean ± sd, median", "degenerate", "minutes"]
    rows = []
    for rank, trial in enumerate(result["trials"], start=1):
        settings = [value_text(trial["settings"].get(key, "")) for key in keys]
        if trial["status"] == "failed":
            rows.append(["–", trial["name"], *settings, f"failed: {one_line(trial['error'])}", "", "", ""])
            continue
        minutes = "–" if trial["seconds"] is None else f"{trial['seconds'] / 60:.1f}"
        score = f"{trial['score']:.4f}"
        spread, bad = restarts_text(trial["restarts"]), degenerate_text(trial["restarts"])
        rows.append([str(rank), trial["name"], *settings, score, spread, bad, minutes])
    return headers, rows


def restarts_text(restarts: dict[str, Any], *, scale: float = 1.0, digits: int = 4) -> str:
    """Return the mean, standard deviation and median over the restarts of a run; a single run has only its mean."""
    mean = f"{scale * restarts['mean']:.{digits}f}"
    if restarts["standard_deviation"] is None:
        return f"{mean} (one run)"
    scores = list(restarts["scores"].values())
    spread, median = scale * restarts["standard_deviation"], scale * statistics.median(scores)
    return f"{mean} ± {spread:.{digits}f}, median {median:.{digits}f} ({len(scores)} runs)"


def degenerate_text(restarts: dict[str, Any]) -> str:
    """Return how many runs learned nothing, and their seeds."""
    if not restarts["degenerate"]:
        return f"0 of {restarts['num_restarts']}"
    seeds = ", ".join(restarts["degenerate"])
    return f"{len(restarts['degenerate'])} of {restarts['num_restarts']} (seed {seeds})"


def one_line(text: str) -> str:
    """Return the first line of a text, shortened to fit a table."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= 100 else first[:99] + "…"


def markdown_of(headers: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; pipes and control characters in cells are escaped."""
    cells = [[printable(cell).replace("|", "\\|") for cell in row] for row in [headers, *rows]]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(headers), *lines[1:]])


def glue_rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows, one per GLUE column with scores times 100, then the two averages."""
    rows = []
    for task in TASKS:
        outcome = result["tasks"].get(task.name)
        if outcome is None:
            reason = "files missing" if task.name in result["absent"] else "not requested"
            rows.append([task.folder, "", "–", reason, "", "", "", ""])
        elif outcome["status"] == "failed":
            rows.append([task.folder, "", "–", f"failed: {one_line(outcome['error'])}", "", "", "", ""])
        else:
            rows += _task_rows(task.folder, outcome)
    rows += [
        ["the paper's average", "9 columns", _average(result["paper_average"]), "", "", "", "", ""],
        ["leaderboard score", "9 tasks", _average(result["leaderboard_score"]), "", "", "", "", ""],
    ]
    about = ["mean ± sd, median of its settings", "settings", "trials", "degenerate", "minutes"]
    return ["task", "metric", "best on dev", *about], rows


def notes_of(result: dict[str, Any]) -> list[str]:
    """Return what a person must know to interpret the scores correctly."""
    notes = [
        "Scores are times 100, on dev. The best of all trials and seeds was chosen on the same dev set, "
        "so it is optimistic; the mean is over all seeds of the chosen settings, by the first metric."
    ]
    if result["tasks"].get("wnli", {}).get("status") == "majority":
        label = result["tasks"]["wnli"]["label"]
        notes.append(f"WNLI: nothing was trained; every answer is {label}, the most common in train, as in the paper.")
    for name, label in (("paper_average", "average as in the paper"), ("leaderboard_score", "leaderboard score")):
        if result[name]["missing"]:
            notes.append(f"No {label}: missing {', '.join(result[name]['missing'])}.")
    if result["absent"]:
        notes.append(f"Skipped, because files are missing (glue.json lists them): {', '.join(result['absent'])}.")
    failed = [(name, outcome) for name, outcome in result["tasks"].items() if outcome["status"] == "failed"]
    notes += [f"{name} failed: {outcome['error']}" for name, outcome in failed]
    return list(map(printable, notes))


def _task_rows(folder: str, outcome: dict[str, Any]) -> list[list[str]]:
    """Return one row per column of a task; the first row also describes the search."""
    rows = []
    for column, scores in outcome["columns"].items():
        metrics = " / ".join(OFFICIAL_METRICS[column])
        values = " / ".join(f"{100 * scores[name]:.2f}" for name in OFFICIAL_METRICS[column])
        rows.append([column, metrics, values, "the same model", "", "", "", ""])
    if outcome["status"] == "majority":
        rows[0][3:5] = ["no model", f"always {outcome['label']}"]
        return rows
    rows[0][3:] = [
        restarts_text(outcome["restarts"], scale=100.0, digits=2),
        settings_text(outcome["settings"]),
        str(outcome["num_trials"]),
        degenerate_text(outcome["restarts"]),
        "–" if outcome["seconds"] is None else f"{outcome['seconds'] / 60:.1f}",
    ]
    if folder == "MNLI" and "MNLI-mm" not in outcome["columns"]:
        rows.append(["MNLI-mm", "accuracy", "–", "file missing", "", "", "", ""])
    return rows


def _average(score: dict[str, Any]) -> str:
    return "–" if score["value"] is None else f"{100 * score['value']:.1f}"
