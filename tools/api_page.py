"""Writes docs/API.md, the page of the public Python API, from signatures and docstrings.

python tools/api_page.py [--check]: with --check it fails where the page does not tell what the code says.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "API.md"
# What each class of the public API offers, in the order in which a person needs it.
METHODS = {
    "Predictor": ("load", "predict", "encode", "fill_mask", "hidden_size"),
    "Ensemble": ("load", "predict"),
}
OPENING = """# Python API

Made by `tools/api_page.py` from the docstrings. The package is typed (`py.typed`). Errors that a person can cause are
`maskloom.config.ConfigError` and `maskloom.config.DataError`, both ValueErrors.
"""


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where the page is not current")
    content = api_page()
    if not parser.parse_args().check:
        PAGE.write_text(content, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != content:
        print(f"{PAGE} is not current; run python tools/api_page.py", file=sys.stderr)
        return 1
    return 0


def api_page() -> str:
    """Return the page as Markdown."""
    import maskloom
    from maskloom import inference

    parts = [OPENING, "## maskloom", ""]
    for name in maskloom.__all__:
        if callable(thing := getattr(maskloom, name)):
            parts += _function(f"maskloom.{name}", thing)
    parts += ["## maskloom.inference", ""]
    for name in inference.__all__:
        thing = getattr(inference, name)
        parts += _class(name, thing) if inspect.isclass(thing) else _function(name, thing)
    return "\n".join(parts).rstrip() + "\n"


def _class(name: str, kind: Any) -> Iterator[str]:
    yield from (f"### class {name}", "", inspect.cleandoc(kind.__doc__), "")
    fields = {} if name in METHODS else kind.__annotations__
    if fields:
        yield from ("```python", *(f"{field}: {_plain(annotation)}" for field, annotation in fields.items()), "```", "")
    for method in METHODS.get(name, ()):
        thing = inspect.getattr_static(kind, method)
        if isinstance(thing, property):
            yield from (f"#### {name}.{method}", "", inspect.cleandoc(thing.__doc__ or ""), "")
        else:
            yield from _function(f"{name}.{method}", getattr(kind, method), level=4)


def _function(name: str, function: Any, level: int = 3) -> Iterator[str]:
    signature = inspect.signature(function)
    shown = [value for value in signature.parameters.values() if value.name not in ("self", "cls")]
    signature = signature.replace(parameters=shown)
    heading = f"{'#' * level} {name}"
    yield from (heading, "", "```python", *_lines(name, signature), "```", "", inspect.cleandoc(function.__doc__), "")


def _lines(name: str, signature: inspect.Signature) -> Iterator[str]:
    """Yield a signature on one line where it fits, else one parameter a line."""
    result = "" if signature.return_annotation is signature.empty else f" -> {_plain(signature.return_annotation)}"
    texts, has_star = [], False
    for value in signature.parameters.values():
        if value.kind is value.KEYWORD_ONLY and not has_star:
            texts.append("*")
            has_star = True
        default = "" if value.default is value.empty else f" = {value.default!r}"
        texts.append(f"{value.name}: {_plain(value.annotation)}{default}")
    whole = f"{name}({', '.join(texts)}){result}"
    if len(whole) <= 110:
        yield whole
    else:
        yield from (f"{name}(", *(f"    {text}," for text in texts), f"){result}")


def _plain(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", str(annotation))


if __name__ == "__main__":
    sys.exit(main())
