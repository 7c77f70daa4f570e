"""Compare BART's noising schemes at equal steps (Lewis et al. 2019, section 4) on classification and summarisation.

A BART of two layers, 128 wide, is pre-trained with each noise on English Wikipedia, with the same seeds and number of
steps. Each is fine-tuned, as is one with random weights: on 2,000 film reviews of MR, scored by accuracy, and on 700
dialogues of SAMSum, scored by perplexity and ROUGE-L of their summaries. Test texts are not used to select weights.
Every run is a command in a process of one thread. Finished runs are stored under --out and are not repeated.

    python benchmarks/denoising.py --out ~/denoising --results results/denoising
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from surroundings import data_folder, machine, parser_of_runs, write_real_text, write_results
from translation import command, resumed, spread

from maskloom.reproduce.experiments import Trend, above, below

_QUIET = {"permute_sentences": 0.0, "infill_rate": 0.0, "random_rate": 0.0, "span_length": 3.0}
_NOISES: dict[str, dict[str, float] | None] = {
    "none": None,
    "token masking": {"mask_rate": 0.3},
    "token deletion": {"delete_rate": 0.3},
    "text infilling": {"infill_rate": 0.3},
    "document rotation": {"rotate_rate": 1.0},
    "sentence permutation": {"permute_sentences": 1.0},
    "infilling and permutation": {"infill_rate": 0.3, "permute_sentences": 1.0},
}
_SEQ2SEQ = ("seq2seq.max_target_length=64", "seq2seq.beam=1", "seq2seq.length_penalty=0")
# Each task: its kind, its score, the epochs, the longest source in tokens, and further settings.
_TASKS: dict[str, tuple[str, str, float, int, Sequence[str]]] = {
    "MR": ("single", "accuracy", 3.0, 64, ()),
    "SAMSum": ("seq2seq", "rougeL", 4.0, 256, _SEQ2SEQ),
}
# Columns of the page: the task, its score, and whether higher is better.
_COLUMNS = {
    "MR accuracy": ("MR", "accuracy", True),
    "SAMSum perplexity": ("SAMSum", "perplexity", False),
    "SAMSum ROUGE-L": ("SAMSum", "rougeL", True),
}
# Initial weights and learning rate are those of recipes/bart-mini.toml. With a standard deviation of 0.02 and a rate of
# 2e-3, many runs of this size never get below the loss of predicting each token by its frequency.
_ROWS, _RATE = 16, "1e-3"
_MODEL = {
    "hidden_dropout_prob": 0.0,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.05,
}


def _trends() -> list[Trend]:
    """Return the claims of the paper's Table 1, for each column of the page."""
    claims = (
        ("pre-training with text infilling helps", "text infilling", "none"),
        ("token masking is better than rotation alone", "token masking", "document rotation"),
        ("token masking is better than permutation alone", "token masking", "sentence permutation"),
        ("text infilling is better than rotation alone", "text infilling", "document rotation"),
        ("text infilling is better than permutation alone", "text infilling", "sentence permutation"),
    )
    return [
        Trend(f"{claim} ({column})", (above if is_more else below)(better, worse, column))
        for column, (_, _, is_more) in _COLUMNS.items()
        for claim, better, worse in claims
    ]


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = parser_of_runs(__doc__, seeds=3, jobs=2)
    parser.add_argument("--steps", type=int, default=1000, help="steps of every pre-training, of 16 x 128 tokens")
    parser.add_argument("--megabytes", type=float, default=20.0, help="text to pre-train on")
    parser.add_argument("--examples", type=int, help="at most so many to fine-tune on and to score, for a trial")
    options = parser.parse_args()
    named = {name: getattr(options, name) for name in ("steps", "seeds", "megabytes", "examples")}
    changed = {name: value for name, value in named.items() if value != parser.get_default(name)}
    options.more = "".join(f" --{name} {value}" for name, value in changed.items())
    options.out.mkdir(parents=True, exist_ok=True)
    text = prepare(options)
    seeds = range(options.seeds)
    with ThreadPoolExecutor(options.jobs) as pool:
        made = {(noise, seed): pool.submit(pretrained, options, noise, seed) for seed in seeds for noise in _NOISES}
        seconds = {job: future.result() for job, future in made.items()}
        jobs = {(*job, task): pool.submit(fine_tuned, options, *job, task) for job in made for task in _TASKS}
        scores = {job: future.result() for job, future in jobs.items()}
    if options.results:
        write_page(options, text, seconds, scores)


