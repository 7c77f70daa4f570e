import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskloom.runs.charts import (
    Line,
    colour,
    dot_chart,
    heat_map,
    line_chart,
    number_columns,
    scatter_chart,
    ticks,
)

values = st.floats(-1e6, 1e6, allow_nan=False)


@given(values, values)
def test_ticks_are_few_and_enclose_the_values(first: float, second: float) -> None:
    low, high = sorted((first, second))
    found = ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1.0)
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= 8
    assert found == sorted(set(found))


def test_ticks_of_shares_stay_shares() -> None:
    assert ticks(0.614, 0.614)[0] >= 0
    assert ticks(1.0, 1.0)[-1] <= 1
    assert ticks(0.0, 0.0)[0] == 0.0
    assert ticks(-0.2, -0.2)[0] < -0.2
    assert ticks(0.6875, 0.6875)[-1] <= 1  # regression: the axis of an accuracy that never changed ended at 1.2
    assert ticks(5e-5, 5e-5)[-1] < 1e-4  # regression: a constant learning rate lay at the bottom of an axis up to 0.6
    assert ticks(0.12, 0.93) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


def test_a_line_chart_places_points_by_value() -> None:
    svg = line_chart(
        [Line("a <b>", [(0, 1.0), (10, 3.0)], "own")], x_name="step", y_name="loss", levels=[("reference", 2.0)]
    )
    tree = ElementTree.fromstring(svg)
    line = next(e for e in tree.iter("polyline"))
    (x1, y1), (x2, y2) = (tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split())
    level = next(e for e in tree.iter("line") if e.attrib["class"] == "level")
    assert x1 < x2
    assert y1 > float(level.attrib["y1"]) > y2
    assert float(level.attrib["y1"]) == pytest.approx((y1 + y2) / 2, abs=0.1)
    assert {"a <b>", "step", "loss"} <= {e.text for e in tree.iter("text")}


def test_a_single_point_at_step_0_has_all_its_ticks_within_the_chart() -> None:
    svg = line_chart([Line("a", [(0, 1.0)], "own")], x_name="step", y_name="loss")
    places = [float(x) for x in re.findall(r' (?:x|x1|x2|cx)="(-?[\d.]+)"', svg)]
    assert 0 <= min(places) <= max(places) <= 640


def test_labels_at_the_ends_do_not_overlap() -> None:
    svg = line_chart([Line(name, [(0, 0.0), (1, 1.0)], "own") for name in "abc"], x_name="x", y_name="y")
    places = sorted(float(y) for y in re.findall(r'class="name own" x="[\d.]+" y="([\d.]+)"', svg))
    assert len(places) == 3
    assert min(b - a for a, b in pairwise(places)) >= 14


def test_a_dot_chart_has_a_dot_a_value_and_the_mean() -> None:
    svg = dot_chart({"one": [0.5, 0.7], "two": [0.4]}, level=("majority", 0.5), name="n")
    tree = ElementTree.fromstring(svg)
    assert len(list(tree.iter("circle"))) == 3
    assert {"60.0%", "40.0%", "majority"} <= {e.text for e in tree.iter("text")}


def test_long_names_of_rows_of_dots_are_told_apart() -> None:
    names = ["label smoothing 0.2", "label smoothing 0.1", "a name that is longer than any chart has room for"]
    svg = dot_chart({name: [0.5] for name in names}, level=("", 0.0), name="n")
    texts = {e.text: float(e.attrib["x"]) for e in ElementTree.fromstring(svg).iter("text")}
    assert texts[names[0]] == texts[names[1]] == texts["a name that is longer than …"] > 8 * 28


def test_steps_are_written_out() -> None:
    """Regression: the last of a million steps was "1e+06"."""
    svg = line_chart([Line("a", [(0, 0.0), (1_000_000, 1.0)], "c0")], x_name="step", y_name="loss")
    assert "1.000 at 1000000</title>" in svg
    texts = {e.text for e in ElementTree.fromstring(svg).iter("text")}
    assert {"0", "0.2", "200,000", "1,000,000"} <= texts


