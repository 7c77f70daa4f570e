"""A classification task with widely varying lengths: single texts of several data sets, with log-normal lengths.

The label of a text is the data set that it comes from. Lengths are in tokens of the uncased vocabulary.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from finetuning_tasks import ParityTask
from surroundings import minilm_folder

from maskloom.text.tokenizer import Tokenizer

NAME = "Wide mix"
MEDIAN, SIGMA, SHORTEST, LONGEST = 30, 0.75, 4, 128
# Tables: file under the data folder, column of the text, whether the first line is a header.
_TABLES = {
    "cola": ("glue/CoLA/train.tsv", 3, False),
    "sst": ("glue/SST-2/train.tsv", 0, True),
    "emotions": ("goemotions/train.tsv", 0, False),
    "rte": ("glue/RTE/train.tsv", 1, True),
    "qnli": ("glue/QNLI/train_subset8999.tsv", 2, True),
    "mnli": ("glue/MNLI/train_subset8999.tsv", 8, True),
}
_REVIEWS = ("imdb", "imdb/train.jsonl.gz")
_TEXTS_OF_EACH, _MOST_CHARACTERS = 3000, 1200
LABELS = tuple(sorted((*_TABLES, _REVIEWS[0])))
TASK = ParityTask("single", "accuracy", "", "", 0, columns=(0,), label_column=1, labels=LABELS)


def write_mixture(data: Path, folder: Path, num_train: int, num_dev: int) -> tuple[Path, Path]:
    """Write the train and dev tables, each with a header."""
    texts = [(text, label) for label in LABELS for text in _texts(label, data)]
    random.Random(0).shuffle(texts)
    encoded = Tokenizer.load(minilm_folder()).encode_batch([(text, None) for text, _ in texts], max_length=LONGEST)
    by_length: dict[int, list[tuple[str, str]]] = {}
    for row, encoding in zip(texts, encoded, strict=True):
        by_length.setdefault(len(encoding.ids), []).append(row)
    draws = np.random.default_rng(0).lognormal(np.log(MEDIAN), SIGMA, num_train + num_dev)
    lines = []
    for wanted in np.clip(np.rint(draws), SHORTEST, LONGEST).astype(int).tolist():
        nearest = min(by_length, key=lambda length, wanted=wanted: abs(length - wanted))
        lines.append("\t".join(by_length[nearest].pop()) + "\n")
        if not by_length[nearest]:
            del by_length[nearest]
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.tsv", folder / "dev.tsv"
    for path, chosen in zip(paths, (lines[:num_train], lines[num_train:]), strict=True):
        path.write_text("".join(["text\tlabel\n", *chosen]), encoding="utf-8")
    return paths


def _texts(label: str, data: Path) -> list[str]:
    """Return texts of a data set that fit into a plain table."""
    found = list(dict.fromkeys(" ".join(text.split()) for text in _all_texts(label, data)))
    found = [text for text in found if text and '"' not in text and len(text) <= _MOST_CHARACTERS]
    random.Random(0).shuffle(found)
    return found[:_TEXTS_OF_EACH]


def _all_texts(label: str, data: Path) -> Iterator[str]:
    if label == _REVIEWS[0]:
        with gzip.open(data / _REVIEWS[1], "rt", encoding="utf-8") as lines:
            yield from (json.loads(line)["text"] for line in lines)
        return
    name, column, has_header = _TABLES[label]
    lines = (data / name).read_text(encoding="utf-8").split("\n")[has_header:]
    rows = (line.split("\t") for line in lines)
    yield from (row[column] for row in rows if len(row) > column)
