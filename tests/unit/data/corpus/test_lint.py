"""Each finding on a small corpus that deserves it, and none on one that does not."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from maskloom.data.corpus import lint as corpus_lint
from maskloom.data.corpus import statistics as corpus_statistics
from maskloom.data.corpus.building import CorpusSettings, build_corpus
from maskloom.data.corpus.lint import Finding, lint_corpus
from maskloom.data.corpus.opening import Corpus
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [first + second + "o" for first in "bdfgklmnprst" for second in "aeiou"]
LATIN = [letter for first in "abcdefghijklmnopqrstuvwxyz" for letter in (first, f"##{first}")]
CYRILLIC = [letter for first in "абвгдежзийклмнопрстуфхцчшщыьэюя" for letter in (first, f"##{first}")]
VOCABULARY = Vocabulary([*SPECIALS, *WORDS, ".", *LATIN, *CYRILLIC])

Lint = Callable[..., dict[str, Finding]]


def sentence(rng: random.Random, num_words: int = 9) -> str:
    return " ".join(rng.choices(WORDS, k=num_words)) + " ."


def documents(num_documents: int, num_sentences: int = 4, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return ["\n".join(sentence(rng) for _ in range(num_sentences)) for _ in range(num_documents)]


@pytest.fixture
def linted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lint:
    """A function from files to their findings by code; the size limits are lowered."""
    monkeypatch.setattr(corpus_lint, "_FEW_TOKENS", 1_000)
    monkeypatch.setattr(corpus_lint, "_TOO_FEW_TOKENS", 200)
    monkeypatch.setattr(corpus_lint, "_LONG_DOCUMENT", 500)
    monkeypatch.setattr(corpus_lint, "_SHORT_DOCUMENT", 24)

    def build(*files: list[str] | str | bytes, **options) -> dict[str, Finding]:
        (tmp_path / "texts").mkdir()
        for number, content in enumerate(files):
            content = "\n\n".join(content) if isinstance(content, list) else content
            content = content.encode() if isinstance(content, str) else content
            (tmp_path / "texts" / f"{number}.txt").write_bytes(content)
        tokenizer = options.pop("tokenizer", WordPieceTokenizer(VOCABULARY))
        settings = CorpusSettings(**{"sentences": "lines", **options})
        build_corpus(tmp_path / "texts", tokenizer=tokenizer, out=tmp_path / "out", settings=settings)
        found = lint_corpus(Corpus.open(tmp_path / "out"))
        levels = [("error", "warning", "info").index(finding.level) for finding in found]
        assert levels == sorted(levels)
        assert len({finding.code for finding in found}) == len(found)
        return {finding.code: finding for finding in found}

    return build


def test_a_clean_corpus_has_no_findings(linted: Lint) -> None:
    assert linted(documents(60), documents(60, seed=1)) == {}


def test_one_document(linted: Lint) -> None:
    found = linted("\n".join(documents(40)))
    assert found["one_document"].level == "error"
    assert "next-sentence prediction" in found["one_document"].message
    assert set(found) == {"one_document", "no_document_boundaries"}


def test_files_without_blank_lines_are_one_document_each(linted: Lint) -> None:
    found = linted(*("\n".join(documents(30, seed=seed)) for seed in range(3)))
    assert set(found) == {"few_documents", "no_document_boundaries"}
    message = found["no_document_boundaries"].message
    assert message.startswith("3 documents from 3 text files, 1,200 tokens each: no blank line")
    assert "3 documents, fewer than 50" in found["few_documents"].message


def test_documents_of_one_sentence(linted: Lint) -> None:
    mostly = linted(documents(95, num_sentences=1) + documents(5, seed=1))
    assert set(mostly) == {"single_sentence_documents"}
    assert mostly["single_sentence_documents"].level == "error"
    message = mostly["single_sentence_documents"].message
    assert message.startswith("95.0% of the documents have one sentence")
    assert "if lines hold several sentences, build with --sentences split;" in message
    assert message.endswith("or train with --set data.next_sentence=false")


def test_paragraphs_of_books_that_became_documents(linted: Lint) -> None:
    books = [
        [*documents(30, 1, seed=seed), *documents(20, 2, seed=10 + seed), *documents(35, 3, seed=20 + seed)]
        for seed in (1, 2)
    ]
    found = linted(*books)
    assert {code: finding.level for code, finding in found.items()} == {"paragraphs_as_documents": "warning"}
    message = found["paragraphs_as_documents"].message
    assert message.startswith(
        "half of the documents have at most 20 tokens (58.8% have one or two sentences, 35.3% one)"
    )
    assert "the text files (85 documents per file on average) separate paragraphs of one text" in message
    assert "build again with --documents file" in message


def test_short_documents_of_several_sentences_may_be_paragraphs_too(linted: Lint) -> None:
    found = linted(documents(80, num_sentences=2), documents(80, num_sentences=2, seed=1))
    assert {code: finding.level for code, finding in found.items()} == {"paragraphs_as_documents": "info"}
    assert "build again with --documents file" in found["paragraphs_as_documents"].message


def test_books_as_documents_have_no_finding_of_paragraphs(linted: Lint) -> None:
    books = [documents(85, num_sentences=1, seed=seed) for seed in range(50)]
    assert linted(*books, documents="file") == {}


def test_documents_of_one_sentence_as_a_warning(linted: Lint) -> None:
    partly = linted(documents(60, num_sentences=1) + documents(40, seed=1))
    assert {code: finding.level for code, finding in partly.items()} == {"single_sentence_documents": "warning"}


@pytest.mark.parametrize(("num_sentences", "share", "level"), [(4, 149 / 750, "warning"), (1, 151 / 302, "error")])
def test_repeated_lines_are_named(linted: Lint, num_sentences: int, share: float, level: str) -> None:
    menu = "bao beo ."
    text = [f"{menu}\n{document}" for document in documents(150, num_sentences)]
    if num_sentences == 1:
        text.append(f"{menu}\n{menu}")
    found = linted(text)
    assert found["repeated_sentences"].level == level
    assert found["repeated_sentences"].message.startswith(f"{share:.1%} of the sentences repeat an earlier one")
    assert f"most often {menu!r} ({len(text) + (num_sentences == 1)} times)" in found["repeated_sentences"].message


@pytest.mark.parametrize("most", [1 << 22, 100])
def test_the_share_of_repeated_lines_can_be_estimated_from_a_part(
    linted: Lint, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_statistics, "_MAX_KEPT", most)
    once = documents(80)
    twice = ["\n".join(document.split("\n")[::-1]) for document in once]
    found = linted(once, twice)
    assert {code: finding.level for code, finding in found.items()} == {"repeated_sentences": "error"}
    assert found["repeated_sentences"].message.startswith("50.0% of the sentences repeat")
    assert "(2 times)" in found["repeated_sentences"].message


@pytest.mark.parametrize(("num_unknown", "level"), [(1, "warning"), (8, "error")])
def test_unknown_tokens(linted: Lint, num_unknown: int, level: str) -> None:
    # 40 tokens per document without them
    found = linted([f"{document}{' 中' * num_unknown}" for document in documents(80)])
    assert {code: finding.level for code, finding in found.items()} == {"unknown_tokens": level}
    share = num_unknown / (40 + num_unknown)
    assert found["unknown_tokens"].message.startswith(f"{share:.1%} of the tokens are [UNK], above 1%")


def in_cyrillic(text: str) -> str:
    return text.translate(str.maketrans("abdefgiklmnoprstu", "абдефгиклмнопрсту"))


def test_another_script_falls_into_letters(linted: Lint) -> None:
    found = linted([in_cyrillic(document) for document in documents(80)])
    assert {code: finding.level for code, finding in found.items()} == {"other_script": "error"}
    assert "in a different script or language from the vocabulary" in found["other_script"].message


def test_another_script_falls_into_unknown_tokens(linted: Lint) -> None:
    latin = WordPieceTokenizer(Vocabulary([*SPECIALS, *WORDS, ".", *LATIN]))
    found = linted([in_cyrillic(document) for document in documents(80)], tokenizer=latin)
    # every word of a document is one unknown token, so all its sentences look the same
    assert {"other_script", "unknown_tokens"} <= set(found)
    assert found["other_script"].level == found["unknown_tokens"].level == "error"


def test_single_characters_are_words_where_the_script_has_them(linted: Lint) -> None:
    signs = [chr(0x4E00 + index) for index in range(60)]
    chinese = WordPieceTokenizer(Vocabulary([*SPECIALS, *signs, "."]))
    table = dict(zip(WORDS, signs, strict=True))
    texts = []
    for document in documents(80):
        for word, sign in table.items():
            document = document.replace(f"{word} ", sign)
        texts.append(document)
    assert linted(texts, tokenizer=chinese) == {}


@pytest.mark.parametrize(("num_documents", "level"), [(60, "warning"), (4, "error")])
def test_little_text(linted: Lint, num_documents: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_lint, "_FEW_TOKENS", 5_000)
    found = linted(documents(num_documents))
    assert found["few_tokens"].level == level
    assert f"the corpus has {num_documents * 40:,} tokens" in found["few_tokens"].message


@pytest.mark.parametrize("sentences", ["lines", "split"])
def test_long_sentences(linted: Lint, sentences: str) -> None:
    """The advice names only what is left to do: it never suggests the settings that the corpus was built with."""
    rng = random.Random(1)
    found = linted([*documents(60), "\n".join([sentence(rng, 600), sentence(rng)])], sentences=sentences)
    assert set(found) == {"long_sentences"}
    message = found["long_sentences"].message
    assert "more than 512 tokens (the longest has 601)" in message
    assert ("build with --sentences split, and look for" in message) is (sentences == "lines")
    assert message.endswith("look for tables, code or text without punctuation")
