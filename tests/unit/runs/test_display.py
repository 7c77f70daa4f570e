import json
import os
import subprocess
import sys

import pytest

from maskloom.runs import display
from maskloom.runs.corpus import _size
from maskloom.runs.display import (
    LineProgress,
    in_words,
    lines_of,
    printable,
    printable_json,
    screen_of,
    shown_count,
    three_digits,
    wrapped,
)


def test_lines_are_aligned_and_nested() -> None:
    result = {"loss": 1.23456, "num_tokens": 1234567, "nested": {"a": True}, "list": [1, 2], "long": list(range(20))}
    assert lines_of(result) == [
        "loss    1.235",
        "tokens  1,234,567",
        "nested:",
        "  a  true",
        "list    1, 2",
        "long    20 entries",
    ]


def test_large_numbers_are_written_out() -> None:
    assert lines_of({"loss": 12345.6, "size": 9876.6}) == ["loss  12,346", "size  9877"]


def test_no_number_is_written_with_an_exponent() -> None:
    """Regression: 999.6 million tokens were "1e+03 million", 1,234 epochs "1.23e+03", a rate of 9999.9 "1e+04"."""
    assert lines_of({"rate": 9999.9, "other": 9999.4}) == ["rate   10,000", "other  9999"]
    assert [*map(three_digits, (1.0, 99.96, 100.4, 1234.0))] == ["1", "100", "100", "1,234"]
    counted = [*map(shown_count, (12_345, 1_234_567, 999_600_000, 1_280e9))]
    assert counted == ["12,345", "1.23 million", "1,000 million", "1,280 billion"]
    assert [*map(_size, (0, 12_340, 999_600, 2e15))] == ["0 bytes", "12.3 kB", "1,000 kB", "2,000 TB"]


def test_what_is_not_there_has_no_line_and_counts_are_told_from_things() -> None:
    result = {"why_smaller": None, "num_differing": 2, "differing": ["a", "b"], "files": [], "rate": 0.0, "is": False}
    expected = [
        "number of differing  2",
        "differing            a, b",
        "rate                 0",
        "is                   false",
    ]
    assert lines_of(result) == screen_of(result) == expected
    assert lines_of({"num_differing": 0, "differing": []}) == ["differing  0"]


def test_keys_of_a_user_stay_and_a_command_can_be_copied() -> None:
    command = ["maskloom", "pretrain", "--out", "my run", *("--set" for _ in range(30))]
    result = {"most_frequent_tokens": {"_": 3, "a_b": 2}, "command": command, "labels": {"B_X": 1}}
    line = "command               maskloom pretrain --out 'my run'" + " --set" * 30
    assert lines_of(result) == ["most frequent tokens:", "  _    3", "  a_b  2", line, "labels:", "  B_X  1"]
    assert line in screen_of(result)


def test_control_characters_are_shown_and_not_sent() -> None:
    wicked = "a\x1b[31mred\x07\x9b2J\u202eabc\u2028\udcff\n\tä\U0001f600"
    assert printable("\u200f\u061c") == r"\u200f\u061c"
    shown = printable(wicked)
    assert shown == r"a\x1b[31mred\x07\x9b2J\u202eabc\u2028\udcff\n\t" + "ä\U0001f600"
    assert printable("two\nlines\x1b", keep="\n") == "two\nlines" + r"\x1b"
    text = printable_json(json.dumps({"a": wicked}, ensure_ascii=False))
    assert printable(text) == text
    assert json.loads(text) == {"a": wicked}


@pytest.mark.parametrize(("total", "shown"), [(150, "tokens/s"), (1_000_000, "nsp 0.745")])
def test_steps_and_time_left_are_whole_on_a_narrow_terminal(total: int, shown: str, monkeypatch) -> None:
    """Regression: on 80 columns they were "150/…" and "0:00:…"."""
    monkeypatch.setenv("COLUMNS", "80")
    bar = display._Bar()
    bar.begin("phase-2, length 128", total)
    bar.advance(total, mlm=7.71, nsp=0.745, tokens_per_s=23_456.0)
    with bar._bar.console.capture() as seen:
        bar._bar.console.print(bar._bar.get_renderable())
    bar.end()
    line = seen.get().strip()
    assert "\n" not in line
    assert "…" not in line
    assert f"{total}/{total} 0:00:00 left mlm 7.71  nsp 0.745" in line
    assert line.endswith(shown)


