from importlib import metadata
from pathlib import Path

import pytest

from maskloom.errors import DataError
from maskloom.quickstart import documentation
from maskloom.quickstart.documentation import (
    GatheredDocument,
    Source,
    find_sources,
    harvest,
    required_packages,
    without_repetition,
    write_documents,
)

LONG = """This function reads the whole file at once.
    The file is closed before the function returns.
    Lines keep the ends that they have in the file.
    An empty file gives an empty list of lines.
    """


def source(path: Path, kind: str = "module") -> Source:
    return Source(area="package", module="package.module", kind=kind, path=str(path))


def written(folder: Path, text: str, name: str = "module.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_docstrings_become_documents_in_the_order_of_lines(tmp_path: Path) -> None:
    other = LONG.replace("file", "folder")
    code = f'def first():\n    """{LONG}"""\n\nclass Second:\n    """{other}"""\n'
    documents = harvest(source(written(tmp_path, code)))
    assert [(document.name, document.is_pooled, len(document.sentences)) for document in documents] == [
        ("first", False, 4),
        ("Second", False, 4),
    ]
    assert documents[0].sentences[1] == "The file is closed before the function returns."


def test_docstrings_given_by_calls_are_found(tmp_path: Path) -> None:
    documents = harvest(source(written(tmp_path, f'add_docstr(torch.read, """{LONG}""")\n')))
    assert [(document.name, len(document.sentences)) for document in documents] == [("read", 4)]


def test_short_docstrings_of_a_module_are_put_together(tmp_path: Path) -> None:
    functions = [f'def f{n}():\n    """The function number {n} returns nothing of use."""\n' for n in range(15)]
    documents = harvest(source(written(tmp_path, "\n".join(functions))))
    assert [(document.is_pooled, len(document.sentences)) for document in documents] == [(True, 12), (True, 3)]


@pytest.mark.parametrize("code", ["print 'Python 2'", "x = (", "\x00", "def f(:"])
def test_what_is_not_python_gives_nothing(tmp_path: Path, code: str) -> None:
    assert harvest(source(written(tmp_path, code))) == []


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    harvest(source(written(tmp_path, f"open({str(mark)!r}, 'w')")))
    assert not mark.exists()


def test_a_readme_is_read_without_its_header(tmp_path: Path) -> None:
    text = "Name: package\nSummary: This is a header that must not be read here.\n\n" + LONG
    documents = harvest(source(written(tmp_path, text, "METADATA"), "readme"))
    assert [len(document.sentences) for document in documents] == [4]


def test_a_sentence_is_kept_at_its_first_place_only() -> None:
    def document(name: str, *sentences: str) -> GatheredDocument:
        return GatheredDocument("package", name, sentences)

    documents = [
        document("a", "One.", "Two.", "Three.", "Four."),
        document("b", "ONE!", "Five.", "Six.", "Seven.", "Eight."),
        document("c", "One.", "Two.", "Nine.", "Ten.", "Eleven."),
    ]
    kept = without_repetition(documents)
    assert [(d.name, d.sentences) for d in kept] == [
        ("a", ("One.", "Two.", "Three.", "Four.")),
        ("b", ("Five.", "Six.", "Seven.", "Eight.")),
    ]


@pytest.mark.slow
def test_the_standard_library_and_the_requirements_are_sources_and_extras_are_not() -> None:
    sources = find_sources()
    areas = {found.area for found in sources}
    assert {"python", "torch", "numpy"} <= areas
    assert not {"pytest", "transformers", "hypothesis", "maskloom"} & areas
    assert any(found.kind == "topics" for found in sources)
    assert not [found.path for found in sources if "/tests/" in found.path.partition("site-packages")[2]]


def test_requirements_of_requirements_are_followed() -> None:
    assert "sympy" in required_packages("torch")
    assert required_packages("no-such-distribution") == {}


def test_without_an_installed_maskloom_the_error_says_to_install_it(monkeypatch):
    def distribution(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    with pytest.raises(DataError, match=r"maskloom is not installed in this Python.*pip install \."):
        find_sources()


def test_what_other_systems_or_extras_need_is_not_read_though_it_is_installed(monkeypatch):
    class Distribution:
        files = ()

        def __init__(self, name):
            self.requires = {
                "root": [
                    *("here", 'windows; platform_system == "Windows"', "old; sys_platform == 'win32'"),
                    *('plain; extra == "x"', 'unix; platform_system != "Windows"'),
                ]
            }.get(name)

    monkeypatch.setattr(metadata, "distribution", Distribution)
    assert required_packages("root").keys() == {"here", "unix"}


def test_documents_are_written_a_sentence_a_line(tmp_path: Path) -> None:
    documents = [GatheredDocument("p", "n", ("One é.", "Two.")) for _ in range(2)]
    path = tmp_path / "documents.txt"
    write_documents(documents, path)
    assert path.read_text(encoding="utf-8") == "One é.\nTwo.\n\nOne é.\nTwo.\n\n"


def test_several_processes_gather_the_same_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [[f"The function {n} returns the value {k} of its table." for k in range(4)] for n in range(250)]
    paths = [
        written(tmp_path, 'def f():\n    """{}\n    """\n'.format("\n    ".join(said)), f"{n}.py")
        for n, said in enumerate(lines)
    ]
    monkeypatch.setattr(documentation, "find_sources", lambda: [source(path) for path in paths])
    alone = documentation.gather_documents(num_workers=1)
    assert [list(document.sentences) for document in alone] == lines
    assert documentation.gather_documents(num_workers=2) == alone
