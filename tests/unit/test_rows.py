from typing import get_args

import maskloom
from maskloom import rows
from maskloom.rows import Rows, SizeName, TaskName, on_change


def test_a_listener_hears_of_a_table_that_was_there_before_it_and_of_every_change(monkeypatch):
    for name in ("_NAMES", "_TABLES", "_LISTENERS"):
        monkeypatch.setattr(rows, name, {"task": ["a"]} if name == "_NAMES" else {})
    heard = []
    table = Rows("task", {"a": 1})
    on_change("task", lambda found: heard.append(dict(found)))
    table["b"] = 2
    table["a"] = 3
    del table["b"]
    assert heard == [{"a": 1}, {"a": 1, "b": 2}, {"a": 3, "b": 2}, {"a": 3}]
    assert rows._NAMES["task"] == ["a"]


def test_the_functions_of_the_package_name_the_same_sizes_and_tasks_as_its_commands():
    for function, name, names in ((maskloom.pretrain, "size", SizeName), (maskloom.finetune, "task", TaskName)):
        assert function.__annotations__[name] == f"Literal{[*get_args(names)]} | None"
