from types import SimpleNamespace
from typing import Any, cast

from maskloom.runs.finetune_restarts import _DevWatch
from maskloom.runs.task_summaries import (
    evaluation_lines,
    finetuning_lines,
    info_lines,
    notes_of,
    pretraining_lines,
    search_rows,
    written_lines,
)

ACCOUNT = {
    "path": "train.csv", "num_rows": 1_200, "num_kept": 1_199, "dropped": {"empty text": 1},
    "first_dropped_lines": {"empty text": 7}, "max_length": 32, "num_truncated_examples": 3, "num_truncated_tokens": 9,
}  # fmt: skip


def finetuned(**restarts):
    def entry(step, accuracy):
        scores = {"loss": 0.5, "accuracy": accuracy}
        return {"step": step, "epoch": step / 10, "scores": scores, "reference": 0.6, "degenerate": None}

    return {
        "task": "pair", "metric": "accuracy", "best_seed": 1, "best": entry(10, 0.8), "last": entry(20, 0.75),
        "model": "run/model",
        "restarts": {
            "num_restarts": 2, "scores": {"0": 0.6, "1": 0.8}, "mean": 0.7, "standard_deviation": 0.1414,
            "mean_of_sound": 0.8, "degenerate": {"0": "every prediction is the same class"}, **restarts,
        },
        "data": {
            "labels": ["no", "yes"], "class_weights": [1.5, 0.75], "train": ACCOUNT,
            "dev": {**ACCOUNT, "path": "dev.csv", "dropped": {}, "num_truncated_examples": 0, "num_also_in_train": 2},
        },
    }  # fmt: skip


def test_fine_tuning_in_lines():
    text = "\n".join(finetuning_lines(finetuned()))
    for part in (
        "seed 1, epoch 1.0 (step 10): the best on dev by accuracy; after its last epoch it had 0.75",
        "accuracy       0.8  (constant answer: 0.6)",
        "restarts       0.7000 ± 0.1414, median 0.7000 (2 runs)",
        "degenerate     seed 0: every prediction is the same class",
        "no 1.5, yes 0.75",
        "1,199 of 1,200 rows of train.csv; 1 dropped: empty text (first at line 7); 3 truncated to 32 tokens",
        "1,199 of 1,200 rows of dev.csv; 2 also in train",
        "maskloom predict --model run/model",
        "pairs of sentences",
    ):
        assert part in text


def test_regression_of_two_texts_is_tried_with_pairs():
    regression = {**finetuned(), "task": "regression"}
    assert "(FILE: sentences)" in finetuning_lines(regression)[-1]
    assert "(FILE: pairs of sentences)" in finetuning_lines({**regression, "takes_pairs": True})[-1]


def test_one_run_has_no_spread():
    text = "\n".join(finetuning_lines(finetuned(num_restarts=1, standard_deviation=None, degenerate={})))
    assert "restarts" not in text
    assert "degenerate" not in text


def test_evaluation_in_lines():
    result = {
        "metric": "f1", "loss": 0.25, "f1": 0.5, "reference": None, "degenerate": "every prediction is the same class",
        "num_examples": 1_199, "data": ACCOUNT,
    }  # fmt: skip
    lines = evaluation_lines(result)
    assert lines[:3] == ["f1          0.5", "loss        0.25", "degenerate  every prediction is the same class"]


def test_cut_targets_are_told():
    account = {**ACCOUNT, "num_truncated_targets": 1_002}
    scores = {"metric": "bleu", "bleu": 3.0, "reference": None, "degenerate": None}
    (*_, last) = evaluation_lines({**scores, "data": account})
    assert last.endswith("3 truncated to 32 tokens; 1,002 targets truncated")
    run = finetuned()
    run["data"]["train"] = account
    assert any("1,002 targets truncated" in line for line in finetuning_lines(run) if line.startswith("train"))


def test_official_scores_of_answers_are_marked_as_percent():
    answers = {"f1": 81.25, "exact_match": 72.5, "loss": 0.25}
    lines = evaluation_lines({**answers, "metric": "f1", "reference": None, "degenerate": None, "data": ACCOUNT})
    assert lines[:3] == ["f1           81.25%", "exact match  72.5%", "loss         0.25"]
    run = finetuned(scores={"0": 80.0, "1": 81.25}, mean=80.625, standard_deviation=0.884, degenerate={})
    run["best"]["scores"], run["last"]["scores"] = answers, {**answers, "f1": 80.5}
    text = "\n".join(finetuning_lines({**run, "task": "span", "metric": "f1"}))
    assert "after its last epoch it had 80.5%" in text
    assert "80.6250 ± 0.8840%, median 80.6250% (2 runs)" in text
    headers, rows = search_rows(
        {
            "metric": "f1",
            "best": {"best": {"scores": answers}},
            "trials": [
                {
                    "name": "t",
                    "settings": {},
                    "status": "done",
                    "score": 81.25,
                    "seconds": 60,
                    "restarts": run["restarts"],
                }
            ],
        }
    )
    assert dict(zip(headers, rows[0], strict=True))["f1, best on dev"] == "81.2500%"


def test_the_scores_of_a_folder_have_their_units():
    """Regression: the F1 of answers stood beside fractions of other runs without its unit."""
    scores = {"f1": 81.25, "exact_match": 72.5, "loss": 0.25, "constant answer": 50.0}
    (line,) = info_lines({"scores": scores, "metrics": {"metric": "f1"}})[:1]
    assert line.split(maxsplit=1)[1] == "f1 81.25%, exact_match 72.5%, loss 0.25, constant answer 50%"
    (line,) = info_lines({"scores": {"accuracy": 0.75, "constant answer": None}, "metrics": {"metric": "accuracy"}})[:1]
    assert line.split(maxsplit=1)[1] == "accuracy 0.75"


