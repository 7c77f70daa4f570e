from typing import get_args

import pytest

import maskloom
from maskloom import rows
from maskloom.rows import Rows, SizeName, names_of
from maskloom.training.settings import TrainingSection


def test_a_listener_hears_of_a_table_as_it_is_and_of_every_change(monkeypatch):
    monkeypatch.setattr(rows, "_TABLES", {})
    heard = []
    table = Rows("task", {"a": 1})
    table.on_change(lambda found: heard.append(dict(found)))
    table["b"] = 2
    table["a"] = 3
    del table["b"]
    assert heard == [{"a": 1}, {"a": 1, "b": 2}, {"a": 3, "b": 2}, {"a": 3}]
    assert names_of("task") == ["a"]


@pytest.fixture
def module_of_a_table(monkeypatch, tmp_path):
    """Define the table of schedules in a module that is not imported yet and whose literal has an extra row."""
    monkeypatch.setattr(rows, "_TABLES", {})
    (tmp_path / "toy_schedules.py").write_text(
        'from maskloom.rows import Rows\nROWS = Rows("training.schedule", {"linear": 1, "stairs": 2})\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(rows._MODULES, "training.schedule", "toy_schedules")


def test_a_row_in_the_literal_of_a_table_is_known_before_its_module_is_imported(module_of_a_table):
    assert TrainingSection(schedule="linear").schedule == "linear"
    assert rows._TABLES == {}  # the usual names need no import
    assert TrainingSection(schedule="stairs").schedule == "stairs"
    assert names_of("training.schedule") == ["linear", "stairs"]
    with pytest.raises(ValueError, match="expected 'linear', 'stairs'"):
        TrainingSection(schedule="cosine")


def test_the_usual_names_are_those_of_the_tables():
    for key, names in rows._USUAL.items():
        assert set(names) <= set(names_of(key)), key


def test_the_functions_of_the_package_name_the_same_sizes_as_its_commands():
    assert maskloom.pretrain.__annotations__["size"] == f"Literal{[*get_args(SizeName)]} | None"
