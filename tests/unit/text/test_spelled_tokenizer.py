import json

import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.text.spelled_tokenizer import BEGIN_SENTENCE, CONTINUES, END_SENTENCE, SpelledTokenizer
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer


def test_words_are_their_bytes_with_case_and_accents_and_nothing_is_unknown():
    tokenizer = SpelledTokenizer.of()
    spelled = [*"Café".encode()]
    expected = [spelled[0], *(CONTINUES + byte for byte in spelled[1:]), ord("!"), *(
        byte + CONTINUES * (place > 0) for place, byte in enumerate("🙂".encode()))]  # fmt: skip
    assert tokenizer.token_ids("Café! 🙂") == expected
    assert tokenizer.encode("a", "b").ids == [
        *(BEGIN_SENTENCE, ord("a"), END_SENTENCE), *(BEGIN_SENTENCE, ord("b"), END_SENTENCE),
    ]  # fmt: skip
    assert tokenizer.decode(expected) == "Café ! 🙂"
    assert tokenizer.words([BEGIN_SENTENCE, CONTINUES + ord("b"), ord("a"), END_SENTENCE]) == ["<S>", "b", "a", "</S>"]


def test_a_chunk_is_one_word_whatever_is_in_it():
    tokenizer = SpelledTokenizer.of()
    (ids,) = tokenizer.chunk_ids_batch(["U.S."])
    assert ids == [ord("U"), *(CONTINUES + ord(character) for character in ".S.")]
    assert len([index for index in tokenizer.token_ids("U.S.") if index < CONTINUES]) == 4


def test_the_words_that_a_model_predicts_lie_beside_it(tmp_path):
    words = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"]), lowercase=False)
    tokenizer = SpelledTokenizer.of(words)
    tokenizer.save(tmp_path)
    opened = Tokenizer.load(tmp_path)
    assert opened == tokenizer
    assert opened.of_targets.token_ids("cat dog") == [5, 1]


def test_another_vocabulary_and_too_short_a_limit_are_refused(tmp_path):
    SpelledTokenizer.of().save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"]["a"], content["model"]["vocab"]["b"] = 98, 97
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer\.json: its tokens are not the bytes of spelled words"):
        Tokenizer.load(tmp_path)
    with pytest.raises(ConfigError, match="max_length = 2"):
        SpelledTokenizer(SpelledTokenizer.of().vocabulary, max_length=2)
