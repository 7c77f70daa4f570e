"""Summaries and tables of results for people; the full results are in JSON."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Collection
from typing import Any

from maskloom.data.streams.sentence_pairs import PAIR_TASKS, pair_task_of
from maskloom.errors import amount
from maskloom.metrics.answers import is_percent
from maskloom.metrics.glue_score import OFFICIAL_METRICS
from maskloom.objectives.pretraining import PRETRAINING, row_of, unigram_of
from maskloom.runs.display import aligned, formatted, lines_of, printable, screen_of
from maskloom.runs.glue.files import TASKS
from maskloom.runs.search_space import settings_text
from maskloom.tasks.kinds import KINDS

_LOST = {
    "num_truncated_targets": ("target", "truncated"),
    "num_left_out": ("sentence", "left out (document.max_sentences)"),
    "num_cut_questions": ("question", "truncated (span.max_question_length)"),
}


def describe_metrics(metrics: dict[str, float]) -> str:
    """Return held-out metrics as one readable line, or say that nothing is held out."""
    if not metrics:
        return "nothing held out to evaluate"
    row, pair = row_of(metrics), pair_task_of(metrics) or ""
    part = "" if row is None else row.part
    forms = {
        f"{part}_loss": f"{part.upper() if len(part) < 4 else part} loss {{:.3f}} nats",
        "unigram_cross_entropy": " (unigram {:.3f})",
        f"{part}_accuracy": ", accuracy {:.3f}",
        f"{part}_perplexity": ", perplexity {:.1f}",
        "forward_perplexity": " (forward {:.1f}",
        "backward_perplexity": ", backward {:.1f})",
        f"{pair}_accuracy": f"; {pair.upper()} accuracy {{:.3f}}",
        f"{pair}_majority_fraction": " (majority {:.3f})",
    }
    return "held-out " + "".join(form.format(metrics[name]) for name, form in forms.items() if name in metrics)


def pretraining_lines(result: dict[str, Any]) -> list[str]:
    """Return the held-out results of pre-training, next to those of the initial model if there was one."""
    before = result.get("before")
    columns = {"before": before, "after": result} if before else {"at the end": result}
    forms = {}
    names = {row.part: row.names[0] for row in PRETRAINING.values()}
    for part, name in (names | {task: row.name for task, row in PAIR_TASKS.items()}).items():
        forms[f"{part}_loss"] = f"{name} loss, nats", "{:.3f}"
        forms[f"{part}_accuracy"] = f"{name} accuracy", "{:.1%}"
        forms[f"{part}_majority_fraction"] = "constant answer", "{:.1%}"
        forms[f"{part}_perplexity"] = "perplexity", "{:,.1f}"
    forms |= {f"{way}_perplexity": (f"{way} perplexity", "{:,.1f}") for way in ("forward", "backward")}
    rows = [("held out", *columns)]
    for key, (name, form) in forms.items():
        values = [metrics.get(key) for metrics in columns.values()]
        if all(isinstance(value, float) for value in values):
            rows.append((name, *map(form.format, values)))
    if len(rows) == 1:
        return [describe_metrics({})]
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([f"{name:<{first}}", *map(str.rjust, cells, others)]) for name, *cells in rows]
    if unigram := unigram_of(result):
        lines.append(f"{result['num_predictions']:,.0f} predicted pieces of held-out text; unigram: {unigram:.3f} nats")
    return lines


def finetuning_lines(result: dict[str, Any]) -> list[str]:
    """Return which weights were kept, their dev scores, how restarts compare, what was read, and what to do next."""
    name, best, last, data = result["metric"], result["best"], result["last"], result["data"]
    kept = f"seed {result['best_seed']}, epoch {best['epoch']} (step {best['step']}): the best on dev by {name}"
    if "averaged" in best:
        steps = ", ".join(map(str, best["averaged"]))
        kept = f"seed {result['best_seed']}: the mean of the checkpoints at steps {steps}"
    if last["step"] != best["step"]:
        kept += f"; after its last epoch it had {figure(name, last['scores'][name], last['scores'])}"
    rows = [("kept", kept), *_score_rows(name, best["scores"], best["reference"])]
    restarts = result["restarts"]
    unit = unit_of(name, best["scores"])
    rows += [("restarts", restarts_text(restarts, unit=unit))] if restarts["num_restarts"] > 1 else []
    rows += [("degenerate", f"seed {seed}: {reason}") for seed, reason in restarts["degenerate"].items()]
    if data["labels"]:
        rows.append(("labels", ", ".join(data["labels"])))
    if data["class_weights"]:
        weights = zip(data["labels"], data["class_weights"], strict=True)
        rows.append(("class weights", ", ".join(f"{label} {formatted(weight)}" for label, weight in weights)))
    rows += [("train", examples_text(data["train"])), ("dev", examples_text(data["dev"]))]
    if "tuned" in result:
        rows += _tuned_rows(result["tuned"])
    reads_pairs = result.get("takes_pairs") and not KINDS[result["task"]].is_titled
    takes = KINDS["pair" if reads_pairs else result["task"]].takes
    model = shlex.quote(result["model"])
    rows += [
        ("model", result["model"]),
        ("try", f"maskloom predict --model {model} --input FILE --output predictions.jsonl (FILE: {takes})"),
    ]
    return aligned(rows)


def evaluation_lines(result: dict[str, Any]) -> list[str]:
    """Return the scores of an evaluation, the score of a constant answer, and what was read."""
    names = [name for name in result if isinstance(result[name], float) and name != "reference"]
    rows = _score_rows(result["metric"], {name: result[name] for name in names}, result["reference"])
    if result["degenerate"]:
        rows.append(("degenerate", result["degenerate"]))
    rows += [(f"sacrebleu's {name}", signature) for name, signature in result.get("signatures", {}).items()]
    return aligned([*rows, ("examples", examples_text(result["data"]))])


def written_lines(result: dict[str, Any]) -> list[str]:
    """Return what was written and, in one line, what was read for it."""
    if "data" not in result:
        return lines_of(result)
    told = {"data", "max_length", "num_truncated_examples", *_LOST}
    own = {name: value for name, value in result.items() if name not in told}
    return lines_of({**own, "read": examples_text({**result, **result["data"]})})


def tuning_lines(result: dict[str, Any]) -> list[str]:
    """Return the fitted settings, the scores before and after, and the warning that these are on the fitted file."""
    return aligned([*_tuned_rows(result), ("examples", examples_text(result["data"])), ("model", result["model"])])


def generated_lines(result: dict[str, Any]) -> list[str]:
    """Return a generated text, or the texts of a search with their scores, and the name of a page about them."""
    texts = [result, *result.get("others", [])]
    lines = [f"{one['score']:.3f}  {one['text']}" for one in texts] if len(texts) > 1 else [result["text"]]
    return [*lines, *([f"page: {result['page']}"] if "page" in result else [])]


def reported_lines(result: dict[str, Any]) -> list[str]:
    """Return the generated texts that a page shows, its name, and how many texts of the file it leaves out."""
    left_out = f", without {amount(result['num_left_out'], 'text')}" if result["num_left_out"] else ""
    lines = [line for text in result["texts"] for line in generated_lines(text)]
    return [*lines, f"page: {result['page']}{left_out}"]


def generation_line(result: dict[str, Any]) -> str:
    """Return the score of a generated or filled text, what ended it, where the source was cut, and empty blanks."""
    told = [f"score {result['score']:.3f}"] if "score" in result else []
    told.append(f"log-probability {result['log_probability']:.3f}")
    told.append("ended by the model" if result["finish"] == "end" else "stopped at the token limit")
    if "max_length" in result:
        told.append(f"read only the first {result['max_length']} tokens of the source")
    empty = [f"blank {at}" for at, filling in enumerate(result.get("fillings", []), start=1) if not filling]
    return ", ".join(told) + (f"; empty: {', '.join(empty)}" if empty else "")


def _tuned_rows(tuned: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the fitted settings and how each score changed; an unchanged score is shown once."""
    rows = [("tuned on", f"{tuned['fitted_on']}; the scores below are on this file; evaluate on a different one")]
    rows += [("note", tuned["note"])] if "note" in tuned else []
    for name, value in tuned["settings"].items():
        by_label = zip(tuned["labels"], value, strict=True) if isinstance(value, list) else None
        text = f"{value:.4f}" if by_label is None else ", ".join(f"{label} {value:.3f}" for label, value in by_label)
        rows.append((name, text))
    for name, value in tuned["before"].items():
        before, after = (figure(name, found, tuned["before"]) for found in (value, tuned["after"][name]))
        rows.append((name, before if value == tuned["after"][name] else f"{before} -> {after}"))
    return rows