def test_several_labels_have_fractions_and_unanswerable_questions_percent():
    def lines(metric, reference, **scores):
        result = {**scores, "metric": metric, "reference": reference, "degenerate": None, "data": ACCOUNT}
        return [" ".join(line.split()) for line in evaluation_lines(result)]

    labels = lines("exact_match", 0.2, exact_match=0.25, f1_micro=0.5, f1_macro=0.125)
    assert labels[:3] == ["exact match 0.25 (constant answer: 0.2)", "f1 micro 0.5", "f1 macro 0.125"]
    answers = lines("f1", 50.0, exact_match=48.0, f1=51.5, NoAns_exact=60.0, best_exact=52.0, best_exact_thresh=-1.5)
    assert answers[:2] == ["f1 51.5% (constant answer: 50%)", "exact match 48%"]
    assert answers[2:5] == ["NoAns exact 60%", "best exact 52%", "best exact thresh -1.5"]


def test_what_could_not_be_tuned_is_told():
    tuned = {"fitted_on": "dev.csv", "settings": {}, "labels": [], "before": {}, "after": {}, "note": "too few"}
    assert any(line.split() == ["note", "too", "few"] for line in finetuning_lines({**finetuned(), "tuned": tuned}))


def test_the_command_to_try_can_be_copied():
    lines = finetuning_lines({**finetuned(), "model": "my run/model"})
    assert any("predict --model 'my run/model' --input" in line for line in lines)


def test_an_error_without_spaces_keeps_its_start_in_the_table():
    """Regression: of an error whose first word is long, such as a path, only [...] was left."""
    failed = {"name": "trial-001", "settings": {}, "status": "failed", "error": f"/{'x' * 200}: damaged"}
    _, ((_, _, told, *_),) = search_rows({"trials": [failed], "metric": "accuracy"})
    assert told == f"failed: /{'x' * 98}…"


def test_what_to_know_of_glue_names_degenerate_seeds_failed_trials_and_unknown_minutes():
    degenerate, average = {"4": "every prediction is the same class"}, {"value": 0.8, "missing": []}
    rte = {"status": "done", "seconds": None, "num_failed": 1, "num_trials": 3, "restarts": {"degenerate": degenerate}}
    averages = {"paper_average": average, "leaderboard_score": average}
    assert notes_of({"tasks": {"rte": rte}, "absent": {}, **averages})[1:] == [
        "Minutes are unknown (–) where a trial was interrupted.",
        "rte: seed 4 is degenerate: every prediction is the same class",
        "rte: 1 of 3 trials failed; see its results.md",
    ]


def test_pretraining_tells_what_was_held_out_with_and_without_a_start():
    pairs = {"nsp_loss": 0.6748, "nsp_accuracy": 0.5978, "nsp_majority_fraction": 0.5978}
    tokens = {"mlm_loss": 6.916, "mlm_accuracy": 0.03954, "mlm_perplexity": 1008.3, "unigram_cross_entropy": 6.848}
    result = {"loss": 7.591, **tokens, **pairs, "num_predictions": 2934.0}
    assert pretraining_lines(result) == [
        "held out                  at the end",
        "masked-LM loss, nats           6.916",
        "masked-LM accuracy              4.0%",
        "perplexity                   1,008.3",
        "next-sentence loss, nats       0.675",
        "next-sentence accuracy         59.8%",
        "constant answer                59.8%",
        "2,934 predicted pieces of held-out text; unigram: 6.848 nats",
    ]
    before = {"bilm_loss": 9.0, "bilm_perplexity": 8103.1, "forward_perplexity": 8000.0, "backward_perplexity": 8200.0}
    after = {**before, "bilm_loss": 5.0, "backward_perplexity": 150.0}
    lines = [line.split() for line in pretraining_lines({**after, "before": before})]
    assert lines[0] == ["held", "out", "before", "after"]
    assert ["backward", "perplexity", "8,200.0", "150.0"] in lines
    assert pretraining_lines({}) == ["nothing held out to evaluate"]


def test_the_progress_of_answering_is_marked_as_percent_too():
    plan = SimpleNamespace(task=SimpleNamespace(primary="f1"))
    seed = cast(Any, SimpleNamespace(_plan=plan))
    shown = _DevWatch.shown(seed, {"f1": 4.5553, "exact_match": 0.0, "loss": 4.4373})
    assert shown == "dev f1 4.5553%, loss 4.4373"
    assert _DevWatch.shown(seed, {"f1": 0.5, "accuracy": 0.5, "loss": 1.0}) == "dev f1 0.5000, loss 1.0000"


def test_a_file_of_predictions_tells_what_was_read_in_one_line():
    data = {name: value for name, value in ACCOUNT.items() if name not in ("max_length", "num_truncated_examples")}
    result = {"output": "p.csv", "num_predictions": 1_199, "num_truncated_examples": 3, "max_length": 32, "data": data}
    assert written_lines(result) == [
        "output       p.csv",
        "predictions  1,199",
        "read         1,199 of 1,200 rows of train.csv; 1 dropped: empty text (first at line 7); "
        "3 truncated to 32 tokens",
    ]
    assert written_lines({"page": "a.html"}) == ["page  a.html"]
