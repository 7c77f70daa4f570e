"""The commands that the rows kill, small enough to run hundreds of times, and the comparison of their results."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.soak.processes import ForkServer

RUN = "run"
_TINY = [
    *("model.config.hidden_size=32", "model.config.num_attention_heads=2", "model.config.intermediate_size=64"),
    *("model.config.num_hidden_layers=2", "data.max_length=32", "data.held_out_fraction=0.1", "training.batch_size=8"),
    *("training.learning_rate=1e-3", "training.num_threads=1", "training.log_every=1"),
    "training.max_evaluation_instances=128",
]
# Files and keys that differ between two equal runs: times, the command with --resume, the id of the run and thus the
# checksum of a manifest; the files listed in a manifest are compared themselves.
_OF_THE_MOMENT = frozenset({"run.json", "results.md", "seconds", "tokens_per_second", "command", "run", "sha256"})


@dataclass(frozen=True)
class Subject:
    """A command that writes the folder `run` in its working directory, and can be resumed.

    `stages` is a pattern for the lines that begin a stage of training in its progress output.
    """

    name: str
    arguments: tuple[str, ...]
    save_every: int
    stages: str

    def resumed(self) -> tuple[str, ...]:
        """Return the arguments that resume the command, whatever the folder contains."""
        return (*self.arguments, "--resume")


def sets(*overrides: str) -> list[str]:
    """Return the arguments that override keys of a recipe."""
    return [word for override in overrides for word in ("--set", override)]


def prepare(server: ForkServer, folder: Path, *, num_topics: int = 120) -> Path:
    """Create the corpus, the model folder and the labelled data for the subjects."""
    from pydoc_data.topics import topics

    folder.mkdir(parents=True, exist_ok=True)
    # a blank line ends a document, so each topic is joined into one paragraph
    chosen = [" ".join(text.split()) for _, text in sorted(topics.items())][:num_topics]
    (folder / "topics.txt").write_text("\n\n".join(chosen), encoding="utf-8")
    draw, words = random.Random(0), ["film", "book", "song", "very", "and", "so", "but"]
    for name, size in (("train", 160), ("dev", 40)):
        rows = []
        for _ in range(size):
            label = draw.choice(("good", "bad"))
            text = " ".join(
                [
                    *draw.choices(words, k=5),
                    draw.choice(("true", "true", "for") if label == "good" else ("if", "if", "for")),
                ]
            )
            rows.append(json.dumps({"text": text, "label": label}) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    first = sets(*_TINY, "training.steps=1")
    for arguments in (
        ["vocab", "train", "topics.txt", "--size", 500, "--out", "vocab"],
        ["corpus", "build", "topics.txt", "--vocab", "vocab", "--out", "corpus"],
        ["pretrain", "--corpus", "corpus", "--out", "first", "--size", "tiny", *first],
    ):
        run_whole(server, tuple(map(str, arguments)), folder)
    return folder


def run_whole(server: ForkServer, arguments: tuple[str, ...], folder: Path, **environment: str) -> str:
    """Run a command to its end and return its output; raises RuntimeError for an exit code other than 0."""
    code, said = server.start(arguments, folder, folder / "output.txt", **environment).ended()
    if code:
        raise RuntimeError(f"exit code {code}: {' '.join(arguments)}\n{said[-3000:]}")
    return said


def pretraining(data: Path, *, steps: int = 200, save_every: int = 7, evaluate_every: int = 25) -> Subject:
    """Return a pre-training run that saves in the background and evaluates on held-out documents."""
    plan = (f"training.steps={steps}", f"training.save_every={save_every}", f"training.evaluate_every={evaluate_every}")
    arguments = ["pretrain", "--corpus", str(data / "corpus"), "--out", RUN, "--size", "tiny", *sets(*_TINY, *plan)]
    return Subject("pretrain", tuple(arguments), save_every, r"phase-\d+, length \d+")


def finetuning(data: Path, *, epochs: int = 5, restarts: int = 2) -> Subject:
    """Return a fine-tuning run with two seeds, which keeps the best weights on dev."""
    plan = (
        f"training.epochs={epochs}",
        "training.save_every=9",
        f"restarts={restarts}",
        "tune_on_dev=true",
        "training.learning_rate=3e-3",
    )
    return Subject("finetune", ("finetune", *_labelled(data), *sets(*plan)), 9, r"fine-tuning, seed \d+")


def grid_search(data: Path, *, epochs: int = 2) -> Subject:
    """Return a search over a grid of four recipes."""
    grid = ["--grid", "training.learning_rate=1e-3,5e-3", "--grid", "training.batch_size=8,16"]
    plan = (f"training.epochs={epochs}", "training.save_every=9")
    return Subject("search", ("search", *_labelled(data), *grid, *sets(*plan)), 9, r"fine-tuning, seed \d+")


def _labelled(data: Path) -> tuple[str, ...]:
    model = ("--model", str(data / "first" / "model"), "--train", str(data / "train.jsonl"))
    settings = ("data.max_length=32", "training.num_threads=1", "training.log_every=1")
    return (*model, "--dev", str(data / "dev.jsonl"), "--out", RUN, *sets(*settings))


def outcome(folder: Path) -> dict[str, str]:
    """Return the results of a run: a SHA-256 for every file, without data about when and where it ran.

    The event log is compared by its steps and evaluations: the same, once each, in the same order.
    """
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.name in _OF_THE_MOMENT or path.suffix == ".lock":
            continue
        if path.suffix in (".json", ".jsonl"):
            lines = path.read_text(encoding="utf-8").replace(str(folder.resolve()), ".")
            values = [json.loads(line) for line in lines.splitlines()] if path.suffix == ".jsonl" else json.loads(lines)
            if name.endswith("events.jsonl"):
                values = [event for event in values if event["event"] in ("step", "evaluation")]
            content = json.dumps(_lasting(values), sort_keys=True).encode()
        else:
            content = path.read_bytes().replace(str(folder.resolve()).encode(), b".")
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in _OF_THE_MOMENT}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def differences(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Return the names of files that differ, are missing or are extra."""
    differing = [f"{name} differs" for name in found.keys() & expected.keys() if found[name] != expected[name]]
    missing = [f"{name} is missing" for name in expected.keys() - found.keys()]
    return sorted([*differing, *missing, *(f"{name} is too many" for name in found.keys() - expected.keys())])
