"""Recurrent classifiers of film reviews whose word embeddings start at random or from word2vec's vectors.

Each network is trained on some of MR's reviews with embeddings of four kinds: random, skip-gram vectors of Wikipedia,
the same vectors given to the wrong words, and skip-gram vectors of IMDB's reviews. The third kind has the sizes of
word2vec's vectors, but not their meaning. A first seed chooses the learning rate of each row on reviews that are used
for nothing else. Runs are short, so each of --jobs processes, of one thread, trains many of them. Finished runs are
stored under --out and are not repeated.

    python benchmarks/word_initialization.py --out ~/initialization --results results/word_initialization
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from denoising import kept
from scipy.stats import t as student
from surroundings import data_folder, film_reviews, machine, parser_of_runs, write_results
from translation import command, resumed, spread
from use_patterns import write_texts
from word_comparisons import with_verdicts
from word_senses import paragraph, table

from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.reproduce.experiments import Measure, Trend, above, beyond
from maskloom.runs.finetune import LabelledFiles, finetune
from maskloom.runs.words import open_vectors
from maskloom.text.word_vectors import write_vectors

RANDOM, WIKIPEDIA, WRONG, IMDB = "random", "Wikipedia", "Wikipedia, wrong words", "IMDB"
STARTS = (RANDOM, WIKIPEDIA, WRONG, IMDB)
TEXTS = {WIKIPEDIA: "corpus/enwiki_part.txt.gz", IMDB: "imdb/train.jsonl.gz"}
# The first reviews in a random order are the test set, the next choose the learning rates, the rest are trained on.
_TESTED, _CHOOSING, _ALL = 2_000, 1_000, 7_662
EPOCHS = {100: 40, 1_000: 10, _ALL: 3}
COMPARED = (("lstm", 100), ("lstm", 1_000), ("lstm", _ALL), ("gru", 1_000))
RATES = (1e-3, 3e-3, 1e-2)
ACCURACY = "accuracy"
_VOCABULARY = ("--model", "words", "--size", "10000")
_VECTORS = ("--size", "128", "--learning-rate", "0.05")
_NETWORK = ("task=single", "model.size=tiny", "model.config.pooling=max", "training.batch_size=32")
# one evaluation, after the last step, so that no epoch is chosen by its score
_RUN = ("training.num_threads=1", "training.evaluate_every=1000000")


class Arm(NamedTuple):
    """A row of the page: the network, the number of examples, and what its embeddings start from."""

    network: str
    examples: int
    start: str

    def __str__(self) -> str:
        return "-".join(map(str, self)).replace(", ", "-").replace(" ", "-")


ARMS = [Arm(network, examples, start) for network, examples in COMPARED for start in STARTS]


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = parser_of_runs(__doc__, jobs=2)
    parser.add_argument("--seeds", type=int, default=5, help="seeds that count, besides the one that chooses rates")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options.out.mkdir(parents=True, exist_ok=True)
    rows = film_reviews()
    known = kept(options.out / "known.json", lambda: prepare(options.out, rows))
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        tries = {(arm, rate): pool.submit(trained, options.out, rows, arm, rate, 0) for arm in ARMS for rate in RATES}
        tried = {arm: {rate: tries[arm, rate].result() for rate in RATES} for arm in ARMS}
        rates = {arm: max(RATES, key=tried[arm].__getitem__) for arm in ARMS}
        jobs = {
            (arm, seed): pool.submit(trained, options.out, rows, arm, rates[arm], seed)
            for seed in range(1, options.seeds + 1)
            for arm in ARMS
        }
        scores = {arm: [jobs[arm, seed].result() for seed in range(1, options.seeds + 1)] for arm in ARMS}
    content: dict[str, Any] = {
        "seeds": options.seeds,
        "known": known,
        "tries": {str(arm): {f"{rate:g}": score for rate, score in found.items()} for arm, found in tried.items()},
        "rates": {str(arm): rate for arm, rate in rates.items()},
        "scores": {str(arm): {ACCURACY: found} for arm, found in scores.items()},
        "machine": machine(),
    }
    if options.results:
        lines, content["verdicts"] = page(content)
        write_results(options.results, content, "\n".join(lines) + "\n")


def prepare(out: Path, rows: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Train the vocabulary and the word vectors; return how many tokens there are, and how many have vectors."""
    text = write_texts(out, "all", rows[_TESTED + _CHOOSING :], rows[:_TESTED])
    if not (out / "vocab").exists():
        command("vocab", "train", str(text), *_VOCABULARY, "--out", str(out / "vocab"))
    tokens = (out / "vocab" / "vocab.txt").read_text(encoding="utf-8").splitlines()
    known: dict[str, Any] = {"tokens": len(tokens)}
    for name, place in TEXTS.items():
        folder = out / name
        how = (*_VECTORS, "--out", str(folder), "--json", *resumed(folder))
        told = json.loads(command("words", "train", str(data_folder() / place), *how))
        places = open_vectors(folder).places
        known[name] = {"words of text": told["num_tokens"], "tokens": sum(token in places for token in tokens)}
    return known


