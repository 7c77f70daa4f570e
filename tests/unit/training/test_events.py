import errno
import json
import os

import pytest

from maskloom.training import events
from maskloom.training.events import EventLog, read_events
from tools.faults.fault_rules import arm


def test_events_are_appended_and_read_back(tmp_path) -> None:
    path = tmp_path / "run" / "events.jsonl"
    with EventLog(path) as log:
        log.write("step", stage="a", step=1, loss=float("nan"), losses={"mlm": 2.0})
    with EventLog(path) as log:
        log.write("step", stage="a", step=2, loss=1.0)
    events = read_events(path)
    assert [event["step"] for event in events] == [1, 2]
    assert events[0]["loss"] is None
    assert events[0]["losses"] == {"mlm": 2.0}


def test_a_resumed_log_holds_each_step_once(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for step in range(1, 6):
            log.write("step", stage="b", step=step)
        log.write("step", stage="a", step=9)
        log.forget_after("b", 3)
        log.write("step", stage="b", step=4)
    assert [(e["stage"], e["step"]) for e in read_events(path)] == [("b", 1), ("b", 2), ("b", 3), ("a", 9), ("b", 4)]


def test_an_evaluation_that_is_repeated_is_logged_once(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for stage in ("a", "b"):
            log.write("evaluation", stage=stage, step=2, metrics={})
        log.write("step", stage="b", step=2)
        log.forget_after("b", 2)
        assert len(read_events(path)) == 3
        log.forget_after("b", 2, evaluates=True)
    assert [(e["event"], e["stage"]) for e in read_events(path)] == [("evaluation", "a"), ("step", "b")]


def test_a_line_cut_short_is_skipped(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "step", "step": 1}\n{"event": "st', encoding="utf-8")
    assert len(read_events(path)) == 1


def test_half_a_line_of_a_killed_run_does_not_take_the_next_one_with_it(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "step", "stage": "a", "step": 1}\n{"event": "st', encoding="utf-8")
    with EventLog(path) as log:
        log.write("data", rows=3)
        assert [event["event"] for event in read_events(path)] == ["step", "data"]
        log.forget_after("a", 1)
        log.write("step", stage="a", step=2)
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == [
        "step",
        "data",
        "lost_events",
        "step",
    ]


NO_EVENTS = [
    *(b"[]", b"3", b"null", b'"step"', b"{}", b'{"event": 1}', b'{"event": "step", "step": "2", "stage": "a"}'),
    *(b'{"event": "step", "step": 2, "stage": []}', b"", b'{"event": "st', b"\xff\xfe", b"[" * 100_000, b"1" * 5_000),
]


@pytest.mark.parametrize("line", NO_EVENTS, ids=lambda line: str(line[:20]))
def test_lines_that_are_no_events_are_skipped_and_dropped_with_their_number(tmp_path, line) -> None:
    path = tmp_path / "events.jsonl"
    events = [b'{"event": "step", "stage": "a", "step": %d}' % step for step in (1, 2)]
    path.write_bytes(b"\n".join([events[0], line, line, events[1]]) + b"\n")
    assert [event["step"] for event in read_events(path)] == [1, 2]
    with EventLog(path) as log:
        log.forget_after("a", 1)
        log.write("step", stage="a", step=2)
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(event["event"], event.get("number")) for event in written] == [
        ("step", None),
        ("lost_events", 2),
        ("step", None),
    ]


def test_what_went_wrong_is_never_forgotten(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for step in (1, 2):
            log.write("step", stage="a", step=step)
        log.write("nonfinite", stage="a", step=3, loss=float("inf"))
        log.write("evaluation", stage="a", step=2)
        log.forget_after("a", 1)
    assert [(e["event"], e["step"]) for e in read_events(path)] == [("step", 1), ("nonfinite", 3)]


def test_a_full_disk_ends_no_run_and_what_it_took_is_counted(tmp_path, monkeypatch) -> None:
    path = tmp_path / "events.jsonl"
    is_full = True

    def full(name: str) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with EventLog(path) as log:
        monkeypatch.setattr(events, "fault_point", full)
        log.write("step", step=1)
        log.write("step", step=2)
        is_full = False
        log.write("step", step=3)
    assert read_events(path) == [{"event": "lost_events", "number": 2}, {"event": "step", "step": 3}]


def test_a_full_disk_leaves_the_log_as_it_was_when_steps_should_be_forgotten(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write("step", stage="a", step=2)
    arm("enospc@files.write#1")
    try:
        with pytest.raises(OSError, match="No space left on device"), EventLog(path) as log:
            log.forget_after("a", 1)
    finally:
        arm()
    assert read_events(path) == [{"event": "step", "stage": "a", "step": 2}]


def test_a_line_that_was_written_in_part_is_ended(tmp_path, monkeypatch) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        file = log._file

        class Half:
            def write(self, line: bytes) -> int:
                return file.write(line[: len(line) // 2]) or 0

        monkeypatch.setattr(log, "_file", Half())
        log.write("step", step=1)
        monkeypatch.setattr(log, "_file", file)
        log.write("step", step=2)
    assert read_events(path) == [{"event": "lost_events", "number": 1}, {"event": "step", "step": 2}]
