"""The table of docs/ELMO.md: decreases of errors follow from its scores."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "ELMO.md"


def test_relative_decreases_follow_from_the_scores():
    rows = re.findall(r"^\| .+ \| ([\d.]+) \| ([\d.]+) \| ([\d.]+)% \|$", PAGE.read_text("utf-8"), re.M)
    assert len(rows) == 6
    for baseline, with_elmo, told in rows:
        decrease = 100 * (float(with_elmo) - float(baseline)) / (100 - float(baseline))
        digits = len(told.partition(".")[2])
        assert f"{decrease:.{digits}f}" == told
