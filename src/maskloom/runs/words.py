"""Training of word vectors in a resumable run folder, and queries on finished ones."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maskloom.data.corpus.documents import ReadingReport, read_documents, refuse_output_inside, source_files
from maskloom.errors import ConfigError, DataError, amount
from maskloom.runs.charts import distinct_names, scatter_chart, visible, write_html
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.first_look import check_page
from maskloom.runs.run_folder import METRICS, RECIPE, described, fingerprint, kind_of_run, prepare_run_folder, undo_run
from maskloom.system.fault_points import fault_point
from maskloom.system.files import remove_tree, replacing_folder, write_hashed, write_json, write_text
from maskloom.system.folder_lock import alone_in_folder
from maskloom.system.foreign_files import check_name, read_json_object, read_json_value, why_changed
from maskloom.text.normalization import whole_word
from maskloom.text.tokenizer_files import holds_capitals
from maskloom.text.vocabulary import CONTINUATION_PREFIX, SPECIAL_TOKENS
from maskloom.text.word_vectors import Form, WordVectors, read_vectors, write_vectors
from maskloom.training.events import EventLog
from maskloom.training.faults.interruption import stop_requests
from maskloom.words.evaluation import analogy_scores, read_analogies, read_pairs, similarity_scores
from maskloom.words.kernel import compiled
from maskloom.words.settings import WordsRecipe
from maskloom.words.text import join_phrases, keep_frequent, write_numbers
from maskloom.words.training import WordTraining

VOCABULARY, VECTORS, OUTPUTS = "vocabulary.txt", "vectors", "outputs"
_TOKENS, _PREPARED, _CHECKPOINT, _STATE = "tokens.bin", "prepared.json", "checkpoint", "state.json"
_SUFFIXES: dict[Form, str] = {"binary": ".bin", "text": ".txt"}
_SECONDS_BETWEEN_SAVES = 600.0
# Sentences end only where a document ends; one line may be a whole text, as in text8.
_LONGEST_DOCUMENT = 1 << 22
_LITTLE_TEXT = 10_000_000  # words below which skip-gram's default rate is too low (docs/WORDS.md, Training)


@alone_in_folder()
def train_words(
    texts: str | Path | Iterable[str | Path],
    recipe: WordsRecipe,
    *,
    out: str | Path,
    resume: bool = False,
    form: Form = "binary",
    on_bad_text: Literal["error", "skip"] = "error",
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Train word vectors on text files and write vectors, output vectors and vocabulary to `out`; return the metrics.

    With one worker, or `deterministic`, a resumed run gives the same bits as an uninterrupted one. Raises ConfigError
    if numba is missing, for a folder in use by another run and for a resumed run with other settings; DataError for bad
    text and an empty vocabulary.
    """
    texts, out = [texts] if isinstance(texts, str | Path) else list(texts), Path(out)
    check_name(out)
    refuse_output_inside(texts, out)
    files = source_files(texts)
    compiled()  # raises before any text is read if numba is missing
    inputs = {"text": fingerprint(*(file.path for file in files)), "on_bad_text": on_bad_text, "form": form}
    continues = prepare_run_folder(out, recipe, inputs=inputs, resume=resume)
    if (out / METRICS).exists():
        _tidy(out)
        return {"folder": str(out), "already_trained": True, **read_json_object(out / METRICS)}
    counts = _prepared(out)
    if counts is None:
        try:
            counts = _prepare(texts, recipe, out, on_bad_text, progress)
        except DataError:
            if not continues:
                undo_run(out, _TOKENS)
            raise
    training = WordTraining(recipe, counts, np.memmap(out / _TOKENS, np.int32, "r"))
    seconds = _restore(training, out)
    with EventLog(out / "events.jsonl") as log:
        log.forget_after("words", training.blocks_done)
        metrics = _train(training, out, log, progress, seconds)
    fault_point("words.trained")
    suffix = _SUFFIXES[form]
    nodes = (f"node-{number}" for number in range(len(training.outputs)))
    write_vectors(out / f"{VECTORS}{suffix}", _words(out), training.vectors, form)
    names = nodes if recipe.loss == "hierarchical" else _words(out)
    write_vectors(out / f"{OUTPUTS}{suffix}", names, training.outputs, form)
    metrics = {"num_words": len(counts), "num_tokens": int(counts.sum()), **metrics}
    fault_point("words.finish")
    write_json(out / METRICS, metrics)
    fault_point("words.tidy")
    _tidy(out)
    return {"folder": str(out), **metrics}


def _tidy(out: Path) -> None:
    """Remove what only an unfinished run needs."""
    for name in (_TOKENS, _PREPARED):
        (out / name).unlink(missing_ok=True)
    if (out / _CHECKPOINT).exists():
        remove_tree(out / _CHECKPOINT)


