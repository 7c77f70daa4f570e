import pytest

from maskloom.runs import progress
from maskloom.runs.progress import LineProgress


def test_plain_lines_come_at_most_once_a_minute(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    shown = LineProgress()
    shown.begin("embedding \x1b[2J", 600)
    for done in range(1, 601):
        clock[0] += 1.0
        shown.advance(done, loss=0.5)
    shown.end()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == r"embedding \x1b[2J"
    assert lines[1:] == [rf"embedding \x1b[2J: {done}/600  loss 0.5" for done in range(60, 601, 60)]
    shown.begin("short", 5)
    clock[0] += 30.0
    shown.advance(5)
    assert capsys.readouterr().err == "short\n"
    shown.begin("resumed", 9, 4)
    shown.begin("by the clock", 0, 4)
    assert capsys.readouterr().err == "resumed: continuing at 4 of 9\nby the clock: continuing at 4\n"
