"""A context with its choices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChoiceExample:
    """One record: the first text, what the second text begins with, the choices that end it, and the right one.

    `stem` is empty where choices stand by themselves; `label` counts choices from 0 and is None where the file has
    none. `identifier` is the record's own name, if it has one.
    """

    context: str
    stem: str
    choices: tuple[str, ...]
    label: int | None
    line: int
    identifier: str | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """Return the two texts of each choice, as a model reads them."""
        return [(self.context, f"{self.stem} {choice}" if self.stem else choice) for choice in self.choices]

    def inputs(self) -> tuple[str, str, tuple[str, ...]]:
        """Return what a model sees of the example."""
        return self.context, self.stem, self.choices

    def as_row(self) -> dict[str, str]:
        """Return the texts as a row of predictions shows them."""
        row = {"context": self.context} | ({"stem": self.stem} if self.stem else {})
        if self.identifier is not None:
            row = {"id": self.identifier} | row
        return row | {f"choice{number}": choice for number, choice in enumerate(self.choices)}