def _prepare(
    texts: Sequence[str | Path],
    recipe: WordsRecipe,
    out: Path,
    on_bad_text: Literal["error", "skip"],
    progress: Progress,
) -> np.ndarray:
    """Read the text once, write the vocabulary and the token ids that training memory-maps, and return the counts.

    The words stay in the file, because all of them and the reader's state take a third of the memory.
    """
    path, reading = out / _TOKENS, ReadingReport()
    progress.begin("reading text", 0)
    documents = read_documents(texts, on_bad_text=on_bad_text, report=reading, longest=_LONGEST_DOCUMENT)
    words, num_cuts = write_numbers(documents, recipe, path, progress.advance)
    skipped = ""
    if reading.num_skipped_documents:
        first = reading.skipped[0]
        skipped = f"skipped {amount(reading.num_skipped_documents, 'document')} with bad text, {first} first"
        progress.say(skipped)
    if not words:
        raise DataError(f"{', '.join(map(str, texts))}: contains no words{skipped and '; '}{skipped}")
    if num_cuts:
        progress.say(f"split text without white space at {amount(num_cuts, 'place')}: a word has at most 131,072 bytes")
    for _ in range(recipe.phrases):
        phrases = join_phrases(path, words, recipe)
        examples = f": {', '.join(map(visible, phrases[:3]))}{', ...' if len(phrases) > 3 else ''}" if phrases else ""
        progress.say(f"joined {amount(len(phrases), 'pair')} of words into phrases{examples}")
    words, counts = keep_frequent(path, words, recipe.min_count)
    if counts.sum() < _LITTLE_TEXT and recipe.model == "skipgram" and recipe.learning_rate is None:
        progress.say("note: on fewer than ten million words, skip-gram learns more with --learning-rate 0.05")
    progress.end()
    pairs = zip(words, counts.tolist(), strict=True)
    write_text(out / VOCABULARY, "".join(f"{word} {count}\n" for word, count in pairs))
    lowercase = not holds_capitals(words)
    forms = (whole_word(word, lowercase=lowercase) for word in words)  # without accents, if uncased
    whole = (form for form in forms if not form.startswith(CONTINUATION_PREFIX))  # others would be parts of words
    tokens = dict.fromkeys((*SPECIAL_TOKENS, *whole))
    write_text(out / "vocab.txt", "".join(f"{token}\n" for token in tokens))  # a vocabulary of whole words for models
    fault_point("words.prepared")
    write_json(out / _PREPARED, {name: fingerprint(out / name) for name in _KEPT})
    return counts


_KEPT = (_TOKENS, VOCABULARY)


def _prepared(out: Path) -> np.ndarray | None:
    """Return the word counts of a resumed run, or None if its text must be read again."""
    if not all((out / name).exists() for name in (_PREPARED, *_KEPT)):
        return None
    if any(fingerprint(out / name) != read_json_value(out / _PREPARED, name, str) for name in _KEPT):
        return None
    return np.fromiter((int(count) for _, count in _vocabulary(out)), np.int64)


def _vocabulary(out: Path) -> Iterator[list[str]]:
    with (out / VOCABULARY).open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line[:-1].rsplit(" ", 1)


def _words(out: Path) -> Iterator[str]:
    return (word for word, _ in _vocabulary(out))


def _train(training: WordTraining, out: Path, log: EventLog, progress: Progress, seconds: float) -> dict[str, Any]:
    """Train to the end, logging each round and saving periodically, on a stop request and at the end.

    `seconds` is the training time before this process. Raises DataError for a non-finite loss or state, and if nothing
    was learned.
    """
    blocks, start, first = training.num_blocks, time.monotonic(), training.blocks_done
    saved = now = start
    progress.begin("training word vectors", blocks, first)
    with stop_requests() as stop, stop.deferred():
        for _ in training.rounds():
            now = time.monotonic()
            done = training.blocks_done
            is_asked = stop.received is not None
            saves = is_asked or done == blocks or now - saved > _SECONDS_BETWEEN_SAVES
            ends = [end(matrix) for matrix in (training.vectors, training.outputs) for end in (np.min, np.max) if saves]
            if not all(map(math.isfinite, (training.loss, *ends))):
                raise DataError(
                    f"{out}: the loss or a vector is not finite after block {done:,} of {blocks:,}: "
                    f"the learning rate {training.recipe.peak_rate:g} is too high; "
                    "give a lower --learning-rate and another --out"
                )
            speed = (done - first) * len(training.tokens) * training.recipe.epochs / blocks / (now - start)
            log.write(
                "step",
                stage="words",
                step=done,
                loss=training.loss,
                learning_rate=training.rate_of(done - 1),
                tokens_per_second=speed,
            )
            progress.advance(done, loss=training.loss, tokens_per_s=speed)
            if saves:
                _save(training, out, seconds + now - start)
                saved = time.monotonic()
                log.write("save", stage="words", step=done)
            if is_asked:
                return {}  # leaving `deferred` raises
    progress.end()
    if not training.outputs.any():  # outputs start at 0, and every prediction changes some
        raise DataError(
            f"{out}: nothing was learned: no line has two words that are in the vocabulary and survive subsampling; "
            "give more text, a lower --min-count or --sample 0, and another --out"
        )
    return {"loss": training.loss, "seconds": seconds + now - start}


