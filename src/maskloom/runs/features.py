"""Writing a model's activations, for training on them and for any other use (BERT paper 5.4)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from maskloom.checkpoints.huggingface import load_model, read_model_config
from maskloom.data.batch import sorted_batches
from maskloom.data.feature_files import MANIFEST, FeatureFile, FeaturePlan, FeatureWriter, Precision
from maskloom.errors import ConfigError, DataError
from maskloom.inference.model_folder import load_tokenizer, resolve_model_folder
from maskloom.layers.layer_mix import LayerCombination
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.tagging import frozen_vectors
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.finetune_restarts import FinetunePlan
from maskloom.runs.first_look import check_place
from maskloom.runs.run_folder import fingerprint, model_files
from maskloom.system.devices import chosen_device, describe_device
from maskloom.system.files import output_file
from maskloom.system.folder_lock import alone_in_folder
from maskloom.tasks.encoding import encode_examples
from maskloom.tasks.examples import Example
from maskloom.tasks.kinds import TAGGING
from maskloom.tasks.settings import TaggingSettings
from maskloom.tasks.tables import ReadingOptions, read_rows
from maskloom.tasks.tagging.encoding import EncodedSentences, encode_sentences
from maskloom.tasks.tagging.features import (
    FeatureSentences,
    FeatureUnits,
    all_tokens,
    chain_words,
    row_counts,
    sentence_words,
)
from maskloom.tasks.tagging.reading import layout_of_sentences
from maskloom.tasks.task import PROCESSOR_TOKENS
from maskloom.text.spelled_tokenizer import SpelledTokenizer
from maskloom.text.tokenizer import Tokenizer

Units = Literal["words", "tokens"]
TOKENS = "tokens.jsonl"
# What a kill can cost: finished units are marked on disk once per this many batches.
_BATCHES_BETWEEN_MARKS = 32
_Encoded = tuple[FeatureUnits, list[dict[str, Any]], dict[str, Any]]


def write_features(
    folder: Path,
    model: EncoderWithHeads,
    combination: LayerCombination,
    units: FeatureUnits,
    *,
    model_sum: str,
    precision: Precision = "float32",
    progress: Progress = SILENT,
    what: str = "writing activations",
) -> FeatureFile:
    """Write the vectors of all units, and open them; vectors that an earlier call wrote are kept.

    Raises DataError if `folder` holds features of another model, text or choice of layers, or damaged ones, and for a
    non-finite activation.
    """
    counts, source_sum = row_counts(units)
    width = combination.width(model.config.hidden_size)
    plan = FeaturePlan(model_sum, source_sum, tuple(combination.vector_names()), width, counts, precision)
    if (folder / MANIFEST).exists():
        return FeatureFile.open(folder, plan)
    writer = FeatureWriter(folder, plan)
    missing = writer.missing_units()
    done = len(counts) - len(missing)
    progress.begin(what, len(counts), done)
    for number, chosen in enumerate(sorted_batches(units.lengths[missing], PROCESSOR_TOKENS), start=1):
        indices = missing[chosen]
        batch, positions, _ = units.positions(indices)
        try:
            writer.write(indices, frozen_vectors(model, batch, positions, combination).cpu().numpy())
        except ValueError as error:
            raise DataError(f"{folder}: {error}") from None
        if number % _BATCHES_BETWEEN_MARKS == 0:
            writer.mark()
        done += len(indices)
        progress.advance(done)
    writer.finish()
    progress.end()
    return FeatureFile.open(folder, plan, verify=False)


def with_features(plan: FinetunePlan, folder: Path, model_sum: str, progress: Progress) -> FinetunePlan:
    """Return a plan whose data includes the frozen encoder's vectors, written to `folder` once for all seeds."""
    features = cast(TaggingSettings, plan.task.settings).features
    assert features is not None
    model, _report = load_model(plan.source, heads=())
    model.to(chosen_device(plan.settings.device))
    combination = LayerCombination.of(features.layers, model.config.num_hidden_layers)
    sides = {}
    for name in ("train", "dev"):
        encoded = cast(EncodedSentences, getattr(plan, name))
        file = write_features(
            folder / name,
            model,
            combination,
            chain_words(encoded),
            model_sum=model_sum,
            precision=features.precision,
            progress=progress,
            what=f"writing activations of {name}",
        )
        sides[name] = FeatureSentences(**vars(encoded), features=file)
    return replace(plan, **sides)


@dataclass(frozen=True)
class Activations:
    """Which activations to write: of which layers, for which units, and in which precision.

    `layers` is a name of `LayerCombination` or layer numbers, by default the last four. Units "words" give one row for
    every word of sentences in columns or JSONL: the vector of its first piece; long sentences are read in overlapping
    windows. Units "tokens" give every token of each line of a text, special tokens included, and every word for an
    ELMo; a line may be a pair separated by ` ||| `, and what does not fit is truncated and counted. By default .txt
    files without columns give tokens, others words.
    """

    layers: str | None = None
    units: Units | None = None
    precision: Precision = "float32"


