"""Words and their ids, what is left out, and phrases."""

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from maskloom.data.corpus.documents import Document
from maskloom.errors import DataError
from maskloom.words import text
from maskloom.words.settings import WordsRecipe
from maskloom.words.text import counts_of, join_phrases, keep_frequent, training_pairs, write_numbers


def numbered(content: str, path: Path, **keys: object) -> tuple[list[str], list[int]]:
    documents = [Document(part.encode(), "a.txt", 1) for part in content.split("\n\n")]
    words, _ = write_numbers(documents, WordsRecipe(**keys), path, lambda done: None)  # type: ignore[arg-type]
    return words, np.fromfile(path, np.int32).tolist()


def read(words: list[str], path: Path) -> list[str]:
    return " ".join("|" if n < 0 else words[n] for n in np.fromfile(path, np.int32)).split(" | ")


def test_words_are_not_kept_in_memory_after_reading(tmp_path: Path) -> None:
    gc.disable()
    try:
        numbered("a needle in hay", tmp_path / "t")
        assert not [found for found in gc.get_objects() if issubclass(type(found), dict) and "needle" in found]
    finally:
        gc.enable()


def test_words_are_lower_cased_and_cut_at_punctuation(tmp_path: Path) -> None:
    words, numbers = numbered("The cat's on the-mat.\n\n(Élan) हिन्दी №5", tmp_path / "t")
    assert words == ["the", "cat", "s", "on", "mat", "élan", "हिन्दी", "5"]
    assert numbers == [0, 1, 2, 3, 0, 4, -1, 5, 6, 7, -1]


@pytest.mark.parametrize(
    ("keys", "expected"), [({"cased": True}, ["The", "the", "cat"]), ({"tokenize": "spaces"}, ["The", "the,", "cat"])]
)
def test_case_and_punctuation_stay_where_that_is_asked(
    keys: dict[str, object], expected: list[str], tmp_path: Path
) -> None:
    assert numbered("The the, cat", tmp_path / "t", **keys)[0] == expected


def test_lines_are_sentences_and_empty_ones_leave_nothing(tmp_path: Path) -> None:
    assert numbered("a b\n...\nc\n\nd", tmp_path / "t")[1] == [0, 1, -1, 2, -1, 3, -1]


def test_small_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "\n".join("b a a c" if line % 3 else "a d b" for line in range(50))
    found = []
    for size in (1 << 20, 7):
        monkeypatch.setattr(text, "_BLOCK", size)
        monkeypatch.setattr(text, "_MOST_CHUNKS", size)
        path = tmp_path / str(size)
        words, _ = numbered(content, path)
        join_phrases(path, words, WordsRecipe(phrase_threshold=0.5))
        words, counts = keep_frequent(path, words, 1)
        found.append((words, counts.tolist(), path.read_bytes()))
    assert found[0] == found[1]
    assert len(found[0][0]) > 2


def test_a_long_line_is_written_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_BLOCK", 5000)
    line, written = " ".join(f"word{number % 999}" for number in range(30_000)), list[int]()
    document = Document(f"{line}\n...\nend".encode(), "a.txt", 1)
    words, num_cuts = write_numbers([document], WordsRecipe(), tmp_path / "t", written.append)
    assert len(written) >= 3
    assert num_cuts == 0
    assert read(words, tmp_path / "t") == [line, "end |"]


def test_a_line_of_megabytes_takes_little_memory(tmp_path: Path) -> None:
    document = Document(b" ".join([b"x" * 1000] * 16_000), "a.txt", 1)
    tracemalloc.start()
    try:
        write_numbers([document], WordsRecipe(), tmp_path / "t", lambda done: None)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < len(document.content) / 4
    assert counts_of(tmp_path / "t", 1).tolist() == [16_000]


def test_a_line_without_blanks_is_cut_between_characters(tmp_path: Path) -> None:
    content = "字" * 100_000 + "\nend"
    recipe, document = WordsRecipe(tokenize="spaces"), Document(content.encode(), "a.txt", 1)
    assert write_numbers([document], recipe, tmp_path / "t", lambda done: None)[1] == 2
    words, numbers = numbered(content, tmp_path / "t", tokenize="spaces")
    assert [len(word) for word in words] == [43_691, 100_000 - 2 * 43_691, 3]  # each character has three bytes
    assert numbers == [0, 0, 1, -1, 2, -1]


