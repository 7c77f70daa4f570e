"""The stages of the quick start, one after the other, and what a person reads at its end."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from maskloom.config import FinetuneRecipe, Section, load_recipe, recipe_toml
from maskloom.data.corpus.building import CorpusSettings
from maskloom.data.counter_random import Permutation
from maskloom.errors import ConfigError
from maskloom.inference import Predictor
from maskloom.quickstart.documentation import gather_documents, write_documents
from maskloom.quickstart.tasks import build_tasks
from maskloom.runs.charts import DotRow, dot_chart, page_template
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.runs.display import Progress, stage_callback
from maskloom.runs.finetune import LabelledFiles, finetune
from maskloom.runs.pretrain import pretrain
from maskloom.runs.recipes import KINDS
from maskloom.runs.report.page import charts_of
from maskloom.runs.report.record import read_run
from maskloom.runs.run_folder import RECIPE
from maskloom.system.files import write_json, write_text
from maskloom.system.folder_lock import LOCK, alone_in_folder
from maskloom.system.foreign_files import read_json_object
from maskloom.system.worker_processes import Work
from maskloom.text.vocabulary_training import VocabularySettings

VOCABULARY_SIZE = 8000
TASKS: dict[str, Literal["single", "pair"]] = {"sentence": "single", "pair": "pair"}
OURS = (
    "Returns a [MASK] of strings.",
    "If [MASK], the output is written to a file.",
    "The [MASK] of the matrix must be positive.",
    "This function is [MASK] since version 3.",
    "The name of the [MASK] to open.",
    "Raises an [MASK] when the file does not exist.",
)
_NAMES = {"pretrained": "pre-trained", "random": "random start"}
_NUM_REAL = 8
_WORD = re.compile(r"[A-Za-z]{4,}")


class Stages:
    """The finished stages of a job in a file: the result of each, a JSON-able dictionary, and the seconds it took."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Open the file or begin one. Raises ConfigError when the job there has other settings or is none of ours."""
        self._path = path
        if path.exists():
            self._held = read_json_object(path)
            if self._held["settings"] != settings:
                before, now = (
                    ", ".join(f"{name} {value!r}" for name, value in given.items())
                    for given in (self._held["settings"], settings)
                )
                raise ConfigError(f"{path.parent} was started with {before}, this is {now}; choose another --out")
            return
        if path.parent.exists() and (
            not path.parent.is_dir() or any(entry.name != LOCK for entry in path.parent.iterdir())
        ):
            raise ConfigError(f"{path.parent} exists and holds something else; choose an empty or a new --out")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._held = {"settings": settings, "results": {}, "seconds": {}}
        write_json(path, self._held)

    def run(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a stage, doing the work only when it is not there yet."""
        if name not in self._held["results"]:
            started = time.perf_counter()
            self._held["results"][name] = work()
            self._held["seconds"][name] = time.perf_counter() - started
            write_json(self._path, self._held)
        return self._held["results"][name]

    def has(self, name: str) -> bool:
        """Tell whether a stage is finished."""
        return name in self._held["results"]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each finished stage; of one that was interrupted, those since it was taken up again."""
        return dict(self._held["seconds"])


@alone_in_folder()
def quickstart(
    *,
    out: str | Path = "quickstart",
    seed: int = 0,
    overrides: dict[str, list[str]] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Go from text on this machine to a BERT that is pre-trained, fine-tuned, measured and used; return the figures.

    `out` receives the text, the vocabulary, the corpus, the runs, results.json and report.html. A quick start that was
    interrupted goes on where it stood when it is called again. `overrides` are recipe changes such as
    `{"pretrain": ["training.steps=10"], "finetune": [...]}`. Raises ConfigError when `out` holds something else.
    """
    out, progress, overrides = Path(out), progress or Progress(), overrides or {}
    recipes = {name: _recipe(kind, name, seed, overrides) for name, kind in KINDS.items()}
    stages = Stages(out / "stages.json", {"seed": seed, "overrides": overrides})
    prepared = _prepare(stages, out, seed, progress)
    progress.say("3/6  pre-training a BERT: the longest stage")
    folder = out / "pretrained"
    how = {"corpus": out / "corpus", "out": folder, "resume": (folder / RECIPE).exists(), "progress": progress}
    pretraining = stages.run("pretraining", lambda: pretrain(recipes["pretrain"], **how))
    progress.say("4/6  fine-tuning it on two tasks, and for comparison a BERT with random weights")
    finetuning: dict[str, dict[str, dict[str, Any]]] = {task: {} for task in TASKS}
    for task, start in itertools.product(TASKS, _NAMES):
        work = partial(_finetune, recipes["finetune"], out, task, start, progress)
        finetuning[task][start] = stages.run(f"{task} task from {start} weights", work)
    progress.say("5/6  filling masks")
    masks = stages.run("masks", lambda: fill_masks(out / "pretrained", out / "tasks" / "sentence-dev.jsonl", seed=seed))
    progress.say("6/6  writing the report")
    majority = prepared["text"]["majority_fraction"]
    results = {
        "folder": str(out),
        **prepared,
        "pretraining": pretraining,
        "tasks": {task: _compared(runs, majority[f"{task}-dev"]) for task, runs in finetuning.items()},
        "masks": masks,
        "seconds": stages.seconds,
        "report": str(out / "report.html"),
    }
    write_json(out / "results.json", results)
    write_text(out / "report.html", report_page(out, results, recipes, next_commands(str(out))))
    return results


def summary_lines(results: dict[str, Any]) -> list[str]:
    """Return the outcome as lines for a terminal, ending with the folder and the commands to try next."""
    metrics, folder = results["pretraining"], results["folder"]
    lines = [
        "",
        f"Pre-trained on {results['corpus']['num_tokens']:,} tokens of documentation. On held-out documents:",
        f"  masked-LM loss    {metrics['mlm_loss']:.2f} nats per token (unigram {metrics['unigram_entropy']:.2f})",
        f"  masked-LM accuracy {metrics['mlm_accuracy']:.1%}",
        f"  next sentence     {metrics['nsp_accuracy']:.1%} (constant answer {metrics['nsp_majority_fraction']:.1%})",
        "",
        "Fine-tuned, accuracy on dev (mean ± standard deviation over seeds; constant answer in brackets):",
    ]
    for task, compared in results["tasks"].items():
        pretrained, random = compared["pretrained"], compared["random"]
        lines.append(
            f"  {task + ' task':<14} pre-trained {pretrained['mean']:.1%} ± {pretrained['standard_deviation']:.1%}   "
            f"random start {random['mean']:.1%} ± {random['standard_deviation']:.1%}   ({compared['majority']:.1%})"
        )
    lines += ["", "Masks that it filled:"]
    lines += [f"  {row['text']}  →  {', '.join(row['tokens'])}" for row in results["masks"]["ours"][:4]]
    lines += [
        "",
        f"Took {sum(results['seconds'].values()) / 60:.1f} minutes. Everything is in {folder}; the report with its "
        f"curves is {results['report']}",
        "Try next:",
        *(f"  {command}" for command in next_commands(folder)),
    ]
    return lines


def next_commands(folder: str) -> list[str]:
    """Return the three commands to try next, with the program's path where its name alone would not be found."""
    is_found = shutil.which("maskloom") is not None or Path(sys.argv[0]).name != "maskloom"
    program = "maskloom" if is_found else sys.argv[0]
    return [
        f'{program} fill-mask --model {folder}/pretrained "Returns the [MASK] of the array."',
        f"{program} predict --model {folder}/finetuned/sentence-pretrained --input {folder}/tasks/sentence-dev.jsonl "
        f"--output {folder}/predictions.csv",
        f"{program} pretrain --corpus {folder}/corpus --out longer --size mini --set training.steps=5000",
    ]


def _recipe(kind: Any, name: str, seed: int, overrides: dict[str, list[str]]) -> Any:
    with resources.as_file(resources.files("maskloom.quickstart") / f"{name}.toml") as path:
        return load_recipe(kind, path, [f"seed={seed}", *overrides.get(name, [])])


def _prepare(stages: Stages, out: Path, seed: int, progress: Progress) -> dict[str, dict[str, Any]]:
    """Gather the text, train the vocabulary and build the corpus; return what each stage found."""
    text_file, watch = out / "text" / "documents.txt", stage_callback(progress)
    num_workers = min(2, os.cpu_count() or 1)
    progress.say("1/6  gathering the documentation of Python and of the installed packages")
    text = stages.run("text", lambda: _gather(out, text_file, seed, num_workers, watch))
    progress.say("2/6  training a vocabulary and building the corpus")
    vocabulary = stages.run(
        "vocabulary",
        lambda: train_vocabulary_from_files(
            [text_file], VocabularySettings(VOCABULARY_SIZE), out=out / "vocabulary", progress=watch
        ),
    )
    corpus = stages.run(
        "corpus",
        lambda: build_corpus_from_files(
            text_file,
            vocab=out / "vocabulary",
            out=out / "corpus",
            settings=CorpusSettings(sentences="lines"),
            work=Work(num_workers),
            progress=watch,
        ),
    )
    return {"text": text, "vocabulary": vocabulary, "corpus": corpus}


def _gather(
    out: Path, text_file: Path, seed: int, num_workers: int, watch: Callable[[str, int, int], None]
) -> dict[str, Any]:
    tasks = build_tasks(gather_documents(num_workers=num_workers, progress=watch), seed=seed)
    num_bytes = write_documents(tasks.pretraining, text_file)
    for name, part in tasks.sets.items():
        part.write(out / "tasks" / f"{name}.jsonl")
    packages: dict[str, dict[str, int]] = {}
    for document in tasks.pretraining:
        counts = packages.setdefault(document.area, {"documents": 0, "sentences": 0})
        counts["documents"] += 1
        counts["sentences"] += len(document.sentences)
    return {
        "num_bytes": num_bytes,
        "packages": packages,
        "areas": list(tasks.areas),
        "num_pretraining_documents": len(tasks.pretraining),
        "num_train_documents": len(tasks.train_documents),
        "num_dev_documents": len(tasks.dev_documents),
        "num_examples": {name: len(part.rows) for name, part in tasks.sets.items()},
        "majority_fraction": {name: part.majority_fraction for name, part in tasks.sets.items()},
    }


def _finetune(recipe: FinetuneRecipe, out: Path, task: str, start: str, progress: Progress) -> dict[str, Any]:
    folder = out / "finetuned" / f"{task}-{start}"
    recipe = recipe.model_copy(update={"task": TASKS[task], "from_scratch": start == "random"})
    progress.say(f"     the {task} task from {'the pre-trained' if start == 'pretrained' else 'random'} weights")
    train, dev = (out / "tasks" / f"{task}-{part}.jsonl" for part in ("train", "dev"))
    data, resume = LabelledFiles(train, dev, metric="accuracy"), (folder / RECIPE).exists()
    return finetune(recipe, model=out / "pretrained", data=data, out=folder, resume=resume, progress=progress)


def _compared(runs: dict[str, dict[str, Any]], majority: float) -> dict[str, Any]:
    """Put the restarts from both starts side by side; the spread is the standard deviation (n - 1) over seeds."""
    found: dict[str, Any] = {"majority": majority}
    for start, run in runs.items():
        found[start] = {name: run["restarts"][name] for name in ("scores", "mean", "standard_deviation", "degenerate")}
    lowest = min(found["pretrained"]["scores"].values())
    found["gain"] = found["pretrained"]["mean"] - found["random"]["mean"]
    found["every_seed_wins"] = lowest > max(found["random"]["scores"].values())
    return found


def fill_masks(model: Path, held_out: Path, *, seed: int, top_k: int = 5) -> dict[str, Any]:
    """Return the likeliest tokens for our sentences, and for sentences of a dev set with one word of each masked.

    `held_out` is a JSONL file with a `text` field that pre-training never saw. A real row also has the word that stood
    there and whether it is among the tokens. Only words that are one token are masked.
    """
    predictor = Predictor.load(model)
    ours = [{"text": text, **_guesses(predictor, text, top_k)} for text in OURS]
    texts = [json.loads(line)["text"] for line in held_out.read_text(encoding="utf-8").splitlines()]
    order = Permutation(len(texts), seed)
    real: list[dict[str, Any]] = []
    for place in range(len(texts)):
        text = texts[order[place]]
        words = [m for m in _WORD.finditer(text) if len(predictor.tokenizer.token_ids(m.group())) == 1]
        if len(real) == _NUM_REAL or not words or len(text) > 110:
            continue
        word = words[Permutation(len(words), seed, place)[0]]
        masked = f"{text[: word.start()]}[MASK]{text[word.end() :]}"
        guesses = _guesses(predictor, masked, top_k)
        truth = word.group().lower()
        real.append({"text": masked, "truth": truth, "is_found": truth in guesses["tokens"], **guesses})
    return {"ours": ours, "real": real}


def _guesses(predictor: Predictor, text: str, top_k: int) -> dict[str, list[Any]]:
    best = predictor.fill_mask(text, top_k=top_k)[0]
    return {"tokens": [row["token"] for row in best], "probabilities": [row["probability"] for row in best]}


def report_page(out: Path, results: dict[str, Any], recipes: Mapping[str, Section], commands: Sequence[str]) -> str:
    """Return the page for the figures of a finished quick start; curves come from the event logs in `out`."""
    pretrained = read_run(out / "pretrained", "pre-trained")
    return page_template("quickstart/report.html").render(
        phases=[phase.max_length for phase in getattr(recipes["pretrain"], "phases", [])],
        results=results,
        run=pretrained.description,
        packages=sorted(results["text"]["packages"].items(), key=lambda item: -item[1]["sentences"]),
        recipes={name: recipe_toml(recipe) for name, recipe in recipes.items()},
        pretraining_charts=charts_of([pretrained])["Pre-training"][:2],
        task_charts={task: _dots(compared) for task, compared in results["tasks"].items()},
        learning_charts={task: _learning(out, task) for task in results["tasks"]},
        commands=commands,
        minutes=sum(results["seconds"].values()) / 60,
    )


def _dots(compared: dict[str, Any]) -> str:
    rows = [
        DotRow(name, list(compared[start]["scores"].values()), f"c{place}")
        for place, (start, name) in enumerate(_NAMES.items())
    ]
    return dot_chart(rows, level=("constant answer", compared["majority"]), name="accuracy on dev, one dot per seed")


def _learning(out: Path, task: str) -> str:
    """Draw dev accuracy over steps from both starts: the means over seeds bold, single seeds faint."""
    runs = [read_run(out / "finetuned" / f"{task}-{start}", name) for start, name in _NAMES.items()]
    return charts_of(runs)["Fine-tuning"][0].svg
