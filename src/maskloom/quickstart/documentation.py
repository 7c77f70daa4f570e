"""Real English text on every machine with Python: documentation of the standard library and installed packages."""

from __future__ import annotations

import ast
import inspect
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from maskloom.errors import DataError
from maskloom.system.files import write_text
from maskloom.system.worker_processes import Work, results
from maskloom.text.sentences import split_sentences

MIN_SENTENCES = 4
STANDARD_LIBRARY = "python"
_MAX_MODULE_SENTENCES = 12
_MAX_FILE_BYTES = 4_000_000
_PAGE_ENDINGS = {".rst", ".md"}
_IGNORED_FOLDERS = {
    "__pycache__", "_vendor", "ensurepip", "idlelib", "lib2to3", "node_modules", "site-packages",
    "test", "testing", "tests", "turtledemo", "vendored_packages",
}  # fmt: skip
_CALL = re.compile(rb"doc\w*\(")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_FOR_WINDOWS = re.compile(r"""==\s*["'](Windows|win32|nt)["']""")

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class GatheredDocument:
    """A text as sentences, or with `is_pooled` several short ones; `area` is the package that they document."""

    area: str
    name: str
    sentences: tuple[str, ...]
    is_pooled: bool = False


@dataclass(frozen=True)
class Source:
    """A file to read: its package, its dotted module name or page name, and its kind."""

    area: str
    module: str
    kind: str
    path: str


def gather_documents(*, num_workers: int = 1, progress: Progress | None = None) -> list[GatheredDocument]:
    """Read the documentation on this machine into documents of at least four sentences, without importing anything.

    Documents are ordered by package, file and line, whatever the number of workers. Of sentences that repeat, ignoring
    case and punctuation, only the first is kept, because docstrings repeat each other.
    """
    sources = find_sources()
    chunks = {first: sources[first : first + 100] for first in range(0, len(sources), 100)}
    harvested: dict[int, list[GatheredDocument]] = {}
    name: Callable[[Any], str] = lambda chunk: f"the files starting with {chunk[1][0].path}"  # noqa: E731
    for first, documents in results(partial, (_harvest_all,), iter(chunks.items()), Work(num_workers), name=name):
        harvested[first] = documents
        if progress is not None:
            progress("reading documentation", min(len(harvested) * 100, len(sources)), len(sources))
    return without_repetition(document for first in chunks for document in harvested[first])


def find_sources() -> list[Source]:
    """List the files with documentation, in order: the standard library, then maskloom's required packages.

    Only packages that maskloom needs to run are read, so extras that happen to be installed change nothing. Raises
    DataError if maskloom itself is not installed, because its distribution names those packages.
    """
    try:
        metadata.distribution("maskloom")
    except metadata.PackageNotFoundError:
        raise DataError(
            "maskloom is not installed in this Python, so the packages whose documentation it reads are unknown; "
            "install it (in its folder: pip install .) and run this again"
        ) from None
    library = Path(sysconfig.get_paths()["stdlib"])
    own = {str(path.relative_to(library)): path for path in sorted(library.rglob("*"))}
    packages = {area: dict(sorted(files.items())) for area, files in sorted(required_packages().items())}
    found = [
        Source(area, _dotted(name), kind, str(path))
        for area, files in {STANDARD_LIBRARY: own, **packages}.items()
        for name, path in files.items()
        if (kind := _kind_of(name)) is not None
    ]
    return [source for source in found if Path(source.path).is_file()]


def required_packages(root: str = "maskloom") -> dict[str, dict[str, Path]]:
    """Return the files of all installed distributions that `root` requires without extras, as name to {path: file}.

    Paths are relative to the installation folder, as in the distribution's RECORD.
    """
    found: dict[str, dict[str, Path]] = {}
    waiting, seen = [root], set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for requirement in distribution.requires or []:
            match = _REQUIREMENT.match(requirement)
            marker = requirement.partition(";")[2]
            if match and "extra" not in marker and not _FOR_WINDOWS.search(marker):
                waiting.append(match.group(1))
        if name != root:
            found[name] = {str(file): Path(str(file.locate())) for file in distribution.files or []}
    return found


