"""The effect of word2vec's settings on Wikipedia: model and text length, noise words, window and size; word senses.

CBOW is compared with skip-gram on three lengths of text, numbers of noise words on the shortest and the longest, and
windows with vector sizes on the middle one. Each training is `maskloom words train` with one worker, which is
deterministic, at whichever of two learning rates does best on MTurk-771 with the first seed. It is scored by `maskloom
words evaluate` on other sets. Finally, occurrences of "bank" are distinguished by their vectors in a BERT, which a word
vector cannot do. Finished work is stored under --out (some 2 GB) and is not repeated.

    python benchmarks/word_comparisons.py --out ~/word-comparisons --results results/word_comparisons
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from denoising import kept
from scipy.stats import t as student
from surroundings import data_folder, machine, parser_of_runs, write_real_text, write_results
from translation import command, resumed, spread
from word_senses import compare_senses, paragraph, sense_lines, sense_trends, table

from maskloom.reproduce.experiments import Measure, Scores, Trend, above, beyond
from maskloom.words.evaluation import read_pairs

# Each text as a fraction of the longest, and the candidate learning rates: shorter text needs a higher one.
PARTS = {"short": 1 / 6, "middle": 0.4, "long": 1.0}
RATES = {"short": (0.1, 0.2), "middle": (0.05, 0.1), "long": (0.05, 0.1)}
NOISE, WINDOWS, SIZES = (1, 2, 5, 10, 15, 20), (2, 5, 10), (50, 100, 300)
WORDSIM, SIMLEX, MEN, SIMILARITY, RELATEDNESS = "WordSim-353", "SimLex-999", "MEN", "WordSim similar", "WordSim related"
CHOOSES, SCORED = "MTurk-771", data_folder() / "family" / "words"
# Columns, and the names of the pair files.
SETS = {
    WORDSIM: "wordsim353",
    SIMLEX: "simlex999",
    MEN: "men",
    "RW": "rw",
    SIMILARITY: "wordsim353-sim",
    RELATEDNESS: "wordsim353-rel",
    CHOOSES: "mturk-771",
}
# Pairs of MEN by the count of their rarer word in the training text: lower bound inclusive, upper bound exclusive.
BANDS = {"MEN, 5 to 19": (5, 20), "MEN, 20 to 99": (20, 100), "MEN, 100 on": (100, 1 << 60)}
RARE, _, FREQUENT = BANDS
ANALOGIES, AVERAGE = "analogies", "mean"
_OF_MEANS = "Claims about windows concern the mean over sizes, and vice versa."
# Results of a training other than scores.
_ASIDE = _KNOWN, _WORDS = "pairs of known words", "words"


class Arm(NamedTuple):
    """A training: a part of the text, a model, and the compared settings."""

    part: str
    model: str = "cbow"
    negative: int = 5
    window: int = 5
    size: int = 100

    def __str__(self) -> str:
        return "-".join(map(str, self))


MODELS = [Arm(part, model) for part in PARTS for model in ("skipgram", "cbow")]
NOISES = [Arm(part, negative=number) for part in ("short", "long") for number in NOISE]
GRID = {(window, size): Arm("middle", window=window, size=size) for window in WINDOWS for size in SIZES}


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = parser_of_runs(__doc__, seeds=3, jobs=2)
    parser.add_argument("--megabytes", type=float, default=37.0, help="the longest text; 12 at least")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=40, help="at most so many of a sense in each of --seeds draws")
    parser.add_argument("--elmo", type=Path, help="run of an ELMo whose senses are compared too (elmo_tagging.py)")
    options = parser.parse_args()
    if options.megabytes < 12.0:
        parser.error(
            f"--megabytes {options.megabytes:g}: shorter texts hold too few sentences of each sense; give 12 or more"
        )
    named = {name: getattr(options, name) for name in ("megabytes", "epochs", "seeds", "sentences")}
    changed = {name: value for name, value in named.items() if value != parser.get_default(name)}
    options.more = "".join(f" --{name} {value:g}" for name, value in changed.items())
    options.more += " --elmo ELMO" if options.elmo else ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options.out.mkdir(parents=True, exist_ok=True)
    text = kept(options.out / "text.json", lambda: write_parts(options))
    arms, seeds = [*dict.fromkeys([*MODELS, *NOISES, *GRID.values()])], range(options.seeds)
    with ThreadPoolExecutor(options.jobs) as pool:
        tries = {(arm, rate): pool.submit(trained, options, arm, rate, 0) for arm in arms for rate in RATES[arm.part]}
        rates = chosen_rates({tried: future.result() for tried, future in tries.items()})
        jobs = {(arm, seed): pool.submit(trained, options, arm, rates[arm], seed) for seed in seeds for arm in arms}
        scores = {job: future.result() for job, future in jobs.items()}
    best = Arm("long", "skipgram")
    vectors, longest = run_folder(options, best, rates[best], 0), options.out / "long.txt"
    senses = kept(options.out / "senses.json", lambda: compare_senses(options, longest, vectors))
    if options.results:
        write_page(options, text, rates, scores, senses)


def write_parts(options: argparse.Namespace) -> str:
    """Write the texts, and the pair files without trailing blank rows; return a description of the longest text."""
    for stem in SETS.values():
        rows = (SCORED / "similarity" / f"{stem}.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        (options.out / f"{stem}.csv").write_text("".join(row for row in rows if ",,," not in row), encoding="utf-8")
    much = {name: int(part * options.megabytes * 1e6) for name, part in PARTS.items()}
    return [write_real_text(options.out / f"{name}.txt", num_bytes) for name, num_bytes in much.items()][-1]


def run_folder(options: argparse.Namespace, arm: Arm, rate: float, seed: int) -> Path:
    """Return the run folder of a training."""
    return options.out / "runs" / f"{arm}-{rate:g}-{seed}"


def trained(options: argparse.Namespace, arm: Arm, rate: float, seed: int) -> dict[str, Any]:
    """Train, and return the scores by column name."""
    folder = run_folder(options, arm, rate, seed)

    def make() -> dict[str, Any]:
        much = ("--negative", str(arm.negative), "--window", str(arm.window), "--size", str(arm.size))
        how = ("--model", arm.model, "--learning-rate", str(rate), "--epochs", str(options.epochs), *much)
        more = ("--seed", str(seed), "--json", *resumed(folder))
        told = json.loads(
            command("words", "train", str(options.out / f"{arm.part}.txt"), "--out", str(folder), *how, *more)
        )
        files = {name: options.out / f"{stem}.csv" for name, stem in SETS.items()}
        files |= write_bands(folder, files[MEN])
        wanted = [part for path in files.values() for part in ("--pairs", str(path))]
        wanted += ["--analogies", str(SCORED / "questions-words.txt")] if arm in MODELS else []
        found = json.loads(command("words", "evaluate", str(folder), *wanted, "--json"))
        scores: dict[str, Any] = {name: found[path.name]["spearman"] for name, path in files.items()}
        scores[AVERAGE] = fmean(scores[name] for name in (WORDSIM, SIMLEX, MEN))
        if arm in MODELS:
            scores[ANALOGIES] = found["questions-words.txt"]["accuracy"]
        known = {name: found[path.name]["pairs"] - found[path.name]["unknown"] for name, path in files.items()}
        return {**scores, _KNOWN: known, _WORDS: told["num_tokens"]}

    return kept(options.out / "scores" / f"{folder.name}.json", make)


def write_bands(folder: Path, pairs: Path) -> dict[str, Path]:
    """Write the pairs of each frequency band to a file, and return the files."""
    lines = (folder / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    counts = {word: int(count) for word, count in (line.rsplit(" ", 1) for line in lines)}
    bands = {name: folder / f"band-{number}.csv" for number, name in enumerate(BANDS)}
    for name, (low, high) in BANDS.items():
        with bands[name].open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("word1", "word2", "similarity"))
            for *words, score in read_pairs(pairs):
                if low <= min(counts.get(word.lower(), 0) for word in words) < high:
                    rows.writerow((*words, score))
    return bands


def chosen_rates(tries: dict[tuple[Arm, float], dict[str, Any]]) -> dict[Arm, float]:
    """Return, for each arm, the learning rate that scores best on the selection set."""
    arms = dict.fromkeys(arm for arm, _ in tries)
    return {arm: max(RATES[arm.part], key=lambda rate: tries[arm, rate][CHOOSES]) for arm in arms}


def model_trends(label: Callable[[str], str]) -> list[Trend]:
    """Return the claims about skip-gram compared with CBOW; `label` names a part of the text."""

    def lead(part: str, column: str) -> Measure:
        return above(str(Arm(part, "skipgram")), str(Arm(part, "cbow")), column)

    trends = []
    for part in PARTS:
        for column in (WORDSIM, SIMLEX, MEN, "RW", RARE, FREQUENT, ANALOGIES):
            trends.append(Trend(f"skip-gram is better, {label(part)}: {column}", lead(part, column)))
        wider = beyond(lead(part, RARE), lead(part, FREQUENT))
        trends.append(Trend(f"its lead is larger with rare words of MEN than with frequent ones, {label(part)}", wider))
    for column in (WORDSIM, SIMLEX, MEN):
        claim = f"its lead is larger on {label('short')} than on {label('long')}: {column}"
        trends.append(Trend(claim, beyond(lead("short", column), lead("long", column))))
    return trends


def noise_trends(label: Callable[[str], str]) -> list[Trend]:
    """Return the claims about the number of noise words."""

    def gain(part: str, more: int, few: int) -> Measure:
        return above(str(Arm(part, negative=more)), str(Arm(part, negative=few)), AVERAGE)

    trends = [
        Trend(f"{more} noise words are better than {few}, {label(part)}", gain(part, more, few))
        for part in ("short", "long")
        for more, few in ((2, 1), (5, 2), (10, 5), (20, 5))
    ]
    claim = f"20 in place of 5 bring more on {label('short')} than on {label('long')}"
    return [*trends, Trend(claim, beyond(gain("short", 20, 5), gain("long", 20, 5)))]


def mean_gain(pairs: Sequence[tuple[Arm, Arm]], column: str) -> Measure:
    """Return, seed by seed, the difference between the first and second of each pair, averaged over the pairs."""
    gains = [above(str(better), str(worse), column) for better, worse in pairs]
    return lambda scores: [fmean(values) for values in zip(*(gain(scores) for gain in gains), strict=True)]


def grid_trends() -> list[Trend]:
    """Return the claims about windows and sizes, each averaged over the other."""
    wide = [(GRID[WINDOWS[-1], size], GRID[WINDOWS[0], size]) for size in SIZES]
    narrow = [(worse, better) for better, worse in wide]
    trends = [Trend(f"a window of 10 is better than one of 2: {c}", mean_gain(wide, c)) for c in (RELATEDNESS, MEN)]
    trends += [
        Trend(f"a window of 2 is better than one of 10: {c}", mean_gain(narrow, c)) for c in (SIMILARITY, SIMLEX)
    ]
    for one, other in ((RELATEDNESS, SIMILARITY), (MEN, SIMLEX)):
        more = beyond(mean_gain(wide, one), mean_gain(wide, other))
        trends.append(Trend(f"a window of 10 in place of 2 brings more to {one} than to {other}", more))
    for small, large in pairwise(SIZES):
        pairs = [(GRID[window, large], GRID[window, small]) for window in WINDOWS]
        for column in (WORDSIM, SIMLEX, MEN):
            trends.append(Trend(f"size {large} is better than {small}: {column}", mean_gain(pairs, column)))
    return trends


def with_verdicts(trends: Sequence[Trend], scores: Scores, lines: list[str]) -> list[dict[str, Any]]:
    """Append a table of verdicts to the lines of the page, and return the verdicts."""
    verdicts = [trend.verdict(scores) for trend in trends]
    cells = [
        (v["claim"], v["verdict"], f"{v['mean']:+.3f} ± {v['standard_error']:.3f}" if "mean" in v else "-")
        for v in verdicts
    ]
    lines += table(("claim", "here", "mean ± standard error"), cells)
    return verdicts


def introduction(options: argparse.Namespace, text: str) -> list[str]:
    """Return the first lines of the page."""
    chance = float(student.sf(2, options.seeds - 1)) if options.seeds > 1 else 0.0
    tried = ", ".join(f"{name} text: {' and '.join(map(str, rates))}" for name, rates in RATES.items())
    return [
        "# Word vectors compared: models, noise words, windows and sizes, senses",
        "",
        "Generated by `python benchmarks/word_comparisons.py --out DIR --results "
        f"results/word_comparisons{options.more}`.",
        *paragraph(
            f"Do not edit. Text: {text}, and shorter parts from its start. Trained by `maskloom words train` with one "
            f"worker and {options.epochs} epochs; otherwise with the defaults: size 100, window 5, 5 noise words. Each "
            f"row uses the better of two learning rates, chosen on {CHOOSES} with the first seed ({tried}). Scores are "
            f"Spearman correlations: mean and standard deviation of {options.seeds} seeds."
        ),
        *paragraph(
            "Claims are tested on per-seed differences: *shown* means that the mean is more than two standard errors "
            f"above 0, *denied* that it is more than two below. If there is no real difference, {chance:.0%} of claims "
            "are shown by chance, and as many are denied. The spread over seeds does not show how scores would vary "
            "with other pairs of words."
        ),
    ]


def write_page(
    options: argparse.Namespace,
    text: str,
    rates: dict[Arm, float],
    runs: dict[tuple[Arm, int], dict[str, Any]],
    senses: dict[str, Any],
) -> None:
    """Write the results as JSON and as a Markdown page."""
    first = {arm: runs[arm, 0] for arm in rates}
    by_arm = {
        str(arm): {
            name: [runs[arm, seed][name] for seed in range(options.seeds)] for name in scores if name not in _ASIDE
        }
        for arm, scores in first.items()
    }

    def label(part: str) -> str:
        return f"{first[Arm(part)][_WORDS] / 1e6:.1f} M words"

    def rows(arms: Sequence[Arm], columns: Sequence[str], named: Callable[[Arm], Sequence[object]]) -> list[list[str]]:
        scores = [[spread(by_arm[str(arm)][column], 3) for column in columns] for arm in arms]
        return [[*map(str, named(arm)), f"{rates[arm]:g}", *cells] for arm, cells in zip(arms, scores, strict=True)]

    lines = introduction(options, text)
    lines += ["## CBOW and skip-gram by length of text", ""]
    lines += paragraph(
        "MEN's pairs are also grouped by the count of their rarer word in the text. Analogies: fraction correct."
    )
    three, verdicts = (WORDSIM, SIMLEX, MEN), {}
    columns = (*three, "RW", *BANDS, ANALOGIES)
    lines += table(("text", "model", "rate", *columns), rows(MODELS, columns, lambda arm: (label(arm.part), arm.model)))
    known = [(label(part), *(f"{first[Arm(part)][_KNOWN][name]:,}" for name in columns[:-1])) for part in PARTS]
    lines += [
        *paragraph("Number of pairs of known words (others are skipped):"),
        *table(("text", *columns[:-1]), known),
    ]
    verdicts["models"] = with_verdicts(model_trends(label), by_arm, lines)
    lines += ["## Number of noise words", "", *paragraph("CBOW. Claims are about the mean over the three sets.")]
    cells = rows(NOISES, (*three, AVERAGE), lambda arm: (label(arm.part), arm.negative))
    lines += table(("text", "noise words", "rate", *three, AVERAGE), cells)
    verdicts["noise words"] = with_verdicts(noise_trends(label), by_arm, lines)
    lines += ["## Window and size", "", *paragraph(f"CBOW, {label('middle')}. {_OF_MEANS}")]
    columns = (SIMILARITY, RELATEDNESS, *three)
    cells = rows([*GRID.values()], columns, lambda arm: (arm.window, arm.size))
    lines += table(("window", "size", "rate", *columns), cells)
    verdicts["window and size"] = with_verdicts(grid_trends(), by_arm, lines)
    lines += sense_lines(senses, options.seeds)
    verdicts["senses"] = with_verdicts(sense_trends(senses["scores"]), senses["scores"], lines)
    lines.append(f"{machine()}.")
    content: dict[str, Any] = {"text": text, "epochs": options.epochs}
    content |= {"rates": {str(arm): rate for arm, rate in rates.items()}, "scores": by_arm, "senses": senses}
    content |= {name: {part: first[Arm(part)][name] for part in PARTS} for name in _ASIDE}
    content["verdicts"] = verdicts
    write_results(options.results, content, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
