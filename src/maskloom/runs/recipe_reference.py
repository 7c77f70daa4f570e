"""Recipes explained: every key with its value, default and meaning, on a terminal and as docs/RECIPES.md."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.recipe_files import RecipeKey, recipe_keys, recipe_path, shipped_recipes

KINDS: dict[str, type[PretrainRecipe | FinetuneRecipe]] = {"pretrain": PretrainRecipe, "finetune": FinetuneRecipe}


def listed_recipes() -> dict[str, str]:
    """Return the shipped recipes by name with the first sentence of what each says of itself."""
    return {name: _first_sentence(_comment(path)) for name, path in shipped_recipes().items()}


def explained(name: str) -> dict[str, Any]:
    """Return what a recipe says of itself and all of its keys: of a shipped one, a file, or a kind with its defaults.

    Raises ConfigError when there is no such recipe, and for a file that is none.
    """
    if name in KINDS:
        return {"recipe": name, "about": f"The defaults of maskloom {name}.", "keys": _keys(KINDS[name], {})}
    path = recipe_path(name)
    values = _flat(tomllib.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    kind = KINDS.get(values.get("kind", "finetune"), FinetuneRecipe)
    load_recipe(kind, path)
    return {"recipe": str(path), "about": _comment(path), "keys": _keys(kind, values)}


def explained_lines(content: dict[str, Any]) -> list[str]:
    """Return what `explained` tells, for a terminal: keys by section, what a recipe sets marked by an asterisk.

    Sections of other kinds of task, which nothing reads, are left out.
    """
    task = next((key["value"] for key in content["keys"] if key["path"] == "task" and key["is_set"]), None)
    unread = {"span", "tagging", "features"} - {task} - ({"features"} if task == "tagging" else set())
    keys = [key for key in content["keys"] if task is None or key["path"].partition(".")[0] not in unread]
    width = max(len(f"{key['path']} = {_text(key['value'])}") for key in keys)
    lines = [content["recipe"], "", content["about"]]
    section = "none"
    for key in keys:
        if key["path"].rpartition(".")[0] != section:
            section = key["path"].rpartition(".")[0]
            lines.append("")
        mark = "*" if key["is_set"] else " "
        text = f"{key['path']} = {_text(key['value'])}"
        default = f" (default {_text(key['default'])})" if key["value"] != key["default"] else ""
        lines.append(f"{mark} {text:<{width}}  {key['meaning']}{default}{_choices(key['choices'])}")
    return [*lines, "", "* set by the recipe; any key can be changed with --set KEY=VALUE"]


def reference() -> str:
    """Return docs/RECIPES.md: the shipped recipes, and every key of both kinds."""
    lines = [
        "# Recipes",
        "",
        "Made by tools/recipe_reference.py from the program; `maskloom recipes show NAME` explains one recipe.",
        "A recipe is a TOML file: `--recipe FILE`, or `--recipe NAME` for one of those below. `--set KEY=VALUE`",
        "changes any key, `--set phases.0.steps=100` one in a list of tables. - is a key that is absent.",
        "",
        "## Shipped",
        "",
        "| name | what it is |",
        "|---|---|",
        *(f"| [{name}](../src/maskloom/recipes/{name}.toml) | {about} |" for name, about in listed_recipes().items()),
    ]
    for name, kind in KINDS.items():
        lines += ["", f"## Keys of `maskloom {name}`", "", "| key | default | meaning |", "|---|---|---|"]
        lines += [
            f"| `{key.path}` | {_text(key.default)} | {key.meaning}{_choices(key.choices)} |"
            for key in recipe_keys(kind)
            if key.path != "kind"
        ]
    return "\n".join(lines) + "\n"


def _keys(kind: type[PretrainRecipe | FinetuneRecipe], values: dict[str, Any]) -> list[dict[str, Any]]:
    return [_described(key, values) for key in recipe_keys(kind) if key.path != "kind"]


def _described(key: RecipeKey, values: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": key.path,
        "value": values.get(key.path, key.default),
        "default": key.default,
        "is_set": key.path in values,
        "choices": list(key.choices),
        "meaning": key.meaning,
    }


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        is_section = isinstance(value, dict) and f"{prefix}{name}" != "model.config"
        flat |= _flat(value, f"{prefix}{name}.") if is_section else {f"{prefix}{name}": value}
    return flat


def _text(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _choices(choices: Any) -> str:
    return f" One of {', '.join(map(str, choices))}." if len(choices) > 1 else ""


def _comment(path: Path) -> str:
    """Return the comment that a recipe begins with."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    joined = " ".join(text.partition("\n\n")[0].split())
    end = re.search(r"(?<!et al)\.( [A-Z]|$)", joined)
    return joined if end is None else joined[: end.start() + 1]
