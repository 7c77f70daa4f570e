"""Model cards: a README.md beside the weights that says what they are and how they came to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskloom.config import PretrainRecipe, Section, recipe_toml
from maskloom.files import write_text


def write_pretraining_card(folder: Path, recipe: PretrainRecipe, metrics: dict[str, Any]) -> None:
    """Write the card of a pre-trained model: its held-out metrics and its recipe."""
    heads = "masked-LM and next-sentence heads" if recipe.data.next_sentence else "a masked-LM head"
    write_card(folder, "Pre-trained BERT", f"A BERT ({recipe.model.size}) with {heads}.", recipe, metrics)


def write_card(folder: Path, title: str, summary: str, recipe: Section, metrics: dict[str, Any]) -> None:
    """Write README.md into a model folder: title, summary, metrics as measured, recipe."""
    rows = "\n".join(f"| {name} | {value:.6g} |" for name, value in metrics.items() if isinstance(value, int | float))
    text = (
        f"---\nlibrary_name: transformers\ntags: [maskloom, bert]\n---\n\n# {title}\n\n{summary}\n\n"
        f"Trained with maskloom; opens with `maskloom.load(folder)` and with transformers.\n\n"
        f"| metric | value |\n|---|---|\n{rows}\n\n```toml\n{recipe_toml(recipe)}```\n"
    )
    write_text(folder / "README.md", text)
