"""Two labelled tasks drawn from documentation; the documents they use are excluded from pre-training."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from maskloom.data.counter_random import Permutation, integers, uniform
from maskloom.errors import DataError
from maskloom.quickstart.documentation import STANDARD_LIBRARY, GatheredDocument

NEXT, OTHER = "next", "other"
PASSAGE_SENTENCES = 2
_ALIASES = {
    "torch": ("torch", "pytorch", "aten", "inductor", "dynamo", "caffe"),
    "scikit-learn": ("scikit", "sklearn"),
    "numpy": ("numpy", "ndarray"),
    "networkx": ("networkx",),
    STANDARD_LIBRARY: ("python", "cpython", "pep"),
}
# Examples of each kind from a document, and how much of the documents of a package may be used. Releases of packages
# differ, so one that can give only part of its share, but this much of it, makes all give that part.
_EXAMPLES_OF_DOCUMENT, _MOST_HELD_OUT, _LEAST_PART = 2, 0.35, 0.75
_SPLIT, _PASSAGE, _PARTNER, _LABEL, _ORDER = range(5)


@dataclass(frozen=True)
class QuickstartTasks:
    """The documents left for pre-training, and the train and dev sets of the sentence and pair tasks.

    Rows have `text`, or `sentence1` and `sentence2`, and a `label`.
    """

    areas: tuple[str, ...]
    pretraining: tuple[GatheredDocument, ...]
    train_documents: tuple[GatheredDocument, ...]
    dev_documents: tuple[GatheredDocument, ...]
    sets: dict[str, tuple[dict[str, str], ...]]


def build_tasks(
    documents: Iterable[GatheredDocument], *, seed: int, max_areas: int = 6, sizes: tuple[int, int] = (600, 600)
) -> QuickstartTasks:
    """Draw both tasks from whole documents and return them with the remaining documents.

    The sentence task asks which package a sentence documents; each package has the same number of sentences, none of
    which names a package. The pair task asks whether a passage of two sentences is followed by the next two of its
    document or by two of another document, in equal proportions. Each document is used for only one of train, dev and
    pre-training; `sizes` are the numbers of documents for train and dev, of which a quarter may be missing. Raises
    DataError if fewer than two packages have enough documents.
    """
    documents = list(documents)
    areas, (num_train, num_dev) = _areas(documents, max_areas, sizes)
    train, dev = list[GatheredDocument](), list[GatheredDocument]()
    for number, area in enumerate(areas):
        own = [document for document in documents if document.area == area and _fits(document)]
        order = Permutation(len(own), seed, _SPLIT, number)
        train += [own[order[place]] for place in range(num_train)]
        dev += [own[order[place]] for place in range(num_train, num_train + num_dev)]
    used = {id(document) for document in (*train, *dev)}
    rest = tuple(document for document in documents if id(document) not in used)
    names = mention_pattern(areas)
    sets = {}
    for part, (name, chosen) in enumerate((("train", train), ("dev", dev))):
        sets[f"sentence-{name}"] = _sentence_rows(chosen, areas, names, seed, part)
        sets[f"pair-{name}"] = _pair_rows(chosen, seed, part)
    return QuickstartTasks(areas, rest, tuple(train), tuple(dev), sets)


def mention_pattern(areas: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds the name of any package, even inside a longer word."""
    names = {alias for area in areas for alias in (area, *_ALIASES.get(area, ()))}
    return re.compile("|".join(sorted(map(re.escape, names))), re.IGNORECASE)


def _areas(
    documents: list[GatheredDocument], max_areas: int, sizes: tuple[int, int]
) -> tuple[tuple[str, ...], tuple[int, int]]:
    """Choose the packages with the most documents, and how many each gives for train and dev; most are left."""
    counts = Counter(document.area for document in documents if _fits(document))
    ranked = sorted(counts, key=lambda area: (-counts[area], area))
    for num_areas in range(min(max_areas, len(ranked)), 1, -1):
        for_train, for_dev = (-(-number // num_areas) for number in sizes)
        part = min(1.0, counts[ranked[num_areas - 1]] * _MOST_HELD_OUT / (for_train + for_dev))
        if part >= _LEAST_PART:
            return tuple(sorted(ranked[:num_areas])), (int(for_train * part), int(for_dev * part))
    found = ", ".join(f"{area} {counts[area]}" for area in ranked[:5]) or "none"
    raise DataError(
        f"there is too little documentation on this machine for the tasks: they need {_LEAST_PART * sum(sizes):.0f} "
        f"documents from two packages, half from each, and use at most {_MOST_HELD_OUT:.0%} of a package's documents; "
        f"found: {found}"
    )


def _fits(document: GatheredDocument) -> bool:
    return not document.is_pooled and len(document.sentences) >= 2 * PASSAGE_SENTENCES


def _sentence_rows(
    documents: list[GatheredDocument], areas: tuple[str, ...], names: re.Pattern[str], seed: int, part: int
) -> tuple[dict[str, str], ...]:
    """Take each document's longest sentences that name no package, then equalise the number per package."""
    by_area: dict[str, list[dict[str, str]]] = {area: [] for area in areas}
    for document in documents:
        fitting = [sentence for sentence in document.sentences if not names.search(sentence)]
        longest = sorted(fitting, key=lambda sentence: (-len(sentence), sentence))[:_EXAMPLES_OF_DOCUMENT]
        by_area[document.area] += [{"text": sentence, "label": document.area} for sentence in longest]
    fewest = min(len(rows) for rows in by_area.values())
    return _shuffled([row for rows in by_area.values() for row in rows[:fewest]], seed, part)


def _pair_rows(documents: list[GatheredDocument], seed: int, part: int) -> tuple[dict[str, str], ...]:
    rows = []
    for number, document in enumerate(documents):
        num_pairs = min(_EXAMPLES_OF_DOCUMENT, len(document.sentences) // (2 * PASSAGE_SENTENCES))
        stride = len(document.sentences) // num_pairs
        for pair in range(num_pairs):
            draw = (seed, part, number, pair)
            room = stride - 2 * PASSAGE_SENTENCES + 1
            start = pair * stride + int(integers(room, *draw, _PASSAGE))
            first = _passage(document, start)
            if float(uniform(*draw, _LABEL)) < 0.5:
                second, label = _passage(document, start + PASSAGE_SENTENCES), NEXT
            else:
                step = 1 + int(integers(len(documents) - 1, *draw, _PARTNER))
                other = documents[(number + step) % len(documents)]
                place = int(integers(len(other.sentences) - PASSAGE_SENTENCES + 1, *draw, _ORDER))
                second, label = _passage(other, place), OTHER
            rows.append({"sentence1": first, "sentence2": second, "label": label})
    indices = [[place for place, row in enumerate(rows) if row["label"] == label] for label in (NEXT, OTHER)]
    fewest = min(map(len, indices))
    return _shuffled([rows[place] for place in sorted(indices[0][:fewest] + indices[1][:fewest])], seed, part)


def _passage(document: GatheredDocument, start: int) -> str:
    return " ".join(document.sentences[start : start + PASSAGE_SENTENCES])


def _shuffled(rows: list[dict[str, str]], seed: int, part: int) -> tuple[dict[str, str], ...]:
    order = Permutation(len(rows), seed, _ORDER, part)
    return tuple(rows[order[place]] for place in range(len(rows)))
