import pytest

from maskloom.errors import DataError
from maskloom.quickstart.documentation import GatheredDocument
from maskloom.quickstart.tasks import NEXT, QuickstartTasks, TaskSettings, build_tasks, mention_pattern

SETTINGS = TaskSettings(max_areas=3, train_documents=30, dev_documents=15)


def documents(num_per_area: int = 60) -> list[GatheredDocument]:
    return [
        GatheredDocument(
            area=area,
            module=f"{area}.module",
            kind="docstring",
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
    return build_tasks(documents(), seed=1, settings=SETTINGS)


def test_no_document_serves_two_purposes(tasks: QuickstartTasks) -> None:
    parts = (tasks.pretraining, tasks.train_documents, tasks.dev_documents)
    keys = [{(document.area, document.name) for document in part} for part in parts]
    assert sum(map(len, keys)) == len(set.union(*keys)) == len(documents())
    assert [len(part) for part in parts] == [180 - 45, 30, 15]


def test_sentences_come_from_their_documents_and_name_no_package(tasks: QuickstartTasks) -> None:
    own = {(s, d.area) for d in tasks.train_documents for s in d.sentences}
    rows = tasks.sets["sentence-train"].rows
    assert rows
    assert all((row["text"], row["label"]) in own for row in rows)
    assert not [row for row in rows if mention_pattern(tasks.areas).search(row["text"])]


@pytest.mark.parametrize("name", ["sentence-train", "sentence-dev", "pair-train", "pair-dev"])
def test_labels_are_balanced(tasks: QuickstartTasks, name: str) -> None:
    num_labels = 3 if name.startswith("sentence") else 2
    assert tasks.sets[name].majority_fraction == pytest.approx(1 / num_labels)


def test_a_next_passage_really_follows_and_another_is_of_another_document(tasks: QuickstartTasks) -> None:
    texts = [" ".join(document.sentences) for document in tasks.train_documents]
    for row in tasks.sets["pair-train"].rows:
        whole = f"{row['sentence1']} {row['sentence2']}"
        assert any(whole in text for text in texts) == (row["label"] == NEXT)


def test_the_seed_decides(tasks: QuickstartTasks) -> None:
    again = build_tasks(documents(), seed=1, settings=SETTINGS)
    other = build_tasks(documents(), seed=2, settings=SETTINGS)
    assert again == tasks
    assert other.sets["pair-train"] != tasks.sets["pair-train"]


def test_too_little_text_is_an_error_with_what_was_found() -> None:
    with pytest.raises(
        DataError, match=r"too little documentation on this machine for the tasks.*alpha 5, beta 5, gamma 5"
    ):
        build_tasks(documents(num_per_area=5), seed=1, settings=SETTINGS)
