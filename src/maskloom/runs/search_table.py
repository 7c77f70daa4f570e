"""How trials compare: ranked, as rows of text, as Markdown and on a terminal."""

from __future__ import annotations

import statistics
import sys
from typing import Any

from maskloom.runs.display import printable
from maskloom.runs.search_space import short_key, value_text


def ranked(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the finished trials, the highest best dev score first; of equal ones the earlier first."""
    done = [record for record in records if record["status"] == "done"]
    return sorted(done, key=lambda record: (-record["score"], record["number"]))


def search_rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of a finished search; failed trials stand last, with the reason."""
    keys = list(dict.fromkeys(key for trial in result["trials"] for key in trial["settings"]))
    names = [short_key(key) for key in keys]
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
    """Return mean, standard deviation and median over the restarts of a run; one run has neither of the latter."""
    mean = f"{scale * restarts['mean']:.{digits}f}"
    if restarts["standard_deviation"] is None:
        return f"{mean} (one run)"
    scores = list(restarts["scores"].values())
    spread, median = scale * restarts["standard_deviation"], scale * statistics.median(scores)
    return f"{mean} ± {spread:.{digits}f}, median {median:.{digits}f} ({len(scores)} runs)"


def degenerate_text(restarts: dict[str, Any]) -> str:
    """Return how many runs have learned nothing, and the seeds of them."""
    if not restarts["degenerate"]:
        return f"0 of {restarts['num_restarts']}"
    seeds = ", ".join(restarts["degenerate"])
    return f"{len(restarts['degenerate'])} of {restarts['num_restarts']} (seed {seeds})"


def one_line(text: str) -> str:
    """Return the first line of a text, short enough for a table."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= 100 else first[:99] + "…"


def markdown_of(headers: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; bars and control characters within cells are escaped."""
    cells = [[printable(cell).replace("|", "\\|") for cell in row] for row in [headers, *rows]]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(headers), *lines[1:]])


def print_table(headers: list[str], rows: list[list[str]], title: str) -> None:
    """Print a table: drawn by rich on a terminal, else as Markdown."""
    if not sys.stdout.isatty():
        print(f"{printable(title)}\n\n{markdown_of(headers, rows)}")
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    def shown(cell: str) -> str:
        return escape(printable(cell))

    table = Table(title=shown(title), title_justify="left")
    for header in headers:
        table.add_column(shown(header), overflow="fold")
    for row in rows:
        table.add_row(*map(shown, row))
    Console().print(table)
