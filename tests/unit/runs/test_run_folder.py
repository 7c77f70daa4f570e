import json
import os
from pathlib import Path

import pytest

from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.errors import ConfigError, DataError
from maskloom.runs import run_folder
from maskloom.runs.run_folder import RECIPE, check_run_folder, prepare_run_folder, run_id
from maskloom.system.folder_lock import folder_lock
from maskloom.system.launch import is_restarted


def test_a_run_folder_is_created_once(tmp_path) -> None:
    out = tmp_path / "run"
    recipe = PretrainRecipe(seed=3)
    assert prepare_run_folder(out, recipe, inputs={"corpus": "a"}, resume=False) is False
    assert load_recipe(PretrainRecipe, out / RECIPE) == recipe
    with pytest.raises(ConfigError, match="already contains a run"):
        prepare_run_folder(out, recipe, inputs={"corpus": "a"}, resume=False)
    assert prepare_run_folder(out, recipe, inputs={"corpus": "a"}, resume=True) is True


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (PretrainRecipe, ["model.word_vectors=v.txt"]),
        (FinetuneRecipe, ["task=tagging", "features.word_vectors=v.txt"]),
        (FinetuneRecipe, ["task=single"]),
    ],
)
def test_word_vectors_are_found_from_another_directory(tmp_path, monkeypatch, kind, changes) -> None:
    monkeypatch.chdir(tmp_path)
    out, given = tmp_path / "run", load_recipe(kind, None, changes)
    prepare_run_folder(out, given, inputs={}, resume=False)
    assert prepare_run_folder(out, given, inputs={}, resume=True) is True
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    again = load_recipe(kind, out / RECIPE)
    named = [section.word_vectors for section in (again.model, getattr(again, "features", None)) if section]
    assert named == [str(tmp_path / "v.txt")] * len(named)
    assert prepare_run_folder(out, again, inputs={}, resume=True) is True
    if named:
        with pytest.raises(ConfigError, match=r"word_vectors was '.*v\.txt', is '.*other.v\.txt'"):
            prepare_run_folder(out, given, inputs={}, resume=True)


def test_resuming_names_what_changed(tmp_path) -> None:
    out = tmp_path / "run"
    prepare_run_folder(out, PretrainRecipe(), inputs={"corpus": "a"}, resume=False)
    other = load_recipe(PretrainRecipe, None, ["data.max_length=64"])
    with pytest.raises(ConfigError, match=r"data\.max_length was 128, is 64"):
        prepare_run_folder(out, other, inputs={"corpus": "a"}, resume=True)
    with pytest.raises(ConfigError, match="corpus 'a', not 'b'"):
        prepare_run_folder(out, PretrainRecipe(), inputs={"corpus": "b"}, resume=True)
    with pytest.raises(ConfigError, match="the run was started without labels; leave it out"):
        prepare_run_folder(out, PretrainRecipe(), inputs={"corpus": "a", "labels": "c"}, resume=True)


