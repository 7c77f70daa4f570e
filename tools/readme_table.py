"""Write the README's tables: speed from benchmarks/, task scores from results/; and all speeds of benchmarks/README.md.

    python tools/readme_table.py [--check]

The tables are between markers in both files; --check fails when they differ from the figures in the two folders.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README, BENCHMARKS = ROOT / "README.md", ROOT / "benchmarks" / "README.md"
# Pages of benchmarks/ whose figures have rows, in order; pages of other processors have a suffix.
PAGES = (
    "pretraining_step",
    "pretraining_step_zen4",
    "pretraining_step_zen5",
    "pretraining_step_intel",
    "pretraining_step_avx2",
    "half_precision_zen4",
    "half_precision",
    "finetuning_speed",
    "finetuning_speed_intel",
    "embedding",
    "embedding_zen5",
    "embedding_intel",
    "gpt_speed",
    "gpt_speed_zen5",
    "gpt_speed_intel",
    "seq2seq_speed_zen4",
    "seq2seq_speed",
    "seq2seq_speed_intel",
    "recurrent_speed",
    "recurrent_speed_intel",
    "words",
    "words_intel",
    "corpus_building",
    "vocabulary_training",
    "encoding",
    "overheads",
    "busy",
    "busy_intel",
)


# The table columns: a processor, with the part of a machine's name that selects it; the first is the default.
_PLACES = {
    "AMD EPYC": "",
    "AMD Zen 5": "AMD EPYC of family 26",
    "Intel Xeon": "Intel",
    "AMD Zen 3": "of family 25, model 1,",
}
# Those with a column in the README.
_COLUMNS = ("AMD EPYC", "AMD Zen 5", "Intel Xeon")
# The table omits this ending: a plain figure is the ratio of rates.
_RATE = re.compile(r" times the \w+ per second$")
# The sizes and data sets that the figures of a row can refer to.
_NAMED = re.compile(r"\b(?:tiny|mini|small|base|MRPC|wide mix|GoEmotions|SQuAD)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Speed:
    """A row of the README: the page, parts of its job and of its comparison, and the README's names for both."""

    page: str
    named: tuple[str, str]
    job: str
    beside: str


_SIZES, _PICKED = "tiny / mini / small / base", "transformers, MLM head on predicted positions only"
_LENGTHS, _GROUPED = "MRPC / wide mix / GoEmotions / SQuAD v1.1", "transformers, batches grouped by length"
_GPT, _KEEPS = "tiny / mini / base", "keeping memory"
_KEPT = f"transformers, {_KEEPS}"
SPEEDS = (
    Speed("pretraining_step", ("rows of 128", "predicted"), f"pre-training, rows of 128: {_SIZES}", _PICKED),
    Speed("pretraining_step", ("rows of 128", _KEEPS), f"pre-training, rows of 128: {_SIZES}", f"{_PICKED}, {_KEEPS}"),
    Speed("pretraining_step", ("mixed", "predicted"), f"pre-training, mixed lengths: {_SIZES}", _PICKED),
    Speed("pretraining_step", ("mixed", _KEEPS), f"pre-training, mixed lengths: {_SIZES}", f"{_PICKED}, {_KEEPS}"),
    Speed("half_precision", ("rows of 128", "in bf16"), f"the same in bf16, rows of 128: {_SIZES}", f"{_PICKED}, bf16"),
    Speed("half_precision", ("mixed", "in bf16"), f"the same in bf16, mixed lengths: {_SIZES}", f"{_PICKED}, bf16"),
    Speed("finetuning_speed", ("fine-tuning", "grouped"), f"fine-tuning: {_LENGTHS}", _GROUPED),
    Speed("finetuning_speed", ("prediction", "grouped"), f"prediction: {_LENGTHS}", _GROUPED),
    Speed(
        "embedding",
        ("MiniLM, fp32", ""),
        "sentence embeddings, fp32",
        "sentence-transformers / onnxruntime fp32 / onnxruntime int8",
    ),
    Speed(
        "embedding",
        ("MiniLM, bf16", ""),
        "sentence embeddings, bf16",
        "sentence-transformers / onnxruntime fp32 / onnxruntime int8",
    ),
    Speed(
        "embedding",
        ("MiniLM, int8", ""),
        "sentence embeddings, int8",
        "sentence-transformers / onnxruntime fp32 / onnxruntime int8",
    ),
    Speed("gpt_speed", ("training", "rows of 128"), f"GPT training, rows of 128: {_GPT}", "transformers"),
    Speed("gpt_speed", ("training", f"{_KEPT}, rows of 128"), f"GPT training, rows of 128: {_GPT}", _KEPT),
    Speed("gpt_speed", ("more tokens", "1 prompt"), "GPT, continuing one text: mini / base", "transformers, generate"),
    Speed("seq2seq_speed", ("BART training", ""), "BART training: width 128 / 256 / 512", "transformers"),
    Speed("seq2seq_speed", ("BART training", "keeping memory"), "BART training: width 128 / 256 / 512", _KEPT),
    Speed("seq2seq_speed", ("decoding", "8 sources"), "BART, beam 4: width 256 / 512", "transformers, generate"),
    Speed("recurrent_speed", ("tagger", ""), "LSTM tagger training: width 128 / 300", "torch's LSTM, packed sequences"),
    Speed("words", ("word vectors", ""), "word vectors: skip-gram / CBOW", "gensim, 2 workers"),
    Speed(
        "corpus_building",
        ("text to corpus", "datasets.map"),
        "text to corpus, 1 / 2 processes",
        "datasets.map as in run_mlm",
    ),
    Speed(
        "vocabulary_training",
        ("20 MB", ""),
        "vocabulary of 30,000 from 20 MB, 1 / 2 processes",
        "tokenizers' trainer",
    ),
    Speed("encoding", ("text to token ids", "batch_fast"), "text to token ids", "tokenizers, encode_batch_fast"),
    Speed("overheads", ("first vector", ""), "first vector from a model folder", "transformers"),
)


