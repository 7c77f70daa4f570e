"""Byte-pair training compared with its definition, `tokenizers`, and itself in other orders and processes."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from maskloom.errors import ConfigError, DataError
from maskloom.system.worker_processes import ONE_PROCESS, Work
from maskloom.text import word_counting
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.vocabulary import GPT_TOKENS, SURROGATE
from maskloom.text.vocabulary_training import VocabularySettings, train_vocabulary
from maskloom.text.word_counting import byte_words, count_words

TEXTS = [
    "The lowest of the low rivers was lower than the newest and widest one. Low, lower, lowest!",
    "She sells sea shells by the sea shore; the shells she sells are sea shells, I'm sure. aaaa aaaaa aaaaaaa",
    "New newer newest; wide wider widest: a river is wider where the sea is near. Éclair 東京 1999 1998",
] * 3


def train(texts: list[str] = TEXTS, *, size: int = 120, work: Work = ONE_PROCESS, **options: Any) -> BytePairTokenizer:
    return train_vocabulary(texts, VocabularySettings(**{"size": size, "model": "bpe", **options}), work=work)[0]


def naive_merges(words: dict[str, int], *, num_symbols: int, min_frequency: int) -> list[tuple[str, str]]:
    """The definition (Sennrich et al. 2016, listing 1): merge the most frequent pair; ties go to the older symbols."""
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


@settings(max_examples=60, deadline=None)
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
    # the library numbers word-final characters in the order of a hash table, unless all are given beforehand
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
    assert "T" in train(lowercase=False).vocabulary.ids
    assert "T" not in train().vocabulary.ids


def test_the_report_says_what_byte_pairs_have() -> None:
    report = train_vocabulary(TEXTS, VocabularySettings(size=10_000, model="bpe"))[1]
    assert report["num_word_ends"] > 20
    assert "num_continuations" not in report
    assert report["unknown_rate"] == 0
    assert report["why_smaller"].startswith("no pair of symbols")


ODD = [
    "#### ## # ####### a",
    "\n\n   b   c\t\td 🙂🙂 東京 東京東京 ",
    "\x1c?!\x1c!? it's  'tis\u00a0x \u2028'S",
    " \ud800 a b \ud800",
]


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(
        st.text() | st.lists(st.sampled_from([*" \t\n'.#é東🙂", "the", "I'm", "aaa"])).map("".join), min_size=1
    ),
    size=st.integers(265, 330),
    min_frequency=st.integers(1, 3),
)
def test_pieces_of_bytes_are_merged_as_the_library_merges_them(texts, size, min_frequency) -> None:
    """This includes ties, because the library orders bytes by their characters."""
    texts = [*texts, *TEXTS, *ODD]
    library = ByteLevelBPETokenizer()
    plain = [SURROGATE.sub("\ufffd", text) for text in texts]
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    library.train_from_iterator(plain, size - 1, min_frequency, show_progress=False, special_tokens=special)
    found = train(texts, size=size, model="byte-bpe", lowercase=False, min_frequency=min_frequency)
    theirs = [tuple(pair) for pair in json.loads(library.to_str())["model"]["merges"]]
    assert list(found.merges) == theirs
    assert found.vocabulary.tokens[:-1] == tuple(sorted(library.get_vocab(), key=library.get_vocab().__getitem__))
    assert found.vocabulary.mask_id == size - 1


def test_pieces_of_bytes_have_the_layout_of_bart_and_every_byte() -> None:
    options: dict[str, Any] = {"model": "byte-bpe", "lowercase": False, "sentinels": 2}
    tokenizer, report = train_vocabulary(TEXTS, VocabularySettings(320, **options))
    tokens = tokenizer.vocabulary.tokens
    assert tokens[:4] == ("<s>", "<pad>", "</s>", "<unk>")
    assert list(tokens[4:260]) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert tokens[-3:] == ("<mask>", "<extra_id_1>", "<extra_id_0>")
    assert len(tokens) == report["size"] == 320
    assert report["alphabet_size"] == 256
    assert report["unknown_rate"] == report["num_dropped_characters"] == report["num_too_long_words"] == 0
    for text in (*TEXTS, *ODD[:3], "Ω\r\n\0", "東" * 999):
        assert tokenizer.decode(tokenizer.token_ids(text)) == text


def test_pieces_of_bytes_are_the_same_in_any_order_and_number_of_processes(monkeypatch) -> None:
    texts, options = [*TEXTS, *ODD], {"size": 330, "model": "byte-bpe", "lowercase": False}
    first = train(texts, **options)
    assert train(texts[::-1], **options) == train(texts, work=Work(2), **options) == first
    monkeypatch.setattr(word_counting, "_BATCH_LENGTH", 1 << 10)
    monkeypatch.setattr(word_counting, "_LONGEST_RUN", 1 << 8)
    long = "".join([*texts, "a  b \n" * 2_000])
    counted = count_words([long], lowercase=None, max_distinct_words=10_000)
    assert counted.counts == Counter(byte_words(long))


@pytest.mark.parametrize(
    ("texts", "options", "error", "message"),
    [
        (TEXTS, {"size": 20}, ConfigError, r"size = 20: 6 special tokens and \d+ symbols for \d+ characters need"),
        (
            TEXTS,
            {"score": "likelihood"},
            ConfigError,
            "score = 'likelihood': byte pairs are merged by frequency",
        ),
        (TEXTS, {"model": "byte-bpe"}, ConfigError, "lowercase = True: byte-level pieces keep the case of the text"),
        (TEXTS, {"model": "byte-bpe", "lowercase": False}, ConfigError, "5 special tokens and 256 symbols .* need 261"),
        (
            TEXTS,
            {"model": "byte-bpe", "lowercase": False, "alphabet_limit": 99},
            ConfigError,
            "model = 'byte-bpe' does not limit its characters; leave --alphabet-limit out",
        ),
        ([""], {}, DataError, "no words in 1 text;"),
    ],
)
def test_what_cannot_be_trained_is_refused(texts, options, error, message) -> None:
    with pytest.raises(error, match=message):
        train(texts, **options)
    with pytest.raises(ConfigError, match="model = 'unigram': it must be one of 'wordpiece', 'bpe', 'byte-bpe'"):
        train_vocabulary(TEXTS, VocabularySettings(size=100, model="unigram"))  # type: ignore[arg-type]
