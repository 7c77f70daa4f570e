"""Frequencies of tokens, the baseline of a language model's loss."""

import numpy as np
import pytest

from maskloom.objectives import reference
from maskloom.objectives.reference import TokenFrequencies


@pytest.mark.parametrize("chunk", [1, 700, 1 << 22], ids=["less than a document", "some", "all"])
def test_the_tokens_of_documents_are_counted_in_few_reads(random_corpus, monkeypatch, chunk: int) -> None:
    corpus = random_corpus(300, most_sentences=3, most_tokens=9)
    documents = np.setdiff1d(np.arange(300), [0, 7, 8, 299])
    counts = np.ones(len(corpus.vocabulary))
    for document in documents:
        first, last = corpus.document_offsets[document : document + 2]
        counts += np.bincount(corpus.sentences(first, last), minlength=len(counts))
    reads, read = [], corpus.sentences
    monkeypatch.setattr(reference, "_CHUNK", chunk)
    monkeypatch.setattr(corpus, "sentences", lambda *ends: reads.append(ends) or read(*ends))
    found = TokenFrequencies("mlm", corpus, documents)
    assert np.array_equal(found._log_frequencies, np.log(counts / counts.sum()))
    assert len(reads) <= -(-corpus.num_tokens // chunk)
