"""Find the problems of a corpus that would ruin a pre-training run, before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from maskloom.data.corpus.documents import is_plain_text
from maskloom.data.corpus.opening import Corpus
from maskloom.data.corpus.statistics import (
    document_lengths,
    num_unknown,
    repeated_sentences,
    sentence_blocks,
    token_counts,
)
from maskloom.errors import amount

_FEW_DOCUMENTS = 50
_FEW_TOKENS, _TOO_FEW_TOKENS = 1_000_000, 20_000
_LONG_DOCUMENT = 20_000
_SINGLE_WARNING, _SINGLE_ERROR = 0.5, 0.9
# Documents may be paragraphs of books if there are this many per file and half of them have fewer tokens than this.
# They probably are if one in five is a single sentence and half have at most two; measured: 50% and 70%
# in 56 novels, 2% and 15% in the articles of an encyclopedia.
_MANY_DOCUMENTS, _SHORT_DOCUMENT, _SOME_SINGLE, _SHORT_SHARE = 20, 128, 0.2, 0.5
_REPEATED_WARNING, _REPEATED_ERROR = 0.1, 0.5
_UNKNOWN_WARNING, _UNKNOWN_ERROR = 0.01, 0.1
_LETTERS_WARNING, _LETTERS_ERROR = 0.25, 0.5
_LONG_SENTENCE, _LONG_SHARE = 512, 0.05
# scripts in which one character is a whole word, or nearly
_WHOLE_CHARACTERS = ((0x2E80, 0x30FF), (0x31C0, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


@dataclass(frozen=True)
class Finding:
    """One problem of a corpus: its severity, a stable code, and a message with figures and advice."""

    level: Literal["error", "warning", "info"]
    code: str
    message: str


def _is_by_lines(corpus: Corpus) -> bool:
    return corpus.manifest["settings"].get("sentences") == "lines"


def _num_divisible(corpus: Corpus) -> int:
    """Return the number of text files that the settings split into documents at blank lines."""
    if corpus.manifest["settings"].get("documents") == "file":
        return 0
    return sum(is_plain_text(Path(source["name"])) for source in corpus.manifest["sources"])


def lint_corpus(corpus: Corpus) -> list[Finding]:
    """Return the problems of a corpus: first errors, which ruin the run, then warnings, then infos."""
    checks = (_documents, _short_documents, _repeated, _tokens, _long_sentences)
    found = [finding for check in checks for finding in check(corpus)]
    return sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.level))


def _documents(corpus: Corpus) -> Iterator[Finding]:
    if corpus.num_documents == 1:
        yield Finding(
            "error",
            "one_document",
            "the corpus has 1 document: next-sentence prediction needs others, and nothing can be held out; put blank "
            "lines between documents, give more files, or train with --set data.next_sentence=false",
        )
    elif corpus.num_documents < _FEW_DOCUMENTS:
        yield Finding(
            "warning",
            "few_documents",
            f"the corpus has {corpus.num_documents} documents, fewer than {_FEW_DOCUMENTS}: the held-out part is one "
            "or two documents, too few for a reliable loss; put blank lines between documents or add text",
        )
    num_files = _num_divisible(corpus)
    mean = corpus.num_tokens / corpus.num_documents
    if corpus.num_documents <= num_files and mean > _LONG_DOCUMENT:
        yield Finding(
            "warning",
            "no_document_boundaries",
            f"{corpus.num_documents} documents from {num_files} text files, {mean:,.0f} tokens each: no blank lines "
            "separate documents, so each file is one; if a file holds several texts, put a blank line after each",
        )


def _short_documents(corpus: Corpus) -> Iterator[Finding]:
    """Find documents of one or two sentences: lines separated by blank lines, or paragraphs of books."""
    num_sentences = np.diff(corpus.document_offsets)
    single, short = float((num_sentences == 1).mean()), float((num_sentences <= 2).mean())
    median = float(np.median(document_lengths(corpus)))
    num_files, paragraphs = _num_divisible(corpus), ""
    if num_files and corpus.num_documents >= _MANY_DOCUMENTS * num_files:
        paragraphs = (
            "; if the blank lines in the text files "
            f"({corpus.num_documents / num_files:,.0f} documents per file on average) separate paragraphs of one text, "
            "build again with --documents file"
        )
    if single >= _SINGLE_WARNING:
        yield Finding(
            "error" if single >= _SINGLE_ERROR else "warning",
            "single_sentence_documents",
            f"{single:.1%} of the documents have one sentence: they give only random next sentences, so next-sentence "
            "prediction learns nothing from them; if a blank line follows every line, remove those inside documents"
            f"{'; if lines hold several sentences, build with --sentences split' if _is_by_lines(corpus) else ''}"
            f"{paragraphs}, or train with --set data.next_sentence=false",
        )
    elif paragraphs and median < _SHORT_DOCUMENT:
        yield Finding(
            "warning" if single >= _SOME_SINGLE and short >= _SHORT_SHARE else "info",
            "paragraphs_as_documents",
            f"half of the documents have at most {median:,.0f} tokens ({short:.1%} have one or two sentences, "
            f"{single:.1%} one): next-sentence prediction learns little from short ones, and sequences of "
            f"{_SHORT_DOCUMENT} tokens are rarely full{paragraphs}, or train with --set data.next_sentence=false",
        )


def _repeated(corpus: Corpus) -> Iterator[Finding]:
    fraction, example, count = repeated_sentences(corpus)
    if fraction < _REPEATED_WARNING:
        return
    words = corpus.tokenizer.decode(corpus.sentence(example)[:12].tolist(), skip_special_tokens=False)
    yield Finding(
        "error" if fraction >= _REPEATED_ERROR else "warning",
        "repeated_sentences",
        f"{fraction:.1%} of the sentences repeat an earlier one, most often {words!r} ({amount(count, 'time')}): "
        "the model will memorise them; remove menus, headers and other boilerplate from the text",
    )


def _tokens(corpus: Corpus) -> Iterator[Finding]:
    vocabulary, counts, num_tokens = corpus.vocabulary, token_counts(corpus), corpus.num_tokens
    unknown, rate = vocabulary.special.unknown, num_unknown(counts, corpus) / num_tokens
    if rate >= _UNKNOWN_WARNING:
        yield Finding(
            "error" if rate >= _UNKNOWN_ERROR else "warning",
            "unknown_tokens",
            f"{rate:.1%} of the tokens are {unknown}, above {_UNKNOWN_WARNING:.0%}: the vocabulary does not cover this "
            "text; train the vocabulary on the same text, or with a larger --size or --alphabet-limit",
        )
    # words of a foreign script become single letters if the vocabulary has them, else [UNK]
    letters = np.array([_is_letter(vocabulary.bare(token)) for token in vocabulary.tokens])
    fraction = float(counts[letters].sum() / num_tokens) + rate
    if fraction >= _LETTERS_WARNING:
        yield Finding(
            "error" if fraction >= _LETTERS_ERROR else "warning",
            "other_script",
            f"{fraction:.1%} of the tokens are single letters or {unknown or 'bytes'}: the text is in a different "
            "script or language from the vocabulary; train the vocabulary on this text, or with a larger --size",
        )
    if num_tokens < _FEW_TOKENS:
        yield Finding(
            "error" if num_tokens < _TOO_FEW_TOKENS else "warning",
            "few_tokens",
            f"the corpus has {num_tokens:,} tokens; below {_FEW_TOKENS:,} a model memorises the text instead of "
            "learning the language; add text, or start from published weights with --init",
        )


def _is_letter(token: str) -> bool:
    is_letter = len(token) == 1 and token.isalpha()
    return is_letter and not any(first <= ord(token) <= last for first, last in _WHOLE_CHARACTERS)


def _long_sentences(corpus: Corpus) -> Iterator[Finding]:
    num_tokens, longest = 0, 0
    for block in sentence_blocks(corpus):
        lengths = corpus.sentence_lengths[block]
        num_tokens += int(lengths[lengths > _LONG_SENTENCE].sum(dtype=np.int64))
        longest = max(longest, int(lengths.max()))
    fraction = num_tokens / corpus.num_tokens
    if fraction >= _LONG_SHARE:
        advice = "build with --sentences split, and " if _is_by_lines(corpus) else ""
        yield Finding(
            "warning",
            "long_sentences",
            f"{fraction:.1%} of the tokens are in sentences of more than {_LONG_SENTENCE} tokens (the longest has "
            f"{longest:,}); {advice}look for tables, code or text without punctuation",
        )
