"""Train a Transformer from scratch to write texts from records: E2E's restaurants and WebNLG's triples.

Each run is `maskloom finetune --recipe translation` with a cased vocabulary of the training texts, in a process of one
thread. The weights that are best on the dev set are scored on the test set, with all references of a source. Finished
runs are stored under --out and are not repeated.

    python benchmarks/data_to_text.py --out ~/data-to-text --results results/data_to_text
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from denoising import kept, settings
from surroundings import data_folder, machine, parser_of_runs, write_results
from translation import command, resumed, spread

from maskloom.metrics.texts import TextMetric
from maskloom.tasks.kinds import task_kind
from maskloom.tasks.seq2seq.reading import targets_of
from maskloom.tasks.tables import ReadingOptions

_TASKS = {"E2E": 2.0, "WebNLG": 6.0}  # with the epochs of training
_SIZE = 4000
_SCORES = ("bleu", "chrf", "rougeL")
_PARTS = ("train", "dev", "test")
_PUBLISHED = {"E2E": "68.2", "WebNLG": "46.5"}  # BLEU, Li and Liang 2021: GPT-2 medium, fine-tuned


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = parser_of_runs(__doc__, seeds=3, jobs=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    texts = kept(options.out / "scores" / "texts.json", lambda: prepare(options.out))
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = {
            (task, seed): pool.submit(trained, options.out, task, seed)
            for seed in range(options.seeds)
            for task in _TASKS
        }
        scores = {run: job.result() for run, job in jobs.items()}
    if options.results:
        write_page(options, texts, scores)


def prepare(out: Path) -> dict[str, list[int]]:
    """Write the records with their texts and the vocabularies; return the numbers of records and of texts."""
    numbers = {}
    for task, read in (("E2E", e2e), ("WebNLG", web_nlg)):
        for part in _PARTS:
            content = "".join(json.dumps(row) + "\n" for row in read(part))
            (out / f"{task}-{part}.jsonl").write_text(content, encoding="utf-8")
            found = examples(out, task, part)
            numbers[f"{task} {part}"] = [len(found), sum(len(targets_of(one)) for one in found)]
            if part == "train":
                texts = (text for one in found for text in (one.text, *targets_of(one)))
                (out / f"{task}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        vocab = ("vocab", "train", str(out / f"{task}.txt"), "--cased", "--size", str(_SIZE))
        command(*vocab, "--out", str(out / f"{task}-vocab"))
    return numbers


def e2e(part: str) -> Iterator[dict[str, Any]]:
    """Yield each list of attributes once, with all its references."""
    name = {"train": "trainset", "dev": "devset", "test": "testset_w_refs"}[part]
    references: dict[str, list[str]] = {}
    with (data_folder() / "family" / "e2e" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            references.setdefault(row["mr"], []).append(row["ref"])
    yield from ({"source": source, "target": targets} for source, targets in references.items())


def web_nlg(part: str) -> Iterator[dict[str, Any]]:
    """Yield the triples with their texts, without the three rows that have no text."""
    path = data_folder() / "family" / "generation" / "webnlg_v1.4_en" / f"{part}.jsonl"
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if row["texts"]:
            yield {"source": row["triples"], "target": row["texts"]}


def examples(out: Path, task: str, part: str) -> list[Any]:
    """Return the records of a part as maskloom reads them."""
    return task_kind("seq2seq").read(out / f"{task}-{part}.jsonl", ReadingOptions()).examples


def copied(out: Path, task: str) -> dict[str, float]:
    """Return the test scores of the records' own words, without marks."""
    metric = TextMetric()
    for one in examples(out, task, "test"):
        text = one.text
        for mark, words in (("[", " "), ("]", ""), (" | ", " "), ("; ", ". "), ("_", " ")):
            text = text.replace(mark, words)
        metric.update([text], [targets_of(one)])
    return metric.compute()


def trained(out: Path, task: str, seed: int) -> dict[str, Any]:
    """Train and score one run."""
    folder = out / "runs" / f"{task}-{seed}"

    def make() -> dict[str, Any]:
        train, dev, test = (str(out / f"{task}-{part}.jsonl") for part in _PARTS)
        inputs = ("--recipe", "translation", "--vocab", str(out / f"{task}-vocab"), "--train", train, "--dev", dev)
        how = ("--epochs", str(_TASKS[task]), "--seed", str(seed), *resumed(folder), *settings())
        command("finetune", *inputs, "--out", str(folder), *how)
        found = json.loads(command("evaluate", "--model", str(folder), "--data", test, "--json"))
        return {name: found[name] for name in (*_SCORES, "loss")}

    return kept(out / "scores" / f"{folder.name}.json", make)


def write_page(
    options: argparse.Namespace, texts: dict[str, list[int]], scores: dict[tuple[str, int], dict[str, float]]
) -> None:
    """Write the results as JSON and as a Markdown page."""
    baselines = {task: copied(options.out, task) for task in _TASKS}
    lines = [
        "# Text from records: a small Transformer trained from scratch",
        "",
        "Generated by `python benchmarks/data_to_text.py --out DIR --results results/data_to_text`; do not edit.",
        "Recipe `translation`: two layers of width 128 in encoder and decoder, beam size 4, a cased vocabulary of at",
        f"most {_SIZE:,} pieces from the training texts. Scores on the test sets, with all references of a record, for",
        f"the weights that are best on dev; mean and standard deviation over {options.seeds} seeds. *Copied* are the",
        "record's own words. BLEU and chrF are sacrebleu's (13a, cased).",
        "",
        "| task | records, texts to train on | epochs | model | BLEU | chrF | ROUGE-L | loss in nats |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, epochs in _TASKS.items():
        much = f"{task} | {' records, '.join(f'{number:,}' for number in texts[f'{task} train'])} texts"
        copy = " | ".join(f"{baselines[task][name]:.1f}" for name in _SCORES)
        found = [scores[task, seed] for seed in range(options.seeds)]
        cells = [*(spread([one[name] for one in found]) for name in _SCORES), spread([one["loss"] for one in found], 2)]
        lines += [f"| {much} | - | copied | {copy} | - |"]
        lines += [f"| {much} | {epochs:g} | Transformer | {' | '.join(cells)} |"]
        lines += [f"| {much} | - | GPT-2 medium, fine-tuned, published | {_PUBLISHED[task]} | - | - | - |"]
    lines += [
        "",
        "WebNLG's test set has 15 categories, of which 10 are in the training set. The published figures (Li and Liang",
        "2021) are BLEU by the data sets' own scripts, which tokenise otherwise.",
        "",
        f"{machine()}.",
    ]
    content = {
        "texts": texts,
        "copied": baselines,
        "scores": {f"{task}, seed {seed}": found for (task, seed), found in scores.items()},
    }
    write_results(options.results, content, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
