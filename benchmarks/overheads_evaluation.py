"""Evaluation from a model folder and a file to scores, against transformers' Trainer.evaluate; prints JSON."""

from __future__ import annotations

import argparse
import csv
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rounds import in_turn
from surroundings import data_folder, minilm_folder

from maskloom.config import FinetuneRecipe
from maskloom.inference import Predictor
from maskloom.runs.evaluate import evaluate
from maskloom.runs.finetune import LabelledFiles, finetune
from maskloom.tasks.kinds import task_kind
from maskloom.tasks.tables import ReadingOptions

# A GLUE file, its text columns, and its label column.
TASKS = {
    "SST-2": ("sst-2", ("sentence",), "label"),
    "MRPC": ("mrpc", ("#1 String", "#2 String"), "Quality"),
}
LENGTH = 128


def make_model(name: str, dev: Path, folder: Path) -> Path:
    """Return a folder, readable by both sides, with the MiniLM weights and a classifier trained for one step."""
    recipe = FinetuneRecipe.model_validate(
        {"task": "pair" if len(TASKS[name][1]) == 2 else "single", "training": {"steps": 1, "batch_size": 8}}
    )
    data = LabelledFiles(dev, dev, ReadingOptions(format=TASKS[name][0]))
    finetune(recipe, model=minilm_folder(), data=data, out=folder)
    return folder / "model"


def peer_evaluates(name: str, model: Path, dev: Path, folder: Path) -> dict[str, float]:
    """Read, tokenize and evaluate like a script using Trainer, with its default batch size of 8 and dynamic padding."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    _, columns, label = TASKS[name]
    with dev.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    tokenizer = AutoTokenizer.from_pretrained(model)
    encoded = tokenizer(*([row[column] for row in rows] for column in columns), truncation=True, max_length=LENGTH)
    labels = [int(row[label]) for row in rows]
    examples = [{**{key: encoded[key][i] for key in encoded}, "label": labels[i]} for i in range(len(rows))]
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(model),
        args=TrainingArguments(output_dir=str(folder), report_to="none", disable_tqdm=True, use_cpu=True),
        eval_dataset=examples,  # pyright: ignore[reportArgumentType]
        processing_class=tokenizer,
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )
    trainer.remove_callback(PrinterCallback)
    return trainer.evaluate()


def measure(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Time both sides in turn; their scores must agree, and the first round is dropped."""
    dev = data_folder() / "glue" / name / "dev.tsv"
    model = make_model(name, dev, folder / "run")
    reading = ReadingOptions(format=TASKS[name][0])

    def timed(run: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], float, float]:
        started, used = time.perf_counter(), time.process_time()
        result = run()
        return result, time.perf_counter() - started, time.process_time() - used

    found: dict[str, Any] = {"name": name, "ours": [], "peer": [], "processor_ratios": []}
    for number in range(rounds + 1):
        sides: dict[str, Callable[[], dict[str, Any]]] = {
            "ours": lambda: evaluate(model, dev, reading=reading, max_length=LENGTH),
            "peer": lambda: peer_evaluates(name, model, dev, folder / "trainer"),
        }
        results = {side: timed(sides[side]) for side in in_turn(list(sides), number)}
        (ours, our_seconds, our_used), (peer, peer_seconds, peer_used) = results["ours"], results["peer"]
        if abs(ours["accuracy"] - peer["eval_accuracy"]) > 1e-9 or abs(ours["loss"] - peer["eval_loss"]) > 1e-4:
            raise SystemExit(f"{name}: the scores differ: {ours} and {peer}")
        if number:
            found["ours"].append(our_seconds)
            found["peer"].append(peer_seconds)
            found["processor_ratios"].append(peer_used / our_used)
    predictor = Predictor.load(str(model))
    task = predictor.required_task()
    lengths = predictor.encoded(task_kind(task.kind).read(dev, reading, task.settings)).lengths
    found |= {"num_examples": ours["num_examples"], "num_tokens": int(np.sum(lengths))}
    return {**found, "accuracy": ours["accuracy"], "loss_difference": abs(ours["loss"] - peer["eval_loss"])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if options.threads > 1 else "false"
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps([measure(name, options.rounds, Path(temporary) / name) for name in options.tasks]))