def _score_rows(primary: str, scores: dict[str, float], reference: float | None) -> list[tuple[str, str]]:
    """Put the deciding score first, next to the score of a constant answer where there is one."""
    constant = "" if reference is None else f"  (constant answer: {figure(primary, reference, scores)})"
    rows = [(primary, f"{figure(primary, scores[primary], scores)}{constant}")]
    return rows + [(name, figure(name, value, scores)) for name, value in scores.items() if name != primary]


def figure(name: str, value: float, scores: Collection[str]) -> str:
    """Return one of some scores as text, marked if it is in percent: 0.93% is another F1 than 0.93."""
    return formatted(value) + unit_of(name, scores)


def unit_of(name: str, scores: Collection[str]) -> str:
    """Return "%" if a score, one of some, is in percent; BLEU and chrF have no unit, as they are usually reported."""
    return "%" if is_percent(name, scores) and name not in ("bleu", "chrf") else ""


def info_lines(info: dict[str, Any]) -> list[str]:
    """Return what a folder holds on one screen."""
    if "scores" in info:
        names = [*info["scores"]]
        of = {"constant answer": info["metrics"].get("metric", "")}
        known = {name: value for name, value in info["scores"].items() if value is not None}
        info = {**info, "scores": {name: figure(of.get(name, name), value, names) for name, value in known.items()}}
    return screen_of(info)


