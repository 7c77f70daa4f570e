from pathlib import Path

import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.quickstart.journey import Stages, quickstart


def test_a_finished_stage_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "job" / "stages.json"
    assert Stages(path, {"seed": 1}).run("first", lambda: {"figure": 3.5}) == {"figure": 3.5}
    again = Stages(path, {"seed": 1})
    assert again.run("first", lambda: pytest.fail("done twice")) == {"figure": 3.5}
    assert again.seconds["first"] >= 0


def test_a_stage_that_failed_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "stages.json"

    def fail() -> dict[str, int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stages(path, {}).run("first", fail)
    assert Stages(path, {}).run("first", lambda: {"done": True}) == {"done": True}


def test_other_settings_are_refused(tmp_path: Path) -> None:
    Stages(tmp_path / "stages.json", {"seed": 1})
    with pytest.raises(ConfigError, match=r"was started with seed 1, this is seed 2; choose another --out"):
        Stages(tmp_path / "stages.json", {"seed": 2, "tasks": None, "recipes": "b2"})
    with pytest.raises(ConfigError, match=r"was started by another version of maskloom, whose recipes differ; choose"):
        Stages(tmp_path / "stages.json", {"seed": 1, "recipes": "b2"})


def test_tuples_among_the_settings_are_those_that_were_stored(tmp_path: Path) -> None:
    """Regression: an experiment with `overrides` in a tuple could not be resumed."""
    Stages(tmp_path / "stages.json", {"overrides": {"pretrain": ("training.steps=5",)}})
    Stages(tmp_path / "stages.json", {"overrides": {"pretrain": ("training.steps=5",)}})


def test_a_missing_device_is_an_error_before_the_first_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASKLOOM_DEVICE", "cuda:99")
    with pytest.raises(ConfigError, match="device 'cuda:99'"):
        quickstart(out=tmp_path / "out")
    assert not (tmp_path / "out" / "stages.json").exists()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "stages.json").write_text("{}")
    with pytest.raises(DataError, match=r"stages\.json: lacks settings, results or seconds"):
        Stages(tmp_path / "stages.json", {})


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match="contains something else"):
        Stages(tmp_path / "stages.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
