from maskloom.training.events import EventLog, read_events


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


def test_a_line_cut_short_is_passed_over(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "step", "step": 1}\n{"event": "st', encoding="utf-8")
    assert len(read_events(path)) == 1
