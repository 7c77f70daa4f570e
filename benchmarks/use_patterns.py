"""The common patterns of recurrent networks, one task each, trained by the ordinary commands, next to Transformers.

One to one, one to many, many to one, many to many word by word, and sequence to sequence with and without attention.
Every run is a command in a process of one thread. Finished runs are stored under --out and are not repeated. Baselines
that ignore word order are included: the one-to-one network, which has word vectors and no layer that combines them, the
most frequent tag of each word, and the frequencies of characters.

    python benchmarks/use_patterns.py --out ~/patterns --results results/use_patterns
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import math
import random
import resource
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from denoising import kept
from surroundings import data_folder, film_reviews, machine, noted, parser_of_runs, write_results
from translation import command, resumed

_REVERSED, _DIGITS = 50_000, 20
_REVIEWS = 8_000
_CONLL = ("train", "valid")
_NAMES = {"exact_match": "exact match", "bleu": "BLEU"}
_NOTES = (
    "Names: the distinct names of people, places, organisations and others in CoNLL-2003's training file, 800 of them",
    "held out. The source is the class, the target the letters; the score is that of the last epoch. The baseline",
    "without order is letter frequencies; a network passes if it is more than 0.8 bits below. Reviews: MR, a tenth",
    "held out. Long reviews: 8,000 of IMDB, 2,000 held out. The baseline without order is the one-to-one network,",
    "whose head reads the mean of the word vectors, at the best of ten epochs. Parts of speech: CoNLL-2003; the",
    "baseline without order is the most frequent tag of each word. To pass, a recurrent network has to exceed both the",
    "score in the column *to pass* and the baseline without order. Digits: 20 per text, 50,000 texts. Translation:",
    "Multi30k, German to English, greedy decoding, scored on dev. The Transformers (bert; transformer for generation)",
    "have two layers of width 128 with two heads; they have position encodings instead of recurrence.",
)
# The vocabulary training options of each data set.
_VOCABULARIES = {
    "names": ("--cased", "--model", "words", "--size", "200"),
    "MR": ("--size", "5000"),
    "IMDB": ("--size", "8000"),
    "tags": ("--cased", "--size", "8000"),
    "digits": ("--model", "words", "--size", "30"),
    "captions": ("--cased", "--size", "6000"),
}


def _sets(*settings: str) -> tuple[str, ...]:
    return tuple(itertools.chain.from_iterable(("--set", setting) for setting in settings))


_READ = ("--task", "single", "--set", "training.learning_rate=1e-3", "--epochs", "3")
_TAGGED = ("--task", "tagging", *_sets("tagging.scheme=plain"), "--label-column", "2", "--epochs", "3")
_WRITTEN = ("--task", "seq2seq", "--batch-size", "64")
_SPELLED = (*_WRITTEN, *_sets("seq2seq.label_smoothing=0.0"))
_TRANSLATED = (*_WRITTEN, *_sets("seq2seq.target_suffix=en", "seq2seq.beam=1"), "--epochs", "3")
_FAST, _FASTER = _sets("training.learning_rate=2e-3"), _sets("training.learning_rate=3e-3")
_WORDS_ALONE = (*_sets("model.config.num_hidden_layers=0", "model.config.pooling=mean"), "--epochs", "10")
_MAXIMUM = _sets("model.config.pooling=max")
_WITHOUT, _WITH = _sets("model.config.decoder_attention=none"), _sets("model.config.decoder_attention=mlp")


class Task(NamedTuple):
    """A pattern, its data, the arguments of all networks, the score, and the bound that a network must beat."""

    pattern: str
    data: str
    arguments: tuple[str, ...]
    score: str
    bound: float | None = None


TASKS = {
    "names": Task("one to many", "names", (*_SPELLED, "--epochs", "8"), "bits per character"),
    "reviews": Task("many to one", "MR", _READ, "accuracy", 0.72),
    "long reviews": Task("many to one", "IMDB", (*_READ, "--max-length", "400"), "accuracy", 0.80),
    "parts of speech": Task("many to many", "tags", _TAGGED, "accuracy", 0.93),
    "reversed digits": Task("sequence to sequence", "digits", (*_SPELLED, "--epochs", "2"), "exact_match", 95.0),
    "translation": Task("sequence to sequence", "captions", _TRANSLATED, "bleu"),
}
_ALONE = "word vectors"
# The networks of each task: the architecture, and its specific arguments.
NETWORKS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "names": {
        "lstm": ("lstm", (*_FASTER, *_WITHOUT)),
        "transformer": ("transformer", _sets("training.learning_rate=1e-3")),
    },
    "reviews": {_ALONE: ("rnn", _WORDS_ALONE), "lstm": ("lstm", _MAXIMUM), "bert": ("bert", ())},
    "long reviews": {_ALONE: ("rnn", _WORDS_ALONE), "lstm": ("lstm", _MAXIMUM), "bert": ("bert", ())},
    "parts of speech": {"lstm": ("lstm", _FASTER), "bert": ("bert", (*_FAST, "--epochs", "8"))},
    "reversed digits": {
        "gru": ("gru", (*_FASTER, *_WITH)),
        "transformer": ("transformer", _sets("training.learning_rate=1e-3")),
    },
    "translation": {
        "gru": ("gru", (*_FAST, *_WITH)),
        "gru without attention": ("gru", (*_FAST, *_WITHOUT)),
        "transformer": ("transformer", _FAST),
    },
}


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = parser_of_runs(__doc__)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, networks in NETWORKS.items():
        for network in networks:
            path = out / f"{name} {network}.json".replace(" ", "-")
            found.setdefault(name, {})[network] = kept(path, partial(_run, out, name, network))
    if options.results:
        baselines = {name: _baseline(out, task.data) for name, task in TASKS.items()}
        _write_page(options.results, {"runs": found, "baselines": baselines})


def _run(out: Path, name: str, network: str) -> dict[str, Any]:
    """Train one network; return its scores on held-out data and the processor seconds of training, if not resumed."""
    (_, data, shared, score, _), (architecture, own) = TASKS[name], NETWORKS[name][network]
    if not (out / f"{data}-vocab").exists():
        texts = map(str, _PREPARE[data](out))
        command("vocab", "train", *texts, *_VOCABULARIES[data], "--out", str(out / f"{data}-vocab"))
    train, dev = _files(out, data)
    folder = out / f"{name} {network} run".replace(" ", "-")
    goes_on, before = resumed(folder), _processor_seconds()
    files = ("--vocab", str(out / f"{data}-vocab"), "--train", str(train), "--dev", str(dev), "--out", str(folder))
    changes = _sets(f"model.architecture={architecture}", "training.num_threads=1")
    command("finetune", "--size", "tiny", *files, *shared, *own, *changes, *goes_on)
    seconds = None if goes_on else _processor_seconds() - before
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    scores = metrics["best"]["scores"]
    if score == "bits per character":
        scores = {**metrics["last"]["scores"], score: metrics["last"]["scores"]["loss"] / math.log(2)}
    return {"score": scores[score], "scores": scores, "seconds": seconds}


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _files(out: Path, data: str) -> tuple[Path, Path]:
    if data == "tags":
        return tuple(data_folder() / "conll2003" / f"{part}.txt" for part in _CONLL)  # pyright: ignore
    suffix = {"MR": "csv", "IMDB": "csv", "captions": "de"}.get(data, "jsonl")
    return out / f"{data}-train.{suffix}", out / f"{data}-dev.{suffix}"


def _prepare_names(out: Path) -> list[Path]:
    """Write the distinct names of CoNLL-2003's training data, letter by letter, each with its class as the source."""
    names: dict[str, set[str]] = defaultdict(set)
    for sentence in _sentences("train"):
        parts: list[str] = []
        kind = ""
        for word, tag in [*((fields[0], fields[3]) for fields in sentence), ("", "O")]:
            if tag[0] != "I" and parts:
                names[kind].add(" ".join(parts))
                parts = []
            if tag != "O":
                kind = tag[2:]
                parts.append(word)
    rows = [
        {"source": kind, "target": " ".join(name.replace(" ", "_"))}
        for kind in sorted(names)
        for name in sorted(names[kind])
    ]
    random.Random(0).shuffle(rows)
    return [_write_rows(out, "names", rows[800:], rows[:800])]


