"""The tasks of the fine-tuning comparison, and the files that both sides read.

A subset is fixed: the first rows (questions, sentences) of a permutation drawn by Python's `random.Random(0)`. The
files keep the original format of the data sets, so that each side reads them with its own reader.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ParityTask:
    """One task: its kind, the primary score, the selected rows and its changes to the recipe.

    `source` and `dev_source` are relative to the data folder; `num_dev` None means all rows. `columns` and
    `label_column` are column indices, counted from 0, for the peer's table reader; `format` is for maskloom's.
    """

    kind: str
    score: str
    source: str
    dev_source: str
    num_train: int
    num_dev: int | None = None
    format: str | None = None
    columns: tuple[int, ...] = ()
    label_column: int = 0
    labels: tuple[str, ...] = ()
    has_header: bool = True
    changes: tuple[str, ...] = ("data.max_length=64",)
    unit: str = "rows"
    note: str = ""

    @property
    def suffix(self) -> str:
        """The suffix of its files."""
        return Path(self.source).suffix


TASKS = {
    "MRPC": ParityTask(
        "single", "f1", "glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", 640, None, "mrpc", (3, 4), 0, ("0", "1")
    ),
    "RTE": ParityTask(
        "single", "accuracy", "glue/RTE/train.tsv", "glue/RTE/dev.tsv", 512, None, "rte", (1, 2), 3,
        ("entailment", "not_entailment"),
    ),
    "CoLA": ParityTask(
        "single", "matthews", "glue/CoLA/train.tsv", "glue/CoLA/dev.tsv", 2048, None, "cola", (3,), 1, ("0", "1"), False
    ),
    "SST-2": ParityTask(
        "single", "accuracy", "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", 1024, None, "sst-2", (0,), 1, ("0", "1")
    ),
    "STS-B": ParityTask(
        "regression", "pearson", "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", 1024, None, "sts-b", (7, 8), 9,
        changes=("data.max_length=64", "training.head_learning_rate=3e-3"),
    ),
    "GoEmotions": ParityTask(
        "multilabel", "f1_micro", "goemotions/train.tsv", "goemotions/dev.tsv", 21696, 1024, None, (0,), 1,
        has_header=False,
        changes=(
            "data.max_length=64", "training.epochs=1.0", "training.learning_rate=1.5e-4",
            "training.head_learning_rate=3e-3",
        ),
        note="28 labels, each chosen from probability 0.5",
    ),
    "CoNLL-2003": ParityTask(
        "tagging", "f1", "conll2003/train.txt", "conll2003/valid.txt", 1280, 1024,
        changes=("data.max_length=128",), unit="sentences",
        note="uncased weights, so that names are not told by their capitals; F1 of entities",
    ),
    "HellaSwag": ParityTask(
        "choice", "accuracy", "choice/hellaswag/val.jsonl", "choice/hellaswag/val.jsonl", 256, 320,
        changes=("data.max_length=96", "training.epochs=2.0"),
        note="the 3,243 rows of the validation file that are continuations of video captions, SWAG's kind of text; "
        "every fifth of them is dev, the rest train",
    ),
    "SQuAD v1.1": ParityTask(
        "span", "f1", "qa/squad/train-v1.1.part.json", "qa/squad/dev-v1.1.json", 11728, None,
        changes=(
            "data.max_length=384", "training.steps=733", "training.learning_rate=1.5e-4",
            "training.group_by_length=true",
        ), unit="questions",
        note="what is at hand of the training questions, once, in batches of like length on both sides; F1 of words by "
        "the rules of the official script",
    ),
}  # fmt: skip

# Explanations of a task's figures, to be shown with the table.
NOTES = {
    "STS-B": """\
