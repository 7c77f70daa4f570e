"""The settings of a tokenizer on disk, in the layout of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskloom.errors import DataError
from maskloom.system.foreign_files import MAX_JSON_BYTES, file_inside, read_json_object
from maskloom.text.vocabulary import MAX_VOCABULARY_BYTES, Vocabulary

SETTINGS_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_DEFAULT_MAX_LENGTH = 512
# transformers writes 1e30 where no limit is known
_NO_LIMIT = 10**9
# Characters of the longest word that is cut into pieces, by whose rules these are.
_WORD_LENGTHS: dict[Any, str] = {100: "hf", 200: "google"}
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
"""The names of transformers for the fields of `SpecialTokens`, in their order."""


def read_settings(folder: str | Path) -> dict[str, Any]:
    """Read `lowercase`, `max_length` and `compatibility` from tokenizer_config.json, tokenizer.json and config.json.

    A folder with nothing but a vocab.txt is uncased unless its tokens hold capital letters. A tokenizer.json without a
    vocab.txt beside it is followed whole: where words of 100 characters are the longest, as Hugging Face has them,
    special tokens in a text count as such too.
    Raises DataError for rules that BERT's tokenizer does not have, and for damaged files.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder; a tokenizer is a folder with vocab.txt or tokenizer.json")
    config = read_object(folder, "tokenizer_config.json")
    library = read_object(folder, "tokenizer.json", limit=MAX_VOCABULARY_BYTES)
    normalizer = library.get("normalizer") or {}
    if not isinstance(normalizer, dict):
        raise DataError(f"{folder}: the normalizer of tokenizer.json is not an object but {type(normalizer).__name__}")
    lowercase = config.get("do_lower_case", normalizer.get("lowercase"))
    if lowercase is None:
        lowercase = not holds_capitals(Vocabulary.load(folder))
    refuse_foreign_rules(folder, lowercase, {**normalizer, **config})
    by_file = "google" if file_inside(folder, "vocab.txt") else _compatibility(folder / "tokenizer.json", library)
    compatibility = config.get("maskloom_compatibility", by_file)
    if compatibility not in ("google", "hf"):
        raise DataError(f"{folder}: maskloom_compatibility is {compatibility!r}, it must be 'google' or 'hf'")
    return {"lowercase": lowercase, "max_length": read_limit(folder, config), "compatibility": compatibility}


def read_limit(folder: Path, config: dict[str, Any]) -> int:
    """Return the longest input in tokens by tokenizer_config.json, given, or config.json; raises DataError for none."""
    limit = config.get("model_max_length")
    if not isinstance(limit, int | float) or limit > _NO_LIMIT:
        model = read_object(folder, "config.json")
        limit = model.get("max_position_embeddings") or model.get("n_positions") or _DEFAULT_MAX_LENGTH
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 3 <= limit <= _NO_LIMIT:
        raise DataError(
            f"{folder}: the longest input is {limit!r:.80} tokens; a whole number of at least 3 is expected"
        )
    return int(limit)


def read_object(folder: Path, name: str, *, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the object of a JSON file of the folder, an empty one where there is no such file."""
    path = file_inside(folder, name)
    return {} if path is None else read_json_object(path, limit=limit)


def holds_capitals(vocabulary: Vocabulary) -> bool:
    """Return whether a token other than the bracketed ones has a capital letter, so that the vocabulary is cased."""
    return any(token != token.lower() for token in vocabulary.tokens if not token.startswith("["))


def _compatibility(path: Path, library: dict[str, Any]) -> str:
    """Return whose rules a tokenizer.json follows that stands alone; beside a vocab.txt it says nothing new.

    Raises DataError for rules of words that are neither Google's nor those of Hugging Face.
    """
    words, model = library.get("pre_tokenizer"), library.get("model")
    kind = words.get("type") if isinstance(words, dict) else words
    if kind not in (None, "BertPreTokenizer"):
        raise DataError(f"{path}: cuts text into words by {kind!r:.80}; only 'BertPreTokenizer' is BERT's")
    longest = model.get("max_input_chars_per_word", 100) if isinstance(model, dict) else 100
    if not isinstance(longest, int) or longest not in _WORD_LENGTHS:
        known = " or ".join(f"{length} ({name})" for length, name in _WORD_LENGTHS.items())
        raise DataError(f"{path}: max_input_chars_per_word is {longest!r:.80}; {known} is expected")
    return _WORD_LENGTHS[longest]


def refuse_foreign_rules(folder: Path, lowercase: Any, rules: dict[str, Any]) -> None:
    """Raise DataError where a normalizer, or a configuration, asks for other rules of words than BERT's."""
    if not isinstance(lowercase, bool):
        raise DataError(f"{folder}: do_lower_case is {lowercase!r:.80}, it must be true or false")
    if rules.get("auto_map"):
        raise DataError(f"{folder}: auto_map names code that comes with the tokenizer, which is never run")
    if rules.get("type", "BertNormalizer") != "BertNormalizer":
        raise DataError(f"{folder}: tokenizer.json normalises by {rules['type']!r}; only 'BertNormalizer' is BERT's")
    if rules.get("strip_accents") not in (None, lowercase):
        raise DataError(
            f"{folder}: strip_accents is {rules['strip_accents']!r} but do_lower_case is {lowercase!r}; BERT's rules "
            "govern both by do_lower_case"
        )
    for key in ("tokenize_chinese_chars", "handle_chinese_chars", "clean_text", "do_basic_tokenize"):
        if rules.get(key) is False:
            raise DataError(f"{folder}: {key} is false; BERT's rules always do it")