def _prepare_digits(out: Path) -> list[Path]:
    chance = random.Random(0)
    texts = [[str(chance.randrange(10)) for _ in range(_DIGITS)] for _ in range(_REVERSED + 500)]
    rows = [{"source": " ".join(text), "target": " ".join(reversed(text))} for text in texts]
    return [_write_rows(out, "digits", rows[500:], rows[:500])]


def _write_rows(out: Path, data: str, train: Sequence[dict[str, str]], dev: Sequence[dict[str, str]]) -> Path:
    """Write rows of sources and targets, and return a file with the text of the training rows."""
    for part, rows in (("train", train), ("dev", dev)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (out / f"{data}-{part}.jsonl").write_text(lines, encoding="utf-8")
    text = "".join(f"{row['source']} {row['target']}\n" for row in train)
    (out / f"{data}.txt").write_text(text, encoding="utf-8")
    return out / f"{data}.txt"


def _prepare_reviews(out: Path) -> list[Path]:
    rows = film_reviews()
    return [write_texts(out, "MR", rows[1066:], rows[:1066])]


def _prepare_long_reviews(out: Path) -> list[Path]:
    with gzip.open(data_folder() / "imdb" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [(row["text"], str(row["label"])) for row in map(json.loads, file)]
    random.Random(0).shuffle(rows)
    return [write_texts(out, "IMDB", rows[2000 : 2000 + _REVIEWS], rows[:2000])]


def write_texts(out: Path, data: str, train: Sequence[tuple[str, str]], dev: Sequence[tuple[str, str]]) -> Path:
    """Write labelled texts for training and dev, and return a file with the text of the former."""
    for part, rows in (("train", train), ("dev", dev)):
        with (out / f"{data}-{part}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    (out / f"{data}.txt").write_text("".join(f"{text}\n" for text, _ in train), encoding="utf-8")
    return out / f"{data}.txt"


def _prepare_tags(out: Path) -> list[Path]:
    lines = (" ".join(fields[0] for fields in sentence) + "\n" for sentence in _sentences("train"))
    (out / "tags.txt").write_text("".join(lines), encoding="utf-8")
    return [out / "tags.txt"]


def _prepare_captions(out: Path) -> list[Path]:
    for name, part in (("train", "train"), ("val", "dev")):
        for language in ("de", "en"):
            source = data_folder() / "family" / "multi30k" / f"{name}.{language}"
            (out / f"captions-{part}.{language}").write_bytes(source.read_bytes())
    return [out / f"captions-train.{language}" for language in ("de", "en")]


_PREPARE = {
    "names": _prepare_names,
    "digits": _prepare_digits,
    "MR": _prepare_reviews,
    "IMDB": _prepare_long_reviews,
    "tags": _prepare_tags,
    "captions": _prepare_captions,
}


def _sentences(part: str) -> Iterable[list[list[str]]]:
    """Yield the sentences of a CoNLL-2003 file, each as the fields of its words."""
    text = (data_folder() / "conll2003" / f"{part}.txt").read_text(encoding="utf-8")
    for block in text.split("\n\n"):
        rows = [line.split() for line in block.splitlines() if line.strip() and not line.startswith("-DOCSTART-")]
        if rows:
            yield rows


def _baseline(out: Path, data: str) -> float | None:
    """Return the score of a baseline that ignores word order and is not a network, or None if there is none."""
    if data == "names":
        counts, held_out = (
            Counter(letter for line in lines for letter in [*json.loads(line)["target"].split(), ""])
            for lines in (path.read_text(encoding="utf-8").splitlines() for path in _files(out, data))
        )
        total = counts.total() + len(counts) + 1
        bits = sum(-number * math.log2((counts[letter] + 1) / total) for letter, number in held_out.items())
        return bits / held_out.total()
    if data == "tags":
        seen: dict[str, Counter[str]] = defaultdict(Counter)
        for fields in itertools.chain.from_iterable(_sentences("train")):
            seen[fields[0]][fields[1]] += 1
        commonest = sum(seen.values(), Counter[str]()).most_common(1)[0][0]
        words = list(itertools.chain.from_iterable(_sentences("valid")))
        guesses = (seen[word].most_common(1)[0][0] if word in seen else commonest for word, *_ in words)
        return sum(guess == fields[1] for guess, fields in zip(guesses, words, strict=True)) / len(words)
    return None


def _write_page(target: Path, content: dict[str, Any]) -> None:
    """Write the results as JSON and as a Markdown page."""
    lines = [
        "# Recurrent networks and Transformers, by type of task",
        "",
        "Generated by `python benchmarks/use_patterns.py --out DIR --results results/use_patterns`; do not edit.",
        "One run each of a network of size tiny (hidden size 128, 64 per direction), trained from scratch on one",
        "thread. Scores are those of the best epoch on held-out data; seconds are CPU time, including evaluations.",
        "",
        *noted(content),
        "| task | pattern | network | score | | without order | to pass | passed | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in content["runs"].items():
        baseline = runs[_ALONE]["score"] if _ALONE in runs else content["baselines"][name]
        lines += [_row(name, network, run, baseline) for network, run in runs.items()]
    lines += ["", *_NOTES, ""]
    lines += ["Every run is `maskloom finetune --vocab VOCAB --size tiny` with its files and these options:", ""]
    for name, task in TASKS.items():
        lines.append(f"- {name}: `{' '.join(task.arguments)}`")
        for network, (architecture, own) in NETWORKS[name].items():
            lines.append(f"  - {network}: `{' '.join((*_sets(f'model.architecture={architecture}'), *own))}`")
    lines += ["", f"{machine()}."]
    write_results(target, content, "\n".join(lines) + "\n")


def _row(name: str, network: str, run: dict[str, Any], baseline: float | None) -> str:
    pattern, _, _, score, bound = TASKS[name]
    if score == "bits per character":
        bound = cast(float, baseline) - 0.8
        passed = run["score"] < bound
    else:
        passed = bound is not None and run["score"] > max(bound, baseline or 0.0)
    verdict = "-" if bound is None else "yes" if passed else "no"
    if network == _ALONE:  # the baseline itself
        pattern, baseline = "one to one", None
    if network in (_ALONE, "bert", "transformer"):  # the bounds are for recurrent networks
        bound, verdict = None, "-"
    cells = [pattern, network, _NAMES.get(score, score), *(_digits(score, v) for v in (run["score"], baseline, bound))]
    seconds = "-" if run["seconds"] is None else f"{run['seconds']:.0f}"
    return f"| {' | '.join([name, *cells, verdict])} | {seconds} |"


def _digits(score: str, value: float | None) -> str:
    if value is None:
        return "-"
    number = 100 * value if score == "accuracy" else value
    return f"{number:.2f}" if score.startswith("bits") else f"{number:.1f}{'' if score == 'bleu' else '%'}"


if __name__ == "__main__":
    main()
