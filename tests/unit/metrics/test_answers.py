import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from maskloom.errors import DataError
from maskloom.metrics.answers import (
    AnswerMetric,
    answer_scores,
    best_threshold,
    fitted_threshold,
    normalize_answer,
    score_answers,
    token_f1,
)
from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.span.reading import iterate_questions, score_files
from maskloom.tasks.tables import ReadingOptions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Answer, a one!", "answer one"),
        ("an\tapple\u00a0pie", "apple pie"),
        ("athe thea banana", "athe thea banana"),
        ("a.b", "ab"),
        ("the-end", "theend"),
        ("“quoted”", "“quoted”"),
        ("U.S.A", "usa"),
        ("The", ""),
        ("", ""),
        ("Ünïcode A", "ünïcode"),
        ("a—b the—c", "—b —c"),
    ],
)
def test_normalised_answers(text, expected):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "f1"),
    [
        ("the Cat", "cat", 1.0, 1.0),
        ("black cat", "cat", 0.0, 2 / 3),
        ("cat cat", "cat", 0.0, 2 / 3),
        ("cat cat dog", "cat cat", 0.0, 0.8),
        ("dog", "cat", 0.0, 0.0),
    ],
)
def test_exact_match_and_f1(prediction, gold, exact, f1):
    for version in (False, True):
        assert answer_scores(prediction, [gold], has_unanswerable=version) == (exact, pytest.approx(f1))


def test_f1_of_two_texts_without_words_depends_on_the_version():
    assert token_f1("the", "", has_unanswerable=False) == 0.0
    assert token_f1("the", "", has_unanswerable=True) == 1.0
    assert token_f1("", "cat", has_unanswerable=True) == 0.0


def test_gold_answers_without_a_word_count_in_v1_only():
    assert answer_scores("", ["the", "cat"], has_unanswerable=False) == (1.0, 0.0)
    assert answer_scores("", ["the", "cat"], has_unanswerable=True) == (0.0, 0.0)
    assert answer_scores("", [], has_unanswerable=True) == (1.0, 1.0)


def official_sweep(scores, texts, odds, golds):
    """Return the result of the published sweep, question by question."""
    current = best = sum(not gold for gold in golds)
    threshold = 0.0
    for place in sorted(range(len(odds)), key=lambda place: odds[place]):
        current += scores[place] if golds[place] else (-1 if texts[place] else 0)
        if current > best:
            best, threshold = current, odds[place]
    return best / len(scores), threshold


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["", "cat", "black cat", "dog"]), st.sampled_from([(), ("cat",), ("dog", "cat")]),
                  st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0])),
        min_size=1,
    )
)  # fmt: skip
def test_threshold_sweep_is_the_published_one(rows):
    texts, golds, odds = zip(*rows, strict=True)
    assume(not all(golds))  # else the rules are v1.1's
    metric = AnswerMetric()
    for row in rows:
        metric.update([(row[0], row[2])], [row[1]])
    scores = metric.compute()
    for name, place in (("exact", 0), ("f1", 1)):
        values = [
            answer_scores(text, gold, has_unanswerable=True)[place] for text, gold in zip(texts, golds, strict=True)
        ]
        best, threshold = official_sweep(values, texts, odds, golds)
        assert scores[f"best_{name}"] == pytest.approx(100 * best)
        assert scores[f"best_{name}_thresh"] == threshold
    assert scores["best_f1"] >= (metric.reference() or 0.0) - 1e-9


def test_the_best_threshold_is_reached_by_applying_it():
    draw = np.random.default_rng(3)
    texts = draw.choice(["cat", "dog", "black cat"], 200).tolist()
    golds = [("cat",) if known else () for known in draw.random(200) < 0.6]
    odds = np.where([bool(gold) for gold in golds], draw.normal(-1, 2, 200), draw.normal(1, 2, 200)).tolist()
    free = AnswerMetric()
    free.update(list(zip(texts, odds, strict=True)), golds)
    threshold = free.best_null_threshold()
    published = free.compute()["best_f1_thresh"]
    assert published < threshold < min(odd for odd in odds if odd > published)
    applied = AnswerMetric(null_threshold=threshold)
    applied.update(list(zip(texts, odds, strict=True)), golds)
    emptied = AnswerMetric()
    final = [("" if odd > threshold else text, odd) for text, odd in zip(texts, odds, strict=True)]
    emptied.update(final, golds)
    assert applied.compute()["f1"] == pytest.approx(free.compute()["best_f1"])
    for name in ("exact_match", "f1", "HasAns_f1", "NoAns_f1", "HasAns_exact", "NoAns_exact"):
        assert applied.compute()[name] == pytest.approx(emptied.compute()[name])


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.4, 1.0]), st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), st.booleans()),
             min_size=1)
)  # fmt: skip
def test_no_threshold_beats_the_fitted_one(rows):
    scores, odds, has_answer = map(np.array, zip(*rows, strict=True))

    def total(threshold):
        return np.where(odds > threshold, ~has_answer, np.where(has_answer, scores, 0.0)).sum()

    fitted = fitted_threshold(scores, odds, has_answer)
    best = max(total(threshold) for threshold in (-9.0, -2.0, -0.5, 0.2, 1.0, 9.0))
    assert total(fitted) == pytest.approx(best)
    if total(0.0) == pytest.approx(best):
        assert fitted == 0.0


