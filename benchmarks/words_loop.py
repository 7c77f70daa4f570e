"""The inner loop of skip-gram: compiled by numba against batched NumPy and torch, its losses, and several workers.

    python benchmarks/words_loop.py --out benchmarks/words_loop

All three sides of negative sampling have the same text, vocabulary, sizes and one thread. NumPy and torch process pairs
in batches, whose words and noise words are drawn before the clock starts, and sum all updates of a batch. The loop
draws its own and updates after every pair, like word2vec. The compiled loop then trains with each loss at several sizes
of the vocabulary, and whole trainings compare two workers that always give the same vectors with two that share their
matrices.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rounds import MIN_ROUNDS, in_turn, order_said, quiet_load
from surroundings import processor, write_real_text, write_results

from maskloom.text.normalization import words as words_of
from maskloom.words import kernel
from maskloom.words.settings import WordsRecipe
from maskloom.words.training import WordTraining, make_tables

SIZE, WINDOW, NEGATIVE, VOCABULARY, BATCH = 100, 5, 5, 30_000, 1024
_BLOCK, _BLOCKS, _BATCHES = 10_000, 40, 400
_RATE = 0.025
_LOSSES = {"negative": kernel.NEGATIVE, "hierarchical": kernel.HIERARCHICAL, "softmax": kernel.SOFTMAX}
_SIZES = (1000, 5000, 20_000)
_TOKENS_OF_LOSS = {"negative": 200_000, "hierarchical": 100_000, "softmax": 400}


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the page, without its suffix")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        text = write_real_text(Path(folder) / "text.txt", 20_000_000)
        tokens, counts = _numbered(Path(folder) / "text.txt")
    draw = np.random.default_rng(0)
    vectors = ((draw.random((len(counts), SIZE)) - 0.5) / SIZE).astype(np.float32)
    outputs = np.zeros_like(vectors)
    centers, targets = _pairs(tokens, counts, draw)
    sides: dict[str, Callable[[], int]] = {
        "numba": lambda: _by_numba(tokens, counts, vectors.copy(), outputs.copy()),
        "NumPy": lambda: _by_numpy(centers, targets, vectors.copy(), outputs.copy()),
        "torch": lambda: _by_torch(
            centers, targets, torch.from_numpy(vectors.copy()), torch.from_numpy(outputs.copy())
        ),
    }
    by_size = {
        f"{loss}, {num_words:,}": (lambda loss=loss, num_words=num_words: _by_loss(tokens, counts, loss, num_words))
        for loss in _LOSSES
        for num_words in _SIZES
    }
    by_workers = {
        name: (lambda is_fixed=is_fixed: _by_workers(tokens, counts, deterministic=is_fixed))
        for name, is_fixed in (("shared", False), ("deterministic", True))
    }
    load = quiet_load()
    rates = {
        name: measured(group, options.rounds)
        for name, group in (("rates", sides), ("losses", by_size), ("workers", by_workers))
    }
    machine = f"{processor()}; numba {version('numba')}, NumPy {np.__version__}, torch {torch.__version__}"
    machine += f"; Python {platform.python_version()}; load before the start {load:.2f}"
    _write_page(options.out, rates, machine, text)


def measured(sides: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """Return what each side does in a second, per round; a round before the first warms up and compiles."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-1, rounds):
        for name in in_turn(list(sides), number):
            started = time.perf_counter()
            done = sides[name]()
            if number >= 0:
                rates[name].append(done / (time.perf_counter() - started))
    return rates


