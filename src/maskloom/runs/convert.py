"""Model folders from published weights: Google's releases, torch.save files, safetensors; each checked before use."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maskloom.checkpoints.huggingface import LoadReport, format_of, load_model, read_config
from maskloom.checkpoints.pickled_weights import open_pickled
from maskloom.checkpoints.published.elmo import OPTIONS, published_elmo
from maskloom.checkpoints.published.sentence_transformers import MODULES
from maskloom.checkpoints.tensor_bundle import INDEX_END, open_bundle
from maskloom.checkpoints.tensor_files import INDEX, PICKLED, WEIGHTS, StoredTensor, open_weights
from maskloom.errors import ConfigError, DataError
from maskloom.inference.model_folder import SETTINGS_FILE, load_tokenizer, modules_folder
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.heads import HEADS
from maskloom.runs.model_writing import Card, check_new_folder, hub_name, model_name, pretrained_tag, write_model_folder
from maskloom.system.foreign_files import file_inside, read_object_inside
from maskloom.text.spelled_tokenizer import SpelledTokenizer
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.tokenizer_files import holds_capitals
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

_NUM_SHOWN = 6
_OF_LABELS = ("id2label", "label2id", "problem_type")


@dataclass(frozen=True)
class _Source:
    """A published model: its folder, the name and kind of its weight file, and its tensors."""

    folder: Path
    weights: str
    kind: str
    stored: dict[str, StoredTensor]


def convert(source: Path, out: Path, *, lowercase: bool | None = None) -> dict[str, Any]:
    """Create a model folder from published weights and return what was mapped, dropped and made up.

    `source` is a folder with a configuration, a vocabulary and weights: safetensors, a TensorFlow 1 checkpoint, or
    pytorch_model.bin; the first in this order is used. It may also be the weight file itself, a checkpoint's prefix, or
    a folder with ELMo's options.json and HDF5 file. Raises ConfigError if `out` holds something or the tokenizer cannot
    lower-case, and DataError with everything that does not fit: tensors, vocabulary and configuration.
    """
    check_new_folder(out)
    if (source / OPTIONS).exists():
        if lowercase:
            raise ConfigError("--uncased: an ELMo reads words as they are spelled")
        return _converted_elmo(source, out)
    found = _found(source)
    model, report, tokenizer = _opened(found)
    config = read_config(found.folder)
    lowercase, reason = _case(found.folder, config, tokenizer, lowercase)
    # tokenizers do not read the configuration in Google's layout
    is_google = not (found.folder / "config.json").exists() and not (found.folder / "tokenizer_config.json").exists()
    max_length = model.config.max_position_embeddings if is_google else tokenizer.max_length
    tokenizer = replace(tokenizer, lowercase=lowercase, max_length=max_length)
    has_labels = any(HEADS[head].is_labelled for head in model.heads)
    labels = {key: config[key] for key in _OF_LABELS if key in config and has_labels}
    tied = next((head for head in model.heads if HEADS[head].is_tied), None)
    card = Card(
        f"Converted {format_of(model.config).name}",
        f"Converted by `maskloom convert` from {found.weights} ({found.kind}) of {model_name(found.folder)}.",
        pipeline_tag=pretrained_tag(tied, model.config),
        base_model=hub_name(found.folder),
    )
    write_model_folder(out, model, tokenizer, card, extra_config=labels, vectors_as=modules_folder(found.folder))
    account = _account(found, model, report, tokenizer)
    if (out / MODULES).exists():
        account["notes"].append(f"vectors are computed as {MODULES} specifies, which was copied with its files")
    return {**account, "case": reason, "model": str(out)}


def _converted_elmo(source: Path, out: Path) -> dict[str, Any]:
    model, weights, copied = published_elmo(source)
    found = _Source(source, weights.name, "HDF5, from bilm-tf or AllenNLP", {})
    tokenizer, report = SpelledTokenizer.of(), LoadReport(copied=copied)
    card = Card("Converted ELMo", f"Converted by `maskloom convert` from {weights.name} of {model_name(source)}.")
    write_model_folder(out, model, tokenizer, card)
    account = _account(found, model, report, tokenizer)
    account["notes"] = ["the model reads words by their characters; the words that it predicted are not in the file"]
    return {**account, "case": "characters as they are", "model": str(out)}


def _found(source: Path) -> _Source:
    """Return the published model at a path; raises DataError if no supported weights are there."""
    index = next((path for path in (source, Path(f"{source}{INDEX_END}")) if path.is_file()), None)
    folder = source if source.is_dir() else source.parent
    if index is None and not source.is_dir():
        raise DataError(f"{source}: there is no such folder, checkpoint or file")
    if source.is_dir() and (source / SETTINGS_FILE).exists():
        raise DataError(f"{source}: already a maskloom model folder; there is nothing to convert")
    if source.is_dir():
        index = _weights_in(source)
    if index is None:
        stored = open_weights(folder)
        path = next(iter(stored.values())).path
        return _Source(folder, path.name, "safetensors", stored)
    if index.name.endswith(INDEX_END):
        return _Source(folder, index.name, "TensorFlow 1 checkpoint", open_bundle(index))
    if index.suffix == ".bin":
        return _Source(folder, index.name, "torch.save", open_pickled(index))
    what = "a vocabulary, not weights" if index.name == "vocab.txt" else "cannot be read on its own"
    raise DataError(
        f"{index}: {what}; name the folder that contains it, config.json, vocab.txt and weights; a single "
        "file must be a checkpoint's .index or a .bin"
    )


def _weights_in(folder: Path) -> Path | None:
    """Return a folder's TensorFlow checkpoint or pytorch_model.bin, or None if it has weights of a preferred kind."""
    if file_inside(folder, WEIGHTS) or file_inside(folder, INDEX):
        return None
    found = sorted(folder.glob(f"*{INDEX_END}"))
    if len(found) > 1:
        names = ", ".join(path.name.removesuffix(INDEX_END) for path in found)
        raise DataError(f"{folder}: several checkpoints ({names}); name one: {folder / names.split(',')[0]}")
    return file_inside(folder, found[0].name if found else PICKLED)


