"""Docstrings and documentation pages turned into sentences of plain English."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from maskloom.text.sentences import split_sentences

_MIN_WORDS, _MAX_WORDS = 6, 60
_SKIPPED_SECTIONS = {"references", "see also", "methods", "license", "copyright", "bibliography"}
_PROSE_DIRECTIVES = {"note", "warning", "tip", "important", "hint", "caution", "attention", "admonition"}
_FIELD = re.compile(r":(?:param|parameter|arg|type|returns?|rtype|raises?|var|ivar|cvar|keyword|kwarg)\b[^:]*:\s*")
_GOOGLE_ARGUMENT = re.compile(r"[*`\w.]+(?: \([^)]*\))?: +(?=[A-Z])")
_BULLET = re.compile(r"(?:[-*+•]|\(?[0-9a-zA-Z][.)]|[0-9]+[.)])\s+(?=\S)")
_UNDERLINE = re.compile(r"([-=~^\"'`#*+._])\1{2,}\s*$")
_DIRECTIVE = re.compile(r"\.\.\s+(?:\[|_|([\w:-]+)::)(.*)")
_MARKUP = (
    (re.compile(r"\s*\[[\w.]+\]_"), ""),
    (re.compile(r":(?!ref|doc)[\w:.+-]+:`(?:[^`<]*<)?[~!.]?(?:[\w.]*\.)?([\w() -]+)>?`"), r"\1"),
    (re.compile(r":(?:ref|doc):`([^`<]+?)\s*<[^`>]*>`"), r"\1"),
    (re.compile(r"`([^`<>]+?)\s*<[^`<>]*>`_{1,2}"), r"\1"),
    (re.compile(r"!?\[([^\]\[]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r"``([^`]*)``|`([^`]*)`_{0,2}"), r"\1\2"),
    (re.compile(r"\*\*([^*\s][^*]*)\*\*|(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"\1\2"),
    (re.compile(r"\s+"), " "),
)
_NOT_PROSE = re.compile(r"[={}<>|\\^$@~#\[\]`*]|https?:|www\.|__|:\w+:|\.\.|--|[^\x20-\x7e‘’“”–—é]")
_CODE_WORD = re.compile(r"\w[._/]\w|\w\(|\d[a-z]|[a-z][A-Z]")


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a docstring or page that read as English prose, in order.

    Headings, signatures, names and types of parameters, doctests, literal blocks, tables, formulas and references are
    dropped, inline markup is unwrapped.
    """
    found = []
    for paragraph in paragraphs(text):
        found += [sentence for sentence in split_sentences(_unwrap(paragraph)) if is_prose(sentence)]
    return found


def is_prose(sentence: str) -> bool:
    """Say whether a sentence is plain English: whole, of 6 to 60 words, and with few identifiers or symbols."""
    words = sentence.split()
    if not _MIN_WORDS <= len(words) <= _MAX_WORDS or not sentence[0].isupper() or sentence[-1] not in ".!?":
        return False
    if _NOT_PROSE.search(sentence):
        return False
    num_code = sum(bool(_CODE_WORD.search(word)) for word in words)
    num_plain = sum(word.strip("\"'(),.;:!?").isalpha() and len(word) > 1 for word in words)
    return num_code * 6 <= len(words) and num_plain * 10 >= len(words) * 7


def paragraphs(text: str) -> list[str]:
    """Return the running text of a docstring or page, one string for each paragraph, without blocks of code."""
    found: list[list[str]] = []
    indent = -1
    for line in _text_lines(inspect.cleandoc(text).expandtabs().splitlines()):
        content = line.strip()
        depth = len(line) - len(line.lstrip())
        bullet = _BULLET.match(content)
        if bullet:
            content = content[bullet.end() :]
        if not content:
            indent = -1
            continue
        if bullet or indent < 0 or depth != indent:
            found.append([])
        found[-1].append(content)
        indent = depth + (bullet.end() if bullet else 0)
    return [" ".join(lines) for lines in found]


def _text_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines that may be prose; an empty line stands where something was dropped."""
    literal_depth: int | None = None
    in_fence = in_doctest = in_skipped_section = False
    for number, line in enumerate(lines):
        content, depth = line.strip(), len(line) - len(line.lstrip())
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if content.startswith(("```", "~~~")):
            in_fence = not in_fence
            yield ""
            continue
        in_doctest = bool(content) and (in_doctest or content.startswith(">>>"))
        if literal_depth is not None and content and depth <= literal_depth:
            literal_depth = None
        if in_fence or in_doctest or (literal_depth is not None and content):
            yield ""
            continue
        if content and _UNDERLINE.match(following.strip()):
            in_skipped_section = content.lower().strip(":") in _SKIPPED_SECTIONS
            yield ""
            continue
        directive = _DIRECTIVE.match(content)
        if directive:
            name = (directive.group(1) or "").lower()
            literal_depth = None if name in _PROSE_DIRECTIVES else depth
            yield ""
            continue
        if content.endswith("::") and literal_depth is None:
            literal_depth = depth
        yield "" if in_skipped_section or _is_apparatus(content, depth, following) else _without_label(line)


def _is_apparatus(content: str, depth: int, following: str) -> bool:
    """Say whether a line is an underline, a table row, a heading or the name and type of a parameter."""
    if _UNDERLINE.match(content) or content.startswith(("|", "+-", "#", "%", "@", "$")):
        return True
    next_depth = len(following) - len(following.lstrip())
    is_label = bool(following.strip()) and next_depth > depth and not (content.endswith(".") or _BULLET.match(content))
    return is_label or (content.endswith(":") and len(content.split()) <= 3)


def _without_label(line: str) -> str:
    """Drop `:param x:` and `x (int): ` before a description that starts with a capital letter."""
    stripped = line.lstrip()
    label = _FIELD.match(stripped) or _GOOGLE_ARGUMENT.match(stripped)
    return line[: len(line) - len(stripped)] + stripped[label.end() :] if label else line


def _unwrap(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()
