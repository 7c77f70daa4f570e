"""Write the README's tables: speed from benchmarks/, task scores from results/.

    python tools/readme_table.py [--check]

The figures lie between marks in README.md; --check fails when they differ from those in the two folders.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
# Pages of benchmarks/ whose figures have rows for the README, in its order; those of another processor end with it.
PAGES = (
    "pretraining_step",
    "pretraining_step_zen5",
    "pretraining_step_intel",
    "finetuning_speed",
    "embedding",
    "gpt_speed",
    "gpt_speed_zen5",
    "gpt_speed_intel",
    "seq2seq_speed",
    "recurrent_speed",
    "words",
    "corpus_building",
    "vocabulary_training",
    "encoding",
    "overheads",
    "busy",
)


# What the table says of a page's machine, by a part of its name; of others nothing.
_PLACES = {"Intel": "Intel", "AMD EPYC of family 26": "AMD Zen 5"}


@dataclass(frozen=True)
class Row:
    """A task of the table; `options` go with the recipe, `published` are BERT base's scores and their data."""

    task: str
    score: str
    options: str
    published: str


RECIPE = "finetune-glue-small"
ROWS = (
    Row("CoLA", "Matthews", "--format cola", "52.1 test"),
    Row("SST-2", "accuracy", "--format sst-2", "92.7 dev, 93.5 test"),
    Row("MRPC", "F1", "--format mrpc", "88.9 test"),
    Row("STS-B", "Pearson", "--format sts-b", "85.8 test (Spearman)"),
    Row("RTE", "accuracy", "--format rte", "66.4 test"),
    Row("GoEmotions", "micro F1", "--format goemotions", "-"),
    Row("CoNLL-2003", "entity F1", "--task tagging", "96.4 dev, 92.4 test"),
    Row("HellaSwag", "accuracy", "--task choice", "SWAG: 81.6 dev"),
    Row("SQuAD v1.1", "F1", "--task span", "88.5 dev"),
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
    lines = ["| job | compared with | maskloom | page |", "|---|---|---|---|"]
    for page in PAGES:
        path = ROOT / "benchmarks" / f"{page}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            machine = content.get("processor", content.get("machine", ""))
            place = next((f" ({said})" for name, said in _PLACES.items() if name in machine), "")
            for row in content.get("summary", []):
                link = f"[page](benchmarks/{page}.md)"
                lines.append(f"| {row['job']} | {row['beside']} | {row['result']}{place} | {link} |")
    return "\n".join(lines)


def task_table() -> str:
    """Return the rows for which both sides were run from several seeds, each with the recipe that it was run by."""
    results = json.loads((ROOT / "results" / "finetuning_parity.json").read_text(encoding="utf-8"))
    found = {row["task"]: row for row in results["tasks"] if len(row["seeds"]) > 1}
    lines = [
        f"| task | `maskloom finetune --recipe {RECIPE} …` | trained on | score on dev | constant answer | maskloom "
        "| transformers | BERT base, published |",
        "|---" * 8 + "|",
    ]
    for row in ROWS:
        if row.task in found:
            entry, settings = found[row.task], results["settings"]["tasks"][row.task]
            ours, theirs = (_figure(entry["last"], side) for side in ("maskloom", "transformers"))
            options = " ".join([row.options, *(f"--set {change}" for change in changes(settings["recipe"]))])
            lines.append(
                f"| {row.task} | `{options}` | {settings['num_train']:,} | {row.score} | {entry['constant']:.1f} "
                f"| {ours} | {theirs} | {row.published} |"
            )
    return "\n".join([*lines, "", _answers()])


def changes(recipe: dict[str, Any]) -> list[str]:
    """Return what a run's settings change of the recipe that the table names, as `key=value`."""
    path = ROOT / "src/maskloom/recipes" / f"{RECIPE}.toml"
    base = tomllib.loads(path.read_text(encoding="utf-8"))
    found = []
    for section in ("data", "training"):
        values, before = recipe.get(section, {}), base.get(section, {})
        missing = sorted(before.keys() - values.keys())
        if missing:
            raise ValueError(f"results/finetuning_parity.json: settings without {section}.{missing[0]}")
        found += [f"{section}.{key}={json.dumps(value)}" for key, value in values.items() if value != before.get(key)]
    return found


def _answers() -> str:
    """Return the scores on the whole dev sets of SQuAD, with those of a constant answer."""
    results = json.loads((ROOT / "results" / "squad.json").read_text(encoding="utf-8"))
    stages, constant = results["stages"], results["baselines"]
    scores = "\nand ".join(
        f"EM {stages[stage]['exact_match']:.1f}, F1 {stages[stage]['f1']:.1f} on v{version} "
        f"(constant answer, {what}: {constant[f'{stage}: {what}']['exact_match']:.1f}, "
        f"{constant[f'{stage}: {what}']['f1']:.1f})"
        for stage, version, what in (
            ("dev-v1.1", "1.1", "the first sentence"),
            ("dev-v2.0", "2.0", "no answer at all"),
        )
    )
    return (
        "On SQuAD's full dev sets, from the same weights, trained on part of v1.1's training questions only:\n"
        f"{scores} ([details](results/squad.md))."
    )


def _figure(entry: dict[str, Any], side: str) -> str:
    return f"{entry['mean'][side]:.1f} ± {entry['standard_deviation'][side]:.1f}"


if __name__ == "__main__":
    main()
