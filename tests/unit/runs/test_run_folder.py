import pytest

from maskloom.config import ConfigError, PretrainRecipe, load_recipe
from maskloom.runs.run_folder import prepare_run_folder, stored_recipe


def test_a_run_folder_is_created_once(tmp_path) -> None:
    out = tmp_path / "run"
    recipe = PretrainRecipe(seed=3)
    assert prepare_run_folder(out, recipe, inputs={"corpus": "a"}, resume=False) is False
    assert stored_recipe(PretrainRecipe, out) == recipe
    with pytest.raises(ConfigError, match="already holds a run"):
        prepare_run_folder(out, recipe, inputs={"corpus": "a"}, resume=False)
    assert prepare_run_folder(out, recipe, inputs={"corpus": "a"}, resume=True) is True


def test_resuming_names_what_changed(tmp_path) -> None:
    out = tmp_path / "run"
    prepare_run_folder(out, PretrainRecipe(), inputs={"corpus": "a"}, resume=False)
    other = load_recipe(PretrainRecipe, None, ["data.max_length=64"])
    with pytest.raises(ConfigError, match=r"data\.max_length was 128, is 64"):
        prepare_run_folder(out, other, inputs={"corpus": "a"}, resume=True)
    with pytest.raises(ConfigError, match="corpus 'a', this one is 'b'"):
        prepare_run_folder(out, PretrainRecipe(), inputs={"corpus": "b"}, resume=True)


def test_a_folder_with_other_files_is_refused(tmp_path) -> None:
    (tmp_path / "letter.txt").write_text("x")
    with pytest.raises(ConfigError, match="not a run folder"):
        prepare_run_folder(tmp_path, PretrainRecipe(), inputs={}, resume=False)
    with pytest.raises(ConfigError, match="not a run folder"):
        prepare_run_folder(tmp_path / "letter.txt", PretrainRecipe(), inputs={}, resume=False)