def prepare(options: argparse.Namespace) -> str:
    """Write the text, the corpus and the examples; return a description of the text."""
    out, said = options.out, options.out / "text.json"
    if said.exists():
        return json.loads(said.read_text(encoding="utf-8"))
    text = write_real_text(out / "text.txt", int(options.megabytes * 1e6))
    command("vocab", "train", str(out / "text.txt"), "--size", "4000", "--out", str(out / "vocab"))
    command("corpus", "build", str(out / "text.txt"), "--vocab", str(out / "vocab"), "--out", str(out / "corpus"))
    family = data_folder() / "family"
    reviews = (family / "sentiment" / "sent_conv" / "rt-polarity.all").read_text("latin-1").rstrip("\n").split("\n")
    rows = [dict(zip(("label", "text"), line.split(" ", 1), strict=True)) for line in reviews]
    random.Random(0).shuffle(rows)
    write_parts(options, "MR", rows[2000:4000], rows[1000:1500], rows[:1000])
    parts = {}
    for name in ("validation", "test"):
        path = family / "generation" / "samsum" / f"{name}.jsonl"
        dialogues = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        parts[name] = [{"source": row["context"], "target": row["response"]} for row in dialogues]
    validation = parts["validation"]
    write_parts(options, "SAMSum", validation[:700], validation[700:], parts["test"][:300])
    said.write_text(json.dumps(text), encoding="utf-8")
    return text


