"""Byte-pair tokenizers: pieces of words and of bytes, and folders, our own and others', intact and damaged."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers.pre_tokenizers import ByteLevel

from maskloom.errors import ConfigError, DataError
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import BART_TOKENS, GPT_TOKENS, SpecialTokens, Vocabulary

MERGES = (("l", "o"), ("lo", "w</w>"), ("lo", "w"), ("e", "r</w>"))
LETTERS = ["l", "o", "w", "e", "r", "w</w>", "r</w>", "o</w>", "e</w>", "l</w>", ".</w>"]
TOKENS = [*GPT_TOKENS.tokens, *LETTERS, *map("".join, MERGES)]
OURS = BytePairTokenizer(Vocabulary(TOKENS, GPT_TOKENS, prefix="", suffix="</w>"), MERGES)
GPT2_MERGES = (("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"))
GPT2_TOKENS = [*sorted(ByteLevel.alphabet()), *map("".join, GPT2_MERGES), "<|endoftext|>"]


def write(folder: Path, name: str, content: Any) -> None:
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8")


def published(folder: Path, *, tokens: list[str] | None = None, merges: str | None = None) -> Path:
    """Write a folder in GPT's published form: two files, `<unk>` first, and no other special token."""
    tokens = ["<unk>", *LETTERS, *map("".join, MERGES)] if tokens is None else tokens
    write(folder, "vocab.json", {token: index for index, token in enumerate(tokens)})
    lines = "".join(f"{' '.join(pair)}\n" for pair in MERGES) if merges is None else merges
    write(folder, "merges.txt", f"#version: 0.2\n{lines}")
    return folder


def gpt2(folder: Path) -> Path:
    write(folder, "vocab.json", {token: index for index, token in enumerate(GPT2_TOKENS)})
    write(folder, "merges.txt", "#version: 0.2\n" + "".join(f"{' '.join(pair)}\n" for pair in GPT2_MERGES))
    return folder


def test_words_are_merged_in_the_order_of_the_merges() -> None:
    assert OURS.tokens("Low lower.") == ["low</w>", "low", "er</w>", ".</w>"]
    assert list(OURS.word_ids(["lower", "o"])) == [OURS.token_ids("lower"), OURS.token_ids("o")]


def test_an_unknown_character_is_the_unknown_token_and_nothing_more() -> None:
    assert OURS.tokens("lowx") == ["low", "<unk>"]
    assert OURS.tokens("ol") == ["o", "l</w>"]
    assert OURS.decode(OURS.token_ids("lower x low.")) == "lower low ."


def test_a_published_folder_has_no_marks_until_it_is_given_some(tmp_path: Path) -> None:
    found = Tokenizer.load(published(tmp_path))
    assert isinstance(found, BytePairTokenizer)
    assert found.lowercase
    assert found.vocabulary.special == SpecialTokens(unknown="<unk>")
    assert found.encode("low lower").ids == found.token_ids("low lower")
    assert found.token_ids("x") == [0]
    with pytest.raises(ConfigError, match="cannot encode pairs"):
        found.encode("low", "lower")
    grown = found.with_task_tokens()
    size = len(found.vocabulary)
    assert grown.vocabulary.tokens == (*found.vocabulary.tokens, "<start>", "<delimiter>", "<extract>")
    assert grown.encode("low", "o").ids == [size, *found.token_ids("low"), size + 1, *found.token_ids("o"), size + 2]
    assert grown.with_task_tokens() == grown
    grown.save(tmp_path / "grown")
    assert Tokenizer.load(tmp_path / "grown") == grown


def test_a_folder_of_bytes_keeps_white_space_and_case(tmp_path: Path) -> None:
    found = Tokenizer.load(gpt2(tmp_path))
    assert found.vocabulary.special == SpecialTokens(begin="<|endoftext|>", end="<|endoftext|>")
    assert list(found.word_ids(["Ġthe", "the"])) == [found.token_ids(" the"), found.token_ids("the")]
    assert found.tokens(" the  The") == ["Ġthe", "Ġ", "Ġ", "T", "h", "e"]
    text = " The  Café\n\n🙂 the "
    assert found.decode(found.token_ids(text)) == text
    assert found.running_text.end == (found.vocabulary.end_id,)
    write(tmp_path, "tokenizer_config.json", {"add_prefix_space": True, "model_max_length": 1024})
    opened = Tokenizer.load(tmp_path)
    assert (opened.tokens("the"), opened.max_length) == (["Ġthe"], 1024)


