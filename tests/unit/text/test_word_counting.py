"""Counting in bounded memory gives what counting at once gives, and cleans up after itself."""

import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.text import word_counting
from maskloom.text.normalization import words
from maskloom.text.word_counting import count_words

TEXTS = ["The cat, the Dog\x00 THE", "a b a\tb", "", "Ünï \ud800x 中文 ΟΔΟΣ.", "the cat " * 50]


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.glob("maskloom-words-*")) == []
    assert multiprocessing.active_children() == []


def expected_counts(texts: list[str], *, lowercase: bool = True) -> Counter[str]:
    return Counter(word for text in texts for word in words(text, lowercase=lowercase))


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("cap", [5, 7, 1000])
def test_counts_are_those_of_plain_counting(monkeypatch: pytest.MonkeyPatch, lowercase: bool, cap: int) -> None:
    monkeypatch.setattr(word_counting, "_MAX_OPEN_RUNS", 2)
    expected = expected_counts(TEXTS, lowercase=lowercase)
    found = count_words(TEXTS, lowercase=lowercase, max_distinct_words=cap)
    kept = sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))[:cap]
    assert found.counts == dict(kept)
    assert (found.num_texts, found.num_distinct_words) == (5, len(expected))
    assert found.num_words == expected.total()
    assert found.num_pruned_words == expected.total() - sum(found.counts.values())
    assert found.num_pruned_distinct == len(expected) - len(kept)
    assert (found.num_runs > 0) == (cap < 1000)


@given(st.lists(st.text("ab cdé文,\n"), max_size=8), st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_neither_order_nor_spilling_matters(texts: list[str], cap: int) -> None:
    forward = count_words(texts, lowercase=True, max_distinct_words=cap).counts
    assert count_words(texts[::-1], lowercase=True, max_distinct_words=cap).counts == forward
    whole = count_words([" ".join(texts)], lowercase=True, max_distinct_words=cap).counts
    assert whole == forward


def test_long_texts_are_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counting, "_SLICE_LENGTH", 7)
    text = "alpha beta\ngamma\x1cdelta epsilon alpha " * 9 + "end"
    found = count_words([text], lowercase=True, max_distinct_words=100)
    assert found.counts == expected_counts([text])


def test_several_processes_count_the_same() -> None:
    texts = [f"{word} shared Text {word}" for word in ("one", "two", "three")] * 40 + TEXTS
    alone = count_words(texts, lowercase=True, max_distinct_words=1000)
    seen: list[tuple[str, int, int]] = []
    together = count_words(
        texts, lowercase=True, max_distinct_words=1000, num_workers=2, progress=lambda *stage: seen.append(stage)
    )
    assert together.counts == alone.counts
    assert together.num_words == alone.num_words
    assert together.num_texts == alone.num_texts == len(texts)
    assert seen[-1] == ("count words", len(texts), 0)


def test_an_error_of_the_reader_leaves_no_process() -> None:
    def broken() -> Iterator[str]:
        yield "a b"
        raise OSError("the disk is gone")

    for num_workers in (1, 2):
        with pytest.raises(OSError, match="the disk is gone"):
            count_words(broken(), lowercase=True, max_distinct_words=10, num_workers=num_workers)


def test_an_error_of_a_worker_is_shown() -> None:
    with pytest.raises(RuntimeError, match="a process that counts words failed(?s:.*)TypeError"):
        count_words([["a"]], lowercase=True, max_distinct_words=10, num_workers=2)  # pyright: ignore[reportArgumentType]


def test_a_killed_worker_is_an_error_not_a_wait() -> None:
    def texts() -> Iterator[str]:
        yield "a"
        for process in multiprocessing.active_children():
            process.kill()
        for _ in range(50):
            yield "b " * 600_000

    with pytest.raises(RuntimeError, match="ended with code -9"):
        count_words(texts(), lowercase=True, max_distinct_words=10, num_workers=2)