def harvest(source: Source) -> list[GatheredDocument]:
    """Read one file into documents; a module that cannot be parsed as Python 3 and an oversized file give none."""
    path = Path(source.path)
    if path.stat().st_size > _MAX_FILE_BYTES:
        return []
    content = path.read_bytes()
    if source.kind in ("page", "readme"):
        text = content.decode("utf-8", errors="replace")
        body = text.partition("\n\n")[2] if source.kind == "readme" else text
        return _documents(source, [(source.module, body)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated escapes in other people's strings are not ours to report
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if source.kind == "topics":
        return [d for pair in _topics(tree) for d in _documents(source, [pair])]
    return _documents(source, list(_docstrings(tree, with_calls=_CALL.search(content) is not None)))


def without_repetition(documents: Iterable[GatheredDocument]) -> list[GatheredDocument]:
    """Drop every sentence that occurred before, then every document left with fewer than four sentences."""
    seen: set[str] = set()
    kept = []
    for document in documents:
        fresh = []
        for sentence in document.sentences:
            key = " ".join(re.findall(r"\w+", sentence.lower()))
            if key not in seen:
                seen.add(key)
                fresh.append(sentence)
        if len(fresh) >= MIN_SENTENCES:
            kept.append(replace(document, sentences=tuple(fresh)))
    return kept


def write_documents(documents: Iterable[GatheredDocument], path: Path) -> None:
    """Write one sentence per line and an empty line after each document."""
    write_text(path, "".join("\n".join(document.sentences) + "\n\n" for document in documents))


def _harvest_all(chunk: tuple[int, list[Source]]) -> tuple[int, list[GatheredDocument]]:
    number, sources = chunk
    return number, [document for source in sources for document in harvest(source)]


def _kind_of(path: str) -> str | None:
    """Return how to read a file of a distribution, or None if it contains no documentation."""
    folders, _, name = path.replace("\\", "/").rpartition("/")
    parts = set(folders.split("/"))
    if parts & _IGNORED_FOLDERS or ".." in parts:
        return None
    if name == "METADATA" and folders.endswith(".dist-info"):
        return "readme"
    if any(part.endswith(".dist-info") for part in parts) or name.startswith(("test_", "_test")):
        return None
    if path.endswith("pydoc_data/topics.py"):
        return "topics"
    if name.endswith(".py"):
        return "module"
    return "page" if Path(name).suffix in _PAGE_ENDINGS else None


def _dotted(path: str) -> str:
    name = path.replace("\\", "/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name.removesuffix(".dist-info.METADATA") + (" readme" if name.endswith(".dist-info.METADATA") else "")


def _docstrings(tree: ast.AST, *, with_calls: bool) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the docstrings of a module in line order, including docstrings set by calls.

    Extension modules are documented by calls such as `add_docstr(torch.abs, "...")` and `add_newdoc("sin", "...")`.
    """
    found: list[tuple[int, str, str]] = []
    for node in ast.walk(tree) if with_calls else _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node, clean=False):
                found.append((getattr(node, "lineno", 0), getattr(node, "name", ""), text))
        elif isinstance(node, ast.Call) and "doc" in getattr(node.func, "id", getattr(node.func, "attr", "")):
            found += [(node.lineno, _subject(node), text) for text in _long_strings(node)]
    for _line, name, text in sorted(found, key=lambda item: item[0]):
        yield name, text


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and its statements, including nested ones, without descending into expressions."""
    yield tree
    for field in ("body", "orelse", "handlers", "finalbody"):
        for statement in getattr(tree, field, ()):
            yield from _statements(statement)


def _subject(call: ast.Call) -> str:
    names = [ast.unparse(argument).strip("'\"") for argument in call.args if not _is_long(argument)]
    return names[0].rpartition(".")[2] if names else ""


def _long_strings(call: ast.Call) -> list[str]:
    """Return the multi-line strings in a call's arguments, including those inside `"...".format(...)` and `a + b`."""
    return [str(n.value) for argument in call.args for n in ast.walk(argument) if _is_long(n)]  # type: ignore[attr-defined]


def _is_long(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count("\n") >= 3


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Dict):
            yield from sorted(ast.literal_eval(value).items())


def _documents(source: Source, texts: list[tuple[str, str]]) -> list[GatheredDocument]:
    """Create a document from each text with enough sentences; pool the sentences of shorter texts per module."""
    found, short = [], []
    for name, text in texts:
        sentences = sentences_of(text)
        if len(sentences) >= MIN_SENTENCES:
            found.append(GatheredDocument(source.area, name, tuple(sentences)))
        else:
            short += sentences
    for first in range(0, len(short), _MAX_MODULE_SENTENCES):
        sentences = tuple(short[first : first + _MAX_MODULE_SENTENCES])
        found.append(GatheredDocument(source.area, source.module, sentences, is_pooled=True))
    return found


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

    Headings, signatures, parameter names and types, doctests, literal blocks, tables, formulas and references are
    dropped; inline markup is unwrapped.
    """
    found = []
    for paragraph in paragraphs(text):
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
        found += [sentence for sentence in split_sentences(paragraph.strip()) if is_prose(sentence)]
    return found


def is_prose(sentence: str) -> bool:
    """Return whether a sentence is plain English: complete, 6 to 60 words long, with few identifiers or symbols."""
    words = sentence.split()
    if not _MIN_WORDS <= len(words) <= _MAX_WORDS or not sentence[0].isupper() or sentence[-1] not in ".!?":
        return False
    if _NOT_PROSE.search(sentence):
        return False
    num_code = sum(bool(_CODE_WORD.search(word)) for word in words)
    num_plain = sum(word.strip("\"'(),.;:!?").isalpha() and len(word) > 1 for word in words)
    return num_code * 6 <= len(words) and num_plain * 10 >= len(words) * 7


def paragraphs(text: str) -> list[str]:
    """Return the running text of a docstring or page, one string per paragraph, without code blocks."""
    found, indent = list[list[str]](), -1
    for line in _text_lines(inspect.cleandoc(text).expandtabs().splitlines()):
        content = line.strip()
        depth = len(line) - len(line.lstrip())
        if bullet := _BULLET.match(content):
            content = content[bullet.end() :]
        if not content:
            indent = -1
            continue
        if bullet or depth != indent:
            found.append([])
        found[-1].append(content)
        indent = depth + (bullet.end() if bullet else 0)
    return [" ".join(lines) for lines in found]


def _text_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines that may be prose, with an empty line in place of each dropped line."""
    literal_depth, in_fence, in_doctest, in_skipped_section = inf, False, False, False
    for line, following in pairwise([*lines, ""]):
        content, depth = line.strip(), len(line) - len(line.lstrip())
        kept, is_fence = "", content.startswith(("```", "~~~"))
        if is_fence:
            in_fence = not in_fence
        else:
            in_doctest = bool(content) and (in_doctest or content.startswith(">>>"))
            if content and depth <= literal_depth:
                literal_depth = inf
        if is_fence or in_fence or in_doctest or (content and depth > literal_depth):
            pass
        elif content and _UNDERLINE.match(following.strip()):
            in_skipped_section = content.lower().strip(":") in _SKIPPED_SECTIONS
        elif directive := _DIRECTIVE.match(content):
            literal_depth = inf if (directive.group(1) or "").lower() in _PROSE_DIRECTIVES else depth
        else:
            if content.endswith("::"):
                literal_depth = depth
            kept = "" if in_skipped_section or _is_apparatus(content, depth, following) else _without_label(line)
        yield kept


def _is_apparatus(content: str, depth: int, following: str) -> bool:
    """Return whether a line is an underline, a table row, a heading or a parameter's name and type."""
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
