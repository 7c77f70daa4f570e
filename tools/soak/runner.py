"""Runs rows one after the other, records the finished ones, and writes the table."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from maskloom.runs.run_folder import environment
from tools.checking import fresh_folder
from tools.soak.rows import Budget, Row, sort_key

ROOT = Path(__file__).resolve().parents[2]
_KEPT_DETAILS = 12


def run_rows(
    rows: list[Row], *, work: Path, seed: int, minutes: float | None, say: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Return the records of rows; rows recorded in `work` for the same code, seed and minutes are not run again.

    With `minutes`, each row receives an equal share of the remaining time.
    """
    work.mkdir(parents=True, exist_ok=True)
    memory, same = work / "finished.jsonl", {"code": code_digest(), "seed": seed, "minutes": minutes}
    finished = {record["id"]: record for record in _remembered(memory) if record["asked"] == same}
    records, started = [], time.monotonic()
    for number, row in enumerate(rows):
        if row.id in finished:
            say(f"{row.id}: finished before")
            records.append(finished[row.id])
            continue
        left = None if minutes is None else max(1.0, minutes * 60 - (time.monotonic() - started)) / (len(rows) - number)
        folder = work / row.id
        fresh_folder(folder)
        record = {**run_row(row, Budget(seed, folder, left), say), "asked": same}
        with memory.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        records.append(record)
    return records


def run_row(row: Row, budget: Budget, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run one row until its trials or its time are used up; whatever it raises counts as a failure."""
    say(f"{row.id}: {row.test} (seed {budget.seed})")
    started, trials = time.monotonic(), []
    running = row.run(budget)
    try:
        for trial in running:
            trials.append(trial)
            if not trial.passed:
                say(f"{row.id} FAILED {trial.name}: {trial.detail}")
            if budget.seconds is not None and time.monotonic() - started >= budget.seconds:
                break
        broken = None
    except Exception:
        broken = traceback.format_exc()
        say(f"{row.id} FAILED: {broken}")
    finally:
        close = getattr(running, "close", None)
        if close is not None:
            close()
    passed = sum(trial.passed for trial in trials)
    details = [f"{trial.name}: {trial.detail or 'without a word'}" for trial in trials if not trial.passed]
    figures = [f"{trial.name}: {trial.detail}" for trial in trials if trial.detail and trial.passed]
    record = {
        "id": row.id,
        "test": row.test,
        "mark": row.mark,
        "full": row.full,
        "tried": len(trials),
        "passed": passed,
        "seconds": round(time.monotonic() - started, 1),
        "verdict": _verdict(len(trials), passed, row.full, broken),
        "failures": [*([broken.strip().splitlines()[-1]] if broken else []), *details][:_KEPT_DETAILS],
        "figures": figures[:_KEPT_DETAILS],
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "seed": budget.seed,
        **surroundings(),
    }
    say(f"{row.id}: {record['verdict']}, {passed} of {len(trials)} in {record['seconds']:.0f} s")
    return record


def _verdict(tried: int, passed: int, full: int, broken: str | None) -> str:
    if broken or passed < tried or not tried:
        return "failed"
    return "passed" if tried >= full else "passed so far"


def surroundings() -> dict[str, Any]:
    """Return the versions and the hardware of this run."""
    model = environment()["hardware"]["processor"]
    versions = {name: version(name) for name in ("maskloom", "torch", "numpy", "safetensors", "tokenizers")}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "hardware": f"{model or platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
    }


def code_digest() -> str:
    """Return a checksum of the code under test and of the rows."""
    digest = hashlib.sha256()
    for folder in ("src/maskloom", "tools/soak"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _remembered(memory: Path) -> Iterable[dict[str, Any]]:
    for line in memory.read_text(encoding="utf-8").splitlines() if memory.exists() else ():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue  # truncated by a kill


def write_results(records: list[dict[str, Any]], folder: Path) -> None:
    """Write records into `soak.json` and `soak.md` of a folder; rows that did not run keep their results."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "soak.json"
    known = {record["id"]: record for record in json.loads(path.read_text(encoding="utf-8"))} if path.exists() else {}
    known |= {record["id"]: record for record in records}
    ordered = sorted(known.values(), key=lambda record: sort_key(record["id"]))
    path.write_text(json.dumps(ordered, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / "soak.md").write_text(page_of(ordered), encoding="utf-8")


def page_of(records: list[dict[str, Any]]) -> str:
    """Return the table of all rows as a Markdown page."""
    lines = [
        "# Soak: what a run survives",
        "",
        "Generated by `make soak` (`tools/soak/`): real processes, real kills, fixed seeds. *Passed so far* marks",
        "a row that had less time than all of its trials need.",
        "",
        "| row | test | pass mark | tried | passed | seconds | verdict | date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        cells = (
            record["id"],
            record["test"],
            record["mark"],
            f"{record['tried']} of {record['full']}",
            record["passed"],
            f"{record['seconds']:.0f}",
            f"**{record['verdict']}**",
            record["date"],
        )
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    for title, key in (("What failed", "failures"), ("What was measured", "figures")):
        told = [f"- {record['id']}, {_cell(text)}" for record in records for text in record[key]]
        lines += ["", f"## {title}", "", *(told or ["Nothing."])]
    lines += ["", "## Where", ""]
    places: dict[str, list[str]] = {}
    for record in records:
        versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
        where = f"seed {record['seed']}, code {record['asked']['code']}, {versions}; {record['hardware']}"
        places.setdefault(where, []).append(record["id"])
    lines += [f"- {', '.join(ids)}: {where}" for where, ids in places.items()]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
