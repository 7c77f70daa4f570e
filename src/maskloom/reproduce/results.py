"""Results of an experiment: a table that includes the paper's numbers, a verdict on each trend, and a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from maskloom.errors import ConfigError, amount
from maskloom.reproduce.experiments import LOSS, Experiment
from maskloom.runs.charts import DotRow, Line, dot_chart, line_chart, page_template
from maskloom.runs.report.page import NUM_COLOURS, Chart
from maskloom.runs.run_folder import environment
from maskloom.runs.search_table import markdown_of
from maskloom.system.files import write_json, write_text

_MEASURES = {"mlm_perplexity": "perplexity", LOSS: "masked-LM loss, nats"}
_DIGITS = {LOSS: 2}
_HOW = (
    "Mean ± standard deviation over seeds. A trend is *shown* where the mean of its differences, one a seed, is more "
    "than two standard errors above 0, *denied* where it is more than two below, and else *not shown*."
)
_FIFTHS = " Losses on common masks have one value for each fifth of the held-out text."


def write_results(
    experiment: Experiment, results: dict[str, Any], out: Path, names: Mapping[str, str]
) -> dict[str, Any]:
    """Write results.json, table.md and report.html, and return the results with the verdicts.

    `names` maps the roles of the tasks to their names.
    """
    verdicts = [trend.verdict(results["scores"]) for trend in experiment.trends]
    columns = [*experiment.measures, *names]
    metrics = {role: metric.replace("_", " ") for role, metric in results["metrics"].items()}
    heads = [_MEASURES.get(column) or f"{names[column]}, {metrics[column]}" for column in columns]
    results = {**results, "title": experiment.title, "trends": verdicts, "columns": dict(names)}
    write_json(out / "results.json", results)
    if any(arm.millions for arm in experiment.arms):
        heads.append("parameters, millions (the paper)")
    headers = ["", *heads, *(["the paper"] if any(arm.paper for arm in experiment.arms) else [])]
    rows = [row[: len(headers)] for row in table_rows(experiment, results, columns)]
    section = f"Section {experiment.section} of the BERT paper. " if experiment.section else ""
    about, how, command = _about(results), _HOW + (_FIFTHS if LOSS in experiment.measures else ""), _command(results)
    made, trends = f"{section}Made by `{command}`; do not edit.", (f"- {verdict_text(verdict)}" for verdict in verdicts)
    parts = [f"# {experiment.title}", made, about, how, markdown_of(headers, rows), "\n".join(trends)]
    write_text(out / "table.md", "\n\n".join(parts) + "\n")
    page = page_template("reproduce/report.html").render(
        title=experiment.title,
        about=section + about,
        how=how.replace("*", ""),
        trends=[trend_row(verdict) for verdict in verdicts],
        headers=headers,
        rows=rows,
        charts=_charts(experiment, results),
        command=command,
    )
    write_text(out / "report.html", page)
    return {**results, "table": str(out / "table.md"), "report": str(out / "report.html")}


def folder_for(out: str | Path) -> Path:
    """Return the folder of an experiment, creating it if necessary; raises ConfigError if it is a file."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: this is a file; choose a folder as --out")
    out.mkdir(parents=True, exist_ok=True)
    return out


def write_page(out: Path, name: str, found: Any, lines: list[str], *, about: str, **page: Any) -> list[str]:
    """Write findings to a folder as NAME.json and pages about them as NAME.html and NAME.md.

    `page` holds the template's variables: title and charts, and optionally rows with headers, trends and the rule for
    verdicts. Returns `lines`, which summarise the findings, and a line with the path of the page.
    """
    command, about = f"maskloom reproduce {name} --out DIR", f"{about} Measured on {_machine()}."
    write_json(out / f"{name}.json", found)
    html = page_template("reproduce/report.html").render(about=about, command=command, **page)
    write_text(out / f"{name}.html", html)
    parts = [f"# {page['title']}", f"Made by `{command}`; do not edit.", about]
    parts += [page["how"], markdown_of(page["headers"], page["rows"])] if "rows" in page else []
    write_text(out / f"{name}.md", "\n\n".join([*parts, "\n".join(f"- {line}" for line in lines)]) + "\n")
    return [*lines, f"page: {out / f'{name}.html'}"]


def table_rows(experiment: Experiment, results: Mapping[str, Any], columns: list[str]) -> list[list[str]]:
    """Return a row per arm (name, mean and spread per column, the paper's numbers), then a row of constant answers."""
    rows = []
    for arm in experiment.arms:
        found = results["scores"].get(arm.name, {})
        paper = ", ".join(f"{name} {value:g}" for name, value in arm.paper.items()) or "–"
        counted = [f"{results['parameters'][arm.name] / 1e6:.2f} ({arm.millions:g})"] if found and arm.millions else []
        if found:
            spreads = [_spread(found.get(column), _DIGITS.get(column, 1)) for column in columns]
            rows.append([arm.name, *spreads, *counted, paper])
    if references := results["references"]:
        constants = [f"{references[column]:.1f}" if column in references else "–" for column in columns]
        rows.append(["constant answer", *constants, ""])
    return rows


