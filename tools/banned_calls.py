"""Fail for a call that can run code from a file: `python tools/banned_calls.py src tools benchmarks`.

Ruff's rules find most of them when the full name is used; this also finds them as methods and under an alias of the
module, and checks `numpy.load` with pickles. A line that ends with `# may run code: REASON` is accepted.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

# Functions by the end of their dotted name, and the reason for the ban.
BANNED = {
    "eval": "runs text as code",
    "exec": "runs text as code",
    "pickle.load": "a pickle is code",
    "pickle.loads": "a pickle is code",
    "pickle.Unpickler": "a pickle is code",
    "cPickle.load": "a pickle is code",
    "dill.load": "a pickle is code",
    "dill.loads": "a pickle is code",
    "cloudpickle.load": "a pickle is code",
    "cloudpickle.loads": "a pickle is code",
    "joblib.load": "a pickle is code",
    "marshal.load": "holds code",
    "marshal.loads": "holds code",
    "shelve.open": "holds pickles",
    "pandas.read_pickle": "a pickle is code",
    "torch.load": "reads pickles",
    "torch.export.load": "reads pickles",
    "torch.jit.load": "holds a program",
    "torch.hub.load": "runs code from the network",
    "torch.package.PackageImporter": "holds code",
    "yaml.load": "builds any object",
    "yaml.unsafe_load": "builds any object",
    "extractall": "writes wherever an archive says",
    "os.system": "runs a shell",
    "os.popen": "runs a shell",
}
_PASS = "# may run code: "


def problems_of(text: str, name: str) -> list[str]:
    """Return one line for every banned call or base class in a module."""
    tree = ast.parse(text)
    lines, aliases, found = text.splitlines(), _aliases(tree), []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) and not isinstance(node, ast.ClassDef):
            continue
        used = [node.func] if isinstance(node, ast.Call) else node.bases
        for function in used:
            dotted = _dotted(function, aliases)
            reason = next((why for ban, why in BANNED.items() if dotted == ban or _is_method(dotted, ban)), None)
            if isinstance(node, ast.Call):
                reason = reason or _reason_of_arguments(dotted, node)
            if reason is not None and _PASS not in lines[node.lineno - 1]:
                found.append(f"{name}:{node.lineno}: {dotted}: {reason}")
    return found


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Return the full dotted names behind the names that imports bind."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(aliases.get(node.id, node.id) if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


def _is_method(dotted: str, ban: str) -> bool:
    """Tell whether a banned name without a module, except a builtin, is called as a method."""
    return "." not in ban and ban not in ("eval", "exec") and dotted.endswith(f".{ban}")


def _reason_of_arguments(dotted: str, call: ast.Call) -> str | None:
    given = {argument.arg: argument.value for argument in call.keywords}

    def is_true(name: str) -> bool:
        value = given.get(name)
        return value is not None and not (isinstance(value, ast.Constant) and not value.value)

    if is_true("allow_pickle"):
        return "reads pickles with allow_pickle"
    if is_true("shell"):
        return "runs a shell"
    return "runs code that comes with a model" if is_true("trust_remote_code") else None


def main() -> int:
    """Check the folders named on the command line; return the exit code."""
    paths = sorted(path for folder in sys.argv[1:] for path in Path(folder).rglob("*.py"))
    problems = [line for path in paths for line in problems_of(path.read_text(encoding="utf-8"), str(path))]
    print("\n".join(problems) or f"{len(paths)} modules call nothing that runs code from files")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
