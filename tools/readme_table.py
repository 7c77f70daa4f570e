"""Write the README's tables: speed, from benchmarks/, and scores beside transformers and the papers, from results/.

    python tools/readme_table.py [--check]

Figures stand between marks in README.md and nowhere else; --check fails when they are not those of the two folders.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
# Pages of benchmarks/ whose figures have rows for the README, in its order.
PAGES = (
    "pretraining_step",
    "finetuning_speed",
    "embedding",
    "corpus_building",
    "vocabulary_training",
    "encoding",
    "overheads",
)


@dataclass(frozen=True)
class Row:
    """A task of the table; `published` are figures of BERT base, with where they stand."""

    task: str
    score: str
    command: str
    published: str


_GLUE = "--recipe recipes/finetune-glue.toml --format"
ROWS = (
    Row("CoLA", "Matthews", f"{_GLUE} cola", "52.1 test"),
    Row("SST-2", "accuracy", f"{_GLUE} sst-2", "92.7 dev, 93.5 test"),
    Row("MRPC", "F1", f"{_GLUE} mrpc", "88.9 test"),
    Row("STS-B", "Pearson", f"{_GLUE} sts-b", "85.8 test (Spearman)"),
    Row("RTE", "accuracy", f"{_GLUE} rte", "66.4 test"),
    Row("GoEmotions", "micro F1", "--recipe recipes/goemotions.toml --format goemotions", "macro 46 test (its paper)"),
    Row("CoNLL-2003", "entity F1", "--recipe recipes/conll2003.toml", "96.4 dev, 92.4 test"),
    Row("HellaSwag", "accuracy", "--recipe recipes/swag.toml", "SWAG: 81.6 dev"),
    Row("SQuAD v1.1", "F1", "--recipe recipes/squad-v1.toml", "88.5 dev"),
)


def main() -> None:
    """Write or check the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the README is up to date")
    options = parser.parse_args()
    before = README.read_text(encoding="utf-8")
    after = with_table(with_table(before, "speed", speed_table()), "tasks", task_table())
    if options.check and before != after:
        sys.exit("README.md: its tables are not those of benchmarks/ and results/; run tools/readme_table.py")
    if not options.check:
        README.write_text(after, encoding="utf-8")


def with_table(text: str, name: str, table: str) -> str:
    """Return a page with the table between its marks; raises ValueError when a mark is missing."""
    mark = f"<!-- {name}: made by tools/readme_table.py -->"
    opening, closing = text.index(mark) + len(mark), text.index(f"<!-- end of {name} -->")
    return f"{text[:opening]}\n{table}\n{text[closing:]}"


def speed_table() -> str:
    """Return one row for each job that a benchmark names in its summary."""
    lines = ["| job | beside | result | page |", "|---|---|---|---|"]
    for page in PAGES:
        path = ROOT / "benchmarks" / f"{page}.json"
        if path.exists():
            for row in json.loads(path.read_text(encoding="utf-8")).get("summary", []):
                link = f"[page](benchmarks/{page}.md)"
                lines.append(f"| {row['job']} | {row['beside']} | {row['result']} | {link} |")
    return "\n".join(lines)


def task_table() -> str:
    """Return the rows for which both sides were run from several seeds."""
    results = json.loads((ROOT / "results" / "finetuning_parity.json").read_text(encoding="utf-8"))
    found = {row["task"]: row for row in results["tasks"] if len(row["seeds"]) > 1}
    lines = ["| task | `maskloom finetune …` | score on dev | maskloom | transformers | BERT base, published |"]
    lines.append("|---" * 6 + "|")
    for row in ROWS:
        if row.task in found:
            ours, theirs = (_figure(found[row.task]["last"], side) for side in ("maskloom", "transformers"))
            lines.append(f"| {row.task} | `{row.command}` | {row.score} | {ours} | {theirs} | {row.published} |")
    return "\n".join([*lines, "", _answers()])


def _answers() -> str:
    """Return what was reached on the whole dev sets of SQuAD."""
    stages = json.loads((ROOT / "results" / "squad.json").read_text(encoding="utf-8"))["stages"]
    scores = " and ".join(
        f"EM {stages[stage]['exact_match']:.1f}, F1 {stages[stage]['f1']:.1f} on v{version}"
        for stage, version in (("dev-v1.1", "1.1"), ("dev-v2.0", "2.0"))
    )
    return (
        f"On all questions of SQuAD's dev sets, from the same weights and a part of the training questions: {scores}\n"
        "([what was trained on what](results/squad.md))."
    )


def _figure(entry: dict[str, Any], side: str) -> str:
    return f"{entry['mean'][side]:.1f} ± {entry['standard_deviation'][side]:.1f}"


if __name__ == "__main__":
    main()
