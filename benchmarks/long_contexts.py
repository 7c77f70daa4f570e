"""Fine-tune both sides on COVID-QA and score them: questions on whole articles, from weights trained on SQuAD.

Training uses excerpts with the answer at a random position; dev has whole articles of other documents, each dozens of
windows long. Both sides start from the same encoder with a newly initialised head.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from finetuning_peer import train_with_transformers
from finetuning_tasks import TASKS

NUM_TRAIN, NUM_SEEDS = 768, 2
EXCERPT_CHARACTERS = 1200
LONGEST_ANSWER = 200  # in characters; a decoded answer has at most 30 pieces
SIDES = ("maskloom", "transformers")
_CHANGES = ('task="span"', "data.max_length=384", "span.stride=256", "training.epochs=2.0", "training.batch_size=16",
            "training.learning_rate=1e-4")  # fmt: skip


def compare_long_contexts(
    folder: Path, start: Path, documents: list[dict[str, Any]], every: int, recipe: Path, threads: int
) -> dict[str, Any]:
    """Fine-tune both sides with each seed, and return their scores; finished runs are recorded in `folder/runs.jsonl`.

    Every `every`-th document belongs to dev, with every second question of its paragraphs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train, dev = folder / "train.json", folder / "dev.json"
    if not dev.exists():
        train.write_text(json.dumps(_excerpts(documents, every)), encoding="utf-8")
        dev.write_text(json.dumps(_dev(documents, every)), encoding="utf-8")
    encoder = _without_head(start, folder / "encoder")
    log = folder / "runs.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for seed in range(NUM_SEEDS):
        for side in SIDES:
            if any((run["seed"], run["side"]) == (seed, side) for run in done):
                continue
            before = time.process_time()
            run_side = _run_maskloom if side == "maskloom" else _run_transformers
            scores = run_side(folder, encoder, train, dev, recipe, seed, threads)
            run = {"seed": seed, "side": side, **scores, "cpu_seconds": time.process_time() - before}
            done.append(run)
            with log.open("a", encoding="utf-8") as file:
                print(json.dumps(run), file=file)
            print(run, flush=True)
    found = {
        side: {
            name: {"mean": statistics.fmean(scores), "sd": statistics.stdev(scores)}
            for name in ("exact_match", "f1")
            for scores in [[run[name] for run in done if run["side"] == side]]
        }
        for side in SIDES
    }
    num_dev = sum(len(p["qas"]) for d in json.loads(dev.read_text())["data"] for p in d["paragraphs"])
    return {"sides": found, "num_train": NUM_TRAIN, "num_dev": num_dev, "num_seeds": NUM_SEEDS, "runs": done}


def _run_maskloom(
    folder: Path, encoder: Path, train: Path, dev: Path, recipe: Path, seed: int, threads: int
) -> dict[str, float]:
    from maskloom.config import FinetuneRecipe, load_recipe
    from maskloom.runs.finetune import LabelledFiles, finetune

    out = folder / f"maskloom-{seed}"
    chosen = load_recipe(FinetuneRecipe, recipe, [*_CHANGES, f"seed={seed}", f"training.num_threads={threads}"])
    data = LabelledFiles(train, dev)
    result = finetune(chosen, model=encoder, data=data, out=out, resume=(out / "run.json").exists())
    return {name: result["last"]["scores"][name] for name in ("exact_match", "f1")}


def _run_transformers(
    folder: Path, encoder: Path, train: Path, dev: Path, recipe: Path, seed: int, threads: int
) -> dict[str, float]:
    from maskloom.config import FinetuneRecipe, load_recipe

    torch.set_num_threads(threads)
    values = load_recipe(FinetuneRecipe, recipe, list(_CHANGES)).model_dump()
    scores = train_with_transformers(
        TASKS["SQuAD v1.1"], seed, encoder, train, dev, values, NUM_TRAIN, only_last_score=True
    )
    return {name: scores[-1][name] for name in ("exact_match", "f1")}


def _excerpts(documents: list[dict[str, Any]], every: int) -> dict[str, Any]:
    """Return excerpts around the answers of random questions on the documents outside dev."""
    draw = random.Random(0)
    questions = [
        (paragraph["context"], question)
        for number, document in enumerate(documents)
        if number % every
        for paragraph in document["paragraphs"]
        for question in paragraph["qas"]
    ]
    draw.shuffle(questions)
    found: list[dict[str, Any]] = []
    for context, question in questions:
        answer = question["answers"][0]
        text, first = answer["text"], answer["answer_start"]
        if not text or len(text) > LONGEST_ANSWER or context[first : first + len(text)] != text:
            continue
        begin = max(0, first - draw.randrange(EXCERPT_CHARACTERS - len(text)))
        begin = context.rfind(" ", 0, begin) + 1
        end = context.find(" ", max(begin + EXCERPT_CHARACTERS, first + len(text)))
        moved = {"text": text, "answer_start": first - begin}
        qas = [{"id": question["id"], "question": question["question"], "answers": [moved]}]
        found.append({"context": context[begin : end if end >= 0 else None], "qas": qas})
        if len(found) == NUM_TRAIN:
            break
    return {"version": "1.1", "data": [{"title": "excerpts", "paragraphs": found}]}


def _dev(documents: list[dict[str, Any]], every: int) -> dict[str, Any]:
    """Return whole articles with every second question of their paragraphs."""
    articles = [
        {"title": "article", "paragraphs": [{**p, "qas": p["qas"][::2]} for p in document["paragraphs"]]}
        for document in documents[::every]
    ]
    return {"version": "1.1", "data": articles}


def _without_head(source: Path, target: Path) -> Path:
    """Copy a model folder without the weights of its head, so that each side initialises a new one."""
    from safetensors.torch import load_file, save_file

    if not target.exists():
        target.mkdir()
        for name in ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            (target / name).write_bytes((source / name).read_bytes())
        weights = load_file(source / "model.safetensors")
        kept = {name: tensor for name, tensor in weights.items() if not name.startswith("qa_outputs.")}
        assert len(kept) < len(weights), "the model to start from has no head for spans"
        save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target
