"""Mutations of good files: damaged bytes, and wrong values in the right format."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

TOKENS: tuple[bytes, ...] = (
    *(b"\0", b"\xff", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"),
    *(b"\r", b"\r\n", b"\n", b"\n\n", b"\t", b",", b'"', b'""', b"'", b"\\", b"{", b"}", b"[", b"]", b"=", b"#", b":"),
    *("\u2028\u0085\u00a0\u200b\ufeff\ufffd\u0301\U0001f642".encode(), b"NaN", b"-Infinity", b"1e400", b"-1", b"null"),
    *(b"9" * 5_000, b"[" * 10_000, b'{"a":' * 10_000, b"a" * 100_000, b"\n" * 10_000, b"-DOCSTART-", b"[MASK]"),
    *(b"\\ud800", b"__proto__", b"../../../etc/passwd", b"%s%n", b"true", b"0x10", b"1_000", b"\x1f\x8b\x08"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308, 1e-320),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        "",
        " ",
        "0",
        "1",
        "-5",
        "--5",
        "²",
        "x",
        "auto",
        "[MASK]",
        "\0",
        "\n",
    ),
    *("\ud800", "\ufffd", "é", "x" * 10_000, "9" * 5_000, "../up", "/etc/passwd", [], [[]], {}, [None], [1, 2], ["a"]),
    *({"a": 1}, {"": ""}, {"text": "a", "answer_start": 0}, ["a", "a"], [0.5, 0.5], [{"content": "a", "id": 0}]),
)


def damaged(content: bytes, draw: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Return bytes with one to five injuries: flipped bits; lost, repeated or inserted pieces; parts of other files."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
        place = draw.randint(0, len(found))
        end = min(len(found), place + draw.choice((1, 1, 2, 8, 64, 1_000)))
        kind = draw.randrange(7)
        if kind == 0 and place < len(found):
            found[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            found[place:place] = draw.choice(TOKENS)
        elif kind == 2:
            del found[place:end]
        elif kind == 3:
            found[place:place] = found[place:end] * draw.choice((1, 2, 50))
        elif kind == 4:
            del found[place:]
        elif kind == 5 and others:
            other = draw.choice(others)
            start = draw.randint(0, len(other))
            found[place:end] = other[start : start + draw.choice((1, 16, 256))]
        else:
            found[place:end] = bytes(draw.randrange(256) for _ in range(end - place))
    return bytes(found)


def changed_tree(tree: Any, draw: random.Random) -> Any:
    """Return JSON-like data with one to four wrong values: retyped, removed, renamed, repeated, moved or too deep."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return draw.choice(VALUES)
        holder, key = draw.choice(places)
        kind = draw.randrange(8)
        if kind <= 2:
            holder[key] = copy.deepcopy(draw.choice(VALUES))
        elif kind == 3:
            del holder[key]
        elif kind == 4 and isinstance(holder, dict):
            holder[draw.choice((key.upper(), key + "s", "", key[:-1], "auto_map"))] = holder.pop(key)
        elif kind == 5:
            other, other_key = draw.choice(places)
            if other_key in other if isinstance(other, dict) else other_key < len(other):
                holder[key] = copy.deepcopy(other[other_key])
        elif kind == 6:
            holder[key] = [holder[key]] * draw.choice((1, 2, 100))
        elif isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = holder[key] * draw.choice((-1, 0, 2, 1_000, 10**9, 0.5))
        else:
            holder[key] = deep(draw.choice((3, 100, 300)))
    return tree if depth_is_moderate(tree) else deep(300)


def deep(depth: int) -> Any:
    """Return lists nested to the given depth."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) of a tree."""
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            waiting.append(holder[key])


def json_text(tree: Any, draw: random.Random) -> bytes:
    """Return a tree as JSON, occasionally with a duplicate key or unescaped lone surrogates."""
    text = json.dumps(tree, ensure_ascii=draw.random() < 0.7)
    if draw.random() < 0.05:
        text = text.replace("{", '{"a": 1, "a": 2, ', 1)
    return text.encode("utf-8", "surrogatepass")


def depth_is_moderate(tree: Any, limit: int = 400) -> bool:
    """Tell whether a tree is shallow enough for a recursive writer."""
    waiting = [(tree, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > limit:
            return False
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [(item, depth + 1) for item in inner]
    return True


def changed_json(seeds: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Return a generator of files with wrong values in the right format, from JSON files."""
    return lambda draw: json_text(changed_tree(json.loads(draw.choice(seeds)), draw), draw)


def changed_lines(seeds: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Return the same for files with one JSON object per line."""

    def make(draw: random.Random) -> bytes:
        lines = draw.choice(seeds).splitlines()
        for _ in range(draw.choice((1, 2))):
            number = draw.randrange(len(lines))
            try:
                lines[number] = json_text(changed_tree(json.loads(lines[number]), draw), draw)
            except (ValueError, RecursionError):
                lines[number] = draw.choice(TOKENS)
        return b"\n".join(lines)

    return make


def changed_table(seeds: Sequence[bytes], separator: bytes) -> Callable[[random.Random], bytes]:
    """Return the same for tables with a field separator."""

    def make(draw: random.Random) -> bytes:
        rows = [row.split(separator) for row in draw.choice(seeds).split(b"\n")]
        for _ in range(draw.choice((1, 1, 2, 4))):
            row = draw.choice(rows)
            kind = draw.randrange(7)
            if kind == 0:
                row.append(draw.choice(TOKENS))
            elif kind == 1 and row:
                row.pop(draw.randrange(len(row)))
            elif kind == 2 and row:
                row[draw.randrange(len(row))] = draw.choice(TOKENS)
            elif kind == 3 and row:
                row[draw.randrange(len(row))] = str(draw.choice(VALUES)).encode("utf-8", "surrogatepass")
            elif kind == 4 and row:
                row[draw.randrange(len(row))] = b'"' + draw.choice(TOKENS) + draw.choice((b'"', b""))
            elif kind == 5:
                rows.insert(draw.randrange(len(rows)), copy.copy(draw.choice(rows)))
            else:
                rows.remove(row)
                rows = rows or [[b""]]
        end = draw.choice((b"\n", b"\n", b"\r\n", b"\r"))
        return draw.choice((b"", b"", b"", b"\xef\xbb\xbf")) + end.join(separator.join(row) for row in rows)

    return make


def toml_text(tree: Any, prefix: str = "") -> str:
    """Return a tree as TOML, as far as TOML can represent it: values first, then tables."""
    if not isinstance(tree, dict):
        return f"value = {_toml_value(tree)}"
    lines = [f"{json.dumps(key)} = {_toml_value(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for key, value in tree.items():
        if isinstance(value, dict):
            name = f"{prefix}{json.dumps(key)}"
            lines += [f"[{name}]", toml_text(value, f"{name}.")]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return '"null"' if value is None else json.dumps(value, ensure_ascii=False)