def test_calling_everything_unanswerable_is_a_threshold_too():
    odds, has_answer = np.array([-5.0, -4.0, -7.0]), np.array([False, False, True])
    assert fitted_threshold(np.zeros(3), odds, has_answer) == -8.0
    assert fitted_threshold(np.array([0.0, 0.0, 1.0]), odds, has_answer) == -6.0
    assert fitted_threshold(np.ones(3), -odds, ~has_answer) == 6.0


def test_splits_add_up_to_the_whole():
    metric = AnswerMetric()
    metric.update([("cat", None), ("", None), ("dog", None)], [("black cat",), (), ()])
    scores = metric.compute()
    assert scores == pytest.approx(
        {"exact_match": 100 / 3, "f1": 100 * (2 / 3 + 1) / 3, "HasAns_exact": 0.0, "HasAns_f1": 200 / 3,
         "NoAns_exact": 50.0, "NoAns_f1": 50.0}
    )  # fmt: skip
    assert metric.reference() == pytest.approx(200 / 3)


def test_constant_answers_are_called_degenerate():
    metric = AnswerMetric()
    metric.update([("cat", None)], [("cat",)])
    assert metric.degeneracy() is None
    metric.update([("cat", None)], [("dog",)])
    assert metric.degeneracy() == "every answer is 'cat'"
    metric.update([("dog", None)], [("dog",)])
    assert metric.degeneracy() is None
    assert metric.reference() is None
    null = AnswerMetric(null_threshold=0.0)
    null.update([("cat", 2.0), ("dog", 1.0)], [(), ("dog",)])
    assert null.degeneracy() == "every question is called unanswerable"
    assert null.compute()["f1"] == null.reference() == 50.0


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="'bleu'"):
        AnswerMetric(primary="bleu")
    metric = AnswerMetric()
    with pytest.raises(ValueError, match="no questions"):
        metric.compute()
    with pytest.raises(ValueError, match="1 predictions, 2 targets"):
        metric.update([("cat", None)], [(), ()])
    metric.update([("cat", None)], [()])
    with pytest.raises(ValueError, match="null odds of every question"):
        metric.best_null_threshold()


@pytest.mark.parametrize("odds", [math.nan, math.inf, -math.inf, 10**400])
def test_null_odds_that_are_no_finite_numbers_are_refused(odds):
    with pytest.raises(ValueError, match="null odds of question 1 are"):
        AnswerMetric().update([("cat", 0.0), ("dog", odds)], [("cat",), ()])
    with pytest.raises(ValueError, match="null odds of 'b' are"):
        score_answers({"a": ["cat"], "b": []}, {"a": "cat", "b": "dog"}, null_odds={"a": 0, "b": odds})
    with pytest.raises(ValueError, match="null threshold is nan"):
        AnswerMetric(null_threshold=math.nan)


@pytest.mark.parametrize("has_unanswerable", [False, True])
def test_missing_predictions_are_wrong_and_named(has_unanswerable):
    golds = {"1": ["cat"], "2": ["dog"], "3": [] if has_unanswerable else ["mouse"], "4": ["owl"]}
    odds = {"1": -2.0, "4": 1.0} if has_unanswerable else None
    report = score_answers(golds, {"1": "cat", "4": "owl", "9": "x"}, null_odds=odds)
    assert (report["num_missing"], report["first_missing"], report["total"]) == (2, ["2", "3"], 4)
    assert report.get("NoAns_total") == (1 if has_unanswerable else None)
    assert report["num_unknown"] == 1
    assert report["f1"] == report["exact" if has_unanswerable else "exact_match"] == 50.0
    if has_unanswerable:
        assert "exact_match" not in report
        assert report["NoAns_f1"] == 0.0
        assert report["best_f1"] == 50.0
        with pytest.raises(ValueError, match="first is '4'"):
            score_answers(golds, {"1": "cat", "4": "owl"}, null_odds={"1": 0.0})