def verdict_text(verdict: Mapping[str, Any]) -> str:
    """Return a trend with its verdict and the supporting numbers, as one line."""
    claim, word, reason = trend_row(verdict)
    return f"{claim}: **{word}** ({reason})"


def trend_row(verdict: Mapping[str, Any]) -> list[str]:
    """Return a trend, its verdict and the supporting numbers, as a table row."""
    found = verdict.get("why") or f"{verdict['mean']:+.2f}, standard error {verdict['standard_error']:.2f}"
    return [verdict["claim"], verdict["verdict"], found]


def summary_lines(results: Mapping[str, Any]) -> list[str]:
    """Return the verdicts and the paths of the results, for a terminal."""
    minutes = sum(results["seconds"].values()) / 60
    lines = [results["title"], *(f"  {verdict_text(verdict).replace('**', '')}" for verdict in results["trends"])]
    return [*lines, f"Took {minutes:.1f} minutes. Table: {results['table']}; page: {results['report']}"]


def _spread(values: list[float] | None, digits: int) -> str:
    if values is None:
        return "–"
    return f"{fmean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def _about(results: Mapping[str, Any]) -> str:
    """Describe the scale, seeds, text and time of an experiment, and the machine with its versions."""
    text, minutes, num_jobs = results["text"], sum(results["seconds"].values()) / 60, results["num_jobs"]
    threads = amount(environment()["hardware"]["threads"], "thread")
    threads = f"{num_jobs} runs of a thread at once" if num_jobs > 1 else threads
    tokens = f", {text['num_tokens']:,} tokens" if "num_tokens" in text else ""
    return (
        f"Scale {results['scale']}, {amount(results['num_seeds'], 'seed')}, text: {text['text']}{tokens}; "
        f"{minutes:.0f} minutes on {_machine(threads)}."
    )


def _machine(threads: str | None = None) -> str:
    """Describe this machine: its GPU, or its processor with cores and threads, and the versions."""
    machine = environment()
    hardware, versions = machine["hardware"], machine["versions"]
    cores = ", ".join([amount(hardware["cores"], "core"), *([threads] if threads else [])])
    device = hardware["cuda"] or f"{hardware['processor']}, {cores}"
    return f"{device}; Python {versions['python']}, torch {versions['torch']}"


def _command(results: Mapping[str, Any]) -> str:
    scale = results["scale"]
    flags = [f"--minutes {scale.split()[0]}" if scale.endswith(" minutes") else f"--scale {scale}"]
    flags += [f"--seeds {results['num_seeds']}"]
    flags += [f"--jobs {results['num_jobs']}"] if results["num_jobs"] > 1 else []
    flags += [f"--beside {name}=FOLDER" for name in results.get("beside", {})]
    flags += [f"--{name} {name.upper()}" for name in ("corpus", "tasks") if results[name]]
    flags += [f"--set {name}.{value}" for name, values in results["overrides"].items() for value in values]
    return f"maskloom reproduce {results['experiment']} {' '.join(flags)} --out DIR"


def _charts(experiment: Experiment, results: Mapping[str, Any]) -> list[Chart]:
    """Return a chart per task: curves over steps if arms are checkpoints, otherwise one dot per seed and arm."""
    charts, references = [], results["references"]
    for role, name in results["columns"].items():
        found = {arm: columns[role] for arm, columns in results["scores"].items() if role in columns}
        arms = [arm for arm in experiment.arms if arm.name in found]
        level = ("constant answer", references[role] / 100) if role in references else ("", 0.0)
        if any(arm.at < 1.0 for arm in arms):
            lines = [
                Line(
                    model,
                    [(100 * arm.at, fmean(found[arm.name]) / 100) for arm in arms if arm.model == model],
                    f"c{number % NUM_COLOURS}",
                )
                for number, model in enumerate(dict.fromkeys(arm.model for arm in arms))
            ]
            svg = line_chart(lines, x_name="% of the steps", y_name=f"{name}, dev", levels=[level], as_percent=True)
        else:
            as_percent = results["metrics"].get(role) != "bleu"  # BLEU is not a fraction
            unit = 100 if as_percent else 1
            dots = [
                DotRow(arm.name, [value / unit for value in found[arm.name]], f"c{number % NUM_COLOURS}")
                for number, arm in enumerate(arms)
            ]
            svg = dot_chart(dots, level=level, name=f"{name} on dev, one dot a seed", as_percent=as_percent)
        charts.append(Chart(f"{name}, on dev", svg))
    return charts
