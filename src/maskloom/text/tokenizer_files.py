"""Reading tokenizers from Hugging Face folders: settings, WordPiece with added tokens, byte pairs, unigram pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import pre_tokenizers

from maskloom.errors import DataError
from maskloom.system.foreign_files import file_inside, read_json_object, read_object_inside
from maskloom.text.vocabulary import (
    BART_TOKENS,
    CONTINUATION_PREFIX,
    END_OF_WORD,
    GPT_TOKENS,
    MAX_VOCABULARY_BYTES,
    SENTINEL,
    SPECIAL_TOKENS,
    SpecialTokens,
    Vocabulary,
    model_of,
    read_text,
    take_added,
    tokens_by_id,
)

SETTINGS_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
# transformers writes 1e30 for an unknown limit
_NO_LIMIT = 10**9
MAX_WORD_LENGTHS = {"google": 200, "hf": 100}
"""The length, in characters, of the longest word that WordPiece splits, in Google's rules and in Hugging Face's."""
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
"""transformers' names for the fields of `SpecialTokens`, in the same order."""

_END_OF_TEXT = "<|endoftext|>"
_CLASSES = (
    *("OpenAIGPTTokenizer", "GPT2Tokenizer", "BartTokenizer", "RobertaTokenizer"),
    *("PreTrainedTokenizer", "TokenizersBackend"),
)
# classes with a vocab.txt like BERT's that find words with a dictionary
_OTHER_WORDS = ("BertJapaneseTokenizer", "RoFormerTokenizer")
# what a WordPiece of older files, which do not name their type, has, and a list of whole words has not
_OF_WORDPIECE = ("continuing_subword_prefix", "max_input_chars_per_word")
# settings of the library's model that affect ids, and their accepted values in both layouts
_PLAIN = {"dropout": (None, 0), "continuing_subword_prefix": (None, ""), "ignore_merges": (None, False),
          "byte_fallback": (None, False), "fuse_unk": (None, False)}  # fmt: skip


class Added(NamedTuple):
    """A token that the `tokenizers` library finds in a text before it splits words, with the library's settings."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


def read_wordpiece(folder: Path) -> dict[str, Any]:
    """Read the arguments of a `WordPieceTokenizer` from vocab.txt, tokenizer.json and the configurations.

    A folder with only a vocab.txt is uncased unless its tokens contain capital letters. A tokenizer.json without a
    vocab.txt also decides the compatibility: a word limit of 100 characters is Hugging Face's, so special tokens in a
    text are recognised too; added tokens are Hugging Face's as well. Raises DataError for rules that BERT's has not,
    and for damaged files.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder; a tokenizer is a folder with vocab.txt or tokenizer.json")
    vocabulary = Vocabulary.load(folder)
    config, library, pieces = _config(folder), _library(folder), vocabulary.tokens
    has_list = file_inside(folder, "vocab.txt") is not None
    if not has_list:
        pieces = tuple(token for token in pieces if token in library["model"]["vocab"])
    added = _read_added(folder, config, library, pieces)
    if added:
        tokens = dict.fromkeys([*pieces, *(token.content for token in added)])
        vocabulary = Vocabulary([*tokens], source=str(folder))
    normalizer = library.get("normalizer") or {}
    if not isinstance(normalizer, dict):
        raise DataError(f"{folder}: the normalizer of tokenizer.json is not an object but {type(normalizer).__name__}")
    if (lowercase := config.get("do_lower_case", normalizer.get("lowercase"))) is None:
        lowercase = not holds_capitals(pieces)
    refuse_foreign_rules(folder, lowercase, {**normalizer, **config})
    by_file = "google" if has_list else _compatibility(folder / "tokenizer.json", library)
    compatibility = config.get("maskloom_compatibility", "hf" if added else by_file)
    if compatibility not in [*MAX_WORD_LENGTHS]:  # a list: the value may be an object, which has no hash
        raise DataError(f"{folder}: maskloom_compatibility is {compatibility!r:.80}; it must be 'google' or 'hf'")
    rules = {"lowercase": lowercase, "max_length": read_limit(folder, config), "compatibility": compatibility}
    return {"vocabulary": vocabulary, "added": added, "num_pieces": len(pieces) if added else None, **rules}


