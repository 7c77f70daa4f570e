"""Tasks that measure the models of an experiment: labelled files drawn from local text, or provided by the user."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from maskloom.data.counter_random import Permutation
from maskloom.errors import DataError
from maskloom.quickstart.documentation import GatheredDocument
from maskloom.quickstart.journey import gather_text, make_corpus, make_vocabulary
from maskloom.runs.corpus import train_vocabulary_from_files
from maskloom.runs.display import Progress
from maskloom.runs.finetune import LabelledFiles
from maskloom.runs.glue.files import TASKS
from maskloom.system.files import write_json
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.vocabulary_training import VocabularySettings

VOCABULARY_SIZE, _JOINT_SIZE = 4000, 6000
_WORD = re.compile(r"[A-Za-z]{3,}")
_WORDS_OF_PASSAGE = range(8, 41)
_PER_TRAIN_DOCUMENT, _PER_DEV_DOCUMENT = 1, 2
_SENTENCE, _PLACE = 401, 402
# Models learn word lookup abruptly: from 3,000 questions some never do; from 10,000 two epochs suffice.
_SPAN = ("training.epochs=3",)
# Paths of the user's own labelled files, in addition to GLUE's; the first file name that exists is used.
_OTHERS = {
    "squad": ("span", None, ("train.json", "train-v1.1.json"), ("dev.json", "dev-v1.1.json")),
    "mr": ("single", None, ("train.jsonl", "train.csv", "train.tsv"), ("dev.jsonl", "dev.csv", "dev.tsv")),
    "conll2003": ("tagging", "conll2003", ("train.txt", "eng.train"), ("dev.txt", "valid.txt", "eng.testa")),
    "multi30k": ("seq2seq", None, ("train.de",), ("val.de",)),
}
FILES: dict[str, str] = {
    name: f"{name}/{trains[0]} and {name}/{devs[0]}" for name, (_, _, trains, devs) in _OTHERS.items()
}
"""Where the user's own tasks are expected, in addition to GLUE's."""
# The target language of translations, in parallel files of lines.
_WRITTEN = "en"


@dataclass(frozen=True)
class Probe:
    """A task that measures a model by fine-tuning: its kind, its files, and its changes to the recipe."""

    name: str
    kind: str
    files: LabelledFiles
    settings: tuple[str, ...] = ()


def documentation_probes(out: Path) -> dict[str, Probe]:
    """Return the probes whose files `write_documentation` writes to a folder."""

    def files(name: str, ending: str, metric: str) -> LabelledFiles:
        train, dev = (out / "tasks" / f"{name}-{part}.{ending}" for part in ("train", "dev"))
        return LabelledFiles(train, dev, metric=metric)

    return {
        "pair": Probe("pair", "pair", files("pair", "jsonl", "accuracy")),
        "sentence": Probe("sentence", "single", files("sentence", "jsonl", "accuracy")),
        "span": Probe("span", "span", files("span", "json", "exact_match"), _SPAN),
    }


def write_documentation(out: Path, *, seed: int, progress: Progress) -> dict[str, Any]:
    """Write the documentation on this machine as a corpus and three tasks.

    The sentence and pair tasks are the quick start's, from documents left out of the corpus. The span task asks for the
    word before a given word: the cue is to the right of the answer, where a left-to-right model cannot see it. It needs
    many questions, so its training questions use the documents of the corpus.
    """
    tasks = gather_text(out, seed, progress)
    parts = (("train", tasks.pretraining, _PER_TRAIN_DOCUMENT), ("dev", tasks.dev_documents, _PER_DEV_DOCUMENT))
    counts = {name: len(rows) for name, rows in tasks.sets.items()}
    for number, (part, documents, most) in enumerate(parts):
        questions = list(span_questions(documents, most, seed=seed, part=number))
        write_json(out / "tasks" / f"span-{part}.json", {"version": "1.1", "data": questions})
        counts[f"span-{part}"] = sum(len(article["paragraphs"]) for article in questions)
    make_vocabulary(out, VOCABULARY_SIZE, progress)
    return {"text": "documentation", "num_tokens": make_corpus(out, progress)["num_tokens"], "num_examples": counts}


def make_joint_vocabulary(probe: Probe, out: Path) -> dict[str, Any]:
    """Train a joint vocabulary on both languages of a task's training files; return the task's name as `text`."""
    source, settings = Path(probe.files.train), VocabularySettings(_JOINT_SIZE, lowercase=False)
    train_vocabulary_from_files([source, source.with_suffix(f".{_WRITTEN}")], settings, out=out / "vocabulary")
    return {"text": probe.name}


def span_questions(
    documents: Iterable[GatheredDocument], most: int, *, seed: int, part: int
) -> Iterable[dict[str, Any]]:
    """Yield SQuAD-format questions "before WORD" on single sentences; the answer is the preceding word.

    WORD occurs once in its sentence. Up to `most` questions are drawn per document, one per sentence.
    """
    for number, document in enumerate(documents):
        paragraphs, order = [], Permutation(len(document.sentences), seed, _SENTENCE, part, number)
        for place in range(len(document.sentences)):
            sentence = document.sentences[order[place]]
            pairs = _adjacent_words(sentence)
            if len(paragraphs) == most or not pairs:
                continue
            answer, cue = pairs[Permutation(len(pairs), seed, _PLACE, part, number, place)[0]]
            question = {
                "id": f"{part}-{number}-{place}",
                "question": f"before {cue.group()}",
                "answers": [{"text": answer.group(), "answer_start": answer.start()}],
            }
            paragraphs.append({"context": sentence, "qas": [question]})
        if paragraphs:
            yield {"title": document.name, "paragraphs": paragraphs}


def _adjacent_words(sentence: str) -> list[tuple[re.Match[str], re.Match[str]]]:
    """Return pairs of words one space apart whose second occurs once; none if the sentence is too short or long."""
    if len(sentence.split()) not in _WORDS_OF_PASSAGE:
        return []
    words = list(_WORD.finditer(sentence))
    lowered = sentence.lower()
    return [
        (first, second)
        for first, second in pairwise(words)
        if second.start() == first.end() + 1 and lowered.count(second.group().lower()) == 1
    ]


def own_probes(folder: Path) -> dict[str, Probe]:
    """Return the tasks in a folder: GLUE's as RTE/train.tsv and so on, and `_OTHERS`; raises DataError for none."""
    found = {}
    for task in TASKS:
        train, dev = task.training_files(folder)
        if train.is_file() and dev.is_file():
            found[task.name] = Probe(task.name, "", LabelledFiles(train, dev, ReadingOptions(format=task.name)))
    for name, (kind, form, trains, devs) in _OTHERS.items():
        train, dev = (next((folder / name / file for file in files if (folder / name / file).is_file()), None)
                      for files in (trains, devs))  # fmt: skip
        if train is not None and dev is not None:
            settings = (f"seq2seq.target_suffix={_WRITTEN}",) if kind == "seq2seq" else ()
            found[name] = Probe(name, kind, LabelledFiles(train, dev, ReadingOptions(format=form)), settings)
    if not found:
        own = ", ".join(FILES.values())
        raise DataError(f"{folder}: no tasks found; expected GLUE's files (RTE/train.tsv and RTE/dev.tsv …), {own}")
    return found