@dataclass(frozen=True)
class Row:
    """A task of the table; `options` supplement the recipe, `published` are BERT base's scores and their data."""

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
    """Write or check the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the README is up to date")
    options = parser.parse_args()
    for path, tables in {
        README: {"speed": speed_table(), "tasks": task_table()},
        BENCHMARKS: {"speed": whole_speed_table()},
    }.items():
        before = after = path.read_text(encoding="utf-8")
        for name, table in tables.items():
            after = with_table(after, name, table)
        if options.check and before != after:
            sys.exit(f"{path}: its tables are not those of benchmarks/ and results/; run tools/readme_table.py")
        if not options.check:
            path.write_text(after, encoding="utf-8")


def with_table(text: str, name: str, table: str) -> str:
    """Return a page with the table between its markers; raises ValueError when a marker is missing."""
    mark = f"<!-- {name}: made by tools/readme_table.py -->"
    opening, closing = text.index(mark) + len(mark), text.index(f"<!-- end of {name} -->")
    return f"{text[:opening]}\n{table}\n{text[closing:]}"


def speed_table() -> str:
    """Return the README's selection of jobs, with a column for each processor that has enough pages."""
    lines = [f"| job | compared with | {' | '.join(_COLUMNS)} |", "|---" * (2 + len(_COLUMNS)) + "|"]
    found = summaries()
    for speed in SPEEDS:
        cells = dict.fromkeys(_COLUMNS, "–")
        for page, place, row in found:
            is_named = all(part in row[key] for part, key in zip(speed.named, ("job", "beside"), strict=True))
            is_named &= (_KEEPS in row["beside"]) == (_KEEPS in speed.named[1])
            if page.startswith(speed.page) and is_named and place in cells:
                figures = _aligned(_RATE.sub("", row["result"]), row["job"], speed.job)
                cells[place] = f"[{figures}](benchmarks/{page}.md)"
        if set(cells.values()) == {"–"}:
            raise ValueError(f"{speed.page}.json: no row of its summary is named {speed.named}")
        lines.append(f"| {speed.job} | {speed.beside} | {' | '.join(cells.values())} |")
    return "\n".join(lines)


def _aligned(figures: str, job: str, wanted: str) -> str:
    """Return a row's figures in the order of the wanted sizes or data sets, with a dash for each missing one."""
    own, sizes = ([name.lower() for name in _NAMED.findall(text)] for text in (job, wanted))
    by_size = dict(zip(own, figures.split(" / "), strict=False))
    return " / ".join(by_size.get(size, "–") for size in sizes) if sizes and own != sizes else figures


def whole_speed_table() -> str:
    """Return the table with one row for each job in a benchmark's summary."""
    lines = ["| job | compared with | maskloom | processor | page |", "|---" * 5 + "|"]
    for page, place, row in summaries():
        lines.append(f"| {row['job']} | {row['beside']} | {row['result']} | {place} | [page]({page}.md) |")
    return "\n".join(lines)


def summaries() -> list[tuple[str, str, dict[str, str]]]:
    """Return the rows of the pages' summaries, each with its page and the name of the processor."""
    found = []
    for page in PAGES:
        path = ROOT / "benchmarks" / f"{page}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            machine = content.get("processor", content.get("machine", ""))
            place = next(name for name, part in reversed(_PLACES.items()) if part in machine)
            found += [(page, place, row) for row in content.get("summary", [])]
    return found


def task_table() -> str:
    """Return the tasks that both sides ran with several seeds, each with its recipe, and the SQuAD scores."""
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
    """Return the differences between a run's settings and the recipe in the table, as `key=value`."""
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
    """Return the scores on the full dev sets of SQuAD, with the scores of a constant answer."""
    results = json.loads((ROOT / "results" / "squad.json").read_text(encoding="utf-8"))
    stages, constant = results["stages"], results["baselines"]
    scores = "\nand ".join(
        f"EM {stages[stage]['exact_match']:.1f}, F1 {stages[stage]['f1']:.1f} on v{version} "
        f"({told}: {constant[f'{stage}: {what}']['exact_match']:.1f}, {constant[f'{stage}: {what}']['f1']:.1f})"
        for stage, version, what, told in (
            ("dev-v1.1", "1.1", "the first sentence", "always answering with the first sentence"),
            ("dev-v2.0", "2.0", "no answer at all", "never giving an answer"),
        )
    )
    return (
        "On SQuAD's full dev sets, models fine-tuned from the same weights on part of v1.1's training questions reach\n"
        f"{scores} ([details](results/squad.md))."
    )


def _figure(entry: dict[str, Any], side: str) -> str:
    return f"{entry['mean'][side]:.1f} ± {entry['standard_deviation'][side]:.1f}"


if __name__ == "__main__":
    main()