def test_best_threshold_of_one_class():
    scores, odds = np.array([1.0, 0.0, 0.5]), np.array([0.0, 2.0, 1.0])
    everything = best_threshold(scores, np.zeros(3, bool), odds, np.ones(3, bool))
    assert everything == (pytest.approx(0.5), 1.0)
    assert best_threshold(scores, np.zeros(3, bool), odds, np.zeros(3, bool)) == (1.0, 0.0)


def test_files_of_predictions_that_are_wrong(tmp_path):
    data = tmp_path / "data.json"
    answers = [{"text": "cat", "answer_start": 2}]
    paragraph = {"context": "a cat", "qas": [{"id": "1", "question": "who?", "answers": answers}]}
    data.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    path = tmp_path / "predictions.json"
    for content, message in [
        ("[]", "expected a JSON object, got list"),
        ('{"1": 2}', "id '1': expected a text"),
        ("{", "line 1, column 2"),
        (
            '{"1": "cat",\n "2": "\\"1\\": x",\n\n "1" : "dog"}',
            r"\.json: line 4: an id appears twice: '1', first in line 1",
        ),
        ('{"\\u0031": "cat", "1": "dog"}', "an id appears twice: '1'"),
    ]:
        path.write_text(content)
        with pytest.raises(DataError, match=message):
            score_files(data, path)
    odds = tmp_path / "odds.json"
    path.write_text('{"1": "cat"}')
    for value, score in (("2", 0.0), ("2.0", 0.0), ("-1", 100.0)):
        odds.write_text(f'{{"1": {value}}}')
        assert score_files(data, path, null_odds=odds, null_threshold=0.0)["f1"] == score
    for value, message in (("1e999", r"the null odds of '1' are inf"), ('"2"', "id '1': expected a number")):
        odds.write_text(f'{{"1": {value}}}')
        with pytest.raises(DataError, match=rf"odds.json: {message}"):
            score_files(data, path, null_odds=odds)
    path.write_text('{"1": "the cat"}')
    expected = {"exact_match": 100.0, "f1": 100.0, "total": 1, "num_missing": 0, "first_missing": [], "num_unknown": 0}
    assert score_files(data, path) == expected


@pytest.mark.parametrize("place", [{}, {"answer_start": 99}, {"answer_start": 0}, {"answer_start": None}])
def test_answers_are_scored_by_their_texts_wherever_they_are(tmp_path, place):
    """The official script does not read offsets; training does."""
    data, path = tmp_path / "data.json", tmp_path / "predictions.json"
    paragraph = {"context": "a cat", "qas": [{"id": "1", "question": "who?", "answers": [{"text": "cat ", **place}]}]}
    data.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    path.write_text('{"1": "the cat"}')
    assert score_files(data, path)["exact_match"] == 100.0
    reading = ReadingOptions(), None
    with pytest.raises(DataError, match="answer"):
        list(iterate_questions(data, *reading, needs_label=True, report=ReadingReport(data)))


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("predictions", "exact", "f1"),
    [
        ("squad11_dev_predictions_bert.json", 86.2062, 92.1956),
        pytest.param("squad/dev-v1.1.predictions_electra_small.json", 77.3415, 85.4152, marks=pytest.mark.slow),
    ],
)
def test_published_predictions_get_their_published_scores(data_folder, predictions, exact, f1):
    folder = data_folder / "qa"
    report = score_files(folder / "squad" / "dev-v1.1.json", folder / predictions)
    assert (report["total"], report["num_missing"]) == (10_570, 0)
    assert math.isclose(report["exact_match"], exact, abs_tol=5e-5)
    assert math.isclose(report["f1"], f1, abs_tol=5e-5)


def test_predictions_of_another_file_are_called_that():
    report = score_answers({"1": ["cat"]}, {"9": "cat"})
    assert "predictions for another file" in report["note"]
    assert "note" not in score_answers({"1": ["cat"]}, {"1": "cat"})


def test_a_file_without_predictions_has_no_scores_of_thresholds():
    """Regression: it had best_f1 and its threshold, without null odds, and was called the file of other questions."""
    report = score_answers({"1": ["cat"], "2": []}, {})
    assert (report["f1"], report["num_missing"], report["first_missing"]) == (0.0, 2, ["1", "2"])
    assert "note" not in report
    assert not [name for name in report if name.startswith("best")]
