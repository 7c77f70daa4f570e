"""Real English text that every Python machine has: documentation of the library and of installed packages."""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from maskloom.files import write_text
from maskloom.runs.quickstart.prose import sentences_of
from maskloom.worker_processes import results_of_processes

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

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class GatheredDocument:
    """One piece of documentation as sentences, with where it came from; `area` is the package that it documents."""

    area: str
    module: str
    kind: str
    name: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """One file to read: its package, its dotted module name or page name, and what it is."""

    area: str
    module: str
    kind: str
    path: str


def gather_documents(*, num_workers: int = 1, progress: Progress | None = None) -> list[GatheredDocument]:
    """Read the documentation on this machine into documents of at least four sentences, without importing anything.

    The order is that of package, file and line, whatever the number of workers. A sentence that occurs again, however
    spelt in case, is dropped everywhere but at its first place, since docstrings repeat each other.
    """
    sources = find_sources()
    chunks = {first: sources[first : first + 100] for first in range(0, len(sources), 100)}
    harvested: dict[int, list[GatheredDocument]] = {}
    for first, documents in _harvest_chunks(chunks, num_workers):
        harvested[first] = documents
        if progress is not None:
            progress("reading documentation", min(len(harvested) * 100, len(sources)), len(sources))
    return without_repetition(document for first in chunks for document in harvested[first])


def find_sources() -> list[Source]:
    """List the files that hold documentation, in order: the standard library, then maskloom's own requirements.

    Only what maskloom needs to run is read, so that extras that happen to be installed change nothing.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    found = [*_sources_below(library, STANDARD_LIBRARY)]
    for area, files in sorted(required_packages().items()):
        kinds = {path: kind for path in files if (kind := _kind_of(path)) is not None}
        found += [Source(area, _dotted(path), kind, str(files[path])) for path, kind in sorted(kinds.items())]
    return [source for source in found if Path(source.path).is_file()]


def required_packages(root: str = "maskloom") -> dict[str, dict[str, Path]]:
    """Return the files of every installed distribution that `root` needs without extras: name to {path: file}.

    Paths are those in the distribution's record, relative to the folder that it was installed into.
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
            if match and "extra" not in requirement.partition(";")[2]:
                waiting.append(match.group(1))
        if name != root:
            found[name] = {str(file): Path(str(file.locate())) for file in distribution.files or []}
    return found


def harvest(source: Source) -> list[GatheredDocument]:
    """Read one file into documents; a file that is not Python 3 or not UTF-8 gives none."""
    path = Path(source.path)
    if path.stat().st_size > _MAX_FILE_BYTES:
        return []
    content = path.read_bytes()
    if source.kind in ("page", "readme"):
        text = content.decode("utf-8", errors="replace")
        body = text.partition("\n\n")[2] if source.kind == "readme" else text
        return _documents(source, [(source.module, body)], source.kind)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in other people's strings are not ours to report
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if source.kind == "topics":
        return [d for pair in _topics(tree) for d in _documents(source, [pair], "topic")]
    return _documents(source, list(_docstrings(tree, with_calls=_CALL.search(content) is not None)), "docstring")


def without_repetition(documents: Iterable[GatheredDocument]) -> list[GatheredDocument]:
    """Drop every sentence that stood earlier, then every document left with fewer than four sentences."""
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
            kept.append(GatheredDocument(document.area, document.module, document.kind, document.name, tuple(fresh)))
    return kept


def write_documents(documents: Iterable[GatheredDocument], path: Path) -> int:
    """Write documents as text, a sentence a line and an empty line after each document; return the bytes written."""
    text = "".join("\n".join(document.sentences) + "\n\n" for document in documents)
    write_text(path, text)
    return len(text.encode("utf-8"))


def _harvest_chunks(chunks: dict[int, list[Source]], num_workers: int) -> Iterable[tuple[int, list[GatheredDocument]]]:
    """Return the documents of every chunk by its number, in the order in which they are done."""
    tasks = iter(chunks.items())
    if num_workers <= 1:
        return map(_harvest_all, tasks)
    name: Callable[[tuple[int, list[Source]]], str] = lambda chunk: f"the files from {chunk[1][0].path} on"  # noqa: E731
    return results_of_processes(partial, (_harvest_all,), tasks, num_workers, name=name)


def _harvest_all(chunk: tuple[int, list[Source]]) -> tuple[int, list[GatheredDocument]]:
    number, sources = chunk
    return number, [document for source in sources for document in harvest(source)]


def _sources_below(folder: Path, area: str) -> Iterator[Source]:
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        kind = _kind_of(str(relative))
        if kind is not None:
            yield Source(area, _dotted(str(relative)), kind, str(path))


def _kind_of(path: str) -> str | None:
    """Return how a file of a distribution is read, or None for what is no documentation."""
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
    """Yield (name, text) of the docstrings of a module in the order of their lines, those given by calls included.

    Extension modules get theirs from calls such as `add_docstr(torch.abs, "...")` and `add_newdoc("sin", "...")`.
    """
    found: list[tuple[int, str, str]] = []
    for node in ast.walk(tree) if with_calls else _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                found.append((getattr(node, "lineno", 0), getattr(node, "name", ""), text))
        elif isinstance(node, ast.Call) and "doc" in _called(node.func):
            found += [(node.lineno, _subject(node), text) for text in _long_strings(node)]
    for _line, name, text in sorted(found, key=lambda item: item[0]):
        yield name, text


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and the statements in it, those inside others included, but not what expressions hold."""
    yield tree
    for field in ("body", "orelse", "handlers", "finalbody"):
        for statement in getattr(tree, field, ()):
            yield from _statements(statement)


def _called(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _subject(call: ast.Call) -> str:
    names = [ast.unparse(argument).strip("'\"") for argument in call.args if not _is_long(argument)]
    return names[0].rpartition(".")[2] if names else ""


def _long_strings(call: ast.Call) -> list[str]:
    """Return the multi-line strings among a call's arguments, also inside `"...".format(...)` and `a + b`."""
    return [str(n.value) for argument in call.args for n in ast.walk(argument) if _is_long(n)]  # type: ignore[attr-defined]


def _is_long(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count("\n") >= 3


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Dict):
            yield from sorted(ast.literal_eval(value).items())


def _documents(source: Source, texts: list[tuple[str, str]], kind: str) -> list[GatheredDocument]:
    """Make a document of each text with enough sentences; what the shorter ones hold is put together by module."""
    found, short = [], []
    for name, text in texts:
        sentences = sentences_of(text)
        if len(sentences) >= MIN_SENTENCES:
            found.append(GatheredDocument(source.area, source.module, kind, name, tuple(sentences)))
        else:
            short += sentences
    for first in range(0, len(short), _MAX_MODULE_SENTENCES):
        sentences = tuple(short[first : first + _MAX_MODULE_SENTENCES])
        found.append(GatheredDocument(source.area, source.module, "module", source.module, sentences))
    return found