def _opened(found: _Source) -> tuple[EncoderWithHeads, LoadReport, Tokenizer]:
    """Return the model, its load report and the tokenizer; raises DataError with what is wrong with each."""
    problems: list[str] = []
    model = tokenizer = None
    try:
        model = load_model(found.folder, stored=found.stored)
    except DataError as error:
        problems.append(str(error))
    try:
        tokenizer = load_tokenizer(found.folder)
    except DataError as error:
        problems.append(str(error))
    if model is None or tokenizer is None:
        raise DataError("\n".join(problems))
    return *model, tokenizer


def _case(folder: Path, config: dict[str, Any], tokenizer: Tokenizer, given: bool | None) -> tuple[bool, str]:
    """Return whether text is lower-cased and what says so; raises DataError if the sources of this disagree.

    The published code also refuses a model if its folder's name contradicts its setting. Raises ConfigError if text is
    to be lower-cased by a tokenizer that does not do so.
    """
    pieces = tokenizer.vocabulary.tokens[: getattr(tokenizer, "num_pieces", None)]
    can_lower = isinstance(tokenizer, WordPieceTokenizer) or bool(tokenizer.vocabulary.suffix)
    if given and not can_lower:
        raise ConfigError(f"--uncased: the tokenizer of {folder} keeps the case of a text, as its model was trained")
    if given is not None:
        return given, "as given"
    name = folder.resolve().name
    settings = read_object_inside(folder, "tokenizer_config.json")
    named = re.search("uncased|cased", name, re.IGNORECASE)
    said = {
        "do_lower_case of tokenizer_config.json": settings.get("do_lower_case"),
        "do_lower_case of the configuration": config.get("do_lower_case"),
        f"the folder's name, {name}": named and named[0].lower() == "uncased",
        "a vocabulary with capital letters": False if holds_capitals(pieces) else None,
        "a tokenizer that keeps case": None if can_lower else False,
    }
    known = {source: value for source, value in said.items() if isinstance(value, bool)}
    if len(set(known.values())) > 1:
        sides = ", ".join(f"{source} says {'uncased' if value else 'cased'}" for source, value in known.items())
        raise DataError(f"{folder}: {sides}; specify --uncased or --cased")
    if not known:
        return True, "a vocabulary without capital letters"
    return next(iter(known.values())), next(iter(known))


def _account(found: _Source, model: EncoderWithHeads, report: LoadReport, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what was read and what became of each tensor."""
    read = {name for _, name in report.copied}
    spare = model.config.vocab_size - len(tokenizer.of_targets.vocabulary)
    return {
        "source": str(found.folder / found.weights),
        "format": found.kind,
        "layers": model.config.num_hidden_layers,
        "hidden_size": model.config.hidden_size,
        "vocabulary": len(tokenizer.vocabulary),
        "lowercase": tokenizer.lowercase,
        "heads": list(model.heads),
        "mapped": dict(report.copied),
        "dropped": sorted(name for name in found.stored if name not in read),
        "made_up": list(report.new_parameters),
        "notes": [f"{spare:,} of the {model.config.vocab_size:,} embeddings have no token"] if spare else [],
    }


def conversion_lines(result: dict[str, Any]) -> list[str]:
    """Return readable lines: how many tensors were mapped, and the names of those dropped and made up."""
    case = "uncased" if result["lowercase"] else "cased"
    heads = ", ".join(result["heads"]) or "none"
    first, source = next(iter(result["mapped"].items()))
    lines = [
        f"read      {result['source']} ({result['format']}): {result['layers']} layers of {result['hidden_size']}, "
        f"{result['vocabulary']:,} tokens, {case} ({result['case']})",
        f"mapped    {len(result['mapped'])} tensors, such as {source} -> {first}; heads: {heads}",
        f"dropped   {_named(result['dropped'])}",
        f"added     {_named(result['made_up'])}",
    ]
    return [*lines, *(f"note      {note}" for note in result["notes"]), f"model     {result['model']}"]


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:_NUM_SHOWN])
    more = f" and {len(names) - _NUM_SHOWN:,} more" if len(names) > _NUM_SHOWN else ""
    return f"{len(names):,}: {shown}{more}" if names else "nothing"
