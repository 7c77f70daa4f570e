"""Training: layout, determinism, sizes, errors, and the report."""

import contextlib
import io
import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.system.worker_processes import Work
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.vocabulary_training import (
    VocabularySettings,
    measure_coverage,
    train_vocabulary,
)
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog; the dog sleeps, the fox runs quickly.",
    "Running, runner, runs: “walking” and walked – the Walker walks. Ünïcode, naïve café!",
    "Sphinx of black quartz, judge my vow. The five boxing wizards jump quickly. 1234 24 2400",
    "她 说 中文 and ΟΔΟΣ, ΟΔΟΣ εν οδω.",
] * 3


class Trained(NamedTuple):
    tokenizer: Tokenizer
    report: dict[str, Any]

    @property
    def vocabulary(self) -> Vocabulary:
        return self.tokenizer.vocabulary


def train(texts: list[str] = TEXTS, **options: Any) -> Trained:
    work = Work(options.pop("num_workers", 1))
    return Trained(*train_vocabulary(texts, VocabularySettings(**{"size": 160, **options}), work=work))


def test_layout_of_the_vocabulary() -> None:
    tokens = train().vocabulary.tokens
    assert tokens[:5] == SPECIAL_TOKENS == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert len(tokens) == len(set(tokens)) == 160
    starts = [t for t in tokens[5:] if len(t) == 1]
    inside = [t for t in tokens[5:] if t.startswith("##") and len(t) == 3]
    # characters come first, in code point order, and only at positions where they were seen
    assert list(tokens[5 : 5 + len(starts) + len(inside)]) == [*sorted(starts), *sorted(inside)]
    assert "中" in starts
    assert "##中" not in inside
    assert "“" in starts
    assert "##z" in inside
    assert "the" in tokens
    assert all(token == token.lower() for token in tokens[5:])


def test_cased_training_keeps_case_and_accents() -> None:
    tokens = train(lowercase=False, size=230).vocabulary.tokens
    assert {"T", "Ü", "##ï", "The"} <= set(tokens)
    assert "Ü" not in train().vocabulary.tokens


@pytest.mark.parametrize("score", ["frequency", "likelihood"])
def test_the_same_text_gives_the_same_vocabulary(score: Any) -> None:
    expected = train(score=score).vocabulary
    assert train(TEXTS[::-1], score=score).vocabulary == expected
    assert train([" ".join(TEXTS)], score=score).vocabulary == expected
    in_processes = {"num_workers": 3, "max_distinct_words": 100} if score == "frequency" else {}  # which count words
    assert train([*TEXTS[3:], *TEXTS[:3]], score=score, **in_processes).vocabulary == expected
    # the cap is reached and runs spill to disk, but no word is lost
    distinct = train().report["num_distinct_words"]
    spilled = train(score=score, max_distinct_words=distinct)
    assert spilled.vocabulary == expected
    tight = train(score=score, max_distinct_words=distinct - 20)
    assert tight.report["num_spilled_runs"] > 0
    assert tight.report["num_pruned_distinct_words"] == 20
    again = train(TEXTS[::-1], score=score, max_distinct_words=distinct - 20, num_workers=2 if in_processes else 1)
    assert again.vocabulary == tight.vocabulary


def test_the_seed_of_hashes_does_not_matter() -> None:
    program = (
        "from maskloom.text.vocabulary_training import VocabularySettings as V, train_vocabulary as t\n"
        "texts = ['the cat sat on the mat', 'a dog and the cats', 'mats and dogs sat'] * 2\n"
        "print([t(texts, V(60, score=s))[0].vocabulary.tokens for s in ('frequency', 'likelihood')])"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # another than that of this process
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    with contextlib.redirect_stdout(io.StringIO()) as own:
        exec(program, {})
    assert other == own.getvalue()


def test_sizes_are_exact_or_explained() -> None:
    for size in (130, 131, 165):
        trained = train(size=size)
        assert len(trained.vocabulary) == trained.report["size"] == size
        assert trained.report["why_smaller"] is None
    trained = train(size=5000)
    assert len(trained.vocabulary) == trained.report["size"] < 5000
    assert trained.report["why_smaller"] == "no pair of symbols that occurs at least 2 times is left to merge"
    assert len(train(size=5000, min_frequency=6).vocabulary) < len(trained.vocabulary)


def test_a_size_below_the_alphabet_is_an_error_with_figures() -> None:
    with pytest.raises(ConfigError, match=r"4 symbols for 3 characters need 9; use --size 9 or more$"):
        train_vocabulary(["ab ca"], VocabularySettings(size=8))
    assert len(train(["ab ca"], size=9).vocabulary) == 9


@pytest.mark.parametrize(
    "options",
    [
        {"size": 5},
        {"score": "bpe"},
        {"min_frequency": 0},
        {"alphabet_limit": 0},
        {"max_distinct_words": 0},
        {"num_workers": 0},
    ],
)
def test_impossible_settings_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"^{name} = "):
        train(**options)


