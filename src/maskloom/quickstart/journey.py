"""The stages of the quick start, in order, and the summary printed at the end."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.data.corpus.building import CorpusSettings
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.objectives.pretraining import unigram_of
from maskloom.quickstart.documentation import gather_documents, write_documents
from maskloom.quickstart.tasks import QuickstartTasks, build_tasks
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.runs.display import SILENT, Progress, stage_callback
from maskloom.runs.finetune import LabelledFiles, finetune
from maskloom.runs.pretrain import pretrain
from maskloom.runs.recipes import KINDS
from maskloom.runs.report.page import report
from maskloom.runs.run_folder import RECIPE
from maskloom.system.devices import chosen_device
from maskloom.system.files import write_json, write_text
from maskloom.system.folder_lock import LOCK, alone_in_folder
from maskloom.system.foreign_files import read_json_object
from maskloom.system.worker_processes import Work
from maskloom.text.vocabulary_training import VocabularySettings

VOCABULARY_SIZE = 8000
TEXT = "text/documents.txt"
TASKS: dict[str, Literal["single", "pair"]] = {"sentence": "single", "pair": "pair"}
OURS = (
    "Returns a [MASK] of strings.",
    "If [MASK], the output is written to a file.",
    "The [MASK] of the matrix must be positive.",
    "This function is [MASK] since version 3.",
    "The name of the [MASK] to open.",
    "Raises an [MASK] when the file does not exist.",
)
_STARTS = ("pretrained", "random")
_NUM_WORKERS = min(2, os.cpu_count() or 1)
_NUM_EXAMPLES = 200


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return how the settings that a folder was started with differ from those given now."""
    names = [name for name in now | before if before.get(name) != now.get(name)]
    if names == ["recipes"]:
        return "by another version of maskloom, whose recipes differ; choose another --out"
    told = [", ".join(f"{name} {of.get(name)!r}" for name in names if name != "recipes") for of in (before, now)]
    return f"with {told[0]}, this is {told[1]}; choose another --out"


