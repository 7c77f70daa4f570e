"""Byte-pair ids compared with transformers: our folders opened by its classes, and published layouts by ours."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer

from maskloom.inference.span_filling import source_ids
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import GPT_TOKENS
from maskloom.text.vocabulary_training import VocabularySettings, train_vocabulary

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

TEXTS = [
    "The lowest of the low rivers wasn't lower than the newest; she sells sea shells by the sea shore!",
    "Éclair, naïve café: 東京 is wide. I'm sure they've 1,998 widest (or newest) shells... don't you?",
] * 3
TEXT = st.text() | st.lists(st.sampled_from([*" \t\n'.,é東🙂", "the", "Low", "est", "shells", "I'm"])).map("".join)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bpe") / "ours"
    train_vocabulary(TEXTS, VocabularySettings(size=150, model="bpe"))[0].save(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in GPT-2's layout, trained and written by the tokenizers library."""
    folder = tmp_path_factory.mktemp("bpe") / "gpt2"
    folder.mkdir()
    library = ByteLevelBPETokenizer()
    library.train_from_iterator(TEXTS, vocab_size=330, special_tokens=["<|endoftext|>"], show_progress=False)
    library.save_model(str(folder))
    return folder


@pytest.mark.parametrize("named", [True, False])
def test_folders_of_bart_give_the_same_ids_and_marks(gpt2: Path, tmp_path: Path, named: bool) -> None:
    ids = json.loads((gpt2 / "vocab.json").read_text())
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(token for token in ids if token != "<|endoftext|>"), "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_bytes((gpt2 / "merges.txt").read_bytes())
    theirs = transformers.BartTokenizer.from_pretrained(tmp_path)
    if named:
        theirs.save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    tokenizer.save(tmp_path / "ours")
    (tmp_path / "ours" / "config.json").write_text('{"model_type": "bart"}')
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    for first, second in pairwise(TEXTS):
        for pair in (None, second):
            ours = tokenizer.encode(first, pair).ids
            assert theirs(first, pair)["input_ids"] == ours == again(first, pair)["input_ids"]
            assert tokenizer.decode(tokenizer.encode(first).ids) == first
    assert again.mask_token_id == tokenizer.vocabulary.mask_id


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return our own trained byte-level tokenizer in BART's layout, with a config.json of a BART."""
    folder = tmp_path_factory.mktemp("bpe") / "bart"
    settings = VocabularySettings(size=340, model="byte-bpe", lowercase=False, sentinels=3)
    train_vocabulary(TEXTS, settings)[0].save(folder)
    (folder / "config.json").write_text('{"model_type": "bart"}')
    return folder


@pytest.mark.parametrize("name", ["AutoTokenizer", "BartTokenizer", "BartTokenizerFast", "RobertaTokenizerFast"])
def test_our_bytes_open_in_transformers_with_the_same_ids_and_roles(bart: Path, name: str) -> None:
    theirs, tokenizer = getattr(transformers, name).from_pretrained(bart), Tokenizer.load(bart)

    @settings(max_examples=40, deadline=None)
    @given(text=TEXT)
    @example("a  b\n\n c   🙂👩‍👩‍👧 東京\u3000東 \t\r\n\x1c ## It's   ")
    def check(text: str) -> None:
        if not any(token in text for token in tokenizer.vocabulary.tokens if token.startswith("<")):
            ids = theirs(text)["input_ids"]
            assert tokenizer.encode(text).ids == ids
            assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids) == text

    check()
    marks = (theirs.bos_token_id, theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id, theirs.mask_token_id)
    assert marks == (0, 1, 2, 3, len(tokenizer.vocabulary) - 4)
    assert (theirs.cls_token_id, theirs.sep_token_id) == (0, 2)
    blanks = source_ids("<X> the <Y>, and<Z>", "", tokenizer, 99)
    assert theirs("<extra_id_0> the <extra_id_1>, and<extra_id_2>")["input_ids"] == blanks
    for first, second in pairwise(TEXTS):
        assert theirs(first, f"{second} <mask>.")["input_ids"] == [
            *tokenizer.encode(first, f"{second} <mask>.", parse_special_tokens=True).ids
        ]


def published(folder: Path, out: Path) -> Path:
    """Write the two files that GPT was published with, without special tokens except the unknown one."""
    out.mkdir()
    (out / "merges.txt").write_bytes((folder / "merges.txt").read_bytes())
    tokens = [token for token in json.loads((folder / "vocab.json").read_text()) if token not in GPT_TOKENS.tokens]
    (out / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(["<unk>", *tokens])}))
    return out


def has_special(text: str) -> bool:
    return "<|endoftext|>" in text or "<unk>" in text


@pytest.mark.parametrize("name", ["AutoTokenizer", "OpenAIGPTTokenizer", "OpenAIGPTTokenizerFast"])
def test_our_folder_opens_in_transformers_with_the_same_ids_and_roles(ours: Path, name: str) -> None:
    theirs, tokenizer = getattr(transformers, name).from_pretrained(ours), Tokenizer.load(ours)
    for text in TEXTS:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.token_ids(text)
    vocabulary = tokenizer.vocabulary
    assert (theirs.pad_token_id, theirs.unk_token_id) == (vocabulary.pad_id, vocabulary.unk_id)
    assert (theirs.cls_token_id, theirs.sep_token_id) == (vocabulary.cls_id, vocabulary.sep_id)
    assert (theirs.bos_token_id, theirs.eos_token_id) == (vocabulary.begin_id, vocabulary.end_id)
    assert theirs.model_max_length == tokenizer.max_length


def test_a_cased_folder_keeps_case_in_transformers(tmp_path: Path) -> None:
    tokenizer = train_vocabulary(TEXTS, VocabularySettings(size=150, model="bpe", lowercase=False))[0]
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXTS[0], add_special_tokens=False)["input_ids"] == tokenizer.token_ids(TEXTS[0])


def test_published_folders_of_gpt_give_the_same_ids(ours: Path, tmp_path: Path) -> None:
    folder = published(ours, tmp_path / "published")
    theirs, tokenizer = transformers.OpenAIGPTTokenizer.from_pretrained(folder), Tokenizer.load(folder)

    @settings(max_examples=120, deadline=None)
    @given(text=TEXT)
    def check(text: str) -> None:
        if not has_special(text):
            assert tokenizer.token_ids(text) == theirs(text, add_special_tokens=False)["input_ids"]

    check()


@pytest.mark.parametrize("prefix_space", [False, True])
def test_published_folders_of_gpt_2_give_the_same_ids_and_text(gpt2: Path, prefix_space: bool) -> None:
    (gpt2 / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefix_space}))
    theirs, tokenizer = transformers.GPT2Tokenizer.from_pretrained(gpt2), Tokenizer.load(gpt2)

    @settings(max_examples=120, deadline=None)
    @given(text=TEXT)
    def check(text: str) -> None:
        if not has_special(text):
            ids = theirs(text)["input_ids"]
            assert tokenizer.token_ids(text) == ids
            assert tokenizer.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)

    check()
    assert tokenizer.vocabulary.end_id == theirs.eos_token_id


def test_our_folder_in_gpt_2s_layout_opens_in_transformers(gpt2: Path, tmp_path: Path) -> None:
    (gpt2 / "tokenizer_config.json").write_text("{}")
    tokenizer = Tokenizer.load(gpt2)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs(text)["input_ids"] for text in TEXTS] == tokenizer.token_ids_batch(TEXTS)
