"""Train word vectors on the same text with the same settings, ours and gensim's with two workers, in turn.

The text is Wikipedia, split into words beforehand, so that both read the same words. Every training is a child process
that reports only the seconds of training, without vocabulary and files. Scores are those of the vectors of three seeds.
Memory is the peak resident memory of a whole training with a vocabulary of 500,000 words on an artificial text.
"""

from __future__ import annotations

import argparse
import platform
import re
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from child_processes import MEBIBYTE, measured
from rounds import MIN_ROUNDS, in_turn, order_said, quiet_load, reached
from surroundings import data_folder, processor, write_real_text, write_results

WORKERS, EPOCHS = 2, 5
SIDES = ("maskloom", "gensim")
MODELS = {"skipgram": (1.5, 2.0, 3.0), "cbow": (1.0, 1.3, 2.0)}
SETS = ("wordsim353", "simlex999", "men")
NUM_SEEDS, LARGE_VOCABULARY = 3, 500_000


def train(side: str, model: str, text: Path, out: Path, seed: int, epochs: int) -> float:
    """Train in this process, write the vectors to `out/vectors.bin`, and return the seconds of training."""
    if side == "gensim":
        from gensim.models import Word2Vec

        rate = 0.05 if model == "cbow" else 0.025
        keys = {"sg": int(model == "skipgram"), "alpha": rate, "workers": WORKERS, "seed": seed, "sample": 1e-3}
        peer = Word2Vec(vector_size=100, window=5, negative=5, min_count=5, min_alpha=rate * 1e-4, **keys)
        peer.build_vocab(corpus_file=str(text))
        start = time.perf_counter()
        counts = {"total_examples": peer.corpus_count, "total_words": peer.corpus_total_words}
        peer.train(corpus_file=str(text), epochs=epochs, **counts)
        seconds = time.perf_counter() - start
        out.mkdir()
        peer.wv.save_word2vec_format(str(out / "vectors.bin"), binary=True)
        return seconds
    from maskloom.runs.words import train_words
    from maskloom.words.settings import WordsRecipe

    recipe = WordsRecipe(model=model, epochs=epochs, workers=WORKERS, seed=seed, tokenize="spaces")
    return train_words(text, recipe, out=out)["seconds"]


def scores(out: Path) -> list[float]:
    """Return Spearman's correlation on each set; NaN for sets that are absent."""
    from maskloom.runs.words import evaluate_words

    paths = [data_folder() / "family" / "words" / "similarity" / f"{name}.csv" for name in SETS]
    found = evaluate_words(out, [path for path in paths if path.exists()]) if paths[0].exists() else {}
    return [found.get(path.name, {}).get("spearman", float("nan")) for path in paths]


def write_words(path: Path, num_bytes: int) -> str:
    """Write real text as lower-cased words separated by spaces, one paragraph per line."""
    said = write_real_text(path, num_bytes)
    lines = path.read_text(encoding="utf-8").lower().split("\n")
    cut = (" ".join(re.findall(r"[^\W_]+", line)) for line in lines)
    path.write_text("\n".join(filter(None, cut)) + "\n", encoding="utf-8")
    return said


def write_large_vocabulary(path: Path) -> None:
    """Write a text with 500,000 distinct words, each occurring at least five times."""
    draw = np.random.default_rng(0)
    tokens = np.concatenate([np.repeat(np.arange(LARGE_VOCABULARY), 5), draw.zipf(1.3, 1_000_000) % 1000])
    draw.shuffle(tokens)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(" ".join(f"word{n}" for n in line) + "\n" for line in np.array_split(tokens, 100_000))


def command(side: str, model: str, text: Path, out: Path, seed: int, epochs: int) -> list[str]:
    """Return the command that trains in a child process."""
    return [sys.executable, __file__, "--side", side, model, str(text), str(out), str(seed), str(epochs)]


