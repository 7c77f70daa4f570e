"""Byte-pair training against its definition, the `tokenizers` library, and itself in other orders and processes."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, trainers

from maskloom.errors import ConfigError, DataError
from maskloom.system.worker_processes import ONE_PROCESS, Work
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.vocabulary import GPT_TOKENS
from maskloom.text.vocabulary_training import VocabularySettings, train_vocabulary

TEXTS = [
    "The lowest of the low rivers was lower than the newest and widest one. Low, lower, lowest!",
    "She sells sea shells by the sea shore; the shells she sells are sea shells, I'm sure. aaaa aaaaa aaaaaaa",
    "New newer newest; wide wider widest: a river is wider where the sea is near. Éclair 東京 1999 1998",
] * 3


def train(texts: list[str] = TEXTS, *, size: int = 120, work: Work = ONE_PROCESS, **options: Any) -> BytePairTokenizer:
    return train_vocabulary(texts, VocabularySettings(size=size, model="bpe", **options), work=work)[0]


def naive_merges(words: dict[str, int], *, num_symbols: int, min_frequency: int) -> list[tuple[str, str]]:
    """The definition (Sennrich et al. 2016, listing 1): the most frequent pair, the older symbols at a tie."""
    inside = sorted({char for word in words for char in word[:-1]})
    symbols = [*inside, *(f"{char}</w>" for char in sorted({word[-1] for word in words}))]
    cut = {word: [*word[:-1], f"{word[-1]}</w>"] for word in words}
    merges: list[tuple[str, str]] = []
    while len(symbols) < num_symbols:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in zip(cut[word], cut[word][1:], strict=False):
                pairs[pair] += count
        age = {symbol: index for index, symbol in enumerate(symbols)}
        best = min(pairs, key=lambda pair: (-pairs[pair], age[pair[0]], age[pair[1]]), default=None)
        if best is None or pairs[best] < min_frequency:
            break
        merges.append(best)
        if "".join(best) not in age:
            symbols.append("".join(best))
        for word, parts in cut.items():
            joined: list[str] = []
            while parts:
                taken = 2 if tuple(parts[:2]) == best else 1
                joined.append("".join(parts[:taken]))
                parts = parts[taken:]
            cut[word] = joined
    return merges


@settings(max_examples=150, deadline=None)
@given(
    words=st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 20), min_size=1),
    size=st.integers(13, 60),
    min_frequency=st.integers(1, 4),
)
def test_the_merges_are_those_of_the_definition(words: dict[str, int], size: int, min_frequency: int) -> None:
    texts = [" ".join([word] * count) for word, count in words.items()]
    found = train(texts, size=size, min_frequency=min_frequency)
    assert list(found.merges) == naive_merges(words, num_symbols=size - 6, min_frequency=min_frequency)


def test_the_merges_are_those_of_the_library_where_symbols_have_the_same_age() -> None:
    found = train(size=150)
    # the library numbers the characters at ends of words in the order of a hash table, unless all are given before
    alphabet = [token for token in found.vocabulary.tokens[6:] if len(found.vocabulary.bare(token)) == 1]
    library = Library(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=10_000,
            min_frequency=2,
            special_tokens=[*GPT_TOKENS.tokens, *alphabet],
            end_of_word_suffix="</w>",
            show_progress=False,
        ),
    )
    theirs = [tuple(pair) for pair in json.loads(library.to_str())["model"]["merges"]]
    assert len(found.merges) > 60
    assert theirs[: len(found.merges)] == list(found.merges)


def test_a_vocabulary_has_special_tokens_then_characters_then_merges() -> None:
    found = train(["lower low", "low"], size=20)
    assert found.vocabulary.tokens == (
        "<pad>", "<unk>", "<extract>", "<delimiter>", "<start>", "<end>",
        "e", "l", "o", "w", "r</w>", "w</w>", "lo", "low</w>",
    )  # fmt: skip
    assert found.merges == (("l", "o"), ("lo", "w</w>"))


def test_the_same_text_gives_the_same_bytes_in_any_order_and_number_of_processes(tmp_path) -> None:
    train().save(tmp_path / "first")
    train(TEXTS[::-1]).save(tmp_path / "second")
    train(work=Work(3)).save(tmp_path / "third")
    first = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    for name in ("second", "third"):
        assert {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} == first


def test_case_is_kept_where_it_is_asked_for() -> None:
    assert "T" in train(lowercase=False).vocabulary
    assert "T" not in train().vocabulary


def test_the_report_says_what_byte_pairs_have() -> None:
    report = train_vocabulary(TEXTS, VocabularySettings(size=10_000, model="bpe"))[1]
    assert report["num_word_ends"] > 20
    assert "num_continuations" not in report
    assert report["unknown_rate"] == 0
    assert report["why_smaller"].startswith("no pair of symbols")


@pytest.mark.parametrize(
    ("texts", "options", "error", "message"),
    [
        (TEXTS, {"size": 20}, ConfigError, r"size = 20: 6 special tokens and \d+ symbols for \d+ characters need"),
        (TEXTS, {"score": "pmi"}, ConfigError, "score = 'pmi': byte-pair encoding merges the most frequent pair"),
        ([""], {}, DataError, "1 texts hold no words"),
    ],
)
def test_what_cannot_be_trained_is_refused(texts, options, error, message) -> None:
    with pytest.raises(error, match=message):
        train(texts, **options)
    with pytest.raises(ConfigError, match="model = 'unigram': it must be one of 'wordpiece', 'bpe'"):
        train_vocabulary(TEXTS, VocabularySettings(size=100, model="unigram"))  # type: ignore[arg-type]