@alone_in_folder(beside=True)
def features(
    model: Path,
    path: Path,
    out: Path,
    *,
    wanted: Activations = Activations(),
    reading: ReadingOptions | None = None,
    max_length: int | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Write activations for the text of a file, and in `tokens.jsonl` what the rows of each unit represent.

    A call that was stopped continues where it was. Raises ConfigError for layers that do not exist and for an `out`
    that holds anything else, DataError for a wrong file or folder.
    """
    folder = out.resolve() if out.is_symlink() else out
    if folder.exists() and not (folder / MANIFEST).exists():
        raise ConfigError(f"{out} exists and is not a folder of features; choose a new --out")
    if folder.exists():
        check_place(path, folder / TOKENS)
    source_folder, device = resolve_model_folder(model), chosen_device()
    tokenizer, config = load_tokenizer(source_folder), read_model_config(source_folder)
    limit, num_layers = min(config.max_position_embeddings, tokenizer.max_length), config.num_hidden_layers
    if max_length is not None and not 3 <= max_length <= limit:
        raise ConfigError(f"max_length {max_length}: {source_folder} takes 3 to {limit} tokens")
    last_four = ",".join(str(-number) for number in range(1, min(4, num_layers) + 1))
    combination = LayerCombination.of(last_four if wanted.layers is None else wanted.layers, num_layers)
    reading, limit = reading or ReadingOptions(), max_length or limit
    units, names, account = _encode(path, tokenizer, wanted.units, reading, limit)
    progress.say(f"device: {describe_device(device)}")
    encoder = load_model(source_folder, heads=())[0].to(device)
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = write_features(
        folder,
        encoder,
        combination,
        units,
        model_sum=fingerprint(*model_files(source_folder)),
        precision=wanted.precision,
        progress=progress,
    )
    with output_file(folder / TOKENS, "w") as listed:
        listed.writelines(json.dumps(name, ensure_ascii=False) + "\n" for name in names)
    return {
        "output": str(folder),
        "num_units": len(file),
        "num_rows": len(file.array),
        "vectors": file.vectors,
        "width": file.width,
        "num_bytes": int(file.array.nbytes),
        **account,
        "max_length": limit,
    }


def _encode(
    path: Path, tokenizer: Tokenizer, units: Units | None, options: ReadingOptions, max_length: int
) -> _Encoded:
    """Return the units of a file, a dictionary for each of what its rows represent, and what was read and truncated."""
    layout = layout_of_sentences(path, options, needs_label=False)
    if units == "tokens" or (units is None and layout == "text"):
        if layout not in ("text", "columns") or options.text_column is not None:  # a text may look like columns
            raise ConfigError(f"{path}: vectors of tokens are for text files, read line by line; give a .txt file")
        return _encode_lines(path, tokenizer, max_length)
    data = TAGGING.read(path, options, needs_label=False)
    if data.report.num_blank:
        raise DataError(f"{path}: line {data.report.first_blank_line}: a sentence without words")
    encoded = encode_sentences(data.examples, tokenizer, max_length=max_length, path=path)
    names = [
        {"index": index, "line": sentence.line, "words": list(sentence.words)}
        for index, sentence in enumerate(data.examples)
    ]
    return sentence_words(encoded), names, {"num_truncated_examples": 0, "data": data.report.as_dict()}


def _encode_lines(path: Path, tokenizer: Tokenizer, max_length: int) -> _Encoded:
    """Encode every line of a text, including blank ones, so that units correspond to lines."""
    examples = []
    for row in read_rows(path, "text"):
        first, mark, last = str(next(iter(row.fields))).strip().rpartition(" ||| ")
        text, pair = (first, last) if mark else (last, None)
        examples.append(Example(text=text, pair=pair, label=None, line=row.line))
    encoded = encode_examples(examples, tokenizer, max_length=max_length)
    tokens, names = tokenizer.vocabulary.tokens, []
    words_of = tokenizer.words if isinstance(tokenizer, SpelledTokenizer) else None
    is_start = ~tokenizer.vocabulary.is_continuation if words_of else None
    for index, example in enumerate(examples):
        ids = encoded.token_ids[encoded.offsets[index] : encoded.offsets[index + 1]].tolist()
        shown = words_of(ids) if words_of else [tokens[number] for number in ids]
        names.append({"index": index, "line": example.line, "tokens": shown})
    return all_tokens(encoded, is_start), names, {"num_truncated_examples": encoded.num_truncated_examples}
