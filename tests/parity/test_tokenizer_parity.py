"""The tokenizer compared with Google's own code (the `bert` package of bert-tensorflow) and with transformers."""

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from maskloom.text.normalization import agreed_ranges, is_agreed, words
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from tools.fuzzing.texts import google_modules, problem_of, random_text

pytestmark = pytest.mark.parity

FRAGMENTS = [
    *(
        "The",
        "unaffable",
        "Henson's",
        "running",
        "Héllo",
        "he\u0301llo",
        "naïve",
        "İstanbul",
        "ﬁne",
        "ＡＢ",
        "½①Ⅳ",
        "##ing",
    ),
    *("中文", "한국어", "ひらがな", "ΟΔΟΣ", "ΣΣ.Σ", "дом", "שלום", "हिन्दी", "Ångström", "ẞß", "\U0002b820", "\u061d"),
    *(
        "👩\u200d👩\u200d👧\ufe0f",
        "🙂",
        "\x00",
        "\x0b",
        "\x1c",
        "\x85",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\ufeff",
        "\u200b",
        "\u00ad",
    ),
    *(
        "\ufffd",
        "\ue000",
        "\U0010ffff",
        "\u0301",
        "$5.00",
        "a|b`c",
        "“x”—y",
        "don't",
        "http://a.b/c?d=e",
        " ",
        "\t",
        "\r\n",
    ),
    *(f"{letter * count}{end}" for letter in "xé" for count in (99, 100, 101, 199, 200, 201) for end in ("", "!")),
    *SPECIAL_TOKENS,
    *("[mask]", "[unused5]", "[MASK", "[[SEP]]", "a[CLS]b"),
]
NUM_TEXTS = 1_600  # with each of four vocabularies
ANY_CHARACTER = st.characters(exclude_categories=[])
WORDS_OF_TEXT = st.lists(st.sampled_from(FRAGMENTS) | st.text(ANY_CHARACTER, max_size=5) | st.just(" "), max_size=12)
ANY_TEXT = WORDS_OF_TEXT.map("".join)
WRITABLE_TEXT = ANY_TEXT.map(lambda text: text.encode("utf-8", "ignore").decode())
AGREED_CHARACTER = st.one_of(*(st.characters(min_codepoint=a, max_codepoint=b) for a, b in agreed_ranges()))
AGREED_FRAGMENT = st.sampled_from([part for part in FRAGMENTS if is_agreed(part) and len(part) < 20])
AGREED_TEXT = st.lists(AGREED_FRAGMENT | st.text(AGREED_CHARACTER, max_size=5) | st.just(" "), max_size=12).map("".join)
SHORT_TEXT = st.lists(st.sampled_from(["the", "dog", "unaffable", "[SEP]", "中", "!"]), max_size=30).map(" ".join)


@pytest.fixture(scope="module")
def google() -> SimpleNamespace:
    """Return Google's modules, with stand-ins for TensorFlow, which they use for flags, files and networks."""
    pytest.importorskip("bert", reason="the oracle package bert-tensorflow is not installed")
    return google_modules()


@pytest.fixture(scope="module")
def small_vocabulary() -> Vocabulary:
    """Return a cased vocabulary of many scripts, with the special tokens at unusual positions."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEHTIéèïåÅİßẞ\u0301\u0327αοδσςΣΟΔдомשלום"
    letters += "\u0939\u093fكﾊ中文한\u1112\u1161\u11abひか🙂👩"
    symbols = "".join(map(chr, (*range(33, 65), *range(91, 97), *range(123, 127)))) + "“”—"
    bare = dict.fromkeys(f"{letters}{symbols}½①Ⅳ\ue000")
    pieces = ["the", "The", "##ing", "un", "##aff", "##able", "Héllo", "hello", "##llo", "οδος", "##xx", "xx", "##éé"]
    tokens = ["[MASK]", *bare, "[UNK]", *(f"##{char}" for char in bare), "[SEP]", *pieces, "[CLS]", "[PAD]"]
    return Vocabulary(list(dict.fromkeys(tokens)))


@pytest.fixture(scope="module")
def small_folder(small_vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    small_vocabulary.save(folder / "vocab.txt")
    return folder


@pytest.fixture(scope="module", params=["small cased", "small uncased", "published uncased", "published cased"])
def both(request: pytest.FixtureRequest, google: SimpleNamespace, small_folder: Path, minilm_folder: Path) -> Any:
    """Return our tokenizer and Google's, with the same vocabulary and the same case setting."""
    vocabulary, case = request.param.split()
    folder = small_folder if vocabulary == "small" else minilm_folder
    ours = WordPieceTokenizer(Vocabulary.load(folder), lowercase=case == "uncased")
    return ours, google.tokenization.FullTokenizer(str(folder / "vocab.txt"), do_lower_case=case == "uncased")


