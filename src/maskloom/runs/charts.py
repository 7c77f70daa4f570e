"""Self-contained pages without scripts, and their charts as SVG: lines over steps, dots, heat maps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

from jinja2 import Environment, PackageLoader, StrictUndefined

from maskloom.runs.display import printable
from maskloom.system.files import output_file

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 140, 20, 48
_MAX_DOTS = 60
# How many letters of a name are shown: next to cells and dots, and where a chart fits its longest name.
_MAX_NAME, _MAX_LONG_NAME = 17, 28
# In charts with axes: the approximate width of a letter, and the distance between the baselines of names.
_LETTER, _GAP = 8.5, 17
# The distance between the baselines of names in a scatter chart.
_LINE = 14
_LARGE = 'class="large"'  # larger letters, as these charts are shown two to a row
_NUMBER = re.compile(r"[+-]?\d|–?$")
# Heat maps: shades per colour, the most cells with values as titles, and the limits of a cell's size with names.
_LEVELS, _MOST_TOLD = 25, 1000
_SMALLEST_CELL, _LARGEST_CELL = 15, 26


@dataclass(frozen=True)
class Chart:
    """A chart of a page with its heading, and one sentence on how to read it."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class Line:
    """Points (x, y) in the CSS class `style`; `is_faint` draws them thin and behind, `has_dots` marks them if few."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str
    is_faint: bool = False
    has_dots: bool = True


def colour(number: int) -> str:
    """Return the CSS classes of a curve or dot by its number; colours repeat after six, with dashed curves."""
    return f"c{number % 6}{' second' * (number // 6 % 2)}"


def line_chart(
    lines: Sequence[Line],
    *,
    x_name: str,
    y_name: str,
    levels: Sequence[tuple[str, float]] = (),
    marks: Sequence[tuple[str, float]] = (),
    as_percent: bool = False,
) -> str:
    """Return a chart of lines labelled at their ends; `levels` (of y) and `marks` (of x) are dashed lines."""
    x_values = [x for line in lines for x, _ in line.points]
    y_values = [y for line in lines for _, y in line.points] + [y for _, y in levels]
    if not x_values:
        return "<p>nothing was measured</p>"
    x_top = max(x_values)
    x_ticks, y_ticks = ticks(0.0, x_top), ticks(min(y_values), max(y_values))
    left = max(_LEFT, 13 + _LETTER * max(len(_figure(tick, as_percent)) for tick in y_ticks))
    right = _WIDTH - _room([*(line.name for line in lines if not line.is_faint), *(name for name, _ in levels)])
    x_place = _axis(0.0, x_top, left, right)
    y_place = _axis(y_ticks[0], y_ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    parts = [_text(left, _TOP - 8, y_name, "start")]
    for tick in y_ticks:
        parts.append(_stroke("grid", (left, y_place(tick)), (right, y_place(tick))))
        parts.append(_text(left - 8, y_place(tick) + 4, _figure(tick, as_percent), "end"))
    for tick in (tick for tick in x_ticks if 0.0 <= tick <= x_top * 1.0001):
        parts.append(_text(x_place(tick), _HEIGHT - _BOTTOM + 20, _figure(tick, False), "middle"))
    parts.append(_text((left + right) / 2, _HEIGHT - 6, x_name, "middle"))
    for number, (name, value) in enumerate(marks):
        x, has_room = x_place(value), x_place(value) - left > _LETTER * len(name)
        parts.append(_stroke("level", (x, _TOP), (x, _HEIGHT - _BOTTOM)))
        anchor = "end" if has_room else "start"
        parts.append(_text(x - 6 if has_room else x + 6, _TOP + 10 + _GAP * number, name, anchor, "level-name"))
    ends: list[tuple[float, str, str]] = []
    for name, value in levels:
        parts.append(_stroke("level", (left, y_place(value)), (right, y_place(value))))
        ends.append((y_place(value), name, "level-name"))
    for line in sorted(lines, key=lambda line: not line.is_faint):
        points = " ".join(f"{x_place(x):.1f},{y_place(y):.1f}" for x, y in line.points)
        faint = " faint" if line.is_faint else ""
        title = f"<title>{escape(line.name)}</title>"
        parts.append(f'<polyline class="line {line.style}{faint}" points="{points}">{title}</polyline>')
        if not line.is_faint and line.points:
            parts += [
                f'<circle class="dot {line.style}" cx="{x_place(x):.1f}" cy="{y_place(y):.1f}" r="3">'
                f"<title>{escape(line.name)}: {_figure(y, as_percent, exact=True)} at {x:.10g}</title></circle>"
                for x, y in (line.points if line.has_dots and len(line.points) <= _MAX_DOTS else line.points[-1:])
            ]
            ends.append((y_place(line.points[-1][1]), line.name, f"name {line.style}"))
    named = _apart(ends, _HEIGHT - _BOTTOM)
    parts += [_text(right + 8, place + 4, _cut(name, _MAX_LONG_NAME), "start", style) for place, name, style in named]
    return _svg(parts, _HEIGHT, y_name, more=_LARGE)


def dot_chart(
    rows: Mapping[str, Sequence[float]], *, level: tuple[str, float], name: str, as_percent: bool = True
) -> str:
    """Return rows of dots, a stroke at the mean of each, and a dashed line at a `level`; percent is for fractions."""
    values = [value for row in rows.values() for value in row] + [level[1]]
    scale = ticks(min(values), max(values))
    left, right, row_height = _room(rows), _WIDTH - 80, 34
    height = _TOP + row_height * len(rows) + 44
    bottom, place = height - 40, _axis(scale[0], scale[-1], left, right)
    parts = []
    for tick in scale:
        parts.append(_stroke("grid", (place(tick), _TOP), (place(tick), bottom)))
        parts.append(_text(place(tick), bottom + 18, _figure(tick, as_percent), "middle"))
    if level[0]:
        x = place(level[1])
        parts.append(_stroke("level", (x, _TOP), (x, bottom)))
        parts.append(_text(x, height - 6, level[0], "middle", "level-name"))
    for number, (row, dots) in enumerate(rows.items()):
        y, style = _TOP + row_height * (number + 0.5), colour(number)
        mean = sum(dots) / len(dots)
        parts.append(_text(left - 12, y + 4, _cut(row, _MAX_LONG_NAME), "end"))
        parts.append(_stroke(f"mean {style}", (place(mean), y - 10), (place(mean), y + 10)))
        parts += [
            f'<circle class="dot {style}" cx="{place(value):.1f}" cy="{y}" r="5">'
            f"<title>{escape(row)}: {_figure(value, as_percent, exact=True)}</title></circle>"
            for value in dots
        ]
        parts.append(_text(right + 12, y + 4, _figure(mean, as_percent, exact=True), "start", "figure"))
    return _svg(parts, height, name, more=_LARGE)


def _axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return the function from a value to its place on an axis, on which low is at start and high at end."""
    return lambda value: start + (end - start) * (value - low) / max(high - low, 1e-12)


