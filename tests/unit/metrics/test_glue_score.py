"""The averages of published tables, recomputed from their columns."""

import math

import pytest

from maskloom.metrics.glue_score import OFFICIAL_METRICS, leaderboard_score, paper_average


def columns(mnli_m, mnli_mm, qqp, qnli, sst2, cola, stsb, mrpc, rte):
    """Return the single figure per column that the paper's Table 1 shows."""
    return {
        "MNLI-m": {"accuracy": mnli_m}, "MNLI-mm": {"accuracy": mnli_mm}, "QQP": {"f1": qqp},
        "QNLI": {"accuracy": qnli}, "SST-2": {"accuracy": sst2}, "CoLA": {"matthews": cola},
        "STS-B": {"spearman": stsb}, "MRPC": {"f1": mrpc}, "RTE": {"accuracy": rte},
    }  # fmt: skip


def published(cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli=62.3, ax=0.0):
    """Return all official figures, as in the table of the smaller published models."""
    return {
        "CoLA": {"matthews": cola}, "SST-2": {"accuracy": sst2},
        "MRPC": {"f1": mrpc[0], "accuracy": mrpc[1]}, "STS-B": {"pearson": stsb[0], "spearman": stsb[1]},
        "QQP": {"f1": qqp[0], "accuracy": qqp[1]}, "MNLI-m": {"accuracy": mnli[0]}, "MNLI-mm": {"accuracy": mnli[1]},
        "QNLI": {"accuracy": qnli}, "RTE": {"accuracy": rte}, "WNLI": {"accuracy": wnli}, "AX": {"matthews": ax},
    }  # fmt: skip


BASE = columns(84.6, 83.4, 71.2, 90.1, 93.5, 52.1, 85.8, 88.9, 66.4)
LARGE = columns(86.7, 85.9, 72.1, 91.1, 94.9, 60.5, 86.5, 89.3, 70.1)
TINY = published(0.0, 83.2, (81.1, 71.1), (74.3, 73.6), (62.2, 83.4), (70.2, 70.3), 81.5, 57.2, ax=21.0)
MINI = published(0.0, 85.9, (81.1, 71.8), (75.4, 73.3), (66.4, 86.2), (74.8, 74.3), 84.1, 57.9, ax=26.1)
SMALL = published(27.8, 89.7, (83.4, 76.2), (78.8, 77.0), (68.1, 87.0), (77.6, 77.0), 86.4, 61.8, ax=28.6)
MEDIUM = published(38.0, 89.6, (86.6, 81.6), (80.4, 78.4), (69.6, 87.9), (80.0, 79.1), 87.7, 62.2, ax=30.5)


@pytest.mark.parametrize(
    ("scores", "printed"),
    [
        (BASE, 79.6),
        (LARGE, 81.9),
        ({**BASE, "QNLI": {"accuracy": 90.5}}, 79.6),
        ({**LARGE, "QNLI": {"accuracy": 92.7}}, 82.1),
    ],
)
def test_the_average_of_the_paper(scores, printed):
    assert round(paper_average(scores)["value"], 1) == printed


@pytest.mark.parametrize(("scores", "printed"), [(TINY, 64.1), (MINI, 65.8), (SMALL, 71.2), (MEDIUM, 73.5)])
def test_the_score_of_the_leaderboard(scores, printed):
    assert round(leaderboard_score(scores)["value"], 1) == printed


def test_the_smallest_model_lies_below_its_printed_figure():
    assert round(leaderboard_score(TINY)["value"], 2) == 64.14  # the table prints 64.2


def test_wnli_counts_on_the_leaderboard_only_and_ax_nowhere():
    without = {column: value for column, value in TINY.items() if column not in ("WNLI", "AX")}
    assert paper_average(without) == paper_average(TINY)
    assert leaderboard_score(without)["value"] is None
    assert leaderboard_score(without)["missing"] == ["WNLI"]
    assert leaderboard_score({**TINY, "AX": {"matthews": 99.0}}) == leaderboard_score(TINY)


def test_one_point_of_each_figure_weighs_what_it_should():
    def gain(average, column, metric):
        changed = {**MINI, column: {**MINI[column], metric: MINI[column][metric] + 1}}
        return average(changed)["value"] - average(MINI)["value"]

    for column, metrics in OFFICIAL_METRICS.items():
        for metric in metrics:
            in_paper = column not in ("WNLI", "AX") and (len(metrics) == 1 or metric in ("f1", "spearman"))
            assert gain(paper_average, column, metric) == pytest.approx(in_paper / 9)
            share = 0 if column == "AX" else 1 / 2 if len(metrics) == 2 or column.startswith("MNLI") else 1
            assert gain(leaderboard_score, column, metric) == pytest.approx(share / 9)


def test_what_is_missing_is_named():
    assert paper_average({})["missing"][0] == "MNLI-m"
    half = {**TINY, "MRPC": {"f1": 81.1}, "MNLI-mm": {}}
    assert leaderboard_score(half)["missing"] == ["MRPC (accuracy)", "MNLI-mm"]
    assert paper_average(half)["missing"] == ["MNLI-mm"]
    assert leaderboard_score({**TINY, "STS-B": {}})["missing"] == ["STS-B"]


def test_wrong_columns_and_numbers():
    with pytest.raises(ValueError, match="'MNLI' is not a column of GLUE"):
        paper_average({"MNLI": {"accuracy": 1.0}})
    with pytest.raises(ValueError, match="RTE: accuracy is nan"):
        leaderboard_score({**TINY, "RTE": {"accuracy": math.nan}})
