"""docs/paper.md: its snippets print the output shown below them, and its links name existing code."""

import ast
import contextlib
import functools
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
TEXT = PAGE.read_text(encoding="utf-8")
PARTS = re.compile(r"^## ([^\n]+)$|^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
SECTIONS = (
    "1 ", "2 ", "3.1 ", "3.2 ", "3.3 ", "3.4 ", "3.5 ", "3.6 ", "4.1 ", "4.2 ", "4.3 ", "4.4 ",
    "5.1 ", "5.2 ", "5.3 ", "5.4 ", "C.2 ", "6 ", "Build ",
)  # fmt: skip


def snippets(text: str) -> dict[str, list[tuple[int, str, str]]]:
    """Return, by section, the line of each Python block, its code, and the output below it."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for match in PARTS.finditer(text):
        title, code, output = match.groups()
        if title is not None:
            section = found.setdefault(title, [])
        else:
            section.append((text.count("\n", 0, match.start()) + 1, code, output or ""))
    return found


def printed(code: str, line: int, namespace: dict[str, Any]) -> str:
    """Run a block that starts after the given line of the page, and return what it prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile("\n" * line + code, PAGE.name, "exec"), namespace)
    return output.getvalue()


@pytest.mark.parametrize("section", [title for title, blocks in snippets(TEXT).items() if blocks])
def test_snippets_print_what_stands_below_them(section: str) -> None:
    namespace: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        for line, code, output in snippets(TEXT)[section]:
            assert printed(code, line, namespace) == output, f"{PAGE.name}, line {line}"


def test_every_section_of_the_paper_is_there_in_order() -> None:
    titles = list(snippets(TEXT))
    assert [title for title, start in zip(titles, SECTIONS, strict=True) if not title.startswith(start)] == []


@functools.cache
def definitions(path: Path) -> set[str]:
    """Return the names that a module defines at its top level, and those in its classes as Class.name."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    classes = [statement for statement in module.body if isinstance(statement, ast.ClassDef)]
    found = set()
    for owner, body in [("", module.body), *((f"{one.name}.", one.body) for one in classes)]:
        for statement in body:
            if isinstance(statement, ast.ClassDef | ast.FunctionDef):
                found.add(owner + statement.name)
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                found |= {owner + target.id for target in targets if isinstance(target, ast.Name)}
    return found


def missing(text: str) -> list[str]:
    """Return the names in links to code that the linked modules do not define."""
    links = re.findall(r"\[`([^`]+)`\]\(([^)]+\.py)\)", text)
    return [f"{name} in {path}" for name, path in links if name not in definitions(PAGE.parent / path)]


def test_linked_names_are_defined_where_the_links_lead() -> None:
    assert len(re.findall(r"\[`[^`]+`\]\([^)]+\.py\)", TEXT)) > 50
    assert missing(TEXT) == []


def test_what_is_wrong_is_found() -> None:
    first = "```python\nx = 1\nprint(x)\n```\n\n```text\n1\n```\n"
    text = f"## A\n\n{first}\n```python\nprint(x + 1)\n```\n## B\n```sh\nls\n```\n"
    assert snippets(text) == {"A": [(3, "x = 1\nprint(x)\n", "1\n"), (12, "print(x + 1)\n", "")], "B": []}
    assert printed("print(2)\n", 12, {}) == "2\n"
    with pytest.raises(ZeroDivisionError) as error:
        printed("1 / 0\n", 12, {})
    assert error.traceback[-1].lineno == 12  # counted from 0: line 13 of the page
    place = "../src/maskloom/layers/attention.py"
    assert missing(f"[`SelfAttention.forward`]({place}) [`SelfAttention.backward`]({place}) [`hear`]({place})") == [
        f"SelfAttention.backward in {place}",
        f"hear in {place}",
    ]