def _read_added(
    folder: Path, config: dict[str, Any], library: dict[str, Any], pieces: Sequence[str]
) -> tuple[Added, ...]:
    """Return the added tokens of a folder in order of id, or () if there are none but BERT's special tokens.

    As in transformers, tokenizer_config.json takes precedence over tokenizer.json, and that over added_tokens.json.
    Raises DataError for damaged entries, for ids that do not follow those of the pieces, and for tokens with white
    space, as tasks and corpora encode texts word by word.
    """
    ids = {piece: number for number, piece in enumerate(pieces)}
    found = {token: Added(token, normalized=False, special=True) for token in SPECIAL_TOKENS}
    for values in sorted(_entries(folder, config, library), key=lambda values: values.get("id", len(ids))):
        content, flags = values["content"], {name: values[name] for name in Added._fields[1:] if name in values}
        what = f"{folder}: the added token {content!r:.80}"
        if not isinstance(content, str) or content.split() != [content]:
            raise DataError(f"{what} is not supported: it must be text without white space")
        if bad := [f"{name} is {value!r:.80}" for name, value in flags.items() if not isinstance(value, bool)]:
            raise DataError(f"{what}: {bad[0]}; it must be true or false")
        expected = ids.setdefault(content, len(ids))
        if values.get("id", expected) != expected:
            raise DataError(f"{what} has the id {values['id']}; its place in the vocabulary is {expected}")
        token = Added(content, **flags)
        found[content] = token._replace(special=token.special or content in SPECIAL_TOKENS)
    is_more = len(found) > len(SPECIAL_TOKENS)
    return tuple(sorted(found.values(), key=lambda token: ids[token.content])) if is_more else ()


