"""One HTML page about runs: curves, scores, what differs, what was read, where it ran, examples right and wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import escape

from maskloom.errors import ConfigError
from maskloom.files import output_file
from maskloom.metrics.language_model import part_of
from maskloom.runs.charts import DotRow, distinct_names, dot_chart, page_template, visible
from maskloom.runs.progress import Progress
from maskloom.runs.report.charts import NUM_COLOURS, charts_of
from maskloom.runs.report.record import RunRecord, read_run
from maskloom.runs.report.tables import (
    data_account,
    differences,
    score_table,
    scores,
    surroundings,
    trouble_table,
    with_unit,
)
from maskloom.runs.search_table import restarts_text, search_rows

_MAX_RUNS = 12


def report(
    runs: Sequence[str | Path], out: str | Path | None, *, num_examples: int = 500, progress: Progress | None = None
) -> dict[str, Any]:
    """Write one page about one run or several beside each other, and return where it lies and what it is about.

    A run is the folder of a pre-training, a fine-tuning, a search or a GLUE run, finished or not. The page holds all it
    shows, runs no script and loads nothing. Of fine-tuned runs at most `num_examples` examples of dev are predicted
    anew to show some that are right and some that are wrong; 0 does without. Where `out` is None the page is
    report.html, unless that is about other runs. Raises ConfigError for a folder that is no
    run, DataError for a run whose files are damaged.
    """
    progress, target = progress or Progress(), Path("report.html" if out is None else out)
    if not 1 <= len(runs) <= _MAX_RUNS:
        raise ConfigError(f"{len(runs)} runs: a report shows 1 to {_MAX_RUNS}")
    if target.is_dir() or target.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{target}: --out names the page to write, an .html file")
    folders = [Path(run).resolve() for run in runs]
    names = distinct_names((folder.name, folder.parent.name) for folder in folders)
    records = [read_run(run, name) for run, name in zip(runs, names, strict=True)]
    title = f"<title>{escape(', '.join(names))}: "
    if out is None and target.exists() and title not in target.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(f"{target}: holds something else than a page about these runs; name the page with --out")
    shown = {}
    for record in [inner for run in records for inner in run.trained if inner.kind == "finetune"]:
        if num_examples and record.result is not None:
            from maskloom.runs.report.examples import examples_of  # heavy: pages of curves do without

            shown[record.name] = examples_of(record, num_examples, progress)
    page = page_template("report/page.html").render(
        title=", ".join(names),
        cards=[_card(record, place) for record, place in zip(records, _first_places(records), strict=True)],
        charts=charts_of(records),
        searches=[_search(record) for record in records if record.kind == "search" and record.result is not None],
        glue=[_glue(record) for record in records if record.kind == "glue" and record.result is not None],
        seeds=[(run.name, _seeds(run.best)) for run in records if run.best and len(run.best["restarts"]["scores"]) > 1],
        scores=score_table(records),
        differences=differences(records),
        names=names,
        accounts=_accounts(records),
        surroundings=surroundings(records),
        trouble=trouble_table(records),
        examples=shown,
        recipes=[(record.name, visible(record.recipe_text)) for record in records],
    )
    with output_file(target, "w") as file:
        file.write(page)
    return {"page": str(target), "runs": {name: record.kind for name, record in zip(names, records, strict=True)}}


def _first_places(runs: list[RunRecord]) -> list[int | None]:
    """Return the place among all curves of each run's own; None for a run of several curves, or of none."""
    counts = [len(run.trained) for run in runs]
    return [sum(counts[:number]) if counts[number] == 1 else None for number in range(len(runs))]


def _card(run: RunRecord, place: int | None) -> dict[str, Any]:
    kinds = {"pretrain": "pre-training", "finetune": "fine-tuning", "search": "search", "glue": "GLUE"}
    found = scores(run)
    name = _deciding(run, found)
    state = "finished" if run.result is not None else f"not finished: step {run.last_step:,}"
    if run.kind == "glue" and run.result is not None:
        state = f"finished, {len(run.result['tasks'])} tasks"
    reference = found.get("unigram_entropy") if run.best is None else run.best["best"]["reference"]
    spread = None if run.best is None else run.best["restarts"]
    return {
        "name": run.name,
        "style": "" if place is None else f"c{place % NUM_COLOURS}",
        "kind": kinds[run.kind],
        "state": state,
        "score": None if name is None or found.get(name) is None else f"{found[name]:.4g}",
        "score_name": None if name is None else with_unit(run, name).replace("_", " "),
        "reference": None if reference is None else f"{reference:.4g}",
        "spread": restarts_text(spread) if spread and spread["num_restarts"] > 1 else None,
    }


def _deciding(run: RunRecord, found: dict[str, float]) -> str | None:
    if run.kind == "pretrain":
        part = part_of(found)
        return part and f"{part}_loss"
    if run.kind == "glue":
        return next((name for name in ("leaderboard_score", "paper_average") if found.get(name) is not None), None)
    if run.result is None:
        name = run.description["inputs"].get("metric")
        return name if name in found else None
    return None if run.best is None else run.best["metric"]


def _accounts(runs: list[RunRecord]) -> dict[str, list[list[str]]]:
    """Return what was read by the names of runs; runs that read the same stand together."""
    by_content: dict[str, tuple[list[str], list[list[str]]]] = {}
    for run in runs:
        if rows := data_account(run):
            by_content.setdefault(repr(rows), ([], rows))[0].append(run.name)
    return {", ".join(names): rows for names, rows in by_content.values()}


def _search(run: RunRecord) -> dict[str, Any]:
    assert run.result is not None
    headers, rows = search_rows(run.result)
    return {"name": run.name, "headers": headers, "rows": rows[:50], "command": run.result["best"]["command"]}


def _glue(run: RunRecord) -> dict[str, Any]:
    from maskloom.runs.glue.table import glue_rows, notes_of

    assert run.result is not None
    headers, rows = glue_rows(run.result)
    return {"name": run.name, "headers": headers, "rows": rows, "notes": notes_of(run.result)}


def _seeds(best: dict[str, Any]) -> str:
    """Draw the scores of all seeds beside that of a constant answer."""
    spread, reference = best["restarts"], best["best"]["reference"]
    level = ("mean", spread["mean"]) if reference is None else ("constant answer", reference)
    rows = [DotRow("best on dev", list(spread["scores"].values()), "c0")]
    return dot_chart(rows, level=level, name="one dot a seed", as_percent=False)