def test_a_mask_includes_the_space_before_it_as_the_masked_piece_did(tmp_path: Path) -> None:
    """A piece of a lone space before it never occurs in pre-training."""
    vocabulary = Vocabulary([*BART_TOKENS.tokens, *GPT2_TOKENS[:-1]], BART_TOKENS, prefix="")
    tokenizer = BytePairTokenizer(vocabulary, GPT2_MERGES, lowercase=False)
    encoding = tokenizer.encode("the \t<mask> the", parse_special_tokens=True)
    assert [vocabulary.tokens[index] for index in encoding.ids] == ["<s>", "t", "h", "e", "<mask>", "Ġthe", "</s>"]
    assert encoding.offsets[4] == (5, 11)
    tokenizer.save(tmp_path)
    assert Library.from_file(str(tmp_path / "tokenizer.json")).encode("the \t<mask> the").ids == encoding.ids[1:-1]


def test_limits_and_case_come_from_the_files(tmp_path: Path) -> None:
    write(published(tmp_path), "config.json", {"n_positions": 77})
    assert Tokenizer.load(tmp_path).max_length == 77
    write(tmp_path, "tokenizer_config.json", {"do_lower_case": False, "unk_token": {"content": "<unk>"}})
    assert not Tokenizer.load(tmp_path).lowercase


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        ("l o\nlo\n", r"merges.txt, line 3: 'lo' is not a merge; expected two symbols separated by a blank"),
        ("l o\nlo w e\n", r"merges.txt, line 3: 'lo w e' is not a merge"),
        ("l o\n\nl e\n", r"merges.txt, line 4: merges 'l e', but .*vocab.json has no 'le'"),
        ("x y\n", r"merges.txt, line 2: merges 'x y', but .*vocab.json has no 'x'"),
        ("l o\nl o\n", r"merges.txt, line 3: 'l o' is already merged, see .*merges.txt, line 2"),
    ],
)
def test_damaged_merges_are_named_by_line(tmp_path: Path, merges: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Tokenizer.load(published(tmp_path, merges=merges))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", {"low</w>": 0}, "vocab.json: no '<unk>', the token for characters that are not in the vocab"),
        ("vocab.json", {"<unk>": 0, "a</w>": 2}, "vocab.json: the ids of 2 tokens are not 0 to 1 without gaps"),
        ("vocab.json", {"<unk>": 0, "a</w>": "1"}, "vocab.json: the token 'a</w>' has the id '1'"),
        (
            "vocab.json",
            {"<unk>": 0, "a": 1},
            "vocab.json: no token ends with '</w>', as in GPT, or is the byte '!', as in GPT-2",
        ),
        ("vocab.json", [1], "vocab.json: expected a JSON object"),
        ("vocab.json", '{"<unk>": 0,', "vocab.json: line 1, column 13: not valid JSON"),
        ("tokenizer_config.json", {"do_lower_case": 1}, "do_lower_case is 1; it must be true or false"),
        ("tokenizer_config.json", {"unk_token": 3}, "unk_token is 3; expected a token"),
        ("tokenizer_config.json", {"bos_token": "<s>"}, r"no <s> among \d+ tokens; all are needed"),
        ("tokenizer_config.json", {"tokenizer_class": "XLNetTokenizer"}, "tokenizer_class is 'XLNetTokenizer'"),
        ("tokenizer_config.json", {"model_max_length": 1}, "the longest input is 1 tokens"),
        (
            "tokenizer.json",
            {"added_tokens": {"content": "a", "id": 1}},
            "tokenizer.json: added_tokens is not a list but dict",
        ),
        ("tokenizer.json", {"added_tokens": [{"content": ["x"]}]}, "tokenizer.json: the added token .* has no content"),
        ("tokenizer.json", {"added_tokens": [{"content": "x"}]}, "the token 'x' has the id None"),
        ("tokenizer.json", {"model": {"type": "Unigram"}}, "model.type is 'Unigram'; with these tokens only 'BPE'"),
        (
            "tokenizer.json",
            {"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}},
            "pre_tokenizer is 'ByteLevel'; with these tokens only 'BertPreTokenizer' is supported",
        ),
        (
            "tokenizer.json",
            {"model": {"type": "BPE", "dropout": 0.1}, "pre_tokenizer": {"type": "BertPreTokenizer"}},
            "dropout is 0.1; neither GPT nor GPT-2",
        ),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path: Path, name: str, content: Any, message: str) -> None:
    write(published(tmp_path), name, content)
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["added_tokens.json", "tokenizer.json"])
@pytest.mark.parametrize("form", [published, gpt2])
def test_added_tokens_are_refused_by_name(tmp_path: Path, form, name: str) -> None:
    """Regression: transformers finds them in any text; here they were split into pieces without a word."""
    Tokenizer.load(form(tmp_path)).save(tmp_path)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    library.add_tokens(["<new>"])
    assert "<new>" in library.encode("the<new>low", add_special_tokens=False).tokens
    if name == "tokenizer.json":
        library.save(str(tmp_path / name))
    else:
        write(tmp_path, name, {"<new>": library.token_to_id("<new>")})
    with pytest.raises(DataError, match="the added tokens <new> are not supported; they would be split into pieces"):
        Tokenizer.load(tmp_path)