def start_of(out: Path, start: str, seed: int) -> Path | None:
    """Return the vectors that embeddings start from; with each seed, other wrong words get a vector."""
    if start == RANDOM:
        return None
    if start != WRONG:
        return out / start
    tokens = (out / "vocab" / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vectors = open_vectors(out / WIKIPEDIA)
    words = [token for token in tokens if token in vectors.places]
    rows = vectors.rows_of(words)
    random.Random(seed).shuffle(rows)
    path = out / f"wrong-{seed}.bin"
    if not path.exists():
        write_vectors(path, words, vectors.matrix[rows], "binary")
    return path


def trained(out: Path, rows: Sequence[tuple[str, str]], arm: Arm, rate: float, seed: int) -> float:
    """Train on examples drawn by the seed; return the final accuracy on the test set, or with seed 0 on the other."""
    folder = out / "runs" / f"{arm}-{rate:g}-{seed}"

    def make() -> float:
        drawn = random.Random(seed).sample(rows[_TESTED + _CHOOSING :], arm.examples)
        data, scored = f"{folder.name}-data", rows[:_TESTED] if seed else rows[_TESTED : _TESTED + _CHOOSING]
        write_texts(out, data, drawn, scored)
        vectors = start_of(out, arm.start, seed)
        changes = [f"model.architecture={arm.network}", f"training.learning_rate={rate}", f"seed={seed}"]
        changes += [f"training.epochs={EPOCHS[arm.examples]}", *_NETWORK, *_RUN]
        changes += [] if vectors is None else [f"model.word_vectors={vectors}"]
        files = LabelledFiles(out / f"{data}-train.csv", out / f"{data}-dev.csv")
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
        recipe = load_recipe(FinetuneRecipe, None, changes)
        found = finetune(recipe, model=out / "vocab", data=files, out=folder)["last"]["scores"][ACCURACY]
        shutil.rmtree(folder)
        for path in out.glob(f"{data}*"):
            path.unlink()
        return found

    return kept(out / "scores" / f"{folder.name}.json", make)


def trends() -> list[Trend]:
    """Return the claims about each network and number of examples, then those about the number of examples."""

    def gain(network: str, examples: int, one: str, other: str = RANDOM) -> Measure:
        return above(str(Arm(network, examples, one)), str(Arm(network, examples, other)), ACCURACY)

    pairs = ((WIKIPEDIA, RANDOM), (WIKIPEDIA, WRONG), (IMDB, RANDOM), (IMDB, WIKIPEDIA))
    found = [
        Trend(f"{network}, {examples:,} examples: {one} is better than {other}", gain(network, examples, one, other))
        for network, examples in COMPARED
        for one, other in pairs
    ]
    return found + [
        Trend(
            f"lstm: {start} gains more over random with {few:,} examples than with {many:,}",
            beyond(gain("lstm", few, start), gain("lstm", many, start)),
        )
        for start in TEXTS
        for few, many in ((100, 1_000), (1_000, _ALL))
    ]


def page(content: dict[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the lines of the page and the verdicts of its claims."""
    known, chance = content["known"], float(student.sf(2, content["seeds"] - 1)) if content["seeds"] > 1 else 0.0
    more = "" if content["seeds"] == 5 else f" --seeds {content['seeds']}"
    texts = " and ".join(f"{known[name]['words of text'] / 1e6:.1f} million words of {name}" for name in TEXTS)
    vectors = ", ".join(f"{known[name]['tokens']:,} from {name}" for name in TEXTS)
    epochs = ", ".join(f"{number} with {examples:,}" for examples, number in EPOCHS.items())
    lines = [
        "# Word embeddings that start at random and from word2vec",
        "",
        *paragraph(
            "Generated by `python benchmarks/word_initialization.py --out DIR --results results/word_initialization"
            f"{more}`; do not edit."
        ),
        *paragraph(
            "A bidirectional network of size tiny (one layer, 64 per direction, maximum over states) labels reviews "
            f"of MR as positive or negative. Its vocabulary has {known['tokens']:,} tokens: the words that occur at "
            f"least twice in the {_ALL:,} reviews that are not held out. Word vectors are trained by `maskloom words "
            f"train {' '.join(_VECTORS)}` on {texts}; {vectors} have a vector there, the rest start at random. *Wrong "
            "words*: the same vectors from Wikipedia, exchanged at random among the words. Embeddings are trained with "
            "the rest of the network."
        ),
        *paragraph(
            f"Accuracy is that on {_TESTED:,} reviews after the last epoch: mean and standard deviation of "
            f"{content['seeds']} seeds. A seed draws the examples (with {_ALL:,}, all there are, only their order) and "
            f"the weights; rows with the same seed have the same examples. Another seed chose the learning rate of "
            f"each row among {', '.join(f'{rate:g}' for rate in RATES)}, by the accuracy on {_CHOOSING:,} other "
            f"reviews. Epochs: {epochs} examples. Settings other than the defaults: "
            f"{', '.join(f'`{change}`' for change in _NETWORK)}."
        ),
    ]
    rows = [
        (arm.network, f"{arm.examples:,}", arm.start, f"{content['rates'][str(arm)]:g}", spread(scores[ACCURACY], 3))
        for arm, scores in ((arm, content["scores"][str(arm)]) for arm in ARMS)
    ]
    lines += table(("network", "examples", "embeddings start from", "rate", ACCURACY), rows)
    lines += paragraph(
        "Claims are tested on per-seed differences: *shown* means that the mean is more than two standard errors above "
        f"0, *denied* that it is more than two below. If there is no real difference, {chance:.0%} of claims are shown "
        "by chance, and as many are denied. That word2vec's vectors do at least as well as random ones is contradicted "
        "where *better than random* is denied. The spread over seeds does not show how scores would vary with other "
        "reviews to label or with other word vectors of the same text."
    )
    verdicts = with_verdicts(trends(), content["scores"], lines)
    return [*lines, f"{content['machine']}."], verdicts


if __name__ == "__main__":
    main()