def google_ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))


@given(text=ANY_TEXT)
@settings(deadline=None, max_examples=100)
def test_ids_are_those_of_google(both: Any, text: str) -> None:
    ours, theirs = both
    expected = google_ids(theirs, text)
    assert ours.token_ids(text) == expected
    assert ours.encode(text).ids[1:-1] == expected[: ours.max_length - 2]
    assert words(text, lowercase=ours.lowercase) == theirs.basic_tokenizer.tokenize(text)


def test_random_text_is_cut_as_google_cuts_it_with_sound_offsets_alone_and_in_batches(both: Any) -> None:
    draw = random.Random(0)
    for _ in range(20):
        assert problem_of(*both, [random_text(draw) for _ in range(NUM_TEXTS // 20)]) is None


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_makes_the_words_that_google_makes(google: SimpleNamespace, lowercase: bool) -> None:
    theirs = google.tokenization.BasicTokenizer(do_lower_case=lowercase)
    # of long ranges of one kind (private use, hieroglyphs, Tangut, the last planes) a sample
    whole = [(0, 0x3400), (0x9F00, 0xAC40), (0xD780, 0xE100), (0xF800, 0x13010), (0x14600, 0x17010), (0x18800, 0x1F000)]
    sampled = [(0xE100, 0xF800), (0x13010, 0x14600), (0x17010, 0x18800), (0x1F000, 0x110000)]
    codes = [code for first, end in whole for code in range(first, end)]
    codes += [code for first, end in sampled for code in range(first, end, 61)]
    for start in range(0, len(codes), 4096):
        text = " ".join(f"a{chr(code)}B {chr(code)}" for code in codes[start : start + 4096])
        assert words(text, lowercase=lowercase) == theirs.tokenize(text), f"from U+{codes[start]:04X}"


@given(word=st.text(st.sampled_from("abhelouTinxéς中한#"), max_size=12))
@settings(deadline=None, max_examples=150)
def test_pieces_of_a_word_are_those_of_google(both: Any, word: str) -> None:
    ours, theirs = both
    assert ours.tokens(word) == theirs.tokenize(word)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("John Johanson's house", "john johan ##son ' s house"),
        ("my dog is hairy", "my dog is hairy"),
        ("##ing", "# # ing"),
        ("", ""),
        (" \x00\u200b\u00ad", ""),
    ],
)
def test_published_examples(google: SimpleNamespace, minilm_folder: Path, text: str, tokens: str) -> None:
    ours = Tokenizer.load(minilm_folder)
    assert ours.tokens(text) == tokens.split()
    theirs = google.tokenization.FullTokenizer(str(minilm_folder / "vocab.txt"))
    assert ours.token_ids(text) == google_ids(theirs, text)


def test_published_ids(minilm_folder: Path) -> None:
    ours = Tokenizer.load(minilm_folder)
    assert ours.token_ids("my dog is hairy") == [2026, 3899, 2003, 15892]
    pair = ours.encode("Who was Jim Henson ?", "Jim Henson was a puppeteer")
    assert pair.ids == [101, 2040, 2001, 3958, 27227, 1029, 102, 3958, 27227, 2001, 1037, 13997, 11510, 102]


# Pitfalls of tokenisation, one by one


def test_trap_accents_are_kept_in_cased_text(google: SimpleNamespace, small_folder: Path) -> None:
    ours = Tokenizer.load(small_folder)
    assert not ours.lowercase
    assert ours.tokens("Héllo") == ["Héllo"]
    # nor are texts normalised: a letter and its combining mark stay two characters
    assert ours.tokens("He\u0301llo") == ["H", "##e", "##\u0301", "##llo"]
    theirs = google.tokenization.FullTokenizer(str(small_folder / "vocab.txt"), do_lower_case=False)
    assert ours.token_ids("Héllo He\u0301llo") == google_ids(theirs, "Héllo He\u0301llo")


def test_trap_one_bad_piece_makes_the_whole_word_unknown(both: Any) -> None:
    ours, theirs = both
    assert ours.tokens("unaff\u4dc0able the") == theirs.tokenize("unaff\u4dc0able the") == ["[UNK]", "the"]


def test_trap_special_ids_are_looked_up(small_vocabulary: Vocabulary) -> None:
    ids = small_vocabulary.ids
    assert ids["[MASK]"] == 0
    pair = WordPieceTokenizer(small_vocabulary, lowercase=False).encode("The \u4dc0", "xx")
    assert pair.ids == [ids[token] for token in ("[CLS]", "The", "[UNK]", "[SEP]", "xx", "[SEP]")]


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_trap_special_tokens_in_a_text_are_plain_text(both: Any, token: str) -> None:
    ours, theirs = both
    for text in (token, f"the {token} the", f"the{token}the"):
        found = ours.encode(text).ids[1:-1]
        assert found == google_ids(theirs, text)
        assert ours.vocabulary.ids[token] not in found or token == "[UNK]"


@pytest.mark.parametrize("length", [99, 100, 101, 199, 200, 201])
def test_trap_the_longest_word_has_200_characters_or_100(both: Any, published: Any, length: int) -> None:
    ours, theirs = both
    for word in ("x" * length, "x" * (length - 1) + "Σ"):
        assert ours.token_ids(word) == google_ids(theirs, word)
    like_peer, peer = published
    assert like_peer.encode("x" * length).ids == peer("x" * length)["input_ids"]


def test_trap_the_last_separator_of_a_pair_has_segment_1_and_padding_0(google: SimpleNamespace, both: Any) -> None:
    ours, theirs = both
    features = google_features(google, theirs, "the", "xx the", 16)
    encoding = ours.encode("the", "xx the", max_length=16)
    assert encoding.segments[-1] == 1
    assert features.segment_ids == encoding.segments + [0] * (16 - len(encoding.ids))


def google_features(google: SimpleNamespace, tokenizer: Any, text: str, pair: str | None, length: int) -> Any:
    example = google.run_classifier.InputExample("0", text, pair, "label")
    # a number above 5 keeps the example out of the log
    return google.run_classifier.convert_single_example(9, example, ["label"], length, tokenizer)


@given(text=SHORT_TEXT | ANY_TEXT, pair=SHORT_TEXT | ANY_TEXT | st.none(), length=st.integers(3, 40))
@settings(deadline=None, max_examples=100)
def test_pairs_segments_and_truncation_are_those_of_google(
    google: SimpleNamespace, both: Any, text: str, pair: str | None, length: int
) -> None:
    ours, theirs = both
    features = google_features(google, theirs, text, pair, length)
    encoding = ours.encode(text, pair, max_length=length)
    num_padding = length - len(encoding.ids)
    # Google pads with 0, whatever the id of [PAD]
    assert features.input_ids == encoding.ids + [0] * num_padding
    assert features.segment_ids == encoding.segments + [0] * num_padding
    assert features.input_mask == [1] * len(encoding.ids) + [0] * num_padding
    assert ours.encode_batch([(text, pair)], max_length=length) == [encoding]


# transformers


@pytest.fixture(scope="module")
def published(minilm_folder: Path) -> Any:
    """Return a published folder as opened by us with the rules of transformers, and by transformers."""
    ours = replace(Tokenizer.load(minilm_folder), compatibility="hf")
    return ours, AutoTokenizer.from_pretrained(minilm_folder)


@given(text=WRITABLE_TEXT, pair=WRITABLE_TEXT)
@settings(deadline=None, max_examples=100)
def test_a_published_folder_gives_the_ids_of_transformers(published: Any, text: str, pair: str) -> None:
    ours, theirs = published
    expected = theirs(text, return_offsets_mapping=True)
    encoding = ours.encode(text)
    if len(expected["input_ids"]) <= ours.max_length:
        assert encoding.ids == expected["input_ids"]
        assert encoding.segments == expected["token_type_ids"]
        assert encoding.offsets == [tuple(span) for span in expected["offset_mapping"]]
    if ours.token_ids(pair):
        expected = theirs(text, pair)
        encoding = ours.encode(text, pair)
        if not encoding.num_truncated:
            assert encoding.ids == expected["input_ids"]
            assert encoding.segments == expected["token_type_ids"]


@pytest.fixture(scope="module", params=["small cased", "small uncased", "published uncased"])
def saved(
    request: pytest.FixtureRequest, small_folder: Path, minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Return our tokenizer, and the one that transformers opens from the folder that ours saved."""
    vocabulary, case = request.param.split()
    folder = tmp_path_factory.mktemp("saved")
    source = Vocabulary.load(small_folder if vocabulary == "small" else minilm_folder)
    ours = WordPieceTokenizer(source, lowercase=case == "uncased", max_length=64)
    ours.save(folder)
    return ours, AutoTokenizer.from_pretrained(folder)


def test_a_saved_folder_opens_in_transformers_with_its_settings(saved: Any) -> None:
    ours, theirs = saved
    assert theirs.get_vocab() == ours.vocabulary.ids
    assert theirs.model_max_length == 64
    assert theirs.do_lower_case == ours.lowercase
    roles = (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id)
    assert roles == tuple(ours.vocabulary.ids[token] for token in SPECIAL_TOKENS)


@given(text=AGREED_TEXT, pair=AGREED_TEXT)
@settings(deadline=None, max_examples=100)
def test_a_saved_folder_gives_equal_ids_in_transformers(saved: Any, text: str, pair: str) -> None:
    ours, theirs = saved
    assert theirs.encode(text, add_special_tokens=False, split_special_tokens=True) == ours.token_ids(text)
    encoding = ours.encode(text, pair)
    if encoding.num_truncated or not ours.token_ids(pair):
        return
    expected = theirs(text, pair, split_special_tokens=True, padding="max_length", max_length=64)
    num_padding = 64 - len(encoding.ids)
    assert expected["input_ids"] == encoding.ids + [ours.vocabulary.pad_id] * num_padding
    assert expected["token_type_ids"] == encoding.segments + [0] * num_padding
    assert expected["attention_mask"] == [1] * len(encoding.ids) + [0] * num_padding


@given(text=AGREED_TEXT, pair=AGREED_TEXT)
@settings(deadline=None, max_examples=50)
def test_special_tokens_in_a_text_are_read_as_transformers_reads_them(saved: Any, text: str, pair: str) -> None:
    ours, theirs = saved
    encoding = ours.encode(text, pair, parse_special_tokens=True)
    if not encoding.num_truncated and 1 in encoding.segments:
        assert theirs(text, pair)["input_ids"] == encoding.ids


@pytest.mark.parametrize("num_second", [0, 1, 5, 20])
@pytest.mark.parametrize("length", [5, 8, 9, 13, 30])
def test_truncation_is_that_of_transformers_where_one_side_is_cut(saved: Any, num_second: int, length: int) -> None:
    ours, theirs = saved
    # if both texts exceed half of an odd room, transformers gives the odd token to the second text, Google to the first
    for num_first in range(25):
        room = length - 3
        if num_second and min(num_first, num_second) > room // 2 and room % 2 and num_first <= num_second:
            continue
        text, pair = "the " * num_first, "xx " * num_second or None
        encoding = ours.encode(text, pair, max_length=length)
        expected = theirs(text, pair, truncation="longest_first", max_length=length)
        assert encoding.ids == expected["input_ids"]
        assert encoding.segments == expected["token_type_ids"]