@pytest.mark.parametrize(("top", "shown"), [(1e-4, "0.00008"), (3_000_000.0, "2,000,000")])
def test_long_figures_at_ticks_have_one_notation_and_room(top: float, shown: str) -> None:
    """Regression: ticks of a learning rate were 8e-05 and 0.0001, and those of millions were cut off at the left."""
    svg = line_chart([Line("", [(0, 0.0), (1, top)], "c0")], x_name="step", y_name="y")
    ticks = {e.text: float(e.attrib["x"]) for e in ElementTree.fromstring(svg).iter("text")}
    assert ticks[shown] > 8 * len(shown)


def test_marks_stay_within_the_chart_and_apart() -> None:
    """Regression: the name of a phase that began early covered the figures of the axis."""
    marks = [("start of phase 2", 5.0), ("start of phase 3", 9.0)]
    svg = line_chart([Line("", [(0, 0.0), (100, 1.0)], "c0")], x_name="step", y_name="y", marks=marks)
    first, second = (e for e in ElementTree.fromstring(svg).iter("text") if e.attrib["class"] == "level-name")
    assert first.attrib["text-anchor"] == "start"
    assert float(second.attrib["y"]) - float(first.attrib["y"]) >= 14


def test_a_seventh_curve_is_dashed() -> None:
    styles = [colour(number) for number in range(13)]
    assert len(set(styles)) == 12
    assert (styles[6], styles[12]) == ("c0 second", "c0")


def test_a_dot_chart_without_a_reference_draws_none() -> None:
    svg = dot_chart({"a": [40.0, 150.0]}, level=("", 0.0), name="n", as_percent=False)
    assert 'class="level' not in svg


def test_names_at_the_ends_of_lines_have_room() -> None:
    """Regression: a name was cut to "restricted self-…" next to a chart whose right half was empty."""
    names = ["restricted self-attention", "convolution"]
    svg = line_chart([Line(name, [(0, 0.0), (9, 1.0)], "c0") for name in names], x_name="tokens", y_name="layers")
    places = {e.text: float(e.attrib["x"]) for e in ElementTree.fromstring(svg).iter("text")}
    assert places[names[0]] == places[names[1]] <= 640 - 8 * len(names[0])
    wide = line_chart([Line("東京の長い名前", [(0, 0.0), (9, 1.0)], "c0")], x_name="x", y_name="y")
    assert max(float(e.attrib["x"]) for e in ElementTree.fromstring(wide).iter("text")) <= 640 - 15 * 7
    short = line_chart([Line("b", [(0, 0.0), (9, 1.0)], "c0")], x_name="tokens", y_name="layers")
    assert {e.text: float(e.attrib["x"]) for e in ElementTree.fromstring(short).iter("text")}["b"] > 600


def test_columns_of_numbers_are_told_from_text() -> None:
    rows = [["base", "25.8 ± 1.2", "2.16 (65)", "base 25.8", "-"], ["big", "–", "+7", "", "n"]]
    assert number_columns(rows) == [1, 2]
    assert number_columns([]) == []


def test_scores_that_are_no_shares_are_not_shown_in_percent() -> None:
    svg = dot_chart({"F1": [88.4, 86.4]}, level=("none", 50.0), name="n", as_percent=False)
    texts = {e.text for e in ElementTree.fromstring(svg).iter("text")}
    assert "87.400" in texts
    assert not any(text and text.endswith("%") for text in texts)


def test_names_stay_within_the_chart() -> None:
    lines = [Line(f"a very long name of a certain run {number}", [(0, 0.0), (1, 0.01)], "c0") for number in range(9)]
    svg = line_chart(lines, x_name="x", y_name="y", levels=[("top", 1.0)])
    places = [float(y) for y in re.findall(r'class="name c0" x="[\d.]+" y="([\d.]+)"', svg)]
    assert max(places) <= 300 - 40 + 5
    shown = [e.text or "" for e in ElementTree.fromstring(svg).iter("text") if e.attrib["class"] == "name c0"]
    assert shown == ["a very long name of a certa…"] * 9


