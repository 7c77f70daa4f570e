"""HTML pages that hold everything themselves: a template, the style that all share, and text that cannot inject."""

from __future__ import annotations

from collections.abc import Iterable

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from maskloom.runs.display import printable
from maskloom.runs.search_table import one_line


def page_template(name: str) -> Template:
    """Return a template of this package; what is put into it is escaped unless it is marked as safe."""
    environment = Environment(loader=PackageLoader("maskloom.runs", "."), autoescape=True, undefined=StrictUndefined)
    environment.filters["percent"] = lambda fraction: f"{fraction:.1%}"
    environment.filters["one_line"] = one_line
    return environment.get_template(name)


def visible(text: object) -> str:
    """Return a text with control characters, surrogates and marks of direction written as escapes."""
    return printable(str(text), keep="\n\t")


def distinct_names(names: Iterable[tuple[str, str]]) -> list[str]:
    """Return a short name for each (folder, parent): the folder's, with its parent or a number where two are equal."""
    pairs = list(names)
    short = [name for name, _ in pairs]
    wanted = [name if short.count(name) == 1 else f"{parent}/{name}" for name, parent in pairs]
    return [
        visible(name if wanted.count(name) == 1 else f"{name} ({wanted[: place + 1].count(name)})")
        for place, name in enumerate(wanted)
    ]