def compare(model: str, text: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds of a model; the seeds of the first rounds provide the scores."""
    found: dict[str, Any] = {side: {"seconds": [], "scores": []} for side in SIDES}
    for number in range(max(options.rounds, NUM_SEEDS)):
        for side in in_turn(SIDES, number):
            out = folder / f"{model}-{side}-{number}"
            done = measured(command(side, model, text, out, number, options.epochs), {"OMP_NUM_THREADS": "1"})
            found[side]["seconds"].append(float(done.output.split()[-1]))
            if number < NUM_SEEDS:
                found[side]["scores"].append(scores(out / "vectors.bin"))
            print(f"{model}, {side}: {found[side]['seconds'][-1]:.1f} s, {scores(out / 'vectors.bin')}", flush=True)
    ratios = [b / a for a, b in zip(*(found[side]["seconds"] for side in SIDES), strict=True)]
    means = {side: np.mean(found[side]["scores"], 0).tolist() for side in SIDES}
    return {"model": model, "ratios": ratios, "means": means, "sides": found}


def peak_memory(folder: Path) -> dict[str, float]:
    """Return the peak memory of each side with a large vocabulary, in MiB."""
    text = folder / "large.txt"
    write_large_vocabulary(text)
    found = {}
    for side in SIDES:
        done = measured(command(side, "skipgram", text, folder / f"large-{side}", 0, 1), {"OMP_NUM_THREADS": "1"})
        found[side] = done.peak / MEBIBYTE
        print(f"memory, {side}: {found[side]:.0f} MiB", flush=True)
    return found


def summary(models: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the row of the README's table."""
    ratios = " / ".join(f"{statistics.median(row['ratios']):.2f}" for row in models)
    names = " / ".join(row["model"] for row in models)
    return [
        {
            "job": f"word vectors, {names}",
            "beside": "gensim, 2 workers",
            "result": f"{ratios} times the words per second",
        }
    ]


def report(result: dict[str, Any]) -> str:
    """Return the Markdown page."""
    lines = [
        "# Word vectors: maskloom against gensim",
        "",
        f"Generated by `{result['command']}`; do not edit.",
        "",
        f"- Machine: {result['machine']}; {result['versions']}. Load before the start, from other programs: "
        f"{result['load']:.1f}.",
        f"- Text: {result['text']}, {result['words']:,} words, lower-cased and without punctuation. Both sides: "
        f"{WORKERS} workers, size 100, window 5, 5 noise words, {result['epochs']} epochs; gensim reads with "
        "`corpus_file`, its fastest way, and has the learning rates of the C program. It splits the text into words in "
        "every epoch, within the time measured; maskloom does so once, before that, as it counts them.",
        f"- Medians of {order_said(result['rounds'])} Scores are means over {NUM_SEEDS} seeds. The target "
        "reached is the one that the lower end of the range reaches.",
        "",
        "| model | maskloom, words/s | gensim, words/s | ratio | range | reached (floor / target / stretch) |",
        "|---|---|---|---|---|---|",
    ]
    total = result["words"] * result["epochs"]
    for row in result["models"]:
        rates = [total / statistics.median(row["sides"][side]["seconds"]) for side in SIDES]
        ratio = statistics.median(row["ratios"])
        lines.append(
            f"| {row['model']} | {rates[0]:,.0f} | {rates[1]:,.0f} | **{ratio:.2f}** | "
            f"{min(row['ratios']):.2f}-{max(row['ratios']):.2f} | {reached(min(row['ratios']), MODELS[row['model']])} |"
        )
    lines += ["", f"| Spearman | {' | '.join(SETS)} |", "|---|---|---|---|"]
    for row in result["models"]:
        lines += [
            f"| {row['model']}, {side} | {' | '.join(f'{value:.3f}' for value in row['means'][side])} |"
            for side in SIDES
        ]
    ours, theirs = (result["memory"][side] for side in SIDES)
    lines += [
        "",
        f"Memory at a vocabulary of {LARGE_VOCABULARY:,} words, skip-gram: maskloom {ours:,.0f} MiB, gensim "
        f"{theirs:,.0f} MiB, {ours / theirs:.2f} times as much.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        side, model, text, out, seed, epochs = sys.argv[2:]
        print(train(side, model, Path(text), Path(out), int(seed), int(epochs)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=56.0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=MODELS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    load = quiet_load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = write_words(folder / "text.txt", int(options.megabytes * 1e6))
        result: dict[str, Any] = {
            "command": " ".join(["python benchmarks/words.py", *sys.argv[1:]]),
            "machine": f"{processor()}; Python {platform.python_version()}",
            "versions": ", ".join(f"{name} {metadata.version(name)}" for name in ("numba", "gensim", "numpy")),
            "load": load,
            "text": text,
            "words": len((folder / "text.txt").read_text(encoding="utf-8").split()),
            "epochs": options.epochs,
            "rounds": max(options.rounds, NUM_SEEDS),
            "memory": peak_memory(folder),
            "models": [compare(model, folder / "text.txt", folder, options) for model in options.models],
        }
    result["summary"] = summary(result["models"])
    write_results(options.out, result, report(result))
    print(report(result))


if __name__ == "__main__":
    main()
