"""A byte-pair tokenizer on disk, in the layouts of GPT and GPT-2 in Hugging Face folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

from maskloom.errors import DataError
from maskloom.system.foreign_files import file_inside, read_json_object
from maskloom.text.tokenizer_files import ROLES, read_limit, read_object, refuse_foreign_rules
from maskloom.text.vocabulary import (
    END_OF_WORD,
    GPT_TOKENS,
    MAX_VOCABULARY_BYTES,
    SpecialTokens,
    Vocabulary,
    read_text,
    tokens_by_id,
)

_END_OF_TEXT = "<|endoftext|>"
_CLASSES = ("OpenAIGPTTokenizer", "GPT2Tokenizer", "PreTrainedTokenizer", "TokenizersBackend")
# settings of the library's model that change ids, and what they are in both layouts
_PLAIN = {"dropout": (None, 0), "continuing_subword_prefix": (None, ""), "ignore_merges": (None, False),
          "byte_fallback": (None, False), "fuse_unk": (None, False)}  # fmt: skip


def is_byte_pair(folder: Path) -> bool:
    """Return whether the folder holds vocab.json, or a tokenizer.json of byte pairs, and no vocab.txt."""
    if (folder / "vocab.txt").exists():
        return False
    has_files = (folder / "vocab.json").exists() or (folder / "merges.txt").exists()
    return has_files or _model_of(_library(folder)).get("type") == "BPE"


def read_byte_pairs(folder: Path) -> dict[str, Any]:
    """Read what a `BytePairTokenizer` is made of: vocab.json and merges.txt, or else tokenizer.json alone.

    Raises DataError, with file and line, for damaged files, for merges of tokens that are not there, and for rules that
    are neither GPT's nor GPT-2's.
    """
    config, library = read_object(folder, "tokenizer_config.json"), _library(folder)
    model = _model_of(library)
    path = file_inside(folder, "vocab.json")
    if path is not None:
        merges_path = file_inside(folder, "merges.txt")
        if merges_path is None:
            raise DataError(f"{folder}: vocab.json without merges.txt, which says in what order pieces are merged")
        ids, merges = read_json_object(path, limit=MAX_VOCABULARY_BYTES), _read_merges(merges_path)
    elif model.get("type") == "BPE":
        path = folder / "tokenizer.json"
        ids, merges = model.get("vocab"), _listed_merges(model.get("merges"), path)
    else:
        raise DataError(f"{folder}: merges.txt without vocab.json, which holds the ids of tokens")
    if not isinstance(ids, dict):
        raise DataError(f"{path}: the vocabulary is not an object but {type(ids).__name__}")
    added = library.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise DataError(f"{folder / 'tokenizer.json'}: the added token {token!r:.80} has no content")
        ids.setdefault(token["content"], token.get("id"))
    tokens = tokens_by_id(ids, path)
    suffix = END_OF_WORD if any(token.endswith(END_OF_WORD) for token in tokens) else ""
    missing = [] if suffix else sorted(set(pre_tokenizers.ByteLevel.alphabet()).difference(ids))
    if missing:
        raise DataError(
            f"{path}: no token ends with {END_OF_WORD!r}, as in GPT, and {len(missing)} bytes have no token of their "
            f"own, as in GPT-2, such as {missing[0]!r}"
        )
    special = _special_tokens(folder, config, ids, suffix, path)
    vocabulary = Vocabulary(tokens, special, prefix="", suffix=suffix, source=str(path))
    _check_merges(merges, vocabulary, path)
    rules = _read_rules(folder, library, model, config, suffix)
    pairs = tuple(pair for _, pair in merges)
    return {"vocabulary": vocabulary, "merges": pairs, "max_length": read_limit(folder, config), **rules}


def _library(folder: Path) -> dict[str, Any]:
    return read_object(folder, "tokenizer.json", limit=MAX_VOCABULARY_BYTES)


def _model_of(library: dict[str, Any]) -> dict[str, Any]:
    model = library.get("model")
    if not isinstance(model, dict):
        return {}
    return model if "type" in model else {**model, "type": "BPE" if "merges" in model else None}


def _read_merges(path: Path) -> list[tuple[str, tuple[str, str]]]:
    """Return the merges of a merges.txt in their order, each with the line where it stands."""
    return [
        _merge(line.rstrip("\r").split(" "), f"{path}, line {number}")
        for number, line in enumerate(read_text(path).split("\n"), start=1)
        if line.strip("\r") and not (number == 1 and line.startswith("#version"))
    ]


def _listed_merges(values: Any, path: Path) -> list[tuple[str, tuple[str, str]]]:
    """Return the merges of a tokenizer.json: pairs, or texts with a blank between in files of older releases."""
    if not isinstance(values, list):
        raise DataError(f"{path}: merges is not a list but {type(values).__name__}")
    return [
        _merge(value.split(" ") if isinstance(value, str) else value, f"{path}, merge {number}")
        for number, value in enumerate(values, start=1)
    ]


def _merge(parts: Any, place: str) -> tuple[str, tuple[str, str]]:
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        shown = " ".join(map(str, parts)) if isinstance(parts, list) else parts
        raise DataError(f"{place}: {shown!r:.80} is no merge; two symbols with a blank between are expected")
    return place, (parts[0], parts[1])


def _check_merges(merges: Iterable[tuple[str, tuple[str, str]]], vocabulary: Vocabulary, vocabulary_path: Path) -> None:
    first: dict[tuple[str, str], str] = {}
    for place, pair in merges:
        missing = next((token for token in (*pair, "".join(pair)) if token not in vocabulary.ids), None)
        if missing is not None:
            raise DataError(f"{place}: merges {' '.join(pair)!r:.80}, but {vocabulary_path} has no {missing!r:.80}")
        if pair in first:
            raise DataError(f"{place}: {' '.join(pair)!r:.80} is merged already, see {first[pair]}")
        first[pair] = place


def _special_tokens(
    folder: Path, config: dict[str, Any], ids: dict[str, int], suffix: str, path: Path
) -> SpecialTokens:
    """Return the tokens that the folder names, or those of the published models that are in the vocabulary."""
    values = {**read_object(folder, "special_tokens_map.json"), **config}
    usual = GPT_TOKENS if suffix else SpecialTokens(begin=_END_OF_TEXT, end=_END_OF_TEXT)
    found: dict[str, str | None] = {}
    for role, name in zip(SpecialTokens.__dataclass_fields__, ROLES, strict=True):
        token = values.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None and not isinstance(token, str):
            raise DataError(f"{folder}: {name} is {token!r:.80}; a token is expected")
        default = getattr(usual, role)
        found[role] = token or (default if default in ids else None)
    if not suffix:
        # every byte is known; transformers names one all the same
        found["unknown"] = None
    elif found["unknown"] is None:
        raise DataError(f"{path}: no {GPT_TOKENS.unknown!r}, the token for characters that are not in the vocabulary")
    return SpecialTokens(**found)


def _read_rules(
    folder: Path, library: dict[str, Any], model: dict[str, Any], config: dict[str, Any], suffix: str
) -> dict[str, bool]:
    """Return `lowercase` and `prefix_space`; raises DataError for rules of neither layout."""
    path, words, normalizer = folder / "tokenizer.json", library.get("pre_tokenizer"), library.get("normalizer") or {}
    named = config.get("tokenizer_class") or "TokenizersBackend"
    if str(named).removesuffix("Fast") not in _CLASSES:
        raise DataError(f"{folder}: tokenizer_class is {named!r:.80}; of byte pairs {', '.join(_CLASSES)} are known")
    if library:
        kind = words.get("type") if isinstance(words, dict) else words
        cut = ("pre_tokenizer", kind, "BertPreTokenizer" if suffix else "ByteLevel")
        for what, value, known in (("model.type", model.get("type"), "BPE"), cut):
            if value != known:
                raise DataError(f"{path}: {what} is {value!r:.80}; with these tokens only {known!r} is known")
        for key, plain in _PLAIN.items():
            if model.get(key) not in plain:
                raise DataError(f"{path}: {key} is {model[key]!r:.80}; neither GPT's nor GPT-2's ids are made so")
    if not isinstance(normalizer, dict) or (normalizer and not suffix):
        raise DataError(f"{path}: normalizer is {normalizer!r:.80}; GPT-2's text is taken as it is")
    if not suffix:
        prefix = words.get("add_prefix_space", False) if isinstance(words, dict) else False
        return {"lowercase": False, "prefix_space": config.get("add_prefix_space", prefix) is True}
    lowercase = config.get("do_lower_case", normalizer.get("lowercase", True))
    refuse_foreign_rules(folder, lowercase, {**normalizer, **config})
    return {"lowercase": lowercase}
