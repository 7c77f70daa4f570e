from collections import Counter

import pytest

from maskloom.errors import DataError
from maskloom.quickstart import documentation
from maskloom.quickstart.documentation import GatheredDocument, gather_documents
from maskloom.quickstart.tasks import NEXT, QuickstartTasks, build_tasks, mention_pattern

SIZES = {"max_areas": 3, "sizes": (30, 15)}


def documents(num_per_area: int = 60) -> list[GatheredDocument]:
    return [
        GatheredDocument(
            area=area,
            name=f"f{number}",
            sentences=(
                *(f"Sentence {place} of function {number} in area {letter}." for place in range(6)),
                f"This one names {area} and so gives it away.",
            ),
        )
        for letter, area in (("a", "alpha"), ("b", "beta"), ("c", "gamma"))
        for number in range(num_per_area)
    ]


@pytest.fixture(scope="module")
def tasks() -> QuickstartTasks:
    return build_tasks(documents(), seed=1, **SIZES)


def test_no_document_serves_two_purposes(tasks: QuickstartTasks) -> None:
    parts = (tasks.pretraining, tasks.train_documents, tasks.dev_documents)
    keys = [{(document.area, document.name) for document in part} for part in parts]
    assert sum(map(len, keys)) == len(set.union(*keys)) == len(documents())
    assert [len(part) for part in parts] == [180 - 45, 30, 15]


def test_sentences_come_from_their_documents_and_name_no_package(tasks: QuickstartTasks) -> None:
    own = {(s, d.area) for d in tasks.train_documents for s in d.sentences}
    rows = tasks.sets["sentence-train"]
    assert rows
    assert all((row["text"], row["label"]) in own for row in rows)
    assert not [row for row in rows if mention_pattern(tasks.areas).search(row["text"])]


@pytest.mark.parametrize("name", ["sentence-train", "sentence-dev", "pair-train", "pair-dev"])
def test_labels_are_balanced(tasks: QuickstartTasks, name: str) -> None:
    num_labels = 3 if name.startswith("sentence") else 2
    counts = Counter(row["label"] for row in tasks.sets[name])
    assert len(counts) == num_labels
    assert len(set(counts.values())) == 1


def test_a_next_passage_really_follows_and_another_is_of_another_document(tasks: QuickstartTasks) -> None:
    texts = [" ".join(document.sentences) for document in tasks.train_documents]
    for row in tasks.sets["pair-train"]:
        whole = f"{row['sentence1']} {row['sentence2']}"
        assert any(whole in text for text in texts) == (row["label"] == NEXT)


def test_the_seed_decides(tasks: QuickstartTasks) -> None:
    again = build_tasks(documents(), seed=1, **SIZES)
    other = build_tasks(documents(), seed=2, **SIZES)
    assert again == tasks
    assert other.sets["pair-train"] != tasks.sets["pair-train"]


def test_too_little_text_is_an_error_with_what_was_found() -> None:
    with pytest.raises(
        DataError, match=r"too little documentation .* they need \d+ documents.*alpha 5, beta 5, gamma 5"
    ):
        build_tasks(documents(num_per_area=5), seed=1, **SIZES)


@pytest.mark.parametrize(("num_per_area", "lengths"), [(60, (30, 15)), (40, (27, 12)), (33, (21, 9))])
def test_packages_with_a_little_less_give_a_little_less(num_per_area: int, lengths: tuple[int, int]) -> None:
    found = build_tasks(documents(num_per_area), seed=1, **SIZES)
    assert (len(found.train_documents), len(found.dev_documents)) == lengths
    assert len(found.areas) == 3


@pytest.mark.slow
def test_the_smallest_of_the_six_packages_has_enough_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    areas = ("networkx", "numpy")
    sources = [source for source in documentation.find_sources() if source.area in areas]
    monkeypatch.setattr(documentation, "find_sources", lambda: sources)
    assert build_tasks(gather_documents(), seed=0, max_areas=2, sizes=(200, 200)).areas == areas


@pytest.mark.slow
def test_the_documentation_on_this_machine_is_enough() -> None:
    assert len(build_tasks(gather_documents(num_workers=2), seed=0).areas) == 6
