"""Results as lines that a person reads."""

from __future__ import annotations

from typing import Any


def lines_of(result: dict[str, Any], indent: str = "") -> list[str]:
    """Return one aligned line for each key; nested results are indented, long lists are shown by their length."""
    width = max((len(key) for key in result), default=0)
    lines = []
    for key, value in result.items():
        name = key.replace("_", " ")
        if isinstance(value, dict):
            lines += [f"{indent}{name}:", *lines_of(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name:<{width}}  {_text(value)}")
    return lines


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        if len(value) > 12:
            return f"{len(value)} entries"
        return ", ".join(_text(item) for item in value)
    return str(value)
