"""The code of docs/ADDING.md is that of the test that adds architectures, objectives, tasks and optimisers."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / "docs/ADDING.md").read_text("utf-8"), re.M | re.S)
CONTRACT = REPOSITORY / "tests" / "contract"
ADDED = sorted(CONTRACT.glob("added_*.py"))
TESTS = [*ADDED, *CONTRACT.glob("test_adding*.py"), CONTRACT / "conftest.py"]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.partition("\n")[0])
def test_every_snippet_is_code_of_a_test(snippet):
    texts = [path.read_text("utf-8") for path in TESTS]
    assert any(snippet in re.sub(f"^ {{{indent}}}", "", text, flags=re.M) for text in texts for indent in (0, 4))


@pytest.mark.parametrize("path", ADDED, ids=lambda path: path.stem)
def test_what_is_added_is_shown_from_the_first_line_to_the_last(path):
    code = path.read_text("utf-8").partition('"""\n\n')[2]
    assert _lines(code) in _lines("".join(SNIPPETS))


def _lines(code):
    return re.sub(r"\n+", "\n", code)