def test_names_of_dots_do_not_overlap_and_the_first_ones_stand() -> None:
    dots = [(f"word {number}", number % 7 / 50, number % 5 / 50) for number in range(40)] + [("far", 1, 1)]
    tree = ElementTree.fromstring(scatter_chart(dots, name="a"))
    named = [(e.text, float(e.attrib["x"]), float(e.attrib["y"])) for e in tree.iter("text")]
    assert named[0][0] == "word 0"
    assert 3 < len(named) < len(dots)
    for (one, x, y), (other, a, b) in combinations(named, 2):
        assert abs(y - b) >= 14 or x + 7 * len(one) <= a or a + 7 * len(other) <= x
    assert all(0 <= x <= 640 - 7 * len(word) for word, x, _ in named)
    titles = [e.find("title").text for e in tree.iter("circle")]
    assert titles == [word for word, *_ in dots]


def test_nothing_measured_is_said() -> None:
    assert "nothing was measured" in line_chart([], x_name="x", y_name="y")


def test_a_heat_map_shades_cells_by_value_and_tells_them() -> None:
    svg = heat_map([[0.5, 0.0], [-0.25, 0.009]], name="a", rows=["x", "<y>"], columns=["1", "2"])
    tree = ElementTree.fromstring(svg)
    cells = [element for element in tree.iter("rect") if element.find("title") is not None]
    assert [cell.find("title").text for cell in cells] == ["x, 1: 0.500", "<y>, 1: -0.250"]
    assert [(cell.attrib["class"], float(cell.attrib["fill-opacity"])) for cell in cells] == [("c0", 1.0), ("c1", 0.48)]
    (first, second) = cells
    assert first.attrib["x"] == second.attrib["x"]
    assert float(first.attrib["y"]) < float(second.attrib["y"])


def test_cells_without_names_are_joined_to_runs() -> None:
    svg = heat_map([[1.0, 1.0, 0.5], [0.0, -1.0, 1.0]], name="a")
    tree = ElementTree.fromstring(svg)
    assert tree.attrib["viewBox"] == "0 0 3 2"
    paths = {(path.attrib["class"], path.attrib["fill-opacity"]): path.attrib["d"] for path in tree.iter("path")}
    assert paths == {
        ("c0", "1.00"): "M0 0h2v1h-2zM2 1h1v1h-1z",
        ("c0", "0.48"): "M2 0h1v1h-1z",
        ("c1", "1.00"): "M1 1h1v1h-1z",
    }
    assert "<path" not in heat_map([[0.0]], name="a")
    assert heat_map([], name="a")


@pytest.mark.parametrize("size", [1, 20, 48])
def test_names_of_a_heat_map_stay_apart_and_within(size: int) -> None:
    names = [f"{number}-{'w' * 60}" for number in range(size)]
    tree = ElementTree.fromstring(heat_map([[1.0] * size] * size, name="a", rows=names, columns=names))
    _, _, width, height = map(float, tree.attrib["viewBox"].split())
    rows = list(tree.findall("text"))
    assert all(len(row.text) <= 17 and float(row.attrib["x"]) > 17 * 6.5 for row in rows)
    assert all(float(later.attrib["y"]) - float(one.attrib["y"]) >= 15 for one, later in pairwise(rows))
    places = [re.findall(r"[\d.]+", group.attrib["transform"]) for group in tree.findall("g")[:size]]
    assert all(float(later[0]) - float(one[0]) >= 15 for one, later in pairwise(places))
    assert all(float(y) > 17 * 6.5 * 0.87 and float(x) + 17 * 6.5 / 2 < width for x, y, _ in places)
    assert float(rows[-1].attrib["y"]) < height
    assert width < 960


def test_a_heat_map_of_many_cells_tells_no_values() -> None:
    names = [str(number) for number in range(40)]
    svg = heat_map([[1.0] * 40] * 40, name="a", rows=names, columns=names)
    assert "<title" not in svg
    assert svg.count("h40v1h-40z") == 40
