"""Compare the scores of `maskloom vocab train`: pieces per word, unigram likelihood, and a short pre-training of each.

Every score selects a vocabulary from the same training text. The unigram likelihood on held-out documents uses the
frequencies of the pieces in the training text, with add-one smoothing. With each vocabulary of the smaller size, a BERT
tiny is trained with whole-word masking on the same number of characters in the same number of steps: coarser pieces
result in smaller batches. Losses are given per character, as pieces differ in length.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from real_text import write_mixed_text
from surroundings import processor, versions, write_results

from maskloom.checkpoints.huggingface import load_model
from maskloom.data.batch import PretrainingBatch
from maskloom.data.corpus.opening import Corpus
from maskloom.data.settings import PretrainingData
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.text.vocabulary import Vocabulary
from maskloom.training.loop import evaluate

SMALL, LARGE = 8_000, 30_000
SCORES = (("frequency", 2), ("likelihood", 2))
LENGTH, STEPS = 128, 600
MASKINGS = 5  # number of random maskings of the held-out text
HELD_OUT = 20  # every n-th document is held out
_BATCH = 64


def run(*arguments: object) -> dict[str, Any]:
    """Run a command of maskloom and return its JSON output."""
    command = [sys.executable, "-m", "maskloom", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def split_text(folder: Path, num_bytes: int) -> str:
    """Write train.txt and held_out.txt, and return a description of their text."""
    if (folder / "made_of.txt").exists():
        return (folder / "made_of.txt").read_text(encoding="utf-8")
    made_of = write_mixed_text(folder / "all.txt", num_bytes)
    documents = [text for text in (folder / "all.txt").read_text(encoding="utf-8").split("\n\n") if text.strip()]
    for name, chosen in (
        ("held_out", documents[::HELD_OUT]),
        ("train", [text for number, text in enumerate(documents) if number % HELD_OUT]),
    ):
        (folder / f"{name}.txt").write_text("\n\n".join(chosen) + "\n", encoding="utf-8")
    (folder / "made_of.txt").write_text(made_of, encoding="utf-8")
    return made_of


def lengths_of(vocabulary: Vocabulary) -> np.ndarray:
    """Return the number of characters of each piece; special tokens, including the unknown token, count as one."""
    special = vocabulary.special_ids
    texts = [token.removeprefix("##") for token in vocabulary.tokens]
    return np.array([1 if number in special else len(text) for number, text in enumerate(texts)])


def counts_of(corpus: Corpus) -> np.ndarray:
    """Return the number of occurrences of each piece in a corpus."""
    counts = np.zeros(len(corpus.vocabulary), np.int64)
    for first, last in zip(corpus.document_offsets, corpus.document_offsets[1:], strict=False):
        counts += np.bincount(corpus.sentences(int(first), int(last)), minlength=len(counts))
    return counts


def unigram_loss(train: Corpus, held_out: Corpus) -> float:
    """Return the nats per character of held-out text under the piece frequencies of the training text."""
    frequencies, counts = counts_of(train) + 1.0, counts_of(held_out)
    nats = -(counts * np.log(frequencies / frequencies.sum())).sum()
    return float(nats / (counts * lengths_of(held_out.vocabulary)).sum())


def masked_loss(model_folder: Path, held_out: Corpus) -> dict[str, float]:
    """Return the masked-LM loss of a model on held-out text, per piece and per masked character."""
    model, _ = load_model(model_folder, heads=("mlm",))
    lengths, seen = lengths_of(held_out.vocabulary), {"characters": 0, "pieces": 0}

    def watched() -> Iterator[PretrainingBatch]:
        # which words are masked depends on the pieces; several draws reduce that effect
        for seed in range(MASKINGS):
            loader = PRETRAINING["masked_lm"].loader(
                held_out,
                None,
                PretrainingData(
                    max_length=LENGTH, next_sentence=False, max_predictions_per_seq=20, whole_word_masking=True
                ),
                batch_size=_BATCH,
                seed=seed,
            )
            for batch in loader.epoch_batches(0):
                seen["characters"] += int(lengths[batch.mlm_labels].sum())
                seen["pieces"] += len(batch.mlm_labels)
                yield batch

    metrics = evaluate(model, MaskedLanguageModeling(pair_part=None), watched())
    nats = metrics["mlm_loss"] * seen["pieces"]
    return {"by_piece": metrics["mlm_loss"], "by_character": nats / seen["characters"], "pieces": seen["pieces"]}


def vocabulary_row(folder: Path, score: str, minimum: int, size: int) -> dict[str, Any]:
    """Train a vocabulary, build both corpora with it, and return its statistics."""
    place = folder / f"{score}-{minimum}-{size}"
    if (place / "row.json").exists():
        return json.loads((place / "row.json").read_text(encoding="utf-8"))
    options = ["--size", size, "--score", score, "--min-frequency", minimum, "--out", place / "vocabulary"]
    trained = run("vocab", "train", folder / "train.txt", *options)
    coverage = run("vocab", "inspect", place / "vocabulary", folder / "held_out.txt")["coverage"]
    for name in ("train", "held_out"):
        run("corpus", "build", folder / f"{name}.txt", "--vocab", place / "vocabulary", "--out", place / name)
    loss = unigram_loss(Corpus.open(place / "train"), Corpus.open(place / "held_out"))
    row = {"score": score, "min_frequency": minimum, "size": trained["size"], "folder": str(place)}
    row |= {name: coverage[name] for name in ("pieces_per_word", "characters_per_piece", "unknown_rate")}
    row |= {"train_pieces_per_word": trained["pieces_per_word"], "unigram_by_character": loss, "runs": []}
    (place / "row.json").write_text(json.dumps(row), encoding="utf-8")
    return row


def pretrain(row: dict[str, Any], characters: int, seed: int) -> None:
    """Pre-train a BERT tiny on the given number of characters and add its held-out loss to the row."""
    place = Path(row["folder"])
    tokens = characters / row["characters_per_piece"]
    batch_size = round(tokens / (STEPS * LENGTH))
    settings = {
        "seed": seed,
        "data.max_length": LENGTH,
        "data.whole_word_masking": "true",
        "data.next_sentence": "false",
        "data.held_out_fraction": 0,
        "training.steps": STEPS,
        "training.batch_size": batch_size,
        "training.learning_rate": 1e-3,
        "training.warmup_steps": STEPS // 10,
    }
    changes = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    out = place / f"bert-{seed}"
    if not (out / "metrics.json").exists():
        begun = ["--resume"] if (out / "recipe.toml").exists() else []
        run("pretrain", "--corpus", place / "train", "--out", out, "--size", "tiny", *changes, *begun)
    found = masked_loss(out / "model", Corpus.open(place / "held_out"))
    row["runs"].append({"seed": seed, "batch_size": batch_size, **found})


def report(result: dict[str, Any]) -> str:
    """Return the Markdown page of results."""
    load = f" Load at the start {result['load']:.2f}; no times are measured." if "load" in result else ""
    lines = [
        "# Which pair to merge: frequency or likelihood",
        "",
        f"Generated by `{result['command']}`; do not edit.",
        "",
        f"- Text: {result['text']}; every {HELD_OUT}th document is held out.",
        f"- Vocabularies of {SMALL:,} pieces; `frequency` merges the pair that occurs most often, `likelihood` the one "
        "that adds most to the log likelihood of the training text under a unigram model of its pieces.",
        "- With counts c of N pieces in all, that log likelihood is sum(c log c) - N log N. Merging a pair in "
        "n places subtracts n from the counts of a and b and from N, and adds n to that of ab; `likelihood` uses the "
        "exact change, about n log(n N / (freq(a) freq(b))) where n is small compared with freq(a) and freq(b).",
        "- The unigram loss is that of held-out text under the frequencies of pieces in the training text. Pieces are "
        "those of WordPiece encoding, the longest first.",
        f"- Pre-training: BERT tiny, {STEPS:,} steps of {LENGTH}-token rows, {result['characters'] / 1e6:.0f} million "
        f"characters each, whole words masked; {result['seeds']} seeds of `frequency` and `likelihood` (mean ± "
        "standard deviation). The loss is that of words of held-out documents, which are masked "
        f"{MASKINGS} times.",
        f"- Machine: {result['machine']}.{load}",
        "",
        "| score | least frequency | pieces per word | unigram loss, nats per character | rows per batch | "
        "masked-LM loss, nats per piece | masked-LM loss, nats per character |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        by_piece, by_character = (_spread(row["runs"], key) for key in ("by_piece", "by_character"))
        batch = row["runs"][0]["batch_size"]
        lines.append(
            f"| {row['score']} | {row['min_frequency']} | {row['pieces_per_word']:.3f} | "
            f"{row['unigram_by_character']:.4f} | {batch} | {by_piece} | **{by_character}** |"
        )
    lines += [
        "",
        f"The same with up to {LARGE:,} pieces, as long as pairs are frequent enough, without pre-training:",
        "",
        "| score | least frequency | pieces | pieces per word | pieces per word of training text | "
        "unigram loss, nats per character |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["large"]:
        lines.append(
            f"| {row['score']} | {row['min_frequency']} | {row['size']:,} | {row['pieces_per_word']:.3f} | "
            f"{row['train_pieces_per_word']:.3f} | {row['unigram_by_character']:.4f} |"
        )
    return "\n".join([*lines, "", *result["conclusion"]]) + "\n"


def _spread(runs: list[dict[str, Any]], key: str) -> str:
    values = [each[key] for each in runs]
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def conclusion(rows: list[dict[str, Any]]) -> list[str]:
    """Say which score has the lowest loss per character, and whether the variation over seeds leaves this undecided."""
    means = {
        (row["score"], row["min_frequency"]): statistics.mean(each["by_character"] for each in row["runs"])
        for row in rows
    }
    best, frequency = min(means, key=means.__getitem__), means["frequency", 2]
    noise = max(statistics.stdev(each["by_character"] for each in row["runs"]) for row in rows)
    lines = [f"Lowest masked-LM loss per character: `{best[0]}`, {frequency - means[best]:.4f} below `frequency`."]
    difference = means["likelihood", 2] - frequency
    is_open = abs(difference) <= 2 * noise
    lines.append(
        f"The loss of `likelihood` differs from that of `frequency` by {difference:+.4f} nats per character, "
        f"{'at most' if is_open else 'more than'} twice the standard deviation over seeds."
    )
    lines.append(
        "These models are at the start of their training, where the frequencies of pieces are most of what they know. "
        "Why `frequency` stays the default: "
        "[README.md](README.md#where-building-vocabularies-and-corpora-spends-its-time)."
    )
    return lines


def main() -> None:
    """Parse the options, train everything, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=12, help="text, held-out documents included (default 12)")
    parser.add_argument("--characters", type=int, default=8_000_000, help="what each pre-training sees")
    parser.add_argument("--seeds", type=int, default=2, help="pre-trainings of each vocabulary (default 2)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"), help="page to write")
    parser.add_argument("--work", type=Path, help="folder that keeps what is done, to go on when stopped")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds must be at least 2, to know their noise")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = options.work or Path(name)
        folder.mkdir(exist_ok=True)
        text = split_text(folder, options.megabytes * 1_000_000)
        large = [vocabulary_row(folder, score, minimum, LARGE) for score, minimum in SCORES]
        rows = [vocabulary_row(folder, score, minimum, SMALL) for score, minimum in SCORES]
        for seed in range(options.seeds):
            for row in rows:
                pretrain(row, options.characters, seed)
                print(row["score"], row["min_frequency"], row["runs"][-1], flush=True)
    for row in (*rows, *large):
        row.pop("folder")
    result = {
        "command": "python benchmarks/vocabulary_scores.py"
        + "".join(f" --{name} {getattr(options, name)}" for name in ("megabytes", "characters", "seeds")),
        "machine": f"{processor()}; {versions()}",
        "load": load,
        "text": text,
        "characters": options.characters,
        "seeds": options.seeds,
        "rows": rows,
        "large": large,
        "conclusion": conclusion(rows),
    }
    write_results(options.out, result, report(result))
    print(report(result))


if __name__ == "__main__":
    main()
