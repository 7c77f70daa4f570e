"""Scores of generated texts against references."""

import builtins

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from maskloom.errors import ConfigError, UsageError
from maskloom.metrics.texts import TextMetric
from maskloom.tasks.kinds import make_task

FOUND = ["a man is sleeping on a couch .", "two dogs run", "the red house"]
TRUE = ["a man sleeps on a couch.", "two dogs run", "a red house by the sea"]


def scored(found, true, primary="bleu", at_once=2):
    metric = TextMetric(primary)
    for first in range(0, len(found), at_once):
        metric.update(found[first : first + at_once], true[first : first + at_once])
    return metric


def test_scores_are_those_of_the_libraries():
    scores = scored(FOUND, TRUE).compute()
    assert scores["bleu"] == sacrebleu.corpus_bleu(FOUND, [TRUE], force=True).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(FOUND, [TRUE]).score
    assert scores["exact_match"] == pytest.approx(100 / 3)
    for name in ("rouge1", "rouge2", "rougeL"):  # reported whatever the primary metric is
        scorer = RougeScorer([name], use_stemmer=True)
        expected = [scorer.score(true, found)[name].fmeasure for found, true in zip(FOUND, TRUE, strict=True)]
        assert scores[name] == pytest.approx(100 * sum(expected) / 3)


def test_several_references_are_all_compared_with():
    several = [(TRUE[0], "a man is sleeping on the couch ."), (TRUE[1],), (TRUE[2], "the house", "the red house")]
    padded = [
        TRUE,
        ["a man is sleeping on the couch .", None, "the house"],
        [None, None, "the red house"],
    ]
    metric = scored(FOUND, several)
    scores, alone = metric.compute(), scored(FOUND, TRUE).compute()
    assert scores["bleu"] == sacrebleu.corpus_bleu(FOUND, padded, force=True).score > alone["bleu"]
    assert scores["chrf"] == sacrebleu.corpus_chrf(FOUND, padded).score > alone["chrf"]
    assert scores["exact_match"] == pytest.approx(200 / 3)
    for name in ("rouge1", "rouge2", "rougeL"):
        scorer = RougeScorer([name], use_stemmer=True)
        best = [
            max(scorer.score(true, found)[name].fmeasure for true in each)
            for found, each in zip(FOUND, several, strict=True)
        ]
        assert scores[name] == pytest.approx(100 * sum(best) / 3)
        assert scores[name] > alone[name]
    assert metric.signatures()["bleu"].startswith("nrefs:var|")
    assert scored(["a", "a", "a"], [("a", "b"), ("b", "c"), ("b", "b")], "exact_match").reference() == 100.0


def test_signatures_say_how_they_were_computed():
    metric = scored(FOUND, TRUE)
    metric.compute()
    assert metric.signatures()["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.")
    assert metric.signatures()["chrf"].startswith("nrefs:1|case:mixed")


def test_what_a_constant_answer_scores_and_texts_that_are_all_alike():
    same = scored(["a", "a", "a"], ["a", "b", "a"], "exact_match")
    assert same.reference() == pytest.approx(200 / 3)
    assert same.degeneracy() == "every text is 'a'"
    assert scored(FOUND, TRUE).reference() is None
    assert scored(FOUND, TRUE).degeneracy() is None
    assert scored(["a", "a"], ["b", "b"]).degeneracy() is None


def test_wrong_use_is_refused(monkeypatch):
    with pytest.raises(UsageError, match="'accuracy'"):
        TextMetric("accuracy")
    with pytest.raises(ValueError, match="nothing to score"):
        TextMetric().compute()
    with pytest.raises(ValueError, match="1 predictions, 2 references"):
        TextMetric().update(["a"], ["a", "b"])
    whole = builtins.__import__

    def without(*names):
        def importing(name, *rest, **more):
            if name.partition(".")[0] in names:
                raise ImportError(name)
            return whole(name, *rest, **more)

        return importing

    monkeypatch.setattr(builtins, "__import__", without("rouge_score"))
    assert {*scored(FOUND, TRUE).compute()} == {"bleu", "chrf", "exact_match"}
    with pytest.raises(ConfigError, match=r"rouge-score: pip install 'maskloom\[seq2seq\]'"):
        TextMetric("rouge1")
    monkeypatch.setattr(builtins, "__import__", without("sacrebleu", "rouge_score"))
    make_task("seq2seq", primary="rouge1")  # opening a model and generating text work without them
    with pytest.raises(ConfigError, match=r"sacrebleu: pip install 'maskloom\[seq2seq\]'"):
        TextMetric()