STS-B and GoEmotions give the new head a rate of its own. It starts near 0 and has to reach the mean score, or logits of
about -3 for labels that are rare. As slow as the encoder it gets there by saturating the pooler, and learns from the
texts late or never.""",
}


def write_files(task: ParityTask, data: Path, folder: Path, num_train: int, num_dev: int | None) -> tuple[Path, Path]:
    """Write the subsets of a task unless they exist, and return the train and dev files."""
    folder.mkdir(parents=True, exist_ok=True)
    train, dev = folder / f"train{task.suffix}", folder / f"dev{task.suffix}"
    if train.exists() and dev.exists():
        return train, dev
    write = {".tsv": _write_tables, ".txt": _write_sentences, ".jsonl": _write_choices, ".json": _write_questions}
    write[task.suffix](task, (data / task.source, data / task.dev_source), (train, dev), num_train, num_dev)
    return train, dev


def _drawn(items: list[Any]) -> list[Any]:
    order = list(range(len(items)))
    random.Random(0).shuffle(order)
    return [items[index] for index in order]


def _write_tables(
    task: ParityTask, sources: tuple[Path, Path], targets: tuple[Path, Path], num_train: int, num_dev: int | None
) -> None:
    """Copy lines byte for byte; dev keeps its order."""
    header, lines = _split_header(task, sources[0].read_bytes())
    targets[0].write_bytes(b"".join([*header, *_drawn(lines)[:num_train]]))
    header, lines = _split_header(task, sources[1].read_bytes())
    targets[1].write_bytes(b"".join([*header, *lines[:num_dev]]))


def _split_header(task: ParityTask, content: bytes) -> tuple[list[bytes], list[bytes]]:
    lines = [
        line.rstrip(b"\r\n") + b"\n" for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()
    ]
    return (lines[:1], lines[1:]) if task.has_header else ([], lines)


def _write_sentences(
    task: ParityTask, sources: tuple[Path, Path], targets: tuple[Path, Path], num_train: int, num_dev: int | None
) -> None:
    """Draw sentences, which both sides then see separately, without their documents."""
    for source, target, number in zip(sources, targets, (num_train, num_dev), strict=True):
        blocks = source.read_text(encoding="utf-8").strip().split("\n\n")
        sentences = [block.strip("\n") for block in blocks if not block.startswith("-DOCSTART-") and block.strip()]
        target.write_text("\n\n".join(_drawn(sentences)[:number]) + "\n", encoding="utf-8")


def _write_choices(
    task: ParityTask, sources: tuple[Path, Path], targets: tuple[Path, Path], num_train: int, num_dev: int | None
) -> None:
    lines = [line for line in sources[0].read_text(encoding="utf-8").splitlines() if json.loads(line)["ind"] < 3243]
    train = [line for number, line in enumerate(lines) if number % 5]
    targets[0].write_text("\n".join(_drawn(train)[:num_train]) + "\n", encoding="utf-8")
    targets[1].write_text("\n".join(_drawn(lines[::5])[:num_dev]) + "\n", encoding="utf-8")


def _write_questions(
    task: ParityTask, sources: tuple[Path, Path], targets: tuple[Path, Path], num_train: int, num_dev: int | None
) -> None:
    for source, target, number in zip(sources, targets, (num_train, num_dev), strict=True):
        content = json.loads(source.read_text(encoding="utf-8"))
        target.write_text(json.dumps(some_questions(content, number)), encoding="utf-8")


def some_questions(content: dict[str, Any], number: int | None) -> dict[str, Any]:
    """Return SQuAD data with the first `number` questions of the permutation, in the order of the file."""
    ids = [question["id"] for question in _questions(content)]
    kept = set(_drawn(ids)[:number])
    articles = []
    for article in content["data"]:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            questions = [question for question in paragraph["qas"] if question["id"] in kept]
            if questions:
                paragraphs.append({**paragraph, "qas": questions})
        if paragraphs:
            articles.append({**article, "paragraphs": paragraphs})
    return {**content, "data": articles}


def _questions(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [q for article in content["data"] for paragraph in article["paragraphs"] for q in paragraph["qas"]]


def num_rows(task: ParityTask, path: Path) -> int:
    """Count the rows (sentences, questions) of a written file."""
    text = path.read_text(encoding="utf-8")
    counts: dict[str, Callable[[], int]] = {
        ".tsv": lambda: len([line for line in text.split("\n") if line]) - task.has_header,
        ".txt": lambda: len(text.strip().split("\n\n")),
        ".jsonl": lambda: len(text.splitlines()),
        ".json": lambda: len(_questions(json.loads(text))),
    }
    return counts[task.suffix]()