def _room(names: Iterable[str]) -> float:
    """Return the width that the longest of some names takes next to a chart."""
    return 24 + max((_width(name, _MAX_LONG_NAME, _LETTER) for name in names), default=0)


def heat_map(
    values: Sequence[Sequence[float]],
    *,
    name: str,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    tells: bool = True,
) -> str:
    """Return a chart with one cell per value, stronger for larger values, with negative values in another colour.

    Values below a fiftieth of the largest stay empty. With names of rows and columns and with `tells`, at most a
    thousand cells have their values as titles.
    """
    width, height = max(map(len, values), default=0), len(values)
    largest = max((abs(value) for line in values for value in line), default=0.0) or 1.0
    levels = [[round(_LEVELS * value / largest) for value in line] for line in values]
    if not rows:
        return _svg(_runs(levels), height, name, width, 'class="cells" preserveAspectRatio="none"')
    size = max(_SMALLEST_CELL, min(_LARGEST_CELL, _WIDTH // max(width, height)))
    left, top = (12 + max(map(_width, names), default=0) for names in (rows, columns))
    frame = f'x="{left - 1}" y="{top - 1}" width="{size * width + 1}" height="{size * height + 1}"'
    parts = [f'<rect class="grid" fill="none" {frame}/>']
    for place, row in enumerate(rows):
        parts.append(_text(left - 6, top + size * (place + 0.5) + 4, _cut(row), "end"))
    for place, column in enumerate(columns):
        where = f"translate({left + size * (place + 0.5) + 4:.1f} {top - 6}) rotate(-60)"
        parts.append(f'<g transform="{where}">{_text(0, 0, _cut(column), "start")}</g>')
    parts.append(f'<g transform="translate({left} {top}) scale({size})">')
    tells &= width * height <= _MOST_TOLD
    parts += _told(values, levels, rows, columns) if tells else _runs(levels)
    parts.append("</g>")
    total = left + size * width + top // 2
    return _svg(parts, top + size * height + 4, name, total, f'style="max-width:{total}px"')


def _told(
    values: Sequence[Sequence[float]], levels: list[list[int]], rows: Sequence[str], columns: Sequence[str]
) -> list[str]:
    """Return a square for each non-zero level, with its value as title, in a grid of size 1."""
    return [
        f'<rect class="c{int(level < 0)}" fill="currentColor" fill-opacity="{abs(level) / _LEVELS:.2f}" '
        f'x="{x}" y="{y}" width=".96" height=".96"><title>{escape(f"{row}, {column}: {value:.3f}")}</title></rect>'
        for y, (row, line, shades) in enumerate(zip(rows, values, levels, strict=True))
        for x, (column, value, level) in enumerate(zip(columns, line, shades, strict=True))
        if level
    ]


def _runs(levels: list[list[int]]) -> list[str]:
    """Return a path for each non-zero level, made of rectangles in rows of height 1."""
    paths: dict[int, list[str]] = {}
    for y, line in enumerate(levels):
        x = 0
        for level, group in groupby(line):
            length = len(list(group))
            if level:
                paths.setdefault(level, []).append(f"M{x} {y}h{length}v1h-{length}z")
            x += length
    return [
        f'<path class="c{int(level < 0)}" fill="currentColor" fill-opacity="{abs(level) / _LEVELS:.2f}" '
        f'd="{"".join(parts)}"/>'
        for level, parts in sorted(paths.items())
    ]


def _width(name: str, most: int = _MAX_NAME, letter: float = 8) -> float:
    """Return the approximate maximum width of a name; letters of some scripts are twice as wide."""
    return sum(letter + 7 * (east_asian_width(one) in "WF") for one in _cut(name, most))


def scatter_chart(dots: Sequence[tuple[str, float, float]], *, name: str) -> str:
    """Return dots (name, x, y) on two axes of the same scale, each labelled where no earlier label is.

    A dot without room for a label has its name only as a title.
    """
    _, xs, ys = zip(*dots, strict=True)
    left, top = min(xs), max(ys)
    width, height = max(max(xs) - left, 1e-12), max(top - min(ys), 1e-12)
    scale = min((_WIDTH - 2 * _RIGHT) / width, 2 * _WIDTH / height)
    places = [(_RIGHT + scale * (x - left), 2 * _TOP + scale * (top - y)) for x, y in zip(xs, ys, strict=True)]
    bottom = max(y for _, y in places) + 2 * _TOP
    parts, taken = list[str](), list[tuple[float, float, float]]()
    for number, ((word, *_), (x, y)) in enumerate(zip(dots, places, strict=True)):
        title, length, style = f"<title>{escape(word)}</title>", _width(word), colour(number)
        parts.append(f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="4">{title}</circle>')
        right, left, middle = x + 7, x - 7 - length, x - length / 2
        sides = ((start, base) for base in (y - 8, y + 17) for start in (middle, right, left))
        for start, base in ((right, y + 4), (left, y + 4), *sides):
            is_free = all(
                start >= end or begin >= start + length or abs(base - other) >= _LINE for begin, end, other in taken
            )
            if is_free and 0 <= start <= _WIDTH - length:
                taken.append((start, start + length, base))
                parts.append(_text(start, base, _cut(word), "start", f"name {style}"))
                break
    return _svg(parts, bottom, name)


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers that enclose low and high, ascending.

    If no value is negative, no tick is; if all are fractions, so are the ticks.
    """
    if high - low <= 1e-9 * max(abs(low), abs(high), 1.0):
        margin = abs(high) / 5 if abs(high) > 1e-9 else 0.5
        least, most = 0.0 if low >= 0.0 else -math.inf, 1.0 if 0.0 <= low <= high <= 1.0 else math.inf
        low, high = max(least, low - margin), min(most, high + margin)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * number, 12) for number in range(first, last + 1)]


def _apart(ends: list[tuple[float, str, str]], bottom: float) -> list[tuple[float, str, str]]:
    """Move labels down where they would overlap, and back up where that would push them below the bottom."""
    placed: list[tuple[float, str, str]] = []
    for place, name, style in sorted(ends):
        placed.append((max(place, placed[-1][0] + _GAP) if placed else place, name, style))
    limit, raised = bottom, []
    for place, name, style in reversed(placed):
        raised.append((min(place, limit), name, style))
        limit = raised[-1][0] - _GAP
    return raised[::-1]


def _cut(name: str, most: int = _MAX_NAME) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _figure(value: float, as_percent: bool, *, exact: bool = False) -> str:
    if as_percent:
        return f"{value:.1%}" if exact else f"{100 * value:.3g}%"
    if exact:
        return f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.3g}"
    return f"{Decimal(f'{value:.10g}'):,f}"


def _stroke(style: str, start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line class="{style}" x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, style: str = "tick") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: list[str], height: float, name: str, width: float = _WIDTH, more: str = "") -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(name)}" {more}>\n{body}\n</svg>'


def write_html(page: Path, template: str, content: dict[str, Any]) -> None:
    """Fill in a template of this package and write the page; values are escaped unless marked as safe."""
    environment = Environment(loader=PackageLoader("maskloom", "."), autoescape=True, undefined=StrictUndefined)
    environment.globals["number_columns"] = number_columns
    html = environment.get_template(template).render(content)
    with output_file(page, "w") as file:
        file.write(html)


def number_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return which columns of a table after the first contain only numbers or dashes."""
    columns = list(zip(*rows, strict=True))
    return [place for place, cells in enumerate(columns) if place and all(map(_NUMBER.match, cells))]


def visible(text: object) -> str:
    """Return a text with control characters, surrogates and bidirectional controls escaped."""
    return printable(str(text), keep="\n\t")


def distinct_names(names: Iterable[tuple[str, str]]) -> list[str]:
    """Return a short name for each (folder, parent): the folder's, with its parent or a number where two are equal."""
    pairs = list(names)
    short = [name for name, _ in pairs]
    wanted = [name if short.count(name) == 1 else f"{parent}/{name}" for name, parent in pairs]
    return [
        visible(name if wanted.count(name) == 1 else f"{name} ({wanted[: place + 1].count(name)})")
        for place, name in enumerate(wanted)
    ]
