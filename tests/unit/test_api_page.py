"""The page of the Python API is generated from what the package offers."""

import maskloom
from maskloom import inference
from tools.api_page import METHODS, api_page


def test_every_public_name_has_its_place() -> None:
    page = api_page()
    names = [f"maskloom.{name}" for name in maskloom.__all__ if callable(getattr(maskloom, name))]
    names += [f"{kind}.{method}" for kind, methods in METHODS.items() for method in methods]
    headings = [line.lstrip("#").strip().removeprefix("class ") for line in page.splitlines() if line.startswith("#")]
    assert set(names) | set(inference.__all__) <= set(headings)
    assert "self" not in page
    assert "None = None" in page
    assert "    **given: Any,\n" in page


def test_the_package_says_that_it_is_typed() -> None:
    from importlib.resources import files

    assert (files(maskloom) / "py.typed").is_file()
