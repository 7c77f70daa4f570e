"""Tokens that users add to a published WordPiece vocabulary, as a folder in Hugging Face layout stores them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from maskloom.errors import DataError
from maskloom.system.foreign_files import read_object_inside
from maskloom.text.vocabulary import SPECIAL_TOKENS


class Added(NamedTuple):
    """A token that the `tokenizers` library finds in a text before it splits words, with the library's settings."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


def read_added(
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
        named = [*_named(config, old), *_named(config, extra)]
    else:
        others, added = read_object_inside(folder, "special_tokens_map.json"), library.get("added_tokens") or []
        named = [*_named(config, old), *_named(config, extra), *_named(others, extra)]
        marks, numbers = (
            [name.get("content") for name in named],
            read_object_inside(folder, "added_tokens.json").items(),
        )
        listed = [{"content": token, "id": number, **(special if token in marks else {})} for token, number in numbers]
        listed += added if isinstance(added, list) else [added]
        named = named or _named(others, old)
    for values in listed:
        if not isinstance(values, dict) or type(values.get("id")) is not int or "content" not in values:
            raise DataError(f"{folder}: {values!r:.80} is not an added token with content and id")
    known = [values["content"] for values in listed]
    return listed + [{**special, **name} for name in named if name.get("content") not in known]


def _named(settings: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the special tokens that a file lists under a key, as entries without an id."""
    listed = settings.get(key)
    names = listed if isinstance(listed, list) else []
    return [name if isinstance(name, dict) and "content" in name else {"content": name} for name in names]