def examples_text(account: dict[str, Any]) -> str:
    """Return how many rows of a file were kept, dropped and truncated."""
    text = f"{account['num_kept']:,} of {account['num_rows']:,} rows of {account['path']}"
    for reason, count in account["dropped"].items():
        text += f"; {count:,} dropped: {reason} (first at line {account['first_dropped_lines'][reason]})"
    if account.get("num_blank"):
        text += f"; {account['num_blank']:,} blank (first at line {account['first_blank_line']}), read as empty texts"
    if account.get("num_truncated_examples"):
        text += f"; {account['num_truncated_examples']:,} truncated to {account['max_length']} tokens"
    for key, (noun, fate) in _LOST.items():
        if account.get(key):
            text += f"; {amount(account[key], noun)} {fate}"
    if account.get("num_also_in_train"):
        text += f"; {account['num_also_in_train']:,} also in train"
    return "; ".join([text, *account.get("notes", ())])


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
    best = result.get("best", {}).get("best", {})
    unit = unit_of(result["metric"], best.get("scores", ()))
    headers = ["rank", "trial", *names, f"{metric}, best on dev", "mean ± sd, median", "degenerate", "minutes"]
    rows = []
    for rank, trial in enumerate(result["trials"], start=1):
        settings = [formatted(trial["settings"].get(key, "")) for key in keys]
        if trial["status"] == "failed":
            rows.append(["–", trial["name"], *settings, f"failed: {_one_line(trial['error'])}", "", "", ""])
            continue
        minutes = "–" if trial["seconds"] is None else f"{trial['seconds'] / 60:.1f}"
        score = f"{trial['score']:.4f}{unit}"
        spread, bad = restarts_text(trial["restarts"], unit=unit), degenerate_text(trial["restarts"])
        rows.append([str(rank), trial["name"], *settings, score, spread, bad, minutes])
    return headers, rows