def test_resuming_with_other_data_names_the_file_and_shows_no_sum(tmp_path) -> None:
    out, first, second = tmp_path / "run", tmp_path / "a.csv", tmp_path / "b.csv"
    prepare_run_folder(out, PretrainRecipe(), inputs={"train": "a" * 64}, paths={"train": first}, resume=False)
    for path, message in (
        (first, f"train {first} has changed since the start of this run; "),
        (second, f"train {second} is not {first}, which was read at the start of this run; "),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            prepare_run_folder(out, PretrainRecipe(), inputs={"train": "b" * 64}, paths={"train": path}, resume=True)
        assert str(error.value).endswith("use the original, or start another run with a new --out")
        assert "b" * 64 not in str(error.value)


def test_a_run_that_goes_on_with_other_steps_is_no_longer_finished(tmp_path) -> None:
    out, called = tmp_path / "run", []
    phases = "phases=[{max_length=16, steps=3}, {max_length=16, steps=%d}]"
    before, longer = (load_recipe(PretrainRecipe, None, [phases % steps]) for steps in (4, 5))
    prepare_run_folder(out, before, inputs={}, resume=False)
    (out / "metrics.json").write_text("{}")

    def note() -> None:
        called.append(load_recipe(PretrainRecipe, out / RECIPE) == before and (out / "metrics.json").exists())

    go_on = {"inputs": {}, "resume": True, "before_change": note}
    with pytest.raises(ConfigError, match=r"phases\.1\.steps was 4, is 5"):
        prepare_run_folder(out, longer, may_change=["phases.0.steps"], **go_on)
    prepare_run_folder(out, before, may_change=["phases.1.steps"], **go_on)
    assert (called, (out / "metrics.json").exists()) == ([], True)
    prepare_run_folder(out, longer, may_change=["phases.1.steps"], **go_on)
    assert (called, (out / "metrics.json").exists()) == ([True], False)
    assert load_recipe(PretrainRecipe, out / RECIPE) == longer


def test_a_folder_with_other_files_is_refused(tmp_path) -> None:
    (tmp_path / "letter.txt").write_text("x")
    with pytest.raises(ConfigError, match="not a run folder"):
        prepare_run_folder(tmp_path, PretrainRecipe(), inputs={}, resume=False)
    with pytest.raises(ConfigError, match="not a run folder"):
        prepare_run_folder(tmp_path / "letter.txt", PretrainRecipe(), inputs={}, resume=False)


def test_a_run_that_begins_between_two_looks_is_named(tmp_path, monkeypatch) -> None:
    def refuse_if_in_use(out: Path) -> None:
        if (out / "recipe.toml").exists():
            raise ConfigError(f"{out} is in use by PID 7")
        for name in ("run.json", "recipe.toml", "events.jsonl"):
            (out / name).touch()

    monkeypatch.setattr(run_folder, "refuse_if_in_use", refuse_if_in_use)
    with pytest.raises(ConfigError, match="in use by PID 7"):
        check_run_folder(tmp_path, resume=False)


def test_a_run_says_what_it_was_started_with(tmp_path) -> None:
    out, recipe = tmp_path / "run", FinetuneRecipe(seed=5, restarts=3)
    paths = {"model": tmp_path / "a" / ".." / "model"}
    prepare_run_folder(out, recipe, inputs={"model": "sum"}, paths=paths, resume=False)
    found = json.loads((out / "run.json").read_text())
    assert found["seeds"] == [5, 6, 7]
    assert found["paths"] == {"model": str(tmp_path / "model")}
    assert {"maskloom", "python", "torch", "numpy", "tokenizers"} <= found["versions"].keys()
    assert {"processor", "threads"} <= found["hardware"].keys()
    assert (found["inputs"], found["world_size"]) == ({"model": "sum"}, 1)
    assert run_id(out, "seed-5") == f"{found['id'][:16]}/seed-5"
    other = tmp_path / "other"
    prepare_run_folder(other, recipe, inputs={"model": "sum"}, resume=False)
    assert run_id(other, "seed-5") == run_id(out, "seed-5")
    third = tmp_path / "third"
    prepare_run_folder(third, recipe, inputs={"model": "another"}, resume=False)
    assert run_id(third, "seed-5") != run_id(out, "seed-5")


@pytest.mark.parametrize("left", [["run.json"], [".run.json.99.abc.tmp"], ["run.json", ".recipe.toml.99.abc.tmp"], []])
def test_a_run_that_was_killed_in_its_first_moment_starts_again(tmp_path, left: list[str]) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in left:
        (out / name).write_text("{")
    with folder_lock(out):
        assert prepare_run_folder(out, PretrainRecipe(), inputs={}, resume=True) is False
    assert json.loads((out / "run.json").read_text())["inputs"] == {}


def test_what_killed_processes_were_writing_goes_and_all_else_stays(tmp_path) -> None:
    out = tmp_path / "run"
    prepare_run_folder(out, PretrainRecipe(), inputs={}, resume=False)
    kept, gone = (
        ["model/vocab.txt", "restarts/seed-0/best/x", "a.tmp", "checkpoints/step-00000001.tmp-1/x"],
        [
            "model/.vocab.txt.99.abc.tmp",
            "model/.model.safetensors.tmp-99",
            "restarts/seed-0/.best.tmp-old-99/x",
            "restarts/seed-1/.best.tmp-old-99/x",
            ".metrics.json.99.x.tmp",
            "checkpoints/.phase-1.verify/checkpoints/x",
        ],
    )
    for name in kept + gone:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("")
    assert prepare_run_folder(out, PretrainRecipe(), inputs={}, resume=True) is True
    assert all((out / name).exists() for name in kept)
    assert not any((out / name).exists() for name in gone)
    assert (out / "restarts/seed-1/best/x").exists()  # the kill left neither this nor a new one


@pytest.mark.parametrize("content", ["{", "[]", '{"inputs": 3}', '{"inputs": {}}', None])
def test_a_damaged_description_is_named(tmp_path, content: str | None) -> None:
    out = tmp_path / "run"
    prepare_run_folder(out, PretrainRecipe(), inputs={}, resume=False)
    (out / "run.json").unlink() if content is None else (out / "run.json").write_text(content)
    with pytest.raises(ConfigError, match=r"it needs recipe\.toml and a complete run\.json"):
        prepare_run_folder(out, PretrainRecipe(), inputs={}, resume=True)


def test_names_that_are_not_utf8_are_refused_before_anything_is_written(tmp_path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    (tmp_path / "link").symlink_to(odd)
    out = tmp_path / "run"
    for folder, paths in ((odd / "run", {}), (out, {"train": odd}), (out, {"train": tmp_path / "link"})):
        with pytest.raises(DataError, match=r"caf\\xe9.*: the name is not UTF-8; rename it"):
            prepare_run_folder(folder, PretrainRecipe(), inputs={}, paths=paths, resume=False)
    assert not out.exists()
    assert list(odd.iterdir()) == []


def test_arguments_of_a_script_may_be_anything(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "caf\udce9"])
    prepare_run_folder(tmp_path / "run", PretrainRecipe(), inputs={}, resume=False)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["command"] == ["maskloom", r"caf\xe9"]


def test_whatever_a_launch_left_at_its_start_its_restart_continues(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launch")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    seen = []
    monkeypatch.setattr(run_folder, "write_text", lambda *_: seen.append(is_restarted(tmp_path / "run")))
    prepare_run_folder(tmp_path / "run", PretrainRecipe(), inputs={}, resume=False)
    assert seen == [True]  # before the recipe, which makes it a run that another launch may not continue