def _numbered(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return a text as word ids, with -1 after each line, and the count of each word in the vocabulary."""
    lines = [words_of(line, lowercase=True) for line in path.read_text(encoding="utf-8").splitlines() if line]
    known = Counter(word for line in lines for word in line).most_common(VOCABULARY)
    numbers = {word: number for number, (word, _) in enumerate(known)}
    tokens = [number for line in lines for number in [*(numbers[word] for word in line if word in numbers), -1]]
    return np.array(tokens, np.int32), np.array([count for _, count in known])


def _pairs(tokens: np.ndarray, counts: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return center words (pairs,) and, for each, its context word followed by noise words, (pairs, 1 + noise)."""
    number = BATCH * _BATCHES
    places = draw.integers(WINDOW, len(tokens) - WINDOW, 4 * number)
    others = places + draw.integers(1, WINDOW + 1, len(places)) * draw.choice([-1, 1], len(places))
    kept = (tokens[places] >= 0) & (tokens[others] >= 0)
    centers, words = tokens[places[kept]][:number], tokens[others[kept]][:number]
    weights = counts.astype(np.float64) ** 0.75
    noise = draw.choice(len(counts), (number, NEGATIVE), p=weights / weights.sum())
    return centers.astype(np.int64), np.concatenate([words[:, None], noise], 1).astype(np.int64)


def _by_numba(tokens: np.ndarray, counts: np.ndarray, vectors: np.ndarray, outputs: np.ndarray) -> int:
    tables = make_tables(WordsRecipe(), counts)
    options = kernel.Options(False, kernel.NEGATIVE, WINDOW, NEGATIVE, False, False, np.float32(_RATE))
    train, done = kernel.compiled(), 0
    for block in range(_BLOCKS):
        part = tokens[block * _BLOCK : (block + 1) * _BLOCK]
        done += train(vectors, outputs, part, tables, options, np.uint64(block))[1]
    return done


def _by_loss(tokens: np.ndarray, counts: np.ndarray, loss: str, num_words: int) -> int:
    """Train on part of the text with the most frequent words only; return the number of pairs."""
    recipe, kept = WordsRecipe(loss=loss, sample=0.0), tokens[tokens < num_words][: _TOKENS_OF_LOSS[loss]]  # type: ignore[arg-type]
    options = kernel.Options(False, _LOSSES[loss], WINDOW, NEGATIVE, False, False, np.float32(_RATE))
    vectors, outputs = np.full((num_words, SIZE), 0.01, np.float32), np.zeros((num_words, SIZE), np.float32)
    return kernel.compiled()(vectors, outputs, kept, make_tables(recipe, counts[:num_words]), options, np.uint64(0))[1]


def _by_workers(tokens: np.ndarray, counts: np.ndarray, *, deterministic: bool) -> int:
    """Train on the whole text with two workers; return the number of words."""
    training = WordTraining(WordsRecipe(workers=2, deterministic=deterministic, epochs=1), counts, tokens)
    for _ in training.rounds():
        pass
    return int((tokens >= 0).sum())


def _by_numpy(centers: np.ndarray, targets: np.ndarray, vectors: np.ndarray, outputs: np.ndarray) -> int:
    labels = np.zeros(1 + NEGATIVE, np.float32)
    labels[0] = 1.0
    for first in range(0, len(centers), BATCH):
        words, wanted = centers[first : first + BATCH], targets[first : first + BATCH]
        hidden, rows = vectors[words], outputs[wanted]
        scores = np.einsum("bd,bnd->bn", hidden, rows)
        steps = np.float32(_RATE) * (labels - 1.0 / (1.0 + np.exp(-scores)))
        np.add.at(vectors, words, np.einsum("bn,bnd->bd", steps, rows))
        np.add.at(outputs, wanted.ravel(), (steps[:, :, None] * hidden[:, None]).reshape(-1, SIZE))
    return len(centers)


@torch.no_grad()
def _by_torch(centers: np.ndarray, targets: np.ndarray, vectors: torch.Tensor, outputs: torch.Tensor) -> int:
    labels = torch.zeros(1 + NEGATIVE)
    labels[0] = 1.0
    all_words, all_wanted = torch.from_numpy(centers), torch.from_numpy(targets)
    for words, wanted in zip(all_words.split(BATCH), all_wanted.split(BATCH), strict=True):
        hidden, rows = vectors[words], outputs[wanted]
        scores = torch.bmm(rows, hidden[:, :, None])[:, :, 0]
        steps = _RATE * (labels - torch.sigmoid(scores))
        vectors.index_add_(0, words, torch.bmm(steps[:, None], rows)[:, 0])
        outputs.index_add_(0, wanted.flatten(), (steps[:, :, None] * hidden[:, None]).reshape(-1, SIZE))
    return len(centers)


def _write_page(out: Path, rates: dict[str, dict[str, list[float]]], machine: str, text: str) -> None:
    sides, losses, workers = rates["rates"], rates["losses"], rates["workers"]
    lines = [
        "# The inner loop of word vectors",
        "",
        f"Generated by `python benchmarks/words_loop.py --out benchmarks/{out.name}`; do not edit.",
        "",
        f"{order_said(len(sides['numba']))} Skip-gram, {NEGATIVE} noise words, size {SIZE}, a vocabulary of "
        f"{VOCABULARY:,}; batches of {BATCH:,} pairs, one thread. Pairs per second, medians; the ratio is numba's "
        f"rate divided by the side's, with its range. {text}.",
        "",
        "| side | pairs/s | numba / side |",
        "|---|---:|---|",
    ]
    for name, found in sides.items():
        lines.append(f"| {name} | {median(found):,.0f} | {_ratio(sides['numba'], found) if name != 'numba' else '-'} |")
    lines += [
        "",
        "Microseconds per pair by vocabulary size, with the range; one thread, without subsampling:",
        "",
        f"| loss | {' | '.join(f'{size:,} words' for size in _SIZES)} |",
        f"|---|{'---|' * len(_SIZES)}",
    ]
    for loss in _LOSSES:
        cells = (sorted(1e6 / rate for rate in losses[f"{loss}, {size:,}"]) for size in _SIZES)
        lines.append(f"| {loss} | {' | '.join(f'{median(us):.2f} ({us[0]:.2f}-{us[-1]:.2f})' for us in cells)} |")
    slowed = _ratio(workers["deterministic"], workers["shared"])
    lines += [
        "",
        f"Two workers, whole trainings of one epoch: {median(workers['shared']):,.0f} words per second with shared "
        f"matrices, {median(workers['deterministic']):,.0f} with `--deterministic`, a ratio of {slowed}.",
        "",
        f"{machine}.",
        "",
    ]
    write_results(out, {"machine": machine, **rates}, "\n".join(lines))


def _ratio(ours: list[float], theirs: list[float]) -> str:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    main()