def _entries(folder: Path, config: dict[str, Any], library: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of all files, each with a content; those of tokens that are only named have no id."""
    decoder, old, extra = config.get("added_tokens_decoder"), "additional_special_tokens", "extra_special_tokens"
    special = {"normalized": False, "special": True}
    if isinstance(decoder, dict):
        listed = [(values, int(key) if key.isdecimal() and len(key) < 10 else None) for key, values in decoder.items()]
        listed = [{**values, "id": number} if isinstance(values, dict) else values for values, number in listed]
        named = [*_listed(config, old), *_listed(config, extra)]
    else:
        others, added = read_object_inside(folder, "special_tokens_map.json"), library.get("added_tokens") or []
        named = [*_listed(config, old), *_listed(config, extra), *_listed(others, extra)]
        marks = [name.get("content") for name in named]
        numbers = read_object_inside(folder, "added_tokens.json").items()
        listed = [{"content": token, "id": number, **(special if token in marks else {})} for token, number in numbers]
        listed += added if isinstance(added, list) else [added]
        named = named or _listed(others, old)
    for values in listed:
        if not isinstance(values, dict) or type(values.get("id")) is not int or "content" not in values:
            raise DataError(f"{folder}: {values!r:.80} is not an added token with content and id")
    known = [values["content"] for values in listed]
    return listed + [{**special, **name} for name in named if name.get("content") not in known]


def _listed(settings: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the special tokens that a file lists under a key, as entries without an id."""
    listed = settings.get(key)
    names = listed if isinstance(listed, list) else []
    return [name if isinstance(name, dict) and "content" in name else {"content": name} for name in names]


def read_limit(folder: Path, config: dict[str, Any]) -> int:
    """Return the longest input in tokens, by `config`, config.json or else 512; raises DataError if it is invalid."""
    limit = config.get("model_max_length")
    if not isinstance(limit, int | float) or limit > _NO_LIMIT:
        model = read_object_inside(folder, "config.json")
        limit = model.get("max_position_embeddings") or model.get("n_positions") or 512
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 3 <= limit <= _NO_LIMIT:
        raise DataError(f"{folder}: the longest input is {limit!r:.80} tokens; expected a whole number of at least 3")
    return int(limit)


def holds_capitals(tokens: Iterable[str]) -> bool:
    """Return whether any token other than bracketed ones has a capital letter, so that a vocabulary is cased."""
    return any(token != token.lower() for token in tokens if not token.startswith("["))


def _compatibility(path: Path, library: dict[str, Any]) -> str:
    """Return whose rules a lone tokenizer.json follows, Google's or Hugging Face's; raises DataError for any others."""
    words, model = library.get("pre_tokenizer"), model_of(library)
    if "type" not in library["model"] and (missing := [key for key in _OF_WORDPIECE if key not in model]):
        raise DataError(f"{path}: the model has no type and no {missing[0]}, so the tokenizers library splits no words")
    longest = model.get("max_input_chars_per_word", 100)
    kind = words.get("type") if isinstance(words, dict) else words
    if kind not in (None, "BertPreTokenizer"):
        raise DataError(f"{path}: pre_tokenizer is {kind!r:.80}; BERT's is 'BertPreTokenizer'")
    if found := [name for name, length in MAX_WORD_LENGTHS.items() if longest == length]:
        return found[0]
    raise DataError(f"{path}: max_input_chars_per_word is {longest!r:.80}; expected 100 (hf) or 200 (google)")


def refuse_foreign_rules(folder: Path, lowercase: Any, rules: dict[str, Any]) -> None:
    """Raise DataError if a normalizer or a configuration asks for word rules other than BERT's."""
    if not isinstance(lowercase, bool):
        raise DataError(f"{folder}: do_lower_case is {lowercase!r:.80}; it must be true or false")
    if (named := str(rules.get("tokenizer_class")).removesuffix("Fast")) in _OTHER_WORDS:
        raise DataError(f"{folder}: tokenizer_class is {named!r}, whose rules for splitting words are not BERT's")
    if rules.get("type", "BertNormalizer") != "BertNormalizer":
        raise DataError(f"{folder}: the normalizer of tokenizer.json is {rules['type']!r}; BERT's is 'BertNormalizer'")
    if rules.get("strip_accents") not in (None, lowercase):
        raise DataError(f"{folder}: strip_accents is {rules['strip_accents']!r}; BERT's is do_lower_case, {lowercase}")
    for key in ("tokenize_chinese_chars", "handle_chinese_chars", "clean_text", "do_basic_tokenize"):
        if rules.get(key) is False:
            raise DataError(f"{folder}: {key} is false; in BERT's rules it is always true")


def kind_of_tokenizer(folder: Path) -> str:
    """Return the kind of tokenizer in a folder by its files: "byte-pair", "unigram", "spelled" or else "wordpiece"."""
    if (folder / "vocab.txt").exists():
        return "wordpiece"
    if (folder / "vocab.json").exists() or (folder / "merges.txt").exists():
        return "byte-pair"
    model = model_of(_library(folder))
    if model.get("type") == "BPE":
        return "spelled" if model.get("continuing_subword_prefix") == CONTINUATION_PREFIX else "byte-pair"
    return "unigram" if model.get("type") == "Unigram" else "wordpiece"


def read_unigram(folder: Path) -> dict[str, Any]:
    """Read the arguments of a `UnigramTokenizer` from a tokenizer.json; raises DataError if it is damaged."""
    path, config, library = folder / "tokenizer.json", _config(folder), _library(folder)
    model, pieces = model_of(library), model_of(library).get("vocab")
    if not isinstance(pieces, list) or not all(
        isinstance(piece, list) and [*map(type, piece)] in ([str, float], [str, int]) for piece in pieces
    ):
        raise DataError(f"{path}: vocab is not a list of pieces with their scores")
    added = _added(folder, library)
    ids = {**added, **{piece: index for index, (piece, _) in enumerate(pieces)}}
    usual = SpecialTokens(pad="<pad>", unknown="<unk>", end="</s>")
    special = SpecialTokens(**_named_tokens(folder, config, ids, usual))
    _refuse_foreign_tokens(folder, added, [*special.tokens, *filter(SENTINEL.fullmatch, ids)])
    vocabulary = Vocabulary(tokens_by_id(ids, path), special, prefix="", source=str(path))
    rules = {name: library.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    rules["model"] = {key: value for key, value in model.items() if key != "vocab"}
    scores = tuple(float(score) for _, score in pieces)
    more = {"max_length": read_limit(folder, config), "lowercase": False}
    return {"vocabulary": vocabulary, "scores": scores, "rules": json.dumps(rules, sort_keys=True), **more}


def read_byte_pairs(folder: Path) -> dict[str, Any]:
    """Read the arguments of a `BytePairTokenizer` from vocab.json and merges.txt, or else from tokenizer.json only.

    Raises DataError, with file and line, for damaged files, for merges of unknown tokens, and for rules that are
    neither GPT's nor GPT-2's.
    """
    config, library = _config(folder), _library(folder)
    model = model_of(library)
    path = file_inside(folder, "vocab.json")
    if path is not None:
        merges_path = file_inside(folder, "merges.txt")
        if merges_path is None:
            raise DataError(f"{folder}: vocab.json without merges.txt, which lists the merges in order")
        ids, merges = read_json_object(path, limit=MAX_VOCABULARY_BYTES), _lines_of_merges(merges_path)
    elif model.get("type") == "BPE":
        path, listed = folder / "tokenizer.json", model.get("merges")
        if not isinstance(listed, list):
            raise DataError(f"{path}: merges is not a list but {type(listed).__name__}")
        ids, merges = model.get("vocab"), ((f"{path}, merge {n}", merge) for n, merge in enumerate(listed, start=1))
    else:
        raise DataError(f"{folder}: merges.txt without vocab.json, which holds the token ids")
    if not isinstance(ids, dict):
        raise DataError(f"{path}: the vocabulary is not an object but {type(ids).__name__}")
    added = _added(folder, library)
    tokens = tokens_by_id(ids := {**added, **ids}, path)
    suffix = END_OF_WORD if any(token.endswith(END_OF_WORD) for token in tokens) else ""
    if missing := [] if suffix else sorted(set(pre_tokenizers.ByteLevel.alphabet()).difference(ids)):
        why = f"no token ends with {END_OF_WORD!r}, as in GPT, or is the byte {missing[0]!r}, as in GPT-2"
        raise DataError(f"{path}: {why}")
    special = _special_tokens(folder, config, ids, suffix, path, added)
    vocabulary = Vocabulary(tokens, special, prefix="", suffix=suffix, source=str(path))
    pairs = _checked_merges(merges, vocabulary, path)
    rules = _read_rules(folder, library, model, config, suffix)
    return {"vocabulary": vocabulary, "merges": pairs, "max_length": read_limit(folder, config), **rules}


def _config(folder: Path) -> dict[str, Any]:
    config = read_object_inside(folder, "tokenizer_config.json")
    if config.get("auto_map"):
        raise DataError(f"{folder}: auto_map names code that comes with the tokenizer, which is never run")
    return config


def _library(folder: Path) -> dict[str, Any]:
    return read_object_inside(folder, "tokenizer.json", limit=MAX_VOCABULARY_BYTES)


def _lines_of_merges(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the merges of a merges.txt in order, each after its place."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip("\r") and not (number == 1 and line.startswith("#version")):
            yield f"{path}, line {number}", line.rstrip("\r")


def _checked_merges(
    merges: Iterable[tuple[str, Any]], vocabulary: Vocabulary, vocabulary_path: Path
) -> tuple[tuple[str, str], ...]:
    """Return merges, each given after its place: pairs, or as in older files strings with a blank."""
    first: dict[tuple[str, str], str] = {}
    for place, merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
            raise DataError(f"{place}: {merge!r:.80} is not a merge; expected two symbols separated by a blank")
        pair = (parts[0], parts[1])
        missing = next((token for token in (*pair, "".join(pair)) if token not in vocabulary.ids), None)
        if missing is not None:
            raise DataError(f"{place}: merges {' '.join(pair)!r:.80}, but {vocabulary_path} has no {missing!r:.80}")
        if pair in first:
            raise DataError(f"{place}: {' '.join(pair)!r:.80} is already merged, see {first[pair]}")
        first[pair] = place
    return tuple(first)


def _added(folder: Path, library: dict[str, Any]) -> dict[str, Any]:
    """Return the ids of the added tokens in both files that may have them; transformers finds these in any text."""
    take_added(added := read_object_inside(folder, "added_tokens.json"), library, folder / "tokenizer.json")
    return added


def _refuse_foreign_tokens(folder: Path, added: Iterable[str], known: Iterable[str | None]) -> None:
    if foreign := ", ".join(sorted({*added}.difference(known))):
        raise DataError(f"{folder}: the added tokens {foreign:.200} are not supported; they would be split into pieces")


def _special_tokens(
    folder: Path, config: dict[str, Any], ids: dict[str, int], suffix: str, path: Path, added: Iterable[str]
) -> SpecialTokens:
    """Return the special tokens that the folder names, or else the published models' tokens in the vocabulary.

    Raises DataError for any other token that was `added`.
    """
    usual = GPT_TOKENS if suffix else SpecialTokens(begin=_END_OF_TEXT, end=_END_OF_TEXT)
    if not suffix and all(token in ids for token in BART_TOKENS.tokens):
        usual = BART_TOKENS
    found = _named_tokens(folder, config, ids, usual)
    known = [*found.values(), GPT_TOKENS.unknown, *filter(SENTINEL.fullmatch, ids)]  # BART's unknown one has no name
    _refuse_foreign_tokens(folder, added, known)
    if not suffix:
        # every byte is known, although transformers names an unknown token
        found["unknown"] = None
    elif found["unknown"] is None:
        raise DataError(f"{path}: no {GPT_TOKENS.unknown!r}, the token for characters that are not in the vocabulary")
    return SpecialTokens(**found)


def _named_tokens(
    folder: Path, config: dict[str, Any], ids: dict[str, int], usual: SpecialTokens
) -> dict[str, str | None]:
    values = {**read_object_inside(folder, "special_tokens_map.json"), **config}
    found: dict[str, str | None] = {}
    for role, name in zip(SpecialTokens.__dataclass_fields__, ROLES, strict=True):
        token = values.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None and not isinstance(token, str):
            raise DataError(f"{folder}: {name} is {token!r:.80}; expected a token")
        default = getattr(usual, role)
        found[role] = token or (default if default in ids else None)
    return found


def _read_rules(
    folder: Path, library: dict[str, Any], model: dict[str, Any], config: dict[str, Any], suffix: str
) -> dict[str, bool]:
    """Return `lowercase` and `prefix_space`; raises DataError for rules of neither layout."""
    path, words, normalizer = folder / "tokenizer.json", library.get("pre_tokenizer"), library.get("normalizer") or {}
    words = words if isinstance(words, dict) else {"type": words}
    named = config.get("tokenizer_class") or "TokenizersBackend"
    if str(named).removesuffix("Fast") not in _CLASSES:
        raise DataError(f"{folder}: tokenizer_class is {named!r:.80}; supported for byte pairs: {', '.join(_CLASSES)}")
    if library:
        rules = (
            ("model.type", model.get("type"), "BPE"),
            ("model.end_of_word_suffix", model.get("end_of_word_suffix", suffix) or "", suffix),
            ("pre_tokenizer", words.get("type"), "BertPreTokenizer" if suffix else "ByteLevel"),
            ("pre_tokenizer.use_regex", words.get("use_regex", True), True),
        )
        for what, value, known in rules:
            if value != known:
                raise DataError(f"{path}: {what} is {value!r:.80}; with these tokens only {known!r} is supported")
        for key, plain in _PLAIN.items():
            if model.get(key) not in plain:
                raise DataError(f"{path}: {key} is {model[key]!r:.80}; neither GPT nor GPT-2 has this setting")
    if not isinstance(normalizer, dict) or (normalizer and not suffix):
        raise DataError(f"{path}: normalizer is {normalizer!r:.80}; GPT-2 does not normalise text")
    if not suffix:
        prefix = config.get("add_prefix_space", words.get("add_prefix_space"))
        return {"lowercase": False, "prefix_space": prefix is True}
    lowercase = config.get("do_lower_case", normalizer.get("lowercase", True))
    refuse_foreign_rules(folder, lowercase, {**normalizer, **config})
    return {"lowercase": lowercase}