def restarts_text(restarts: dict[str, Any], *, scale: float = 1.0, digits: int = 4, unit: str = "") -> str:
    """Return the mean, standard deviation and median over the restarts of a run; a single run has only its mean."""
    mean = f"{scale * restarts['mean']:.{digits}f}"
    if restarts["standard_deviation"] is None:
        return f"{mean}{unit} (one run)"
    scores = list(restarts["scores"].values())
    spread, median = scale * restarts["standard_deviation"], scale * statistics.median(scores)
    return f"{mean} ± {spread:.{digits}f}{unit}, median {median:.{digits}f}{unit} ({len(scores)} runs)"


def degenerate_text(restarts: dict[str, Any]) -> str:
    """Return how many runs learned nothing, and their seeds."""
    if not restarts["degenerate"]:
        return f"0 of {restarts['num_restarts']}"
    seeds = ", ".join(restarts["degenerate"])
    return f"{len(restarts['degenerate'])} of {restarts['num_restarts']} (seed {seeds})"


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:99]}…"


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
            rows.append([task.folder, "", "–", reason])
        elif outcome["status"] == "failed":
            rows.append([task.folder, "", "–", f"failed: {_one_line(outcome['error'])}"])
        else:
            rows += _task_rows(task.folder, outcome)
    rows += [
        ["the paper's average", "9 columns", _average(result["paper_average"])],
        ["leaderboard score", "9 tasks", _average(result["leaderboard_score"])],
    ]
    about = ["mean ± sd, median of its settings", "settings", "trials", "degenerate", "minutes"]
    headers = ["task", "metric", "best on dev", *about]
    return headers, [[*row, *[""] * (len(headers) - len(row))] for row in rows]


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
    if any(outcome.get("seconds", 0.0) is None for outcome in result["tasks"].values()):
        notes.append("Minutes are unknown (–) where a trial was interrupted.")
    for name, outcome in result["tasks"].items():
        if outcome["status"] == "failed":
            notes.append(f"{name} failed: {outcome['error']}")
        for seed, reason in outcome.get("restarts", {}).get("degenerate", {}).items():
            notes.append(f"{name}: seed {seed} is degenerate: {reason}")
        if outcome.get("num_failed"):
            notes.append(
                f"{name}: {outcome['num_failed']} of {outcome['num_trials']} trials failed; see its results.md"
            )
    return list(map(printable, notes))


def glue_report(result: dict[str, Any]) -> str:
    """Return the table, its notes and the command that repeats each task's best trial, as Markdown."""
    notes = "\n".join(f"- {note}" for note in notes_of(result))
    commands = [f"{outcome['command']}  # {name}" for name, outcome in result["tasks"].items() if "command" in outcome]
    title = "## Commands that repeat the best trial of each task"
    again = f"\n\n{title}\n\n```sh\n" + "\n".join(commands) + "\n```" if commands else ""
    return f"# GLUE, dev\n\n{markdown_of(*glue_rows(result))}\n\n{notes}{again}\n"


def _task_rows(folder: str, outcome: dict[str, Any]) -> list[list[str]]:
    """Return one row per column of a task; the first row also describes the search."""
    rows = []
    for column, scores in outcome["columns"].items():
        metrics = " / ".join(OFFICIAL_METRICS[column])
        values = " / ".join(f"{100 * scores[name]:.2f}" for name in OFFICIAL_METRICS[column])
        rows.append([column, metrics, values, "the same model"])
    if outcome["status"] == "majority":
        rows[0][3:] = ["no model", f"always {outcome['label']}"]
        return rows
    rows[0][3:] = [
        restarts_text(outcome["restarts"], scale=100.0, digits=2),
        settings_text(outcome["settings"]),
        str(outcome["num_trials"]),
        degenerate_text(outcome["restarts"]),
        "–" if outcome["seconds"] is None else f"{outcome['seconds'] / 60:.1f}",
    ]
    if folder == "MNLI" and "MNLI-mm" not in outcome["columns"]:
        rows.append(["MNLI-mm", "accuracy", "–", "file missing"])
    return rows


def _average(score: dict[str, Any]) -> str:
    return "–" if score["value"] is None else f"{100 * score['value']:.1f}"
