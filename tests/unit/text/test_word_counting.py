"""Counting in bounded memory gives the same counts as counting all at once, and cleans up after itself."""

import os
import signal
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.started_processes import children

from maskloom.system.worker_processes import Work
from maskloom.text import word_counting
from maskloom.text.normalization import words
from maskloom.text.word_counting import count_words

TEXTS = ["The cat, the Dog\x00 THE", "a b a\tb", "", "Ünï \ud800x 中文 ΟΔΟΣ.", "the cat " * 50]


def workers() -> list[int]:
    """Return the worker processes that this process started."""
    named = ((number, Path(f"/proc/{number}/cmdline")) for number in children())
    return [number for number, path in named if b"maskloom.system.worker_processes" in path.read_bytes()]


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.glob("maskloom-words-*")) == []
    assert workers() == []


def expected_counts(texts: list[str], *, lowercase: bool = True) -> Counter[str]:
    return Counter(word for text in texts for word in words(text, lowercase=lowercase))


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("cap", [5, 7, 1000])
@pytest.mark.parametrize("batch_length", [1, 20, 1 << 20])
def test_counts_are_those_of_plain_counting(
    monkeypatch: pytest.MonkeyPatch, lowercase: bool, cap: int, batch_length: int
) -> None:
    monkeypatch.setattr(word_counting, "_MAX_OPEN_RUNS", 2)
    monkeypatch.setattr(word_counting, "_BATCH_LENGTH", batch_length)
    expected = expected_counts(TEXTS * 2, lowercase=lowercase)
    found = count_words(TEXTS * 2, lowercase=lowercase, max_distinct_words=cap)
    kept = sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))[:cap]
    assert found.counts == dict(kept)
    assert (found.num_texts, found.num_distinct_words) == (10, len(expected))
    assert found.num_words == expected.total()
    assert found.num_pruned_words == expected.total() - sum(found.counts.values())
    assert found.num_pruned_distinct_words == len(expected) - len(kept)
    assert (found.num_spilled_runs > 0) == (cap < 1000)
    # with one batch per text, there are more runs than may be open at a time
    assert found.num_spilled_runs > 2 or cap == 1000 or batch_length > 1


@given(st.lists(st.text("ab cdé文,\n"), max_size=8), st.integers(1, 5))
@settings(deadline=None, max_examples=30)
def test_neither_order_nor_spilling_matters(texts: list[str], cap: int) -> None:
    forward = count_words(texts, lowercase=True, max_distinct_words=cap).counts
    assert count_words(texts[::-1], lowercase=True, max_distinct_words=cap).counts == forward
    whole = count_words([" ".join(texts)], lowercase=True, max_distinct_words=cap).counts
    assert whole == forward


def test_a_word_that_is_rare_in_each_run_but_frequent_in_all_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counting, "_BATCH_LENGTH", 1)
    texts = [f"often once{number} twice{number} twice{number}" for number in range(30)]
    found = count_words(texts, lowercase=True, max_distinct_words=2)
    assert found.counts == {"often": 30, "twice0": 2}
    assert (found.num_spilled_runs, found.num_pruned_distinct_words, found.num_pruned_words) == (30, 59, 88)


def test_memory_does_not_grow_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counting, "_BATCH_LENGTH", 5_000)
    # either text reaches this limit: each open run has a buffer, of 128 KiB as of Python 3.14
    monkeypatch.setattr(word_counting, "_MAX_OPEN_RUNS", 4)

    def texts(num_words: int) -> Iterator[str]:
        for start in range(0, num_words, 100):
            yield " ".join(f"w{number:x}" for number in range(start, start + 100))

    peaks = []
    for num_words in (2_000, 10_000):
        tracemalloc.start()
        found = count_words(texts(num_words), lowercase=True, max_distinct_words=250)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (len(found.counts), found.num_distinct_words) == (250, num_words)
    assert peaks[1] < 1.2 * peaks[0]


def test_counts_beyond_32_bits_survive_a_run(tmp_path: Path) -> None:
    totals = word_counting._SpillingTotals(tmp_path, 1)
    for _ in range(3):
        totals.add({"a": 3_000_000_000, "b": 1})
    assert dict(totals.merged()) == {"a": 9_000_000_000, "b": 3}


def test_long_texts_are_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counting, "_BATCH_LENGTH", 7)
    text = "alpha beta\ngamma\x1cdelta epsilon alpha " * 9 + "end"
    found = count_words([text], lowercase=True, max_distinct_words=100)
    assert found.counts == expected_counts([text])


@pytest.mark.parametrize("batch_length", [1 << 9, 1 << 20])
def test_text_without_blanks_is_counted_part_by_part(batch_length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counting, "_BATCH_LENGTH", batch_length)
    monkeypatch.setattr(word_counting, "_LONGEST_RUN", 64)
    for text in ("中文 is,中" * 200, "中文是" * 300, "one,two,ΑΣ,ΣΑ." * 50, "a-" * 500 + "b c"):
        assert count_words([text], lowercase=True, max_distinct_words=100).counts == expected_counts([text])
    # a very long word is cut where no tokenizer would read on
    found = count_words(["é" * 1000 + " the"], lowercase=False, max_distinct_words=100)
    assert found.counts["the"] == 1
    assert sum(len(word) * count for word, count in found.counts.items()) == 1003


@pytest.mark.parametrize("unit", ["😀", "中", "a,", "x", "é "])
def test_memory_does_not_hang_on_the_shape_of_a_text(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counting, "_BATCH_LENGTH", 1 << 12)
    monkeypatch.setattr(word_counting, "_LONGEST_RUN", 1 << 10)
    text = unit * (1 << 14)
    tracemalloc.start()
    try:
        count_words([text], lowercase=True, max_distinct_words=500)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # the word rules take about a hundred times the memory of the characters in one call
    assert peak < 1 << 20


def test_several_processes_count_the_same() -> None:
    texts = [f"{word} shared Text {word}" for word in ("one", "two", "three")] * 40 + TEXTS
    alone = count_words(texts, lowercase=True, max_distinct_words=1000)
    seen: list[tuple[str, int, int]] = []
    together = count_words(
        texts, lowercase=True, max_distinct_words=1000, work=Work(2), progress=lambda *stage: seen.append(stage)
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
            count_words(broken(), lowercase=True, max_distinct_words=10, work=Work(num_workers))


def test_a_killed_worker_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def texts() -> Iterator[str]:
        yield "a"
        for number in workers():
            os.kill(number, signal.SIGKILL)
        for _ in range(4):
            yield "b " * 600_000

    found = count_words(texts(), lowercase=True, max_distinct_words=10, work=Work(2), place=lambda: "a.txt, line 7")
    assert found.counts == {"a": 1, "b": 2_400_000}
    assert "which was working on the words up to a.txt, line 7, died with exit code -9" in caplog.messages[0]


def test_temporary_files_lie_where_they_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def texts() -> Iterator[str]:
        yield from (f"{number:x} " * 1000 for number in range(40))
        assert list(tmp_path.glob("*/run-*"))

    monkeypatch.setattr(word_counting, "_BATCH_LENGTH", 1 << 13)
    assert count_words(texts(), lowercase=True, max_distinct_words=2, scratch=tmp_path).num_spilled_runs > 2
    assert list(tmp_path.iterdir()) == []