def test_a_special_token_may_be_in_the_file_of_added_tokens_only(tmp_path: Path) -> None:
    write(gpt2(tmp_path), "added_tokens.json", {"[PAD]": len(GPT2_TOKENS)})
    write(tmp_path, "special_tokens_map.json", {"pad_token": "[PAD]"})
    assert Tokenizer.load(tmp_path).vocabulary.pad_id == len(GPT2_TOKENS)


def test_half_a_tokenizer_is_refused(tmp_path: Path) -> None:
    published(tmp_path)
    (tmp_path / "merges.txt").rename(tmp_path / "kept")
    with pytest.raises(DataError, match=r"vocab.json without merges.txt"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.json").unlink()
    (tmp_path / "kept").rename(tmp_path / "merges.txt")
    with pytest.raises(DataError, match=r"merges.txt without vocab.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "merges.txt").unlink()
    write(
        tmp_path, "tokenizer.json", {"model": {"type": "BPE", "vocab": {"<unk>": 0, "a</w>": 1}, "merges": ["a b c"]}}
    )
    with pytest.raises(DataError, match=r"tokenizer.json, merge 1: 'a b c' is not a merge"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("form", "part", "key", "value", "message"),
    [
        (gpt2, "pre_tokenizer", "use_regex", False, "pre_tokenizer.use_regex is False; with these tokens only True is"),
        (gpt2, "model", "end_of_word_suffix", "</w>", "model.end_of_word_suffix is '</w>'; with these tokens only ''"),
        (
            published,
            "model",
            "end_of_word_suffix",
            None,
            "end_of_word_suffix is ''; with these tokens only '</w>'",
        ),
    ],
)
def test_rules_that_split_words_differently_are_refused(tmp_path, form, part, key, value, message) -> None:
    """Regression: such folders were opened with the usual rules, and ids differed from the library's."""
    Tokenizer.load(form(tmp_path)).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content[part][key] = value
    write(tmp_path, "tokenizer.json", content)
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path)


def test_text_that_normalizes_bytes_is_refused(tmp_path: Path) -> None:
    rules = {"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}, "normalizer": {"type": "NFC"}}
    write(gpt2(tmp_path), "tokenizer.json", rules)
    with pytest.raises(DataError, match=r"normalizer is .*; GPT-2 does not normalise text"):
        Tokenizer.load(tmp_path)


def test_code_that_comes_with_a_folder_is_refused(tmp_path: Path) -> None:
    write(gpt2(tmp_path), "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}})
    with pytest.raises(DataError, match="auto_map names code"):
        Tokenizer.load(tmp_path)


def test_the_identity_depends_on_merges_too() -> None:
    other = BytePairTokenizer(OURS.vocabulary, MERGES[::-1])
    assert other.identity()["vocabulary_sha256"] != OURS.identity()["vocabulary_sha256"]
    assert other.identity()["tokenizer"] == "byte-pair"