def test_a_long_meaning_is_wrapped_below_its_column_on_a_terminal_only(monkeypatch) -> None:
    """Regression: `recipes show` broke words at the edge and went on below the names of keys."""
    command = f"  maskloom finetune{' --set training.steps=10' * 3}"
    lines = ["recipe", "", command, f"  training.steps = 10    {'Optimiser steps. ' * 4}".rstrip()]
    assert wrapped(lines) == lines
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    first, *more = wrapped(lines)[3:]
    assert wrapped(lines)[:3] == lines[:3]
    assert first == "  training.steps = 10    Optimiser steps. Optimiser steps."
    assert more == [f"{'':25}Optimiser steps. Optimiser steps."]


def test_a_screen_holds_any_result() -> None:
    small = {"kind": "model", "parameters": {"encoder": 1234, "all": 1234}}
    assert screen_of({"hardware": {"cores": 2, "cuda": None}}) == ["hardware  cores 2"]
    assert screen_of(small) == ["kind        model", "parameters  encoder 1,234, all 1,234"]
    large = {f"key_{number}": {"path": "x" * 300, "names": list("abc")} for number in range(60)}
    lines = screen_of(large)
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "(--json shows all of it)"


def test_plain_lines_come_after_some_seconds_and_then_once_a_minute(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    clock = [1000.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    shown = LineProgress()
    shown.begin("embedding \x1b[2J", 600)
    for done in range(1, 601):
        clock[0] += 1.0
        shown.advance(done, loss=0.5)
    shown.end()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == r"embedding \x1b[2J"
    assert lines[1:3] == [
        r"embedding \x1b[2J: 6/600, 10 minutes left  loss 0.5",
        r"embedding \x1b[2J: 66/600, 9 minutes left  loss 0.5",
    ]
    assert lines[-1] == r"embedding \x1b[2J: 546/600, 54 seconds left  loss 0.5"
    assert len(lines) == 11
    shown.begin("short", 5)
    shown.advance(1)
    clock[0] += 4.0
    shown.advance(5)
    assert capsys.readouterr().err == "short\n"
    shown.begin("resumed", 9, 4)
    shown.begin("by the clock", 0, 4)
    assert capsys.readouterr().err == "resumed: continuing at 4 of 9\nby the clock: continuing at 4\n"


def test_the_time_left_counts_neither_the_first_step_nor_those_of_an_earlier_process(monkeypatch, capsys) -> None:
    clock = [10.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    shown = LineProgress()
    shown.begin("phase-1", 1000, 100)
    for step, seconds in ((101, 9.0), (102, 2.0), (103, 2.0), (104, 2.0)):
        clock[0] += seconds
        shown.advance(step)
    assert capsys.readouterr().err.splitlines()[1:] == ["phase-1: 104/1000, 30 minutes left"]
    shown.begin("rewound", 9)
    for step in (5, 3):
        clock[0] += 60.0
        shown.advance(step)
    assert capsys.readouterr().err.splitlines()[1:] == ["rewound: 3/9"]


def test_times_are_said_in_words() -> None:
    said = [in_words(seconds) for seconds in (0.2, 1.2, 89.0, 90.0, 5400.0)]
    assert said == ["0 seconds", "1 second", "89 seconds", "2 minutes", "1.5 hours"]


_WORKS_ON = """
from maskloom.runs.display import terminal_progress
shown = terminal_progress()
for stage in ("one", "two"):
    shown.begin(stage, 9)
    input()  # until the reader of standard error is gone
    shown.say("a line")
    shown.advance(9)
    shown.end()
print("done")
"""


@pytest.mark.parametrize("is_terminal", [False, True])
def test_work_goes_on_when_the_terminal_or_the_pipe_is_closed(is_terminal: bool) -> None:
    read, write = os.openpty() if is_terminal else os.pipe()
    command = [sys.executable, "-c", _WORKS_ON]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=write, start_new_session=True) as running:
        os.close(write)
        os.read(read, 1)
        os.close(read)
        assert running.communicate(b"\n\n", timeout=60)[0] == b"done\n"
    assert running.returncode == 0
