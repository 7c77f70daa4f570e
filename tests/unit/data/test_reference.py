"""Frequencies of tokens, the baseline of a language model's loss."""

from types import SimpleNamespace

import numpy as np
import pytest

from maskloom.data.settings import PretrainingData
from maskloom.objectives import pretraining
from maskloom.objectives.pretraining import PRETRAINING, TokenFrequencies


@pytest.mark.parametrize("chunk", [1, 700, 1 << 22], ids=["less than a document", "some", "all"])
def test_the_tokens_of_documents_are_counted_in_few_reads(random_corpus, monkeypatch, chunk: int) -> None:
    corpus = random_corpus(300, most_sentences=3, most_tokens=9)
    documents = np.setdiff1d(np.arange(300), [0, 7, 8, 299])
    counts = np.ones(len(corpus.vocabulary))
    for document in documents:
        first, last = corpus.document_offsets[document : document + 2]
        counts += np.bincount(corpus.sentences(first, last), minlength=len(counts))
    reads, read = [], corpus.sentences
    monkeypatch.setattr(pretraining, "_CHUNK", chunk)
    monkeypatch.setattr(corpus, "sentences", lambda *ends: reads.append(ends) or read(*ends))
    found = TokenFrequencies("mlm", corpus, documents)
    assert np.array_equal(found._log_frequencies, np.log(counts / counts.sum()))
    assert len(reads) <= -(-corpus.num_tokens // chunk)


@pytest.mark.parametrize("objective", ["causal_lm", "carried_lm"])
def test_the_frequencies_are_those_of_the_targets(random_corpus, objective: str) -> None:
    """Running text has the marks of its documents among them; nothing precedes the first one, which is no target."""
    corpus, row = random_corpus(40, most_sentences=2, most_tokens=5), PRETRAINING[objective]
    data = PretrainingData(max_length=16, next_sentence=False)
    batches = row.loader(corpus, None, data, batch_size=4, seed=1).epoch_batches(0)
    labels = np.concatenate([batch.mlm_labels for batch in batches])
    counts = 1 + np.bincount(labels, minlength=len(corpus.vocabulary))
    counts[corpus.vocabulary.cls_id] += objective == "carried_lm"
    assert row.reference is not None
    found = row.reference(row.part, corpus, np.arange(40))
    np.testing.assert_allclose(found._log_frequencies, np.log(counts / counts.sum()), rtol=1e-12)
    assert (counts[corpus.vocabulary.sep_id] > 1) == (objective == "carried_lm")


def test_a_loss_is_told_in_bits_per_character_of_the_predicted_text_too(random_corpus) -> None:
    corpus = random_corpus(20)
    labels = np.array([corpus.vocabulary.ids[token] for token in ("t1", "##t3", "t10", "[SEP]")])
    baseline = TokenFrequencies("lm", corpus, np.arange(20), tells_text=True)
    sums = baseline.sums(SimpleNamespace(mlm_labels=labels, nsp_labels=None))
    metrics = baseline.metrics(sums, {"lm_loss": 2.0})
    # 8 nats for " t1", "t3" and " t10"; a mark has no characters
    assert metrics["lm_bits_per_character"] == pytest.approx(8 / 9 / np.log(2))
    assert metrics["unigram_cross_entropy"] == pytest.approx(-baseline._log_frequencies[labels].mean())
    assert metrics["num_predictions"] == 4


@pytest.mark.parametrize(("labels", "majority"), [([1, 1, 1, 0], 0.75), ([0, 1, 0, 0, 0], 0.8), ([0, 1], 0.5)])
def test_the_baseline_of_pairs_is_their_most_common_answer(random_corpus, labels: list[int], majority: float) -> None:
    baseline = TokenFrequencies("mlm", random_corpus(5), np.arange(5))
    sums = baseline.sums(SimpleNamespace(mlm_labels=np.array([7]), nsp_labels=np.array(labels)))
    assert baseline.metrics(sums, {"nsp_accuracy": 0.5})["nsp_majority_fraction"] == pytest.approx(majority)


def test_running_text_has_an_end_after_each_document(random_corpus) -> None:
    corpus, documents = random_corpus(20), np.arange(15)
    marked = TokenFrequencies("lm", corpus, documents, tells_text=True)
    corpus.tokenizer = SimpleNamespace(has_segments=False, running_text=SimpleNamespace(begin=(), end=(5,)))
    running = TokenFrequencies("lm", corpus, documents, tells_text=True)
    total = len(corpus.vocabulary) + int(corpus.sentence_lengths[: corpus.document_offsets[15]].sum())
    before, after = np.exp(marked._log_frequencies) * total, np.exp(running._log_frequencies) * (total + 15)
    np.testing.assert_allclose(after - before, 15.0 * (np.arange(len(corpus.vocabulary)) == 5), rtol=0, atol=1e-6)
