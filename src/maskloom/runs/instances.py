"""Pre-training instances as files, as Google's create_pretraining_data writes them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from maskloom.data.corpus import Corpus
from maskloom.data.documents import read_documents, refuse_output_inside, source_files
from maskloom.data.google_instances import GoogleInstance, example, google_instances, record
from maskloom.errors import ConfigError
from maskloom.files import output_file
from maskloom.runs.corpus import tokenizer_folder
from maskloom.runs.first_look import check_place
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

_TAIL = 1 << 16
_WHAT = "corpus instances"
_Documents = list[list[list[str]]]


def write_google_instances(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    vocab: str | Path | None = None,
    max_length: int = 128,
    dupe_factor: int = 10,
    short_seq_prob: float = 0.1,
    masked_lm_prob: float = 0.15,
    max_predictions_per_seq: int = 20,
    whole_word_masking: bool = False,
    seed: int = 12345,
    on_bad_text: Literal["error", "skip"] = "error",
) -> dict[str, Any]:
    """Write the instances that Google's generator makes, in its order, and return how many there are.

    `sources` are one corpus folder, or text with a sentence a line and an empty line between documents, read with the
    vocabulary of `vocab`. A `.tfrecord` holds tf.train.Example records with Google's features; a `.jsonl` the tokens
    of each instance. From text, instances equal those of bert-tensorflow 1.0.4 for the same seed. All documents and
    instances are held in memory, as there. Raises ConfigError for wrong settings, DataError for bad text.
    """
    out = Path(out)
    if out.suffix not in (".tfrecord", ".jsonl"):
        raise ConfigError(f"{out}: instances are written as .tfrecord or .jsonl")
    for source in sources:
        check_place(Path(source), out)
    refuse_output_inside(sources, out)
    for name, value in (("short_seq_prob", short_seq_prob), ("masked_lm_prob", masked_lm_prob)):
        if not 0.0 <= value <= 1.0:
            raise ConfigError(f"{name} = {value}: it must be from 0 to 1")
    if max_predictions_per_seq < 1:
        raise ConfigError(f"max_predictions_per_seq = {max_predictions_per_seq}: it must be at least 1")
    if max_predictions_per_seq > max(max_length, 20):  # Google's default of 20 stands for short sequences too
        raise ConfigError(
            f"max_predictions_per_seq = {max_predictions_per_seq}: it may not exceed max_length = {max_length}"
        )
    documents, vocabulary = _documents(sources, vocab, on_bad_text)
    instances = google_instances(
        documents,
        vocabulary.tokens,
        rng=random.Random(seed),
        max_length=max_length,
        dupe_factor=dupe_factor,
        short_seq_prob=short_seq_prob,
        masked_lm_prob=masked_lm_prob,
        max_predictions_per_seq=max_predictions_per_seq,
        whole_word_masking=whole_word_masking,
    )
    with output_file(out) as file:
        for instance in instances:
            if out.suffix == ".jsonl":
                file.write(json.dumps(_as_json(instance), ensure_ascii=False).encode() + b"\n")
            else:
                features = _features(
                    instance, vocabulary, max_length=max_length, max_predictions_per_seq=max_predictions_per_seq
                )
                file.write(record(example(features)))
    counts = _counts(instances, masked_lm_prob=masked_lm_prob, max_predictions_per_seq=max_predictions_per_seq)
    return {"file": str(out), "num_documents": len(documents), **counts}


def _counts(
    instances: Sequence[GoogleInstance], *, masked_lm_prob: float, max_predictions_per_seq: int
) -> dict[str, int]:
    """Return how much the instances hold, and how many predictions the limit cuts off what the rate asks for."""
    lengths = [len(instance.tokens) for instance in instances]
    return {
        "num_instances": len(instances),
        "num_tokens": sum(lengths),
        "num_predictions": sum(len(instance.masked_positions) for instance in instances),
        "num_predictions_cut_off": sum(
            max(0, round(length * masked_lm_prob) - max_predictions_per_seq) for length in lengths
        ),
    }


def _documents(
    sources: Sequence[str | Path], vocab: str | Path | None, on_bad_text: Literal["error", "skip"]
) -> tuple[_Documents, Vocabulary]:
    corpora = [source for source in sources if (Path(source) / "manifest.json").is_file()]
    if not corpora:
        if vocab is None:
            raise ConfigError("text needs --vocab, a folder with the vocabulary that it is read with")
        opened = Tokenizer.load(tokenizer_folder(Path(vocab)))
        tokenizer = replace(WordPieceTokenizer.required(opened, _WHAT, vocab), compatibility="google")
        documents = _lines_of_documents(sources, on_bad_text)
        return _filled([tokenizer.tokens(line) for line in lines] for lines in documents), tokenizer.vocabulary
    if len(sources) > 1:
        raise ConfigError(f"{corpora[0]} is a corpus and must be the only source; {len(sources)} sources are given")
    if vocab is not None:
        raise ConfigError(f"{corpora[0]} is a corpus, which has a vocabulary of its own; leave --vocab out")
    corpus = Corpus.open(corpora[0])
    tokens = WordPieceTokenizer.required(corpus.tokenizer, _WHAT, corpora[0]).vocabulary.tokens
    sentences = (
        [[tokens[index] for index in corpus.sentences(number, number + 1)] for number in range(int(first), int(last))]
        for first, last in zip(corpus.document_offsets, corpus.document_offsets[1:], strict=False)
    )
    return _filled(sentences), corpus.vocabulary


def _lines_of_documents(sources: Sequence[str | Path], on_bad_text: Literal["error", "skip"]) -> Iterator[list[str]]:
    """Yield the lines of each document. As in Google's reader, a blank line ends one, the end of a .txt does not."""
    lines: list[str] = []
    is_open = False
    for source in source_files(sources):
        is_plain = source.path.suffix.lower() == ".txt"
        for document in read_documents(source.path, on_bad_text=on_bad_text):
            if not (is_open and is_plain and document.line == 1):
                yield lines
                lines = []
            is_open = False
            for line in document.text.split("\n"):
                if line.strip():
                    lines.append(line)
                else:  # white space that is not ASCII
                    yield lines
                    lines = []
        if not is_plain or source.path.stat().st_size:
            is_open = is_plain and _ends_within_a_document(source.path)
    yield lines


