"""Write the pages of `maskloom reproduce` in results/ again, from their stored figures and with today's code.

    python tools/experiment_pages.py [NAME ...]

Nothing is measured. A page keeps the machine that it names. Without names, all pages are written.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock, patch

import torch

from maskloom.cli.training import AT_ONCE, ExperimentName
from maskloom.reproduce import layer_costs, recurrent, who_sees_whom
from maskloom.reproduce.results import write_results

RESULTS = Path(__file__).resolve().parents[1] / "results"
# "budget_sizes" has the experiment "budget" on another machine.
NAMES = tuple(name for name in (*get_args(ExperimentName), "budget_sizes") if (RESULTS / f"{name}.json").exists())
ENDINGS = ("json", "md", "html")


def rendered(name: str) -> dict[str, str]:
    """Return the files of an experiment by their endings, as today's code writes them from its stored figures."""
    content, page = (_stored(name, ending) for ending in ("json", "md"))
    found: dict[str, Any] = json.loads(content)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        if name in AT_ONCE:
            with patch("maskloom.reproduce.results._machine", return_value=_machine(page, "Measured on")):
                _write_at_once(name, found, out)
            files = dict.fromkeys(ENDINGS, name)
        else:
            found.setdefault("machine", _machine(page, "minutes on"))
            # where the inputs lay says nothing to a reader
            found |= {key: Path(found[key]).name for key in ("corpus", "tasks") if found.get(key)}
            if "beside" in found:
                found["beside"] = {name: Path(place).name for name, place in found["beside"].items()}
            write_results(found, out)
            files = dict(zip(ENDINGS, ("results", "table", "report"), strict=True))
        return {ending: (out / f"{file}.{ending}").read_text(encoding="utf-8") for ending, file in files.items()}


def _stored(name: str, ending: str) -> str:
    return (RESULTS / f"{name}.{ending}").read_text(encoding="utf-8")


def _machine(page: str, before: str) -> str:
    """Return the machine that a page names at the end of its description."""
    return re.findall(rf"\b{before} (.+)\.$", page, re.MULTILINE)[0]


def _write_at_once(name: str, found: dict[str, Any], out: Path) -> None:
    """Write the page of an experiment that measures and writes at once, with stored figures for its measurements."""
    if name == "figure1":
        with _stored_figures(who_sees_whom, dependence=map(torch.tensor, found.values())):
            who_sees_whom.figure_1(out)
    elif name == "transformer-table1":
        rows = found["layers"].values()
        paths = [number for row in rows for number in row["paths"]]
        with _stored_figures(layer_costs, timings=[None] * len(rows), cost=rows, num_layers_between_ends=paths):
            layer_costs.transformer_table_1(out)
    elif name == "rnn-gradients":
        accuracies = [(None, accuracy) for row in found["accuracies"].values() for accuracy in row.values()]
        how = {"gradient_norms": found["norms"].values(), "exploding_losses": found["clipped"].values()}
        gates = [{gate: _numbered(row) for gate, row in gates.items()} for gates in found["gates"].values()]
        with _stored_figures(recurrent, **how, first_token_network=accuracies, gate_shares=gates):
            recurrent.rnn_gradients(out)
    else:
        pairs = [(_numbered(row), found["attention"].get(reader)) for reader, row in found["accuracies"].items()]
        with _stored_figures(recurrent, reversal_accuracy=pairs):
            recurrent.rnn_attention(out)


def _stored_figures(module: Any, **figures: Iterable[Any]) -> Any:
    """Replace functions of a module by ones that return stored figures in order."""
    return patch.multiple(module, **{name: Mock(side_effect=[*row]) for name, row in figures.items()})


def _numbered(row: dict[str, float]) -> dict[float, float]:
    """Return a stored row with its keys as numbers, which JSON has as text."""
    return {float(key) if "." in key else int(key): value for key, value in row.items()}


def main(names: list[str]) -> None:
    """Write the files of the named experiments."""
    if unknown := [name for name in names if name not in NAMES]:
        raise SystemExit(f"{unknown[0]}: no such page; known: {', '.join(NAMES)}")
    for name in names or NAMES:
        for ending, text in rendered(name).items():
            (RESULTS / f"{name}.{ending}").write_text(text, encoding="utf-8")
        print(f"written: {RESULTS / name}.json, .md and .html")


if __name__ == "__main__":
    main(sys.argv[1:])