def _save(training: WordTraining, out: Path, seconds: float) -> None:
    with replacing_folder(out / _CHECKPOINT) as folder:
        sums = {
            name: write_hashed(folder / name, [matrix.data.cast("B")])["sha256"]
            for name, matrix in ((VECTORS, training.vectors), (OUTPUTS, training.outputs))
        }
        fault_point("words.save")
        state = {"blocks_done": training.blocks_done, "loss": training.loss, "seconds": seconds}
        write_json(folder / _STATE, {**state, **sums})


def _restore(training: WordTraining, out: Path) -> float:
    """Load the last save, if there is one, and return its seconds of training; raises DataError for a damaged save."""
    folder = out / _CHECKPOINT
    if not folder.exists():
        return 0.0
    for name, matrix in ((VECTORS, training.vectors), (OUTPUTS, training.outputs)):
        if problem := why_changed(folder / name, matrix.nbytes, read_json_value(folder / _STATE, name, str)):
            raise DataError(f"{folder / name}: {problem}; remove {folder} to train from the start")
        matrix[:] = np.fromfile(folder / name, np.float32).reshape(matrix.shape)
    training.blocks_done = read_json_value(folder / _STATE, "blocks_done", int)
    training.loss = read_json_value(folder / _STATE, "loss", float)
    return read_json_value(folder / _STATE, "seconds", float)


def open_vectors(place: str | Path) -> WordVectors:
    """Return the vectors of a run's folder, or of a file in word2vec's binary or text format; DataError for others."""
    return read_vectors(vectors_file(place))


def vectors_file(place: str | Path) -> Path:
    """Return a run's file of vectors, or `place` if it is not a folder; DataError for a folder without vectors."""
    place = Path(place)
    check_name(place)
    if not place.is_dir():
        return place
    for suffix in _SUFFIXES.values():
        if (place / f"{VECTORS}{suffix}").exists():
            return place / f"{VECTORS}{suffix}"
    if not (place / RECIPE).exists():
        raise DataError(f"{place}: contains neither {VECTORS}.bin nor {VECTORS}.txt")
    if kind_of_run(described(place)) != "words":
        raise DataError(f"{place}: this run trains a model; only `maskloom words train` makes word vectors")
    raise DataError(f"{place}: the run is not finished; continue it with --resume")


def neighbours(place: str | Path, words: Sequence[str], number: int = 10) -> dict[str, list[tuple[str, float]]]:
    """Return the nearest words of each word with cosine similarities; raises DataError that names unknown words."""
    vectors = open_vectors(place)
    vectors.rows_of(words)
    return {word: vectors.neighbours(word, number) for word in words}


def evaluate_words(
    place: str | Path, pairs: Sequence[Path] = (), analogies: Sequence[Path] = (), most: int = 30_000
) -> dict[str, Any]:
    """Return the scores of vectors on files of pairs and of analogies by file name; ConfigError if none are given."""
    if not pairs and not analogies:
        raise ConfigError("nothing to evaluate: pass --pairs, --analogies or both")
    all_pairs, all_analogies = [read_pairs(path) for path in pairs], [read_analogies(path) for path in analogies]
    vectors = open_vectors(place)
    scores = [similarity_scores(vectors, found) for found in all_pairs]
    scores += [analogy_scores(vectors, found, most) for found in all_analogies]
    names = distinct_names((path.name, str(path.parent)) for path in (*pairs, *analogies))
    return dict(zip(names, scores, strict=True))


def plot_words(place: str | Path, words: Sequence[str], out: Path) -> dict[str, Any]:
    """Write an .html page that plots words on their two principal components.

    Raises ConfigError for another kind of file, and DataError that names unknown words.
    """
    check_page(out, "--out")
    vectors, shown = open_vectors(place), [*dict.fromkeys(words)]
    vectors.rows_of(shown)
    if len(shown) < 2:
        raise ConfigError("a plot needs at least two words")
    dots = [(visible(word), float(x), float(y)) for word, (x, y) in zip(shown, vectors.plane(shown), strict=True)]
    content = {
        "title": f"Word vectors: {visible(Path(place).name)}",
        "chart": scatter_chart(dots, name="words on two principal components"),
        "about": f"{amount(len(vectors.words), 'word')}, vectors of {amount(vectors.matrix.shape[1], 'number')}",
        "tables": [(visible(word), vectors.neighbours(word)) for word in shown],
    }
    write_html(out, "runs/words.html", content)
    return {"words": len(shown), "written_to": str(out)}
