"""The contract of every tokenizer, whatever its pieces: a new one is added as a line in `TOKENIZERS`."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from maskloom.errors import ConfigError, DataError
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.spelled_tokenizer import SpelledTokenizer
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import BART_TOKENS, SpecialTokens, Vocabulary
from maskloom.text.vocabulary_training import VocabularySettings, train_vocabulary

TEXTS = ["The lower river was low, wasn't it?", "Sea shells by the sea shore.", "lowest rivers 1998, (the newest)"]


MERGES = (("t", "h"), ("Ġ", "th"), ("Ġth", "e"), ("l", "o"), ("lo", "w"), ("Ġ", "low"))


def bart() -> Tokenizer:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), *map("".join, MERGES), "<mask>"]
    return BytePairTokenizer(Vocabulary(tokens, BART_TOKENS, prefix=""), MERGES, lowercase=False)


def gpt2() -> Tokenizer:
    tokens = [*sorted(ByteLevel.alphabet()), *map("".join, MERGES), "<|endoftext|>"]
    special = SpecialTokens(begin="<|endoftext|>", end="<|endoftext|>")
    bare = BytePairTokenizer(Vocabulary(tokens, special, prefix=""), MERGES, lowercase=False)
    return bare.with_task_tokens()


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": lambda: train_vocabulary(TEXTS * 3, VocabularySettings(size=120))[0],
    "byte-pair": lambda: train_vocabulary(TEXTS * 3, VocabularySettings(size=120, model="bpe"))[0],
    "byte-pair, cased": lambda: train_vocabulary(TEXTS * 3, VocabularySettings(size=120, model="bpe", lowercase=False))[
        0
    ],
    "byte-level": gpt2,
    "byte-level with BART's marks": bart,
    "spelled": SpelledTokenizer.of,
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


def test_a_folder_opens_as_it_was_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(tokenizer.files)
    opened = Tokenizer.load(tmp_path)
    assert opened == tokenizer
    assert opened.identity() == tokenizer.identity()
    assert opened.template == tokenizer.template
    again = tmp_path / "again"
    opened.save(again)
    assert all((again / name).read_bytes() == (tmp_path / name).read_bytes() for name in tokenizer.files)


def test_a_tokenizer_json_alone_is_enough(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    for name in tokenizer.files:
        if name.startswith(("vocab", "merges")):
            (tmp_path / name).unlink()
    assert Tokenizer.load(tmp_path) == tokenizer


def test_processes_get_a_copy(tokenizer: Tokenizer) -> None:
    copied = pickle.loads(pickle.dumps(tokenizer))
    assert copied == tokenizer
    assert copied.token_ids_batch(TEXTS) == tokenizer.token_ids_batch(TEXTS)


def test_the_marks_stand_where_the_template_says(tokenizer: Tokenizer) -> None:
    template = tokenizer.template
    first, second = tokenizer.token_ids(TEXTS[0]), tokenizer.token_ids(TEXTS[1])
    single, pair = tokenizer.encode(TEXTS[0]), tokenizer.encode(TEXTS[0], TEXTS[1])
    assert single.ids == [*template.begin, *first, *template.end]
    assert pair.ids == [*template.begin, *first, *template.middle, *second, *template.end]
    assert set(single.segments) == {0}
    num_first = len(template.begin) + len(first) + len(template.middle)
    assert pair.segments == [0] * num_first + [int(template.has_segments)] * (len(pair.ids) - num_first)
    assert [word is None for word in pair.words] == tokenizer.vocabulary.is_mark[pair.ids].tolist()
    assert tokenizer.encode(TEXTS[0], "") == single
    assert tokenizer.encode("").ids == [*template.begin, *template.end]


def test_offsets_and_words_lead_back_to_the_text(tokenizer: Tokenizer) -> None:
    text = "  The low\triver\n wasn't LOW "
    encoding = tokenizer.encode(text)
    pairs = zip(encoding.offsets, encoding.words, strict=True)
    pieces = [text[start:end] for (start, end), word in pairs if word is not None]
    assert "".join("".join(pieces).split()) == "".join(text.split())
    words = [word for word in encoding.words if word is not None]
    assert words == sorted(words)
    assert set(words) == set(range(max(words) + 1))


def test_what_is_too_long_goes_from_the_longer_text(tokenizer: Tokenizer) -> None:
    template, long, short = tokenizer.template, TEXTS[0], "a"
    whole = tokenizer.encode(long, short)
    num_marks, num_short = template.num_marks(2), len(tokenizer.token_ids(short))
    cut = tokenizer.encode(long, short, max_length=num_marks + num_short + 2)
    kept = tokenizer.token_ids(long)[:2]
    assert cut.ids == [*template.begin, *kept, *template.middle, *tokenizer.token_ids(short), *template.end]
    assert cut.num_truncated == len(whole.ids) - len(cut.ids)
    with pytest.raises(ConfigError, match=f"special tokens for 2 texts take {num_marks}"):
        tokenizer.encode(long, short, max_length=num_marks - 1)
    with pytest.raises(ConfigError, match="the model's limit is"):
        tokenizer.encode(long, max_length=tokenizer.max_length + 1)


def test_batches_give_what_single_texts_give(tokenizer: Tokenizer) -> None:
    texts = [*TEXTS, "", " ", "x" * 40_000, "low " * 5_000, "\ud800 low", "café 東京 🙂"]
    assert tokenizer.token_ids_batch(texts) == [tokenizer.token_ids(text) for text in texts]
    pairs = [(text, other or None) for text, other in zip(texts, texts[::-1], strict=True)]
    assert tokenizer.encode_batch(pairs) == [tokenizer.encode(*pair) for pair in pairs]
    for length in (None, 7):
        encodings = tokenizer.encode_batch(pairs, max_length=length)
        found = list(tokenizer.sequences(pairs, max_length=length))
        assert [ids for ids, _, _ in found] == [encoding.ids for encoding in encodings]
        assert [first for _, first, _ in found] == [encoding.segments.count(0) for encoding in encodings]
        assert [cut for _, _, cut in found] == [encoding.num_truncated for encoding in encodings]
    if tokenizer.cuts_at_white_space:
        assert tokenizer.token_ids("low river, " * 4_000) == tokenizer.token_ids("low river, ") * 4_000


def test_decoded_ids_encode_to_the_same_ids(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer.token_ids(text)
        assert tokenizer.token_ids(tokenizer.decode(ids)) == ids
        encoding = tokenizer.encode(text, text)
        marked = tokenizer.decode(encoding.ids, skip_special_tokens=False)
        assert tokenizer._pieces([marked], parse_special_tokens=True)[0].ids == encoding.ids
        assert tokenizer.token_ids(tokenizer.decode(encoding.ids[: len(tokenizer.template.begin) + len(ids)])) == ids
    assert tokenizer.decode([]) == ""


def test_special_tokens_in_a_text_are_plain_unless_they_are_asked_for(tokenizer: Tokenizer) -> None:
    text, index = f"low {tokenizer.vocabulary.special.classify} low", tokenizer.vocabulary.cls_id
    assert index not in tokenizer.token_ids(text)
    assert tokenizer.encode(text, parse_special_tokens=True).ids.count(index) == 2


def test_damaged_files_are_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    for name in tokenizer.files:
        if name == "special_tokens_map.json":
            continue
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"\xff\xfe" + content)
        with pytest.raises(DataError, match=rf"{name}.*not UTF-8"):
            Tokenizer.load(tmp_path)
        (tmp_path / name).write_bytes(content)
