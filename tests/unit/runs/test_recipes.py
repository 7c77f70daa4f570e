"""The recipe reference is generated from the program and stays current."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from maskloom.cli import app
from maskloom.errors import ConfigError
from maskloom.recipe_files import SHIPPED, shipped_recipes
from maskloom.runs.recipes import explained, explained_lines, listed_recipes
from tools.recipe_reference import reference


def test_the_page_is_what_the_program_says():
    page = Path(__file__).parents[3] / "docs" / "RECIPES.md"
    assert page.read_text(encoding="utf-8") == reference(), "run python tools/recipe_reference.py"


def test_every_shipped_recipe_says_what_it_is():
    assert set(listed_recipes()) == set(shipped_recipes())
    assert all(about.endswith(".") and len(about) > 30 for about in listed_recipes().values())


def test_a_recipe_is_explained_key_by_key(tmp_path):
    content = explained("squad-v1")
    keys = {key["path"]: key for key in content["keys"]}
    assert keys["data.max_length"]["value"] == 384
    assert keys["data.max_length"]["default"] == 128
    assert keys["data.max_length"]["is_set"]
    assert not keys["training.log_every"]["is_set"]
    lines = explained_lines(content)
    assert lines[0] == str(SHIPPED / "squad-v1.toml")
    (line,) = [line for line in lines if "data.max_length" in line]
    assert line.startswith("* data.max_length = 384 ")
    assert "(default 128)" in line
    own = tmp_path / "own.toml"
    own.write_text('# Mine.\nkind = "pretrain"\n[model.config]\nhidden_size = 8\n', encoding="utf-8")
    keys = {key["path"]: key for key in explained(str(own))["keys"]}
    assert keys["model.config"]["value"] == {"hidden_size": 8}
    own.write_text('kind = "pretrain"\ncolour = 3\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="unknown key 'colour'"):
        explained(str(own))


def test_tables_of_a_list_are_explained_one_by_one():
    content = explained("bert-base-as-published")
    keys = {key["path"]: key for key in content["keys"]}
    assert [keys[f"phases.{number}.max_length"]["value"] for number in (0, 1)] == [128, 512]
    assert keys["phases.1.steps"]["is_set"]
    assert not keys["phases.1.batch_size"]["is_set"]
    places = [line.split()[1] for line in explained_lines(content) if line.startswith("* phases")]
    assert places == ["phases.0.max_length", "phases.0.steps", "phases.1.max_length", "phases.1.steps"]
    assert "phases.N.steps" not in keys
    assert "training.extensions.N.at" in keys


def test_the_commands_list_and_show():
    result = CliRunner().invoke(app, ["recipes"])
    assert result.exit_code == 0
    assert "squad-v1 " in result.output
    shown = CliRunner().invoke(app, ["recipes", "show", "pretrain", "--json"])
    assert {key["path"]: key["value"] for key in json.loads(shown.output)["keys"]}["training.steps"] == 10_000
    listed = CliRunner().invoke(app, ["recipes", "--json"])
    assert set(json.loads(listed.output)) == set(shipped_recipes())