class Stages:
    """A file with the finished stages of a job: each stage's result, a JSON-serialisable dictionary, and its seconds.

    Stages that run in parallel share the time: each is charged the seconds since the previous one was stored.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Open or create the file; ConfigError for other settings or another folder, DataError for a damaged file."""
        self._path = path
        if path.exists():
            self._held = read_json_object(path)
            if not {"settings", "results", "seconds"} <= self._held.keys():
                raise DataError(f"{path}: lacks settings, results or seconds; choose another --out")
            if self._held["settings"] != (settings := json.loads(json.dumps(settings))):  # JSON has no tuples
                raise ConfigError(f"{path.parent} was started {_difference(self._held['settings'], settings)}")
            return
        folder = path.parent
        if folder.exists() and not (folder.is_dir() and all(entry.name == LOCK for entry in folder.iterdir())):
            raise ConfigError(f"{folder} exists and contains something else; choose an empty or a new --out")
        folder.mkdir(parents=True, exist_ok=True)
        self._held = {"settings": settings, "results": {}, "seconds": {}}
        write_json(path, self._held)

    def run(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a stage, doing the work only if the stage is not finished."""
        if not self.has(name):
            started = time.perf_counter()
            self.keep(name, work(), since=started)
        return self._held["results"][name]

    def keep(self, name: str, result: dict[str, Any], *, since: float) -> None:
        """Store the result of a stage that began at `since`, a `time.perf_counter` value."""
        self._held["results"][name] = result
        self._held["seconds"][name] = time.perf_counter() - since
        write_json(self._path, self._held)

    def has(self, name: str) -> bool:
        """Return whether a stage is finished."""
        return name in self._held["results"]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that each finished stage took; for an interrupted stage, since it was resumed."""
        return dict(self._held["seconds"])


@alone_in_folder()
def quickstart(
    *,
    out: Path,
    seed: int = 0,
    overrides: Mapping[str, list[str]] = {},
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Pre-train, fine-tune, evaluate and use a BERT on text from this machine; return the figures.

    `out` receives the text, the vocabulary, the corpus, the runs, results.json and report.html. Calling it again after
    an interruption resumes where it stopped. `overrides` are recipe changes such as
    `{"pretrain": ["training.steps=10"], "finetune": [...]}`. Raises ConfigError if `out` contains something else.
    """
    recipes: dict[str, Any] = {
        name: load_recipe(kind, Path(__file__).with_name(f"{name}.toml"), [f"seed={seed}", *overrides.get(name, [])])
        for name, kind in KINDS.items()
    }
    chosen_device()  # a missing device is an error now, not after building the corpus
    stages = Stages(out / "stages.json", {"seed": seed, "overrides": overrides})
    progress.say("1/6  gathering the documentation of Python and of the installed packages")
    text = stages.run("text", lambda: _account(gather_text(out, seed, progress), out))
    progress.say("2/6  training a vocabulary and building the corpus")
    vocabulary = stages.run("vocabulary", lambda: make_vocabulary(out, VOCABULARY_SIZE, progress))
    corpus = stages.run("corpus", lambda: make_corpus(out, progress))
    progress.say("3/6  pre-training a BERT: the longest stage")
    folder = out / "pretrained"
    how = {"corpus": out / "corpus", "progress": progress}
    pretraining = stages.run("pretraining", lambda: resumed(pretrain, recipes["pretrain"], folder, **how))
    progress.say("4/6  fine-tuning it on two tasks, and for comparison a BERT with random weights")
    finetuning: dict[str, dict[str, dict[str, Any]]] = {task: {} for task in TASKS}
    for task, start in itertools.product(TASKS, _STARTS):
        work = partial(_finetune, recipes["finetune"], out, task, start, progress)
        finetuning[task][start] = stages.run(f"{task} task from {start} weights", work)
    progress.say("5/6  filling masks")
    masks = stages.run("masks", lambda: _fill_masks(folder))
    progress.say("6/6  writing the report")
    majority = text["majority_fraction"]
    results = {
        "folder": str(out),
        "text": text,
        "vocabulary": vocabulary,
        "corpus": corpus,
        "pretraining": pretraining,
        "tasks": {
            task: {"majority": majority[f"{task}-dev"]} | {start: run["restarts"] for start, run in runs.items()}
            for task, runs in finetuning.items()
        },
        "masks": masks,
        "seconds": stages.seconds,
        "report": str(out / "report.html"),
    }
    write_json(out / "results.json", results)
    runs = [folder, *(out / "finetuned" / f"{task}-{start}" for task, start in itertools.product(TASKS, _STARTS))]
    report(runs, out / "report.html", num_examples=_NUM_EXAMPLES, progress=progress)
    return results


def summary_lines(results: dict[str, Any]) -> list[str]:
    """Return the results as lines for a terminal, ending with the folder and the commands to try next."""
    metrics, folder, quoted = results["pretraining"], results["folder"], shlex.quote(results["folder"])
    lines = [
        "",
        f"Pre-trained on {results['corpus']['num_tokens']:,} tokens of documentation. On held-out documents:",
        f"  masked-LM loss    {metrics['mlm_loss']:.2f} nats per token (unigram {unigram_of(metrics):.2f})",
        f"  masked-LM accuracy {metrics['mlm_accuracy']:.1%}",
        f"  next sentence     {metrics['nsp_accuracy']:.1%} (constant answer {metrics['nsp_majority_fraction']:.1%})",
        "",
        "Fine-tuned, accuracy on dev (mean ± standard deviation over seeds; constant answer in brackets):",
    ]
    for task, compared in results["tasks"].items():
        pretrained, random = (
            f"{compared[start]['mean']:.1%} ± {compared[start]['standard_deviation']:.1%}" for start in _STARTS
        )
        name, constant = f"{task} task", f"{compared['majority']:.1%}"
        lines.append(f"  {name:<14} pre-trained {pretrained}   random weights {random}   ({constant})")
    lines += ["", "Its predictions for [MASK]:"]
    lines += [f"  {text}  →  {', '.join(one['token'] for one in best)}" for text, best in results["masks"].items()]
    is_found = shutil.which("maskloom") is not None or Path(sys.argv[0]).name != "maskloom"
    program = "maskloom" if is_found else shlex.quote(sys.argv[0])
    return [
        *lines,
        "",
        f"Took {sum(results['seconds'].values()) / 60:.1f} minutes. Everything is in {folder}; the report with its "
        f"curves is {results['report']}",
        "Try next:",
        f'  {program} fill-mask --model {quoted}/pretrained "Returns the [MASK] of the array."',
        f"  {program} predict --model {quoted}/finetuned/sentence-pretrained --input {quoted}/tasks/sentence-dev.jsonl "
        f"--output {quoted}/predictions.csv",
        f"  {program} pretrain --corpus {quoted}/corpus --out longer --size mini --set training.steps=5000",
    ]


def gather_text(out: Path, seed: int, progress: Progress) -> QuickstartTasks:
    """Write this machine's documentation to text/documents.txt, and two tasks drawn from documents left out of it."""
    documents = gather_documents(num_workers=_NUM_WORKERS, progress=stage_callback(progress))
    tasks = build_tasks(documents, seed=seed)
    write_documents(tasks.pretraining, out / TEXT)
    for name, rows in tasks.sets.items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_text(out / "tasks" / f"{name}.jsonl", "".join(lines))
    return tasks


def make_vocabulary(out: Path, size: int, progress: Progress) -> dict[str, Any]:
    """Train a vocabulary on the gathered text."""
    how = {"out": out / "vocabulary", "progress": stage_callback(progress)}
    return train_vocabulary_from_files([out / TEXT], VocabularySettings(size), **how)


def make_corpus(out: Path, progress: Progress) -> dict[str, Any]:
    """Build a corpus from the gathered text, which has one sentence per line."""
    return build_corpus_from_files(
        out / TEXT,
        vocab=out / "vocabulary",
        out=out / "corpus",
        settings=CorpusSettings(sentences="lines"),
        work=Work(_NUM_WORKERS),
        progress=stage_callback(progress),
    )


def _account(tasks: QuickstartTasks, out: Path) -> dict[str, Any]:
    return {
        "num_bytes": (out / TEXT).stat().st_size,
        "documents_of_packages": Counter(document.area for document in tasks.pretraining),
        "areas": list(tasks.areas),
        "num_examples": {name: len(rows) for name, rows in tasks.sets.items()},
        "majority_fraction": {
            name: max(Counter(row["label"] for row in rows).values()) / len(rows) for name, rows in tasks.sets.items()
        },
    }


def _finetune(recipe: FinetuneRecipe, out: Path, task: str, start: str, progress: Progress) -> dict[str, Any]:
    folder = out / "finetuned" / f"{task}-{start}"
    recipe = recipe.model_copy(update={"task": TASKS[task], "from_scratch": start == "random"})
    progress.say(f"     the {task} task from {'the pre-trained' if start == 'pretrained' else 'random'} weights")
    train, dev = (out / "tasks" / f"{task}-{part}.jsonl" for part in ("train", "dev"))
    data = LabelledFiles(train, dev, metric="accuracy")
    return resumed(finetune, recipe, folder, model=out / "pretrained", data=data, progress=progress)


def resumed(run: Callable[..., dict[str, Any]], recipe: Any, folder: Path, **how: Any) -> dict[str, Any]:
    """Start a run in a folder, or resume the run that is there."""
    return run(recipe, out=folder, resume=(folder / RECIPE).exists(), **how)


def _fill_masks(model: Path) -> dict[str, Any]:
    """Return the five most likely tokens and their probabilities for each sentence in `OURS`."""
    predictor = Predictor.load(model)
    return {text: predictor.fill_mask(text)[0] for text in OURS}