def write_parts(options: argparse.Namespace, task: str, *parts: list[dict[str, str]]) -> None:
    """Write the training, dev and test examples of a task."""
    for name, rows in zip(("train", "dev", "test"), parts, strict=True):
        lines = (json.dumps(row) + "\n" for row in rows[: options.examples])
        (options.out / f"{task}-{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """Return the content of a JSON file, computing and storing it first when the file does not exist."""
    if not path.exists():
        made = make()
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(made) + "\n", encoding="utf-8")
        print(f"{path.stem}: {made}", flush=True)
    return json.loads(path.read_text(encoding="utf-8"))


def settings(*values: str) -> list[str]:
    """Return options that set recipe keys, including a single thread per run."""
    return [part for value in (*values, "training.num_threads=1") for part in ("--set", value)]


def run_folder(options: argparse.Namespace, noise: str, seed: int, task: str = "") -> Path:
    """Return the folder of a run."""
    return options.out / "runs" / f"{noise} {task}{seed}".replace(" ", "-")


def pretrained(options: argparse.Namespace, noise: str, seed: int) -> float | None:
    """Pre-train with a noise and return the seconds; None for random weights and for a run that was resumed."""
    own, folder = _NOISES[noise], run_folder(options, noise, seed)
    if own is None:
        return None

    def make() -> float | None:
        goes_on, began = resumed(folder), time.perf_counter()
        noises = [f"denoising.{key}={value}" for key, value in {**_QUIET, **own}.items()]
        model = [f"model.config.{key}={value}" for key, value in _MODEL.items()]
        often = ("training.save_every=100", f"training.evaluate_every={options.steps}")
        values = settings("objective=denoising", "model.architecture=bart", *noises, *model, *often)
        much = ("--size", "tiny", "--steps", str(options.steps), "--batch-size", str(_ROWS), "--learning-rate", _RATE)
        more = (*much, "--max-length", "128", "--seed", str(seed), *goes_on)
        command("pretrain", "--corpus", str(options.out / "corpus"), "--out", str(folder), *more, *values)
        return None if goes_on else time.perf_counter() - began

    return kept(options.out / "scores" / f"{folder.name}.json", make)


def held_out_loss(options: argparse.Namespace, noise: str, seed: int) -> float:
    """Return the last held-out loss of a pre-training run."""
    metrics = run_folder(options, noise, seed) / "metrics.json"
    return json.loads(metrics.read_text(encoding="utf-8"))["denoising_loss"]


def fine_tuned(options: argparse.Namespace, noise: str, seed: int, task: str) -> dict[str, float]:
    """Fine-tune on a task and return the test scores."""
    kind, metric, epochs, longest, more = _TASKS[task]
    folder, starts_anew = run_folder(options, noise, seed, f"{task} "), _NOISES[noise] is None
    start = run_folder(options, "text infilling" if starts_anew else noise, seed)

    def make() -> dict[str, float]:
        files = [str(options.out / f"{task}-{name}.jsonl") for name in ("train", "dev", "test")]
        values = settings(*more, *(("from_scratch=true",) if starts_anew else ()))
        much = ("--epochs", str(epochs), "--batch-size", "16", "--learning-rate", "5e-4", "--max-length", str(longest))
        how = ("--task", kind, "--metric", metric, "--seed", str(seed), *much, *resumed(folder), *values)
        command("finetune", "--model", str(start), "--train", files[0], "--dev", files[1], "--out", str(folder), *how)
        found = json.loads(command("evaluate", "--model", str(folder), "--data", files[2], "--json"))
        return {**found, "perplexity": math.exp(found["loss"])}

    return kept(options.out / "scores" / f"{folder.name}.json", make)


def write_page(
    options: argparse.Namespace,
    text: str,
    seconds: dict[tuple[str, int], float | None],
    scores: dict[tuple[str, int, str], dict[str, float]],
) -> None:
    """Write the results as JSON and as a Markdown page."""
    by_arm = {
        noise: {
            column: [scores[noise, seed, task][score] for seed in range(options.seeds)]
            for column, (task, score, _) in _COLUMNS.items()
        }
        for noise in _NOISES
    }
    trained = [noise for noise, own in _NOISES.items() if own is not None]
    losses = {noise: [held_out_loss(options, noise, seed) for seed in range(options.seeds)] for noise in trained}
    verdicts = [trend.verdict(by_arm) for trend in _trends()]
    lines = [
        "# BART's types of noise compared",
        "",
        f"Generated by `python benchmarks/denoising.py --out DIR --results results/denoising{options.more}`;",
        "do not edit.",
        "A BART with two layers of width 128 in encoder and decoder was pre-trained with each type of noise for",
        f"{options.steps} steps of {_ROWS} sequences of 128 tokens ({text}), then fine-tuned",
        "on 2,000 reviews of MR and on 700 dialogues of SAMSum; *none* is fine-tuned from random weights. It shows",
        f"the mean and standard deviation over {options.seeds} seeds, which affect pre-training too, on test sets that",
        "were not used to select anything. Summaries are generated greedily. Minutes are those of uninterrupted runs.",
        "The held-out loss is that of restoring held-out texts, in nats per token, with the noise of the row: it shows",
        "that each model learned, but some noises are easier to undo than others.",
        "",
        f"| noise | {' | '.join(_COLUMNS)} | held-out loss | minutes of pre-training |",
        "|---|---|---|---|---|---|",
    ]
    for noise, columns in by_arm.items():
        cells = [spread(columns[column], 3 if column == "MR accuracy" else 1) for column in _COLUMNS]
        whole = [value / 60 for seed in range(options.seeds) if (value := seconds[noise, seed]) is not None]
        more = [spread(values) if values else "-" for values in (losses.get(noise), whole)]
        lines.append(f"| {noise} | {' | '.join([*cells, *more])} |")
    lines += [
        "",
        "Claims of the paper about its Table 1, tested on per-seed differences: *shown* means that the mean is",
    ]
    lines += ["more than two standard errors above 0, *denied* that it is more than two below.", ""]
    lines += ["| claim | here | mean ± standard error |", "|---|---|---|"]
    for verdict in verdicts:
        measured = f"{verdict['mean']:.3f} ± {verdict['standard_error']:.3f}" if "mean" in verdict else "-"
        lines.append(f"| {verdict['claim']} | {verdict['verdict']} | {measured} |")
    lines += ["", f"{machine()}."]
    content = {"steps": options.steps, "text": text, "scores": by_arm, "held_out_losses": losses, "verdicts": verdicts}
    content["seconds"] = {f"{noise}, seed {seed}": value for (noise, seed), value in seconds.items()}
    write_results(options.results, content, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