def test_the_vocabulary_is_by_count_then_by_characters(tmp_path: Path) -> None:
    path = tmp_path / "t"
    words, _ = numbered("z z b rare b a a\nrare2\nb a z", path)
    words, counts = keep_frequent(path, words, 2)
    assert words == ["a", "b", "z"]
    assert counts.tolist() == [3, 3, 3]
    assert read(words, path) == ["z z b b a a", "b a z |"]  # nothing remains of the second line


def test_a_vocabulary_that_min_count_empties_is_refused(tmp_path: Path) -> None:
    words, _ = numbered("a b a c", tmp_path / "t")
    with pytest.raises(
        DataError, match=r"--min-count 3: of 3 distinct words, only 0 .* 'a', occurs 2 times; give more text"
    ):
        keep_frequent(tmp_path / "t", words, 3)
    words, _ = numbered("a", tmp_path / "t")
    with pytest.raises(DataError, match=r"--min-count 3: of 1 distinct word, only 0 .* 'a', occurs 1 time; give"):
        keep_frequent(tmp_path / "t", words, 3)


def test_pairs_above_the_threshold_become_words(tmp_path: Path) -> None:
    path = tmp_path / "t"
    line = "in new york city i saw new york"
    words, _ = numbered("\n".join([line] * 6 + ["new in a b", "york saw"]), path)
    counts = dict(zip(words, counts_of(path, len(words)).tolist(), strict=True))
    total = sum(counts.values())
    score = (12 - 5) * total / (counts["new"] * counts["york"])
    assert join_phrases(path, words, WordsRecipe(phrase_threshold=score + 0.01)) == []
    assert join_phrases(path, words, WordsRecipe(phrase_threshold=score - 0.01)) == ["new_york"]
    assert read(words, path)[0] == "in new_york city i saw new_york"
    assert read(words, path)[-2] == "new in a b"


def test_phrases_are_returned_with_the_most_frequent_first(tmp_path: Path) -> None:
    words, _ = numbered("\n".join(["a b"] * 6 + ["c d"] * 8 + ["e f"] * 7), tmp_path / "t")
    assert join_phrases(tmp_path / "t", words, WordsRecipe(phrase_threshold=0.1)) == ["c_d", "e_f", "a_b"]


def test_a_phrase_that_is_a_word_already_is_that_word(tmp_path: Path) -> None:
    path = tmp_path / "t"
    words, _ = numbered("\n".join(["new york", "new_york", "x y_z", "x_y z"] * 6), path, tokenize="spaces")
    assert {*join_phrases(path, words, WordsRecipe(phrase_threshold=0.1))} == {"new_york", "x_y_z"}
    assert len({*words}) == len(words)
    words, counts = keep_frequent(path, words, 1)
    assert dict(zip(words, counts.tolist(), strict=True)) == {"new_york": 12, "x_y_z": 12}


def test_of_overlapping_pairs_every_second_one_is_joined(tmp_path: Path) -> None:
    path = tmp_path / "t"
    words, _ = numbered("\n".join(["a b c d"] * 6), path)
    join_phrases(path, words, WordsRecipe(phrase_threshold=0.1))
    assert read(words, path)[0] == "a_b c_d"
    words, _ = numbered("\n".join(["a b c"] * 6), path)
    join_phrases(path, words, WordsRecipe(phrase_threshold=0.1))
    assert read(words, path)[0] == "a_b c"


def test_what_a_sentence_trains_on():
    """The published lists, and what one of the slides leaves out: the second "the" is also within 3 of cat."""

    def of(sentence, target=None, **settings):
        pairs = list(training_pairs(sentence, WordsRecipe(**settings)))
        return pairs if target is None else [words for words, word in pairs if word == target]

    fox = "The quick brown fox jumps over the lazy dog."
    assert of(fox, "fox", model="cbow", window=2) == [["quick", "brown", "jumps", "over"]]
    assert [word for words, word in of(fox, window=2) if words == ["fox"]] == ["quick", "brown", "jumps", "over"]
    cat = "The black cat sat on the mat"
    assert of(cat, "cat", model="cbow", window=3) == [["the", "black", "sat", "on", "the"]]
    assert of(cat, "on", model="cbow", window=4) == [["the", "black", "cat", "sat", "the", "mat"]]
    assert len(of(cat, window=1)) == 2 * 6
    assert of("The CAT", cased=True) == [(["The"], "CAT"), (["CAT"], "The")]


@pytest.mark.parametrize(("sentence", "number"), [("", "0 words"), ("alone", "1 word"), ("...", "0 words")])
def test_a_sentence_without_a_pair_is_named(sentence, number):
    with pytest.raises(DataError, match=f"{sentence!r}: {number}; a window needs at least two"):
        list(training_pairs(sentence, WordsRecipe()))