def _ends_within_a_document(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        return bool(file.read().removesuffix(b"\n").rpartition(b"\n")[2].strip())


def _filled(documents: Iterable[list[list[str]]]) -> _Documents:
    filled = ([sentence for sentence in document if sentence] for document in documents)
    return [document for document in filled if document]


def _as_json(instance: GoogleInstance) -> dict[str, Any]:
    return {
        "tokens": instance.tokens,
        "segment_ids": instance.segment_ids,
        "is_random_next": instance.is_random_next,
        "masked_lm_positions": instance.masked_positions,
        "masked_lm_labels": instance.masked_labels,
    }


def _features(
    instance: GoogleInstance, vocabulary: Vocabulary, *, max_length: int, max_predictions_per_seq: int
) -> dict[str, list[int] | list[float]]:
    """Return Google's features, filled up with zeros to the length and to the number of predictions."""
    num_left = max_length - len(instance.tokens)
    num_free = max_predictions_per_seq - len(instance.masked_positions)
    ids, no_predictions = vocabulary.ids, [0] * num_free
    return {
        "input_ids": [*(ids[token] for token in instance.tokens), *[0] * num_left],
        "input_mask": [*[1] * len(instance.tokens), *[0] * num_left],
        "segment_ids": [*instance.segment_ids, *[0] * num_left],
        "masked_lm_positions": [*instance.masked_positions, *no_predictions],
        "masked_lm_ids": [*(ids[token] for token in instance.masked_labels), *no_predictions],
        "masked_lm_weights": [*[1.0] * len(instance.masked_labels), *[0.0] * num_free],
        "next_sentence_labels": [int(instance.is_random_next)],
    }