def test_text_without_words_is_an_error() -> None:
    with pytest.raises(DataError, match="no words in 2 texts;"):
        train(["", " \x00 "])


def test_rare_characters_over_the_limit_make_their_words_unknown() -> None:
    trained = train(["aaa aab bba abz zz"] * 2, size=20, alphabet_limit=2)
    assert trained.report["alphabet_size"] == 2
    assert trained.report["dropped_characters"] == "z"
    assert not any("z" in token for token in trained.vocabulary.tokens)
    assert trained.report["unknown_rate"] == pytest.approx(2 / 5)
    assert WordPieceTokenizer(trained.vocabulary).tokens("abz aab") == ["[UNK]", "aab"]


def test_too_long_words_and_lone_surrogates_take_no_part() -> None:
    trained = train(["ab" * 101 + " ab ab \ud800b"], size=40)
    assert trained.report["longest_token"] == "ab"
    assert trained.report["num_too_long_words"] == 1
    assert trained.report["unknown_rate"] == pytest.approx(0.5)


def test_the_report_counts_what_encoding_does() -> None:
    trained = train(size=120)
    report = trained.report
    tokenizer = WordPieceTokenizer(trained.vocabulary)
    encodings = [tokenizer.encode(text) for text in TEXTS]
    num_words = sum(len({w for w in e.words if w is not None}) for e in encodings)
    num_pieces = sum(len(e.ids) - 2 for e in encodings)
    assert report["num_words"] == num_words
    assert report["num_texts"] == len(TEXTS)
    assert report["pieces_per_word"] == pytest.approx(num_pieces / num_words)
    assert report["unknown_rate"] == 0
    assert report["num_word_starts"] + report["num_continuations"] == 115
    assert report["size"] == 120
    assert len(report["longest_token"]) == max(len(token.removeprefix("##")) for token in trained.vocabulary.tokens[5:])


def test_coverage_weighs_words_by_their_counts() -> None:
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "ab", "a", "##c"])
    coverage = measure_coverage(WordPieceTokenizer(vocabulary), {"ab": 5, "acc": 2, "x": 3, "\ud800": 1})
    assert coverage["unknown_rate"] == pytest.approx(4 / 11)
    assert coverage["single_piece_rate"] == pytest.approx(5 / 11)
    assert coverage["pieces_per_word"] == pytest.approx((5 + 6 + 3 + 1) / 11)
    assert coverage["characters_per_piece"] == pytest.approx((10 + 6 + 3 + 1) / 15)
    assert measure_coverage(WordPieceTokenizer(vocabulary), {})["pieces_per_word"] == 0


def test_progress_is_told_in_stages() -> None:
    seen: list[tuple[str, int, int]] = []
    train_vocabulary(TEXTS, VocabularySettings(160), progress=lambda *stage: seen.append(stage))
    assert seen[-1] == ("merge pairs", 160, 160)


@pytest.mark.parametrize("model", ["wordpiece", "bpe"])
def test_sentinels_come_last_and_change_no_other_piece(model: str, tmp_path) -> None:
    plain, found = train(size=150, model=model), train(size=153, model=model, sentinels=3)
    assert found.vocabulary.tokens == (*plain.vocabulary.tokens, "<extra_id_2>", "<extra_id_1>", "<extra_id_0>")
    assert found.vocabulary.sentinel_ids.tolist() == [152, 151, 150]
    assert plain.vocabulary.sentinel_ids.tolist() == []
    for name in ("longest_token", "num_word_starts", "num_word_ends", "pieces_per_word"):
        assert found.report.get(name) == plain.report.get(name)
    found.tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).vocabulary.tokens == found.vocabulary.tokens
    assert Tokenizer.load(tmp_path).token_ids("fox <extra_id_0>") == found.tokenizer.token_ids("fox <extra_id_0>")
    assert not {150, 151, 152} & {*found.tokenizer.token_ids("fox <extra_id_0>")}


@pytest.mark.parametrize(
    ("options", "said"), [({"sentinels": -1}, "sentinels = -1"), ({"sentinels": 145}, "size = 150")]
)
def test_impossible_numbers_of_sentinels_are_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(size=150, **options)


def test_whole_words_come_by_their_counts_and_rare_ones_are_unknown():
    texts = ["b b b a a c c d", "A"]
    tokenizer, report = train_vocabulary(texts, VocabularySettings(size=8, model="words", lowercase=False))
    assert tokenizer.vocabulary.tokens == (*SPECIAL_TOKENS, "b", "a", "c")
    assert report["why_smaller"] is None
    assert tokenizer.token_ids("b d ab") == [5, 1, 1]
    smaller, report = train_vocabulary(texts, VocabularySettings(size=99, model="words", min_frequency=3))
    assert smaller.vocabulary.tokens[5:] == ("a", "b")
    assert report["why_smaller"] == "no word that occurs at least 3 times is left"
    for wrong in ({"sentinels": 1}, {"score": "likelihood"}):
        with pytest.raises(ConfigError, match="model = 'words'"):
            train_vocabulary(texts, VocabularySettings(size=99, model="words", **wrong))
